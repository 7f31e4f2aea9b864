//! Packets are lost, and every call completes all the same.

use std::time::Duration;

use crate::pair::*;
use apus_proto::CallFailed;
use apus_wire::{Packet, PacketType, UnknownReason};

/// Runs one call in which the packets with these numbers are lost.
fn call_that_loses(lost: &[usize], request: usize, response: usize) -> usize {
    let mut pair = Pair::new();
    pair.answer_with(response);
    let (mut sent, lost) = (0, lost.to_vec());
    pair.hook = Some(Box::new(move |_| {
        sent += 1;
        if lost.contains(&(sent - 1)) { Fate::Drop } else { Fate::Pass }
    }));
    let call = pair.call(request);
    pair.drive();
    assert_eq!(pair.response(call), &body(response, response as u64));
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    pair.assert_clean();
    pair.sent.len()
}

#[test]
fn any_one_packet_can_be_lost() {
    for (request, response) in [(100, 100), (3_000, 3_000), (100_000, 1), (1, 100_000)] {
        let packets = call_that_loses(&[], request, response);
        for lost in 0..packets {
            call_that_loses(&[lost], request, response);
        }
    }
}

#[test]
fn any_two_packets_can_be_lost() {
    for (request, response) in [(100, 100), (3_000, 3_000), (1, 45_000)] {
        for first in 0..8 {
            let packets = call_that_loses(&[first], request, response);
            for second in (first + 1)..packets.min(20) {
                call_that_loses(&[first, second], request, response);
            }
        }
    }
}

#[test]
fn every_packet_type_can_be_lost_in_either_direction() {
    use PacketType::*;
    for (kind, from) in [
        (Data, CLIENT),
        (Data, SERVER),
        (Grant, CLIENT),
        (Grant, SERVER),
        (Resend, CLIENT),
        (Resend, SERVER),
        (RpcUnknown, SERVER),
        (Busy, SERVER),
        (Cutoffs, SERVER),
        (NeedAck, SERVER),
        (Ack, CLIENT),
    ] {
        let mut pair = Pair::new();
        let (mut first, mut data) = (true, [0, 0]);
        pair.hook = Some(Box::new(move |passing| {
            // Some data is always lost, so that there is something to request again.
            if passing.packet.packet_type() == Data {
                data[passing.from] += 1;
                if passing.from == CLIENT && data[CLIENT] <= 2 || data[passing.from] == 5 {
                    return Fate::Drop;
                }
            }
            if passing.is(kind, from) && std::mem::take(&mut first) {
                return Fate::Drop;
            }
            Fate::Pass
        }));
        let short = pair.call(100);
        pair.drive_for(millis(100));
        let calls = [short, pair.call(200_000), pair.call(199_999)];
        pair.hold();
        pair.drive_for(millis(100));
        while !pair.nodes[SERVER].requests.is_empty() {
            let body = pair.nodes[SERVER].requests[0].body.clone();
            pair.reply_from(SERVER, body);
        }
        pair.drive();
        assert!(!pair.sent_by(from, kind).is_empty(), "no {kind:?} from {from}");
        for (call, length) in calls.into_iter().zip([100, 200_000, 199_999]) {
            assert_eq!(pair.response(call), &body(length, length as u64), "{kind:?} {from}");
        }
        pair.assert_clean();
    }
}

/// Returns offset and length of a node's RESENDs.
fn resends(net: &Net, node: usize) -> Vec<(u32, Option<u32>)> {
    let resends = net.sent_by(node, PacketType::Resend);
    resends
        .iter()
        .map(|sent| match sent.packet() {
            Packet::Resend { resend, .. } => (resend.offset, resend.length),
            _ => unreachable!(),
        })
        .collect()
}

//= docs/protocol.md#loss-3
#[test]
fn what_is_missing_is_asked_for_exactly() {
    let mut pair = Pair::acquainted(|_| {});
    pair.answer_with(1);
    pair.hook = Some(Box::new(|passing| match passing.data(CLIENT) {
        Some(data) if !data.retransmit && [1, 2, 5, 20].contains(&(data.offset / 1_416)) => {
            Fate::Drop
        }
        _ => Fate::Pass,
    }));
    pair.call(20 * 1_416 + 100);
    pair.drive();
    let expected = [(1_416, Some(2 * 1_416)), (5 * 1_416, Some(1_416)), (20 * 1_416, Some(100))];
    assert_eq!(resends(&pair, SERVER), expected);
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 3 * 1_416 + 100);
    assert_eq!(pair.counters(SERVER).gaps, 2);
}

