//! Wake-ups per message.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::pair;
use crate::pair::{pair, pattern, serve_echo, wait_until};
use apus::{Delivery, Node, Port};

/// Returns when `node` has counted more sleeps of its threads than before: its receiver sleeps, or is about to within one
/// instruction.
fn wait_for_sleep(node: &Node, before: u64) {
    wait_until("a receiver sleeps", || sleeps(node) > before);
}

fn sleeps(node: &Node) -> u64 {
    let delivery = node.stats().delivery;
    delivery.parks + delivery.link_sleeps
}

#[test]
fn a_message_for_a_sleeping_receiver_is_one_wake_up() {
    const CALLS: usize = 2_000;
    // Modes without polling, because a polling thread is awake.
    let modes = ["base", "defer:20", "suspend,poll=0us", "suspend:20", "suspend:0"];
    for delivery in modes.map(|text| text.parse::<Delivery>().unwrap()) {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let client = pair.client_node.client().unwrap();
        let mut slept = 0;
        for _ in 0..CALLS {
            wait_for_sleep(&pair.server_node, slept);
            slept = sleeps(&pair.server_node);
            client.call(pair.address, "x").wait().unwrap();
        }
        let stats = pair.service.stats();
        assert_eq!(stats.messages, CALLS as u64, "{delivery}");
        let ratio = stats.handoffs_per_message().unwrap();
        // Never two wake-ups for one message. Sometimes none, when the message was there before the thread parked.
        assert!(ratio <= 1.0, "{delivery}: {stats:?}");
        assert!(ratio > 0.9, "{delivery}: {stats:?}");
        let stats = client.stats();
        assert!(stats.handoffs <= stats.messages, "{delivery}: {stats:?}");
    }
}

#[test]
fn in_fullbusy_no_message_is_a_wake_up() {
    if pair::needs_plain(pair::COUNTS) {
        return;
    }
    let pair = pair(Delivery::fullbusy());
    serve_echo(&pair.service);
    let client = pair.client_node.client().unwrap();
    for seed in 0..1_000 {
        client.call(pair.address, pattern(seed, 100)).wait().unwrap();
    }
    for stats in [client.stats(), pair.service.stats()] {
        assert_eq!((stats.messages, stats.handoffs), (1_000, 0));
    }
    let node = pair.server_node.stats().delivery;
    assert_eq!((node.messages, node.handoffs, node.wake_ups), (1_000, 0, 0));
}

/// A waker that looks for the message while it is called.
struct Looks {
    service: Port,
    found: Mutex<Vec<bool>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let found = self.service.try_recv().is_ok();
        self.found.lock().unwrap().push(found);
    }
}

/// HomaModule's pull request 84: a receiver was woken, the lock was released, and only then the packet was queued; the receiver
/// found nothing, slept, and was woken again.
#[test]
fn a_woken_thread_finds_the_message_in_its_place_and_the_lock_free() {
    for delivery in [Delivery::base(), Delivery::suspend()] {
        let pair = pair(delivery);
        let looks = Arc::new(Looks { service: pair.service.clone(), found: Mutex::default() });
        let waker = Waker::from(Arc::clone(&looks));
        let client = pair.client_node.client().unwrap();
        for round in 1..=50 {
            let mut receive = pin!(pair.service.recv_async());
            assert!(matches!(
                receive.as_mut().poll(&mut Context::from_waker(&waker)),
                Poll::Pending
            ));
            // The request taken by the waker is dropped unanswered, so the call is given up.
            let call = client.call(pair.address, "x").start().unwrap();
            wait_until("the waker is called", || looks.found.lock().unwrap().len() >= round);
            drop(call);
        }
        assert_eq!(*looks.found.lock().unwrap(), [true; 50], "{delivery}");
        let stats = pair.service.stats();
        assert_eq!((stats.messages, stats.handoffs), (50, 50), "{delivery}");
    }
}

#[test]
fn many_receivers_share_one_wake_up_a_message() {
    const THREADS: usize = 8;
    const CALLS: u64 = 500;
    for delivery in Delivery::ALL {
        if delivery == Delivery::fullbusy() {
            continue; // Eight threads never sleep.
        }
        let pair = pair(delivery);
        let served = Arc::new(AtomicUsize::new(0));
        for _ in 0..THREADS {
            let served = Arc::clone(&served);
            pair::serve(&pair.service, move |request| {
                served.fetch_add(1, Ordering::Relaxed);
                pair::echo(request);
            });
        }
        let client = pair.client_node.client().unwrap();
        for seed in 0..CALLS {
            client.call(pair.address, pattern(seed, 100)).wait().unwrap();
        }
        let stats = pair.service.stats();
        assert_eq!(stats.messages, CALLS, "{delivery}");
        assert!(stats.handoffs <= stats.messages, "{delivery}: {stats:?}");
        assert_eq!(served.load(Ordering::Relaxed) as u64, CALLS);
    }
}
