//! Loss and silence of peers of the same host, where the kernel counts the packets that a receive buffer refuses.

use std::time::Duration;

use crate::pair::*;
use apus_wire::{Header, MAX_HEADER, NeedAck, PacketType, Resend};

/// Two nodes of one host, of which the server knows that its receive buffer has refused no packet so far.
fn within_host() -> Pair {
    let mut pair = Pair::acquainted(|_| {});
    let now = pair.now;
    pair.endpoint(CLIENT).set_path(now, path(SERVER), true, None);
    pair.endpoint(SERVER).set_path(now, path(CLIENT), true, None);
    pair.endpoint(SERVER).set_receive_drops(now, 0);
    pair.answer_with(1);
    pair
}

/// Makes the server know that its receive buffer has refused `drops` packets.
fn report(pair: &mut Pair, drops: u64) {
    let now = pair.now;
    pair.endpoint(SERVER).set_receive_drops(now, drops);
}

/// The second packet of the next message of the client is lost.
fn lose_second(pair: &mut Pair) {
    pair.lose_first(|passing| passing.data(CLIENT).is_some_and(|data| data.offset > 0));
}

/// Returns the RESENDs of the server.
fn resends(pair: &Pair) -> Vec<(Duration, Resend)> {
    let sent = pair.sent_by(SERVER, PacketType::Resend);
    let resend = |sent: &&Sent| match sent.packet() {
        apus_wire::Packet::Resend { resend, .. } => {
            (sent.at.saturating_since(apus_proto::Time::ZERO), resend)
        }
        _ => unreachable!("only RESENDs were asked for"),
    };
    sent.iter().map(resend).collect()
}

/// Returns the times at which the server requested data, a RESEND for each missing range.
fn times_of_resends(pair: &Pair) -> Vec<Duration> {
    let mut times: Vec<Duration> = resends(pair).into_iter().map(|(at, _)| at).collect();
    times.dedup();
    times
}