//= docs/protocol.md#loss-3
#[test]
fn a_response_of_which_nothing_came_is_asked_for_whole() {
    let mut pair = Pair::acquainted(|_| {});
    let mut lost = 0;
    pair.hook = Some(Box::new(move |passing| {
        lost += u32::from(passing.data(SERVER).is_some());
        if passing.data(SERVER).is_some() && lost <= 3 { Fate::Drop } else { Fate::Pass }
    }));
    let call = pair.call(4_000);
    pair.drive();
    assert_eq!(resends(&pair, CLIENT), [(0, None)]);
    assert_eq!(pair.response(call), &body(4_000, 4_000));
}

//= docs/protocol.md#loss-5
#[test]
fn a_resend_beyond_the_grant_stands_for_the_grant_that_was_lost() {
    let mut pair = Pair::acquainted(|config| {
        config.max_incoming(100_000);
    });
    pair.answer_with(1);
    // Every grant is lost.
    pair.hook =
        Some(Box::new(
            |passing| {
                if passing.is(PacketType::Grant, SERVER) { Fate::Drop } else { Fate::Pass }
            },
        ));
    let call = pair.call(200_000);
    pair.drive();
    pair.response(call);
    assert_eq!(pair.counters(CLIENT).grants_received, 0);
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-4
#[test]
fn a_server_without_an_answer_yet_says_it_is_busy() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(200));
    let busy = pair.sent_by(SERVER, PacketType::Busy).len();
    assert_eq!(busy, resends(&pair, CLIENT).len());
    // Every answered probe doubles the wait for the next.
    assert!((3..10).contains(&busy), "{busy}");
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.response(call);
}

//= docs/protocol.md#loss-6
#[test]
fn a_request_that_never_arrived_is_sent_again_when_its_server_does_not_know_it() {
    let mut pair = Pair::acquainted(|_| {});
    pair.lose_first(|passing| passing.data(CLIENT).is_some());
    let call = pair.call(100);
    pair.drive_for(millis(50));
    pair.response(call);
    let kinds: Vec<_> = pair.sent.iter().map(|s| (s.from, s.packet().packet_type())).collect();
    use PacketType::{Data, Resend, RpcUnknown};
    let expected =
        [(CLIENT, Data), (CLIENT, Resend), (SERVER, RpcUnknown), (CLIENT, Data), (SERVER, Data)];
    assert!(kinds.starts_with(&expected), "{kinds:?}");
    let Packet::RpcUnknown { unknown, .. } = pair.sent[2].packet() else { unreachable!() };
    assert_eq!(unknown.reason, UnknownReason::Unknown);
}

//= docs/protocol.md#ack-2
#[test]
fn acknowledgements_ride_on_the_next_requests() {
    let mut pair = Pair::acquainted(|_| {});
    let before = pair.counters(SERVER).need_acks_sent;
    for _ in 0..10 {
        let call = pair.call(100);
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    }
    pair.drive_for(micros(500));
    assert_eq!(pair.counters(SERVER).need_acks_sent, before);
    assert_eq!(pair.active(SERVER), 1);
}

//= docs/protocol.md#ack-2
#[test]
fn a_batch_of_responses_is_acknowledged_in_packets_of_their_own() {
    let mut pair = Pair::acquainted(|_| {});
    let before = pair.counters(CLIENT).acks_sent;
    for _ in 0..23 {
        pair.call(100);
    }
    pair.drive_for(micros(500));
    // Five entries per ACK, and one more in its header.
    assert_eq!(pair.counters(CLIENT).acks_sent - before, 4);
    assert_eq!(pair.active(SERVER), 3);
}

//= docs/protocol.md#ack-3
#[test]
fn a_server_that_hears_nothing_more_asks_for_the_acknowledgement() {
    let mut pair = Pair::acquainted(|_| {});
    pair.call(100);
    pair.drive_for(micros(100));
    assert_eq!(pair.active(SERVER), 1);
    pair.drive();
    assert_eq!(pair.sent_by(SERVER, PacketType::NeedAck).len(), 1);
    assert_eq!(pair.sent_by(CLIENT, PacketType::Ack).len(), 1);
}

//= docs/protocol.md#ack-3
#[test]
fn the_next_call_brings_the_acknowledgement_of_a_short_response_for_nothing() {
    let mut pair = Pair::acquainted(|_| {});
    for _ in 0..5 {
        pair.call(100);
        pair.drive_for(millis(150));
        assert_eq!(pair.active(SERVER), 1);
    }
    assert!(pair.sent_by(SERVER, PacketType::NeedAck).is_empty());
    // After a long service the client probes rarely, so the server soon does.
    pair.hold();
    pair.call(100);
    pair.drive_for(millis(100));
    pair.reply_from(SERVER, body(1, 1));
    pair.drive_for(millis(10));
    assert_eq!(pair.sent_by(SERVER, PacketType::NeedAck).len(), 1);
    assert_eq!(pair.active(SERVER), 0);
}

