//! Unscheduled bytes of many messages to one peer.

use crate::pair::*;
use apus_wire::PacketType;

/// Returns a client that assumes a buffer of 400,000 bytes at its server, so that 100,000 may be in flight.
fn small_buffer() -> Pair {
    let mut pair = Pair::acquainted(|config| {
        config.unscheduled_min(10_000).unscheduled(10_000).unscheduled_max(10_000);
    });
    pair.answer_with(1);
    pair.endpoint(CLIENT).set_receive_capacity(400_000);
    pair.sent.clear();
    pair
}

//= docs/protocol.md#unsched-2
#[test]
fn a_receiver_that_pauses_is_not_sent_more_than_it_can_buffer() {
    let mut pair = small_buffer();
    pair.hook = Some(Box::new(|passing| {
        if passing.data(CLIENT).is_some() { Fate::Late(millis(1)) } else { Fate::Pass }
    }));
    let calls: Vec<_> = (0..100).map(|_| pair.call(10_000)).collect();
    pair.drive_for(micros(900));
    let sent = pair.data_sent_by(CLIENT);
    assert!((90_000..=110_000).contains(&sent), "{sent}");
    pair.drive();
    calls.iter().for_each(|&call| assert_eq!(pair.response(call).len(), 1));
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
    assert!(pair.counters(CLIENT).messages_deferred > 0);
}

//= docs/protocol.md#unsched-2
#[test]
fn when_there_is_room_the_shortest_goes_first() {
    let mut pair = small_buffer();
    (0..11).for_each(|_| {
        pair.call(10_000);
    });
    pair.drive_for(micros(5));
    pair.call(9_000);
    pair.call(5_000);
    pair.drive();
    let lengths = pair.sent_by(CLIENT, PacketType::Data).into_iter().map(|sent| {
        let apus_wire::Packet::Data { data, .. } = sent.packet() else { panic!("asked for DATA") };
        data.message_length
    });
    let mut held: Vec<_> = lengths.filter(|&length| length < 10_000).collect();
    held.dedup();
    assert_eq!(held, [5_000, 9_000]);
}

//= docs/protocol.md#unsched-2
#[test]
fn an_idle_path_never_waits() {
    let mut pair = small_buffer();
    pair.endpoint(CLIENT).set_receive_capacity(0);
    for _ in 0..20 {
        let call = pair.call(10_000);
        pair.drive();
        pair.response(call);
    }
    assert_eq!(pair.counters(CLIENT).messages_deferred, 0);
}

//= docs/protocol.md#unsched-2
#[test]
fn what_is_lost_or_given_up_does_not_hold_the_others_for_ever() {
    let mut pair = small_buffer();
    pair.hook = Some(Box::new(|passing| {
        let early = passing.at < apus_proto::Time::from_nanos(60_000_000);
        if early && passing.data(CLIENT).is_some() { Fate::Drop } else { Fate::Pass }
    }));
    let calls: Vec<_> = (0..40).map(|_| pair.call(10_000)).collect();
    pair.drive_for(micros(100));
    for call in &calls[..12] {
        pair.endpoint(CLIENT).abort(*call);
    }
    pair.drive();
    calls[12..].iter().for_each(|&call| assert_eq!(pair.response(call).len(), 1));
}

//= docs/protocol.md#unsched-2
#[test]
fn a_service_that_holds_its_requests_says_once_for_many_that_it_has_them() {
    let mut pair = small_buffer();
    pair.hold();
    (0..40).for_each(|_| {
        pair.call(10_000);
    });
    pair.drive_for(millis(1));
    assert_eq!(pair.nodes[SERVER].requests.len(), 40);
    let asked = pair.sent_by(CLIENT, PacketType::Resend).len();
    assert!((3..=5).contains(&asked), "{asked}");
    assert_eq!(pair.sent_by(SERVER, PacketType::Busy).len(), asked);
}

//= docs/protocol.md#unsched-2
#[test]
fn a_client_that_keeps_its_acknowledgements_says_once_for_many_that_it_has_the_responses() {
    let mut pair = small_buffer();
    pair.endpoint(SERVER).set_receive_capacity(100_000);
    pair.answer_with(10_000);
    let started = pair.now;
    let calls: Vec<_> = (0..40).map(|_| pair.call(100)).collect();
    pair.drive_until(|net| net.active(CLIENT) == 0);
    assert!(pair.now.saturating_since(started) < millis(1), "no message waits for a timer");
    calls.iter().for_each(|&call| assert_eq!(pair.response(call).len(), 10_000));
}

//= docs/protocol.md#unsched-2
//= docs/protocol.md#loss-9
#[test]
fn a_question_that_overtakes_the_request_does_not_send_it_again() {
    let mut pair = small_buffer();
    pair.hold();
    // The requests queue in a switch that lets control packets go first.
    pair.hook = Some(Box::new(|passing| {
        if passing.data(CLIENT).is_some() { Fate::Late(micros(3)) } else { Fate::Pass }
    }));
    (0..40).for_each(|_| {
        pair.call(10_000);
    });
    pair.drive_for(millis(40));
    assert_eq!(pair.nodes[SERVER].requests.len(), 40);
    assert!(!pair.sent_by(SERVER, PacketType::RpcUnknown).is_empty());
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
}
