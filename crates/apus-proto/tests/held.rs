//! Services that hold very many requests before they answer.

use crate::pair::*;
use apus_proto::CallFailed;
use apus_proto::RpcKey;
use apus_wire::PacketType;

/// Returns a client with this many calls under way, all of which the server holds.
fn holding(calls: usize) -> (Pair, Vec<RpcKey>) {
    let mut pair = Pair::acquainted(|config| {
        config.calls_max(1 << 17);
    });
    pair.keep_sent = false;
    for node in [CLIENT, SERVER] {
        pair.endpoint(node).set_receive_capacity(4 << 20);
    }
    pair.hold();
    let request = body(100, 1);
    let calls = (0..calls).map(|_| pair.call_from(CLIENT, SERVER, request.clone())).collect();
    pair.drive_for(millis(10));
    (pair, calls)
}

/// Answers the held requests, oldest first, with this many per millisecond.
fn answer_all(pair: &mut Pair, in_a_millisecond: usize) {
    let held = std::mem::take(&mut pair.nodes[SERVER].requests);
    for some in held.chunks(in_a_millisecond) {
        let now = pair.now;
        for request in some {
            pair.endpoint(SERVER).reply(now, request.rpc, body(1, 1)).expect("it is in service");
        }
        pair.drive_for(millis(1));
    }
}

//= docs/protocol.md#loss-12
//= docs/protocol.md#unsched-2
//= docs/protocol.md#server-2
#[test]
fn a_hundred_thousand_calls_that_are_held_for_long_are_all_answered() {
    let (mut pair, calls) = holding(100_000);
    assert_eq!(pair.nodes[SERVER].requests.len(), 100_000, "none waits for a timer");
    pair.drive_for(secs(12));
    answer_all(&mut pair, 1_000);
    pair.drive_until(|net| net.active(CLIENT) == 0);
    for call in calls {
        assert_eq!(pair.response(call).len(), 1);
    }
    let asked = pair.counters(CLIENT).resends_sent + pair.counters(SERVER).need_acks_sent;
    assert!(asked < 2 * 13 * 16_000, "{asked} probes");
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-12
#[test]
fn questions_per_call_are_few_when_many_are_held_for_a_while() {
    let (mut pair, _) = holding(20_000);
    let before = pair.counters(CLIENT).resends_sent;
    answer_all(&mut pair, 100);
    assert_eq!(pair.active(CLIENT), 0);
    let asked = pair.counters(CLIENT).resends_sent - before;
    assert!(asked < 4_000, "{asked} probes for 20,000 calls");
}

//= docs/protocol.md#loss-12
#[test]
fn a_lost_request_is_asked_for_soon_however_many_are_held() {
    let (mut pair, _) = holding(20_000);
    pair.drive_for(secs(5));
    pair.lose_first(|passing| passing.data(CLIENT).is_some());
    let started = pair.now;
    pair.call(101);
    pair.drive_until(|net| net.nodes[SERVER].requests.len() == 20_001);
    let took = pair.now.saturating_since(started);
    assert!(took < millis(10), "{took:?}");
}

//= docs/protocol.md#loss-12
#[test]
fn calls_that_a_restarted_server_held_end_and_none_is_executed_again() {
    let (mut pair, calls) = holding(5_000);
    pair.drive_for(secs(3));
    pair.restart(SERVER);
    pair.drive_for(secs(2));
    assert_eq!(pair.active(CLIENT), 0);
    assert!(calls.iter().all(|&call| pair.failure(call) == CallFailed::MayHaveExecuted));
    assert_eq!(pair.nodes[SERVER].executed.len(), 0);
}

//= docs/protocol.md#life-4
#[test]
fn a_server_that_dies_is_found_as_soon_with_many_calls_as_with_one() {
    for calls in [1, 5_000] {
        let (mut pair, calls) = holding(calls);
        pair.drive_for(secs(3));
        pair.nodes[SERVER].up = false;
        let died = pair.now;
        pair.drive_until(|net| net.active(CLIENT) == 0);
        let took = pair.now.saturating_since(died);
        assert!(took < millis(1_300), "{} calls took {took:?}", calls.len());
    }
}

//= docs/protocol.md#server-2
#[test]
fn a_request_whose_call_was_aborted_ends_although_the_client_is_heard_of_otherwise() {
    let (mut pair, calls) = holding(2);
    // The ABORT is lost.
    pair.hook = Some(Box::new(|passing| match passing.is(PacketType::Abort, CLIENT) {
        true => Fate::Drop,
        false => Fate::Pass,
    }));
    pair.endpoint(CLIENT).abort(calls[0]);
    pair.drive_for(secs(9));
    assert_eq!(pair.active(SERVER), 2);
    pair.drive_for(secs(3));
    assert_eq!(pair.active(SERVER), 1);
    assert_eq!(pair.active(CLIENT), 1);
    assert_eq!(pair.counters(SERVER).requests_timed_out, 1);
}