//= docs/protocol.md#loss-14
#[test]
fn a_peer_that_loses_its_core_is_probed_and_sends_nothing_twice() {
    let mut pair = within_host();
    pair.call(2_000_000);
    pair.drive_until(|net| net.counters(SERVER).granted_bytes > 0);
    // The client is not run for 10 ms: packets to it wait for it.
    let until = pair.now + millis(10);
    pair.hook = Some(Box::new(move |passing| match passing.to {
        CLIENT if passing.at < until => Fate::Late(until.saturating_since(passing.at)),
        _ => Fate::Pass,
    }));
    pair.drive();
    let server = pair.counters(SERVER);
    assert!(server.probes_sent > 0, "the silence is noticed");
    assert_eq!((server.probes_busy, server.resends_sent), (server.probes_sent, 0));
    assert_eq!(server.duplicate_packets, 0);
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-14
#[test]
fn the_loss_of_a_packet_that_the_kernel_counts_is_repaired_without_the_rto() {
    let mut pair = within_host();
    lose_second(&mut pair);
    let began = pair.now;
    let call = pair.call(100_000);
    pair.drive_until(|net| net.counters(SERVER).gaps > 0);
    report(&mut pair, 1);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let took = pair.now.saturating_since(began);
    assert!(took < millis(1), "{took:?}");
    assert_eq!(times_of_resends(&pair).len(), 1);
    assert_eq!(pair.counters(SERVER).probes_sent, 0);
}

//= docs/protocol.md#loss-14
#[test]
fn every_refused_packet_brings_one_request_however_often_it_is_reported() {
    let mut pair = within_host();
    lose_second(&mut pair);
    pair.call(100_000);
    pair.drive_until(|net| net.counters(SERVER).gaps > 0);
    for drops in [1, 1, 2, 3, 3] {
        report(&mut pair, drops);
        let now = pair.now;
        pair.endpoint(SERVER).handle_timeout(now);
    }
    pair.drive();
    assert_eq!(times_of_resends(&pair).len(), 1, "100 µs have not passed");
}

//= docs/protocol.md#loss-14
#[test]
fn a_path_that_loses_packets_unseen_is_treated_as_one_between_hosts() {
    let mut pair = within_host();
    for _ in 0..2 {
        lose_second(&mut pair);
        let call = pair.call(100_000);
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
        pair.drive();
    }
    let [(_, probe), (_, resend)] = resends(&pair)[..] else { panic!("{:?}", resends(&pair)) };
    assert_eq!(probe.length, Some(1), "the first loss is not known to be one");
    assert!(resend.length > Some(1), "{resend:?}");
    let server = pair.counters(SERVER);
    assert_eq!((server.probes_sent, server.probes_busy, server.resends_sent), (1, 0, 1));
}

//= docs/protocol.md#loss-14
#[test]
fn a_lost_grant_is_made_good_by_a_probe() {
    let mut pair = within_host();
    pair.lose_first(|passing| passing.is(PacketType::Grant, SERVER));
    let call = pair.call(1_000_000);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    assert!(pair.counters(SERVER).probes_sent > 0);
}

//= docs/protocol.md#loss-14
#[test]
fn a_node_that_does_not_know_the_count_requests_all_that_is_missing() {
    let mut pair = within_host();
    // The client has no report of the count.
    pair.answer_with(100_000);
    pair.lose_first(|passing| passing.data(SERVER).is_some_and(|data| data.offset > 0));
    let call = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let client = pair.counters(CLIENT);
    assert_eq!((client.resends_sent, client.probes_sent), (1, 0));
}

/// Passes a NEED_ACK about the only call to the client.
fn ask_for_acknowledgement(pair: &mut Pair) {
    let header = *pair.sent_by(CLIENT, PacketType::Data)[0].packet().header();
    let header = Header {
        source_port: header.dest_port,
        dest_port: header.source_port,
        sender_id: header.sender_id.flipped(),
    };
    let mut packet = [0; MAX_HEADER];
    let length = NeedAck.emit(&header, &mut packet);
    pair.inject(path(SERVER), CLIENT, &packet[..length]);
    pair.drive_for(micros(1));
}

//= docs/protocol.md#loss-15
#[test]
fn a_question_that_waited_with_its_answer_is_answered_after_that() {
    let mut pair = within_host();
    pair.sent.clear();
    pair.hold();
    let call = pair.call(100);
    pair.drive_until(|net| !net.nodes[SERVER].requests.is_empty());
    pair.drive_for(millis(3));
    pair.sent.retain(|sent| sent.packet().packet_type() == PacketType::Data);
    // The client reads the question, then the response.
    pair.endpoint(CLIENT).postpone_questions();
    ask_for_acknowledgement(&mut pair);
    assert!(pair.endpoint(CLIENT).has_questions());
    assert!(pair.sent_by(CLIENT, PacketType::Resend).is_empty());
    pair.reply_from(SERVER, body(100, 3));
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let now = pair.now;
    pair.endpoint(CLIENT).answer_questions(now);
    pair.drive_for(micros(100));
    assert!(pair.sent_by(CLIENT, PacketType::Resend).is_empty());
    assert_eq!(pair.sent_by(CLIENT, PacketType::Ack).len(), 1);
}

//= docs/protocol.md#loss-15
#[test]
fn no_more_than_256_questions_wait() {
    let mut pair = within_host();
    pair.sent.clear();
    pair.hold();
    pair.call(100);
    pair.drive_until(|net| !net.nodes[SERVER].requests.is_empty());
    pair.endpoint(CLIENT).postpone_questions();
    for _ in 0..300 {
        ask_for_acknowledgement(&mut pair);
    }
    let answers = |pair: &Pair| {
        let kinds = [PacketType::Busy, PacketType::Resend];
        kinds.map(|kind| pair.sent_by(CLIENT, kind).len()).iter().sum::<usize>()
    };
    assert_eq!(answers(&pair), 44);
    let now = pair.now;
    pair.endpoint(CLIENT).answer_questions(now);
    pair.drive_for(micros(1));
    assert_eq!(answers(&pair), 300);
}
