//! The thread that turns the engine; no thread does when there is nothing to do.

mod pair;

use std::thread;
use std::time::{Duration, Instant};

use apus::{Config, Delivery, Node};
use pair::{acquaint, pair, pattern, serve_echo};

/// Upper bound on the turns that a node makes before it rests.
const TURNS_MAX: u64 = 1_000;

/// The number of turns of a node after it has made none for a while.
fn settled_turns(node: &Node) -> u64 {
    let mut turns = node.stats().delivery.turns;
    let limit = turns + TURNS_MAX;
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(50) {
        thread::yield_now();
        let now = node.stats().delivery.turns;
        assert!(now < limit, "the node does not come to rest");
        if now != turns {
            (turns, since) = (now, Instant::now());
        }
    }
    turns
}

#[test]
fn an_idle_node_makes_no_turns() {
    for delivery in Delivery::ALL {
        let node = Node::start(Config::new().delivery(delivery)).unwrap();
        settled_turns(&node);
        assert!(node.stats().delivery.turns <= 2, "{delivery}");
    }
}

#[test]
fn a_used_node_comes_to_rest() {
    for delivery in [Delivery::base(), Delivery::suspend()] {
        let pair = pair(delivery);
        serve_echo(&pair.service);
        let client = pair.client_node.client().unwrap();
        for seed in 0..100 {
            client.call(pair.address, pattern(seed, 1_000)).wait().unwrap();
        }
        // Each call returns once its node makes no turns.
        settled_turns(&pair.client_node);
        settled_turns(&pair.server_node);
    }
}

#[test]
fn in_suspend_a_polling_caller_needs_no_wake_up() {
    if pair::needs_plain(pair::COUNTS) {
        return;
    }
    // The background thread does not take over, however long the machine runs other programs.
    let pair = pair(Delivery::suspend().with_suspend_timeout(Duration::from_secs(10)));
    acquaint(&pair);
    let delivery = || [&pair.client_node, &pair.server_node].map(|node| node.stats().delivery);
    let before = delivery();
    let client = pair.client_node.client().unwrap();
    // Both ends are in one thread: the waiting end turns its engine, and the message is there already.
    for seed in 0..200 {
        let body = pattern(seed, 200);
        let call = client.call(pair.address, body.clone()).start().unwrap();
        let mut request = pair.service.recv().unwrap();
        let answer = request.take_body();
        request.reply(answer).unwrap();
        assert_eq!(call.wait().unwrap(), body);
    }
    for (before, after) in before.into_iter().zip(delivery()) {
        assert_eq!((after.parks, after.wake_ups), (before.parks, before.wake_ups), "{after:?}");
    }
}

#[test]
fn in_base_only_the_background_thread_turns_the_engine() {
    if pair::needs_plain(pair::COUNTS) {
        return;
    }
    let pair = pair(Delivery::base());
    serve_echo(&pair.service);
    let client = pair.client_node.client().unwrap();
    for seed in 0..50 {
        let body = pattern(seed, 200);
        assert_eq!(client.call(pair.address, body.clone()).wait().unwrap(), body);
    }
    let delivery = pair.client_node.stats().delivery;
    assert_eq!(delivery.turns, delivery.background_turns);
    assert_eq!(delivery.link_sleeps, 0);
}

#[test]
fn in_fullbusy_always_polls() {
    let pair = pair(Delivery::fullbusy());
    serve_echo(&pair.service);
    let client = pair.client_node.client().unwrap();
    for seed in 0..50 {
        let body = pattern(seed, 200);
        assert_eq!(client.call(pair.address, body.clone()).wait().unwrap(), body);
    }
    let delivery = pair.client_node.stats().delivery;
    let sleeps = delivery.parks + delivery.link_sleeps + delivery.wake_ups;
    assert_eq!((delivery.background_turns, sleeps), (0, 0));
}

#[test]
fn a_long_request_goes_on_while_its_thread_is_busy() {
    for delivery in [Delivery::base(), Delivery::suspend()] {
        let pair = pair(delivery);
        let client = pair.client_node.client().unwrap();
        let body = pattern(1, 2_000_000);
        let call = client.call(pair.address, body.clone()).start().unwrap();
        // This thread waits only on the other node: the client's background thread takes grants.
        let mut request = pair.service.recv().unwrap();
        assert!(request.take_body() == body);
        request.reply("done").unwrap();
        assert_eq!(call.wait().unwrap(), "done");
    }
}
