//! Second copies of slow calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use apus_rpc::{Balance, Candidates, Channel, Hedge, Pick};
use futures_lite::future::block_on;

use crate::cluster::{Member, channel, cluster};

/// Chooses the endpoint that a test says.
#[derive(Clone, Default)]
struct Fixed(Arc<AtomicUsize>);

impl Pick for Fixed {
    fn pick(&self, _: Candidates<'_>, _: u64, _: u64) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn wait(channel: &Channel) -> String {
    let call = channel.unary("/a.B/Wait", "").idempotent();
    let response = call.wait().expect("a response");
    String::from_utf8(response.body().to_vec()).expect("a text")
}

/// Lets the handlers of these servers go on.
fn open(members: &[Member]) {
    members.iter().for_each(|member| member.gate.add_permits(1_000_000));
}

#[test]
fn the_copy_of_a_slow_call_answers_and_the_slow_one_is_given_up() {
    let members = cluster(4);
    open(&members[1..]);
    let fixed = Fixed::default();
    let hedge = Hedge::after(Duration::from_millis(1)).at_most(1.0);
    let channel = channel(&members, |it| it.balance(fixed.clone()).hedge(hedge));
    // Copies need a call that has ended.
    fixed.0.store(1, Ordering::SeqCst);
    while members[1].waits() < 20 {
        wait(&channel);
    }
    let before = channel.counters().copies();
    fixed.0.store(0, Ordering::SeqCst);
    for number in 1..=10 {
        let answer = match number % 2 {
            0 => wait(&channel),
            _ => {
                let call = channel.unary("/a.B/Wait", "").idempotent();
                let response = block_on(call.into_future()).expect("a response");
                String::from_utf8(response.body().to_vec()).expect("a text")
            }
        };
        assert_ne!(answer, "0");
    }
    assert_eq!(channel.counters().copies(), before + 10);
    assert!(channel.endpoints().iter().all(|it| it.load == 0 && it.failures == 0));
}

#[test]
fn copies_are_at_most_a_tenth_also_when_all_servers_are_slow() {
    let members = Arc::new(cluster(4));
    let hedge = Hedge::after(Duration::ZERO);
    let channel = channel(&members, |it| it.balance(Balance::RoundRobin).hedge(hedge));
    // The handlers end one after the other, and each call would have a copy.
    let ends = Arc::new(AtomicBool::new(false));
    let releasing = {
        let (members, ends) = (Arc::clone(&members), Arc::clone(&ends));
        thread::spawn(move || {
            let mut released = vec![0; members.len()];
            while !ends.load(Ordering::SeqCst) {
                for (member, released) in members.iter().zip(&mut released) {
                    if member.waits() > *released {
                        *released += 1;
                        member.gate.add_permits(1);
                    }
                }
                thread::yield_now();
            }
        })
    };
    for _ in 0..300 {
        wait(&channel);
    }
    ends.store(true, Ordering::SeqCst);
    releasing.join().expect("no panic");
    let copies = channel.counters().copies();
    assert!((1..=30).contains(&copies), "{copies}");
}

#[test]
fn nothing_is_copied_that_may_be_executed_once_only() {
    let members = cluster(2);
    open(&members);
    let hedge = Hedge::after(Duration::ZERO).at_most(1.0);
    let channel = channel(&members, |it| it.hedge(hedge));
    for _ in 0..50 {
        channel.unary("/a.B/Wait", "").wait().expect("a response");
    }
    assert_eq!(members[0].waits() + members[1].waits(), 50);
    assert_eq!(channel.counters().copies(), 0);
}

#[test]
fn a_copy_goes_on_when_the_first_one_fails() {
    let mut members = cluster(2);
    let fixed = Fixed::default();
    let hedge = Hedge::after(Duration::ZERO).at_most(1.0);
    let channel = channel(&members, |it| it.balance(fixed.clone()).hedge(hedge));
    members[1].gate.add_permits(1);
    fixed.0.store(1, Ordering::SeqCst);
    wait(&channel);
    fixed.0.store(0, Ordering::SeqCst);
    let waiting = channel.clone();
    let call = thread::spawn(move || wait(&waiting));
    while members[0].waits() == 0 || channel.counters().copies() == 0 || members[1].waits() < 2 {
        thread::yield_now();
    }
    // The node of the first server ends.
    let first = members.remove(0);
    first.node.close(Duration::ZERO).expect_err("a handler waits");
    // The copy may answer only when the first one has failed.
    while channel.endpoints()[0].failures == 0 {
        thread::yield_now();
    }
    members[0].gate.add_permits(1);
    assert_eq!(call.join().expect("a response"), "1");
}
