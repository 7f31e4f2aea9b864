//! All state that a server keeps for a client ends, whatever the client does.

use crate::pair::*;
use apus_proto::Time;

/// Runs until `stop` is true and makes the client vanish. Returns the pair after the server has dropped its state.
fn vanish(mut pair: Pair, request: usize, stop: impl FnMut(&Net) -> bool) -> Pair {
    pair.call(request);
    pair.drive_until(stop);
    assert_eq!(pair.active(SERVER), 1);
    pair.nodes[CLIENT].up = false;
    pair.hook = Some(Box::new(|p| if p.from == CLIENT { Fate::Drop } else { Fate::Pass }));
    pair.drive_until(|net| net.active(SERVER) == 0);
    assert!(pair.nodes[SERVER].endpoint.held_bytes() < 4_096);
    pair
}

fn at(time: Time) -> std::time::Duration {
    time.saturating_since(Time::ZERO)
}

//= docs/protocol.md#server-1
#[test]
fn while_the_request_arrives() {
    let pair = vanish(Pair::new(), 500_000, |net| net.counters(SERVER).granted_bytes > 0);
    assert!(at(pair.now) < millis(1_100));
    assert_eq!(pair.counters(SERVER).requests_timed_out, 1);
}

//= docs/protocol.md#server-2
#[test]
fn while_the_request_is_in_service() {
    let mut pair = Pair::new();
    pair.hold();
    let mut pair = vanish(pair, 100, |net| net.counters(SERVER).requests == 1);
    assert!(at(pair.now) > secs(9) && at(pair.now) < secs(11));
    let (now, rpc) = (pair.now, pair.nodes[SERVER].requests[0].rpc);
    assert!(pair.endpoint(SERVER).reply(now, rpc, body(1, 1)).is_err());
}

//= docs/protocol.md#server-3
#[test]
fn while_the_response_waits_for_grants() {
    let mut pair = Pair::acquainted(|_| {});
    pair.answer_with(1_000_000);
    let pair = vanish(pair, 100, |net| net.data_sent_by(SERVER) > 40_000);
    assert!(at(pair.now) > secs(9) && at(pair.now) < secs(11));
    assert_eq!(pair.counters(SERVER).responses_unacknowledged, 1);
}

//= docs/protocol.md#server-3
#[test]
fn while_the_response_waits_for_its_acknowledgement() {
    let pair = Pair::acquainted(|_| {});
    let met = at(pair.now);
    let pair = vanish(pair, 100, |net| net.data_sent_by(SERVER) > 0);
    assert!(at(pair.now) > met + secs(1) && at(pair.now) < met + millis(1_100));
    assert_eq!(pair.counters(SERVER).responses_unacknowledged, 1);
}

#[test]
fn when_the_socket_closes_in_every_phase() {
    for (request, stop) in [(500_000, 25), (100, 25), (100, 100_000)] {
        let mut pair = Pair::acquainted(|_| {});
        pair.hold();
        pair.call(request);
        pair.drive_for(micros(stop));
        let service = pair.nodes[SERVER].service;
        pair.endpoint(SERVER).close(service);
        pair.drive_for(micros(1));
        assert_eq!(pair.active(SERVER), 0);
        pair.drive_for(secs(2));
        pair.assert_clean();
    }
}

#[test]
fn a_client_that_is_only_slow_finds_its_state() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(secs(60));
    assert_eq!(pair.active(SERVER), 1);
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#server-4
#[test]
fn an_idle_peer_is_forgotten_after_two_minutes() {
    let mut pair = Pair::new();
    pair.call(100);
    pair.drive();
    pair.drive_for(secs(115));
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 1);
    pair.drive_for(secs(10));
    assert_eq!(pair.nodes[SERVER].endpoint.known_peers(), 0);
    assert_eq!(pair.nodes[SERVER].endpoint.held_bytes(), 0);
    assert_eq!(pair.counters(SERVER).peers_forgotten, 1);
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
}

#[test]
fn an_idle_node_does_next_to_nothing() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    for _ in 0..1_000 {
        pair.call(100);
    }
    pair.drive_for(secs(20));
    let before = pair.turns;
    pair.drive_for(secs(10));
    // A thousand calls in service: each client probes every half second and is answered.
    let probes = pair.turns - before;
    assert!(probes < 40_000, "{probes} turns");
}
