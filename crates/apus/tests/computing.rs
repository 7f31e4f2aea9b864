//! A server that computes for long inside one call: its other calls make progress.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::pair::{around, pattern, serve, wait_until};
use apus::net::{FaultLink, Faults, UdpConfig, UdpLink};
use apus::{Config, Delivery, Node};

/// A node that loses one in seven of its packets. A message of 64 packets loses some of them; most of its packets need grants.
fn lossy_node(delivery: Delivery, seed: u64) -> Node {
    let link = UdpLink::bind("127.0.0.1:0".parse().unwrap(), &UdpConfig::default()).unwrap();
    let link = FaultLink::new(link, Faults { loss: 0.15, seed, ..Faults::default() }).unwrap();
    let mut config = Config::new();
    config.delivery(delivery).peer_timeout(Duration::from_secs(10));
    config.unscheduled(10_000).unscheduled_max(10_000);
    Node::with_link(Box::new(link), &config).unwrap()
}

#[test]
fn grants_and_retransmissions_go_on_while_the_only_server_thread_computes() {
    for mode in ["suspend", "suspend:20", "napibusy", "base", "defer:20"] {
        let delivery: Delivery = mode.parse().unwrap();
        let pair = around(lossy_node(delivery, 1), lossy_node(delivery, 2));
        let [computing, done] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (began, end) = (Arc::clone(&computing), Arc::clone(&done));
        serve(&pair.service, move |mut request| {
            if request.body() == "compute" {
                began.store(true, Ordering::Release);
                while !end.load(Ordering::Acquire) {
                    hint::spin_loop();
                }
            }
            let body = request.take_body();
            let _ = request.reply(body);
        });
        let suspends = mode.starts_with("suspend");
        let turned_by_threads = || {
            let delivery = pair.server_node.stats().delivery;
            delivery.turns > delivery.background_turns
        };
        // Until then the server's thread does not wait, so it does not mask the background thread.
        wait_until("the server's thread waits", || !suspends || turned_by_threads());
        let client = pair.client_node.client().unwrap();
        let compute = client.call(pair.address, "compute").start().unwrap();
        wait_until("the server's thread computes", || computing.load(Ordering::Acquire));
        let before = pair.server_node.stats();
        let bodies: Vec<_> = (0..4).map(|seed| pattern(seed, 1_000_000)).collect();
        let calls: Vec<_> = bodies
            .iter()
            .map(|body| client.call(pair.address, body.clone()).start().unwrap())
            .collect();
        // All requests arrive while the thread computes; that takes grants, and resends of the lost packets. The thread computes
        // until then, but for 50 ms at least.
        let since = Instant::now();
        let mut stats = pair.server_node.stats();
        wait_until("all requests are there", || {
            stats = pair.server_node.stats();
            stats.delivery.messages >= before.delivery.messages + 4
                && since.elapsed() >= Duration::from_millis(50)
        });
        assert!(stats.delivery.background_turns > before.delivery.background_turns, "{mode}");
        assert!(stats.protocol.grants_sent > before.protocol.grants_sent, "{mode}");
        assert!(stats.protocol.resends_sent > before.protocol.resends_sent, "{mode}");
        assert!(stats.delivery.safety_turns > 0 || !suspends, "{mode}");
        done.store(true, Ordering::Release);
        assert_eq!(compute.wait().unwrap(), "compute");
        for (call, body) in calls.into_iter().zip(bodies) {
            assert!(call.wait().unwrap() == body, "{mode}");
        }
    }
}
