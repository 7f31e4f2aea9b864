//! No request is executed twice, however late its packets arrive.

use crate::pair::*;
use apus_wire::{Packet, PacketType, Stamp, Token};

/// Returns the first DATA packet of a node.
fn first_data(net: &Net, node: usize) -> Sent {
    net.sent_by(node, PacketType::Data)[0].clone()
}

//= docs/protocol.md#once-1
#[test]
fn a_duplicate_delayed_past_the_acknowledgement_is_not_executed() {
    let mut pair = Pair::acquainted(|_| {});
    // The network delays the original. The client probes, the server does not know the request, and the client sends it again.
    let mut first = true;
    pair.hook = Some(Box::new(move |passing| {
        let original = passing.data(CLIENT).is_some() && std::mem::take(&mut first);
        if original { Fate::Late(secs(2)) } else { Fate::Pass }
    }));
    let call = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    // The retry was served; it is acknowledged and forgotten.
    pair.drive_until(|net| net.active(SERVER) == 0);
    assert!(pair.nodes[SERVER].executed.len() == 1 && pair.now < apus_proto::Time::ZERO + secs(1));
    // The original arrives now.
    let before = pair.counters(SERVER).packets_received;
    pair.drive_for(secs(3));
    assert!(pair.counters(SERVER).packets_received > before);
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    assert_eq!(pair.counters(SERVER).refused_duplicate_requests, 1);
    assert_eq!(pair.active(SERVER), 0);
}

//= docs/protocol.md#once-1
#[test]
fn everything_a_client_ever_sent_can_come_again() {
    let mut pair = Pair::new();
    for n in 0..300 {
        pair.call(1 + 10 * n);
        if n % 7 == 0 {
            pair.drive_for(micros(20));
        }
    }
    pair.drive();
    let sent: Vec<_> = pair.sent_by(CLIENT, PacketType::Data).into_iter().cloned().collect();
    for again in &sent {
        pair.repeat(again);
        pair.drive_for(micros(50));
    }
    pair.drive();
    assert_eq!(pair.nodes[SERVER].executed.len(), 300);
    pair.assert_clean();
}

#[test]
fn a_duplicate_of_a_request_in_service_is_not_executed() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    pair.call(100);
    pair.drive_for(millis(1));
    let original = first_data(&pair, CLIENT);
    pair.repeat(&original);
    pair.drive_for(millis(1));
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    assert_eq!(pair.counters(SERVER).duplicate_packets, 1);
}

//= docs/protocol.md#once-2
#[test]
fn requests_that_overtake_each_other_are_all_executed() {
    let mut pair = Pair::acquainted(|_| {});
    let mut random = Random::new(3);
    pair.hook = Some(Box::new(move |_| Fate::Late(micros(random.below(5_000)))));
    for _ in 0..2_000 {
        pair.call(60);
    }
    pair.drive();
    assert_eq!(pair.nodes[SERVER].executed.len(), 2_000);
    pair.assert_clean();
}

//= docs/protocol.md#contact-6
#[test]
fn a_restarted_client_is_served_and_requests_of_its_earlier_run_are_not() {
    let mut pair = Pair::acquainted(|_| {});
    // One request of the first run stays under way; another was executed.
    let mut first = true;
    pair.hook = Some(Box::new(move |passing| {
        let original = passing.data(CLIENT).is_some() && std::mem::take(&mut first);
        if original { Fate::Late(secs(1)) } else { Fate::Pass }
    }));
    pair.call(70);
    let executed = pair.call(80);
    pair.drive_for(millis(1));
    pair.response(executed);
    let taken = pair.sent_by(CLIENT, PacketType::Data)[1].clone();
    pair.now = pair.now + millis(200);
    pair.restart(CLIENT);
    let calls = [pair.call(90), pair.call(5_000)];
    pair.drive_for(millis(20));
    calls.iter().for_each(|&call| drop(pair.response(call).clone()));
    pair.repeat(&taken);
    pair.drive_for(secs(3));
    let lengths: Vec<_> = pair.nodes[SERVER].executed.iter().map(bytes::Bytes::len).collect();
    assert_eq!(lengths.len(), 3, "{lengths:?}");
    assert!(!lengths.contains(&70));
    assert!(pair.counters(SERVER).dropped_token >= 2);
    // Requests of its earlier run do not disturb the present client.
    let call = pair.call(100);
    pair.drive_for(millis(1));
    pair.response(call);
}