//= docs/protocol.md#ack-4
#[test]
fn who_needs_an_acknowledgement_is_asked_for_what_is_missing() {
    let mut pair = Pair::acquainted(|config| {
        config.resend_initial(millis(20));
    });
    // The server probes first: the client does not know how long the answer takes.
    let mut first = true;
    pair.hook = Some(Box::new(move |passing| {
        let lost = passing.data(SERVER).is_some_and(|data| data.offset > 0 && !data.retransmit);
        if passing.is(PacketType::Resend, CLIENT) && std::mem::take(&mut first) || lost {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let call = pair.call(3_000);
    pair.drive();
    assert_eq!(pair.response(call), &body(3_000, 3_000));
}

//= docs/protocol.md#server-3
#[test]
fn a_response_that_waits_long_for_grants_is_not_given_up() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_timeout(millis(100));
    });
    pair.answer_with(500_000);
    let until = pair.now + secs(3);
    pair.hook = Some(Box::new(move |passing| {
        // The client is alive, but its grants go to other messages.
        if passing.is(PacketType::Grant, CLIENT) && passing.at < until {
            Fate::Drop
        } else {
            Fate::Pass
        }
    }));
    let call = pair.call(100);
    pair.drive();
    assert_eq!(pair.response(call).len(), 500_000);
}

/// A client that probes often must not keep its server from ever probing.
#[test]
fn an_impatient_client_of_a_patient_server() {
    let mut pair = Pair {
        net: Net::new(2, |node, config| {
            let rto = millis(if node == CLIENT { 1 } else { 200 });
            config.resend_min(rto).resend_initial(rto);
        }),
    };
    pair.lose_first(|passing| passing.data(CLIENT).is_some_and(|data| data.offset > 0));
    let call = pair.call(2_000);
    pair.drive();
    pair.response(call);
}

#[test]
fn heavy_loss_both_ways() {
    for seed in 0..5 {
        let mut pair = Pair::new();
        pair.keep_sent = false;
        pair.faults = Some(Faults {
            loss: 200,
            duplicate: 100,
            late: 100,
            lateness: millis(1),
            random: Random::new(seed),
        });
        let calls: Vec<_> = (0..20).map(|n| (n, pair.call(1 + n * n * 200))).collect();
        pair.drive();
        for (n, call) in calls {
            let length = 1 + n * n * 200;
            assert_eq!(pair.response(call), &body(length, length as u64));
        }
        assert_eq!(pair.nodes[SERVER].executed.len(), 20);
        pair.assert_clean();
    }
}

/// Makes calls of 100 bytes with one packet in ten lost, `at_once` at a time. Returns the time of the 999th of a thousand, and the
/// number of packets of all.
fn calls_at_one_in_ten(calls: usize, at_once: usize) -> (Duration, u64) {
    let mut pair = Pair::acquainted(|_| {});
    pair.keep_sent = false;
    pair.faults = Some(Faults {
        loss: 100,
        duplicate: 0,
        late: 0,
        lateness: micros(1),
        random: Random::new(1),
    });
    let sent = |net: &Net| net.counters(CLIENT).packets_sent + net.counters(SERVER).packets_sent;
    let before = sent(&pair);
    let mut took = Vec::with_capacity(calls);
    for _ in 0..calls / at_once {
        let began = pair.now;
        let calls: Vec<_> = (0..at_once).map(|_| pair.call(100)).collect();
        pair.drive_until(|net| calls.iter().all(|&call| net.outcome(CLIENT, call).is_some()));
        for call in calls {
            pair.response(call);
            took.push(pair.ended_at(CLIENT, call).saturating_since(began));
        }
        pair.nodes[CLIENT].outcomes.clear();
    }
    assert_eq!(pair.nodes[SERVER].executed.len(), calls);
    took.sort_unstable();
    (took[calls - calls / 1_000 - 1], sent(&pair) - before)
}

//= docs/protocol.md#loss-2
#[test]
fn one_lost_packet_in_ten_does_not_make_the_tail_long() {
    // Packets when every unanswered probe doubled the wait, and 999 of 1,000 calls took 62 ms.
    for (at_once, before) in [(1, 57_263), (50, 60_570)] {
        let (tail, packets) = calls_at_one_in_ten(20_000, at_once);
        assert!(tail <= millis(60), "{tail:?}");
        assert!(packets <= before * 13 / 10, "{packets} packets");
    }
}

#[test]
fn a_response_whose_server_restarts_half_way_is_reported_lost_soon() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_for(millis(1));
    pair.reply_from(SERVER, body(100_000, 1));
    pair.hook = Some(Box::new(|passing| match passing.data(SERVER) {
        Some(data) if data.offset > 0 => Fate::Drop,
        _ => Fate::Pass,
    }));
    pair.drive_for(micros(100));
    pair.restart(SERVER);
    let began = pair.now;
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    // The server's next run refuses the token.
    assert_eq!(pair.failure(call), CallFailed::MayHaveExecuted);
    assert!(pair.now.saturating_since(began) < millis(12));
}