//= docs/protocol.md#contact-1
#[test]
fn packets_with_guessed_tokens_do_nothing() {
    let mut pair = Pair::acquainted(|_| {});
    let taken = first_data_of_a_call(&mut pair);
    for guess in 1..1_000 {
        let mut forged = taken.clone();
        Stamp::new(Token(guess)).write(&mut forged);
        pair.inject_raw(path(CLIENT), SERVER, &forged);
        pair.inject_raw(path(SERVER), CLIENT, &forged);
        pair.drive_for(micros(1));
    }
    assert_eq!(pair.nodes[SERVER].executed.len(), 1);
    assert!([CLIENT, SERVER].iter().all(|&node| pair.counters(node).dropped_token >= 999));
    let call = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    pair.response(call);
}

/// Returns the bytes of a request that was executed and answered.
fn first_data_of_a_call(pair: &mut Pair) -> Vec<u8> {
    let call = pair.call(100);
    pair.drive();
    pair.response(call);
    first_data(pair, CLIENT).bytes
}

//= docs/protocol.md#contact-6
#[test]
fn peers_that_forgot_each_other_at_different_times_still_talk() {
    let mut pair = Pair::acquainted(|_| {});
    for _ in 0..3 {
        let call = pair.call(100);
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        // The server receives one more packet of the client, and does not answer.
        pair.drive();
        pair.drive_for(secs(60));
        let stray = (*pair.sent_by(CLIENT, PacketType::Data).last().expect("called")).clone();
        pair.repeat(&stray);
        pair.drive_for(millis(1));
        let (now, mut client_forgot) = (pair.now, false);
        while pair.now < now + secs(100) {
            pair.drive_for(secs(1));
            client_forgot |= pair.nodes[CLIENT].endpoint.known_peers() == 0;
        }
        assert!(client_forgot && pair.nodes[SERVER].endpoint.known_peers() == 1);
        let call = pair.call(200);
        pair.drive();
        pair.response(call);
    }
    assert_eq!(pair.nodes[SERVER].executed.len(), 6);
}

/// A copy of a request whose id has one more bit set.
fn with_bit(request: &Sent, bit: u32) -> Sent {
    let Packet::Data { header, .. } = request.packet() else { panic!("a request") };
    let id = header.sender_id.0.to_be_bytes();
    let at = request.bytes.windows(8).position(|bytes| bytes == id).expect("the header has the id");
    let mut changed = request.clone();
    changed.bytes[at..at + 8].copy_from_slice(&(header.sender_id.0 | 1 << bit).to_be_bytes());
    changed
}

//= docs/protocol.md#once-6
#[test]
fn a_changed_packet_does_not_have_the_requests_of_a_client_refused_for_ever() {
    for bit in [15, 19, 20, 21, 22, 32, 63] {
        let mut pair = Pair::acquainted(|_| {});
        pair.call(100);
        pair.drive();
        let changed = with_bit(&first_data(&pair, CLIENT), bit);
        pair.repeat(&changed);
        pair.drive();
        let lost = lost_of(&mut pair, 200);
        assert_eq!(lost, 0, "bit {bit}");
    }
}

//= docs/protocol.md#once-6
#[test]
fn a_client_whose_numbers_are_lost_gets_another_token() {
    let mut pair = Pair::acquainted(|_| {});
    pair.call(100);
    pair.drive();
    // Each packet moves the window within the permitted range, and the last one moves the floor beyond the client's numbers.
    let original = first_data(&pair, CLIENT);
    for step in 1..8_u64 {
        let Packet::Data { header, .. } = original.packet() else { panic!("a request") };
        let id = header.sender_id.0.to_be_bytes();
        let at = original.bytes.windows(8).position(|bytes| bytes == id).expect("the id");
        let mut changed = original.clone();
        let number = header.sender_id.0 + step * (1 << 20);
        changed.bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
        pair.repeat(&changed);
        pair.drive();
    }
    let lost = lost_of(&mut pair, 200);
    assert!((1..=20).contains(&lost), "{lost} of 200");
    assert_eq!(lost_of(&mut pair, 200), 0);
    assert_eq!(pair.counters(SERVER).peers_over, 1);
}

/// Makes calls one after the other. Returns the number of calls without a response.
fn lost_of(pair: &mut Pair, calls: usize) -> usize {
    let mut lost = 0;
    for _ in 0..calls {
        let call = pair.call(100);
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        lost += usize::from(!matches!(pair.outcome(CLIENT, call), Some(Outcome::Response(_))));
    }
    lost
}
