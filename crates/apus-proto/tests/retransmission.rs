//! The times of retransmission requests, from measured delay.

use crate::pair::*;
use apus_proto::Config;
use apus_wire::PacketType;

/// Returns the times of a node's RESENDs after `since`.
fn probes(net: &Net, node: usize, since: apus_proto::Time) -> Vec<std::time::Duration> {
    let resends = net.sent_by(node, PacketType::Resend);
    resends.iter().map(|sent| sent.at.saturating_since(since)).collect()
}

//= docs/protocol.md#loss-2
#[test]
fn packets_that_are_late_by_less_than_the_rto_are_not_sent_again() {
    let mut pair = Pair::acquainted(|_| {});
    // The minimum RTO is 2 ms; the round trip here is 20 µs.
    pair.hook = Some(Box::new({
        let mut random = Random::new(1);
        move |_| Fate::Late(micros(random.below(900)))
    }));
    for _ in 0..50 {
        pair.call(100_000);
        pair.drive_for(millis(1));
    }
    pair.drive();
    for node in [CLIENT, SERVER] {
        assert_eq!(pair.counters(node).resends_sent, 0);
        assert_eq!(pair.counters(node).retransmitted_bytes, 0);
        assert_eq!(pair.counters(node).duplicate_packets, 0);
    }
}

//= docs/protocol.md#loss-2
#[test]
fn on_a_long_path_the_rto_is_long() {
    let mut pair = Pair::with(|config| {
        config.resend_initial(millis(200));
    });
    pair.latency = millis(40);
    for length in [100, 100, 300_000, 100_000] {
        pair.call(length);
        pair.drive_until(|net| net.active(CLIENT) == 0);
    }
    assert_eq!(pair.counters(CLIENT).resends_sent, 0);
    assert_eq!(pair.counters(SERVER).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-2
#[test]
fn on_a_short_path_a_loss_is_noticed_after_the_least_rto() {
    let mut pair = Pair::acquainted(|_| {});
    pair.lose_first(|passing| passing.data(SERVER).is_some());
    let started = pair.now;
    pair.call(100);
    pair.drive();
    let [first] = probes(&pair, CLIENT, started)[..] else { panic!("asked once") };
    assert!(first >= millis(2) && first <= millis(3), "{first:?}");
}

//= docs/protocol.md#loss-2
#[test]
fn a_stranger_is_given_the_initial_rto() {
    let mut pair = Pair::new();
    pair.lose_first(|passing| passing.data(CLIENT).is_some());
    pair.call(100);
    pair.drive();
    let first = probes(&pair, CLIENT, apus_proto::Time::ZERO)[0];
    assert!(first >= millis(5) && first <= millis(6), "{first:?}");
}

//= docs/protocol.md#loss-1
#[test]
fn a_slow_service_does_not_slow_the_recovery_of_its_data() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    for _ in 0..20 {
        let call = pair.call(100_000);
        pair.drive_for(millis(100));
        pair.reply_from(SERVER, body(100_000, 3));
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    }
    // A piece of a request is lost: the server soon detects that.
    pair.drive();
    pair.sent.clear();
    let started = pair.now;
    pair.lose_first(|passing| passing.data(CLIENT).is_some_and(|data| data.offset > 0));
    pair.call(100_000);
    pair.drive_for(millis(20));
    let first = probes(&pair, SERVER, started)[0];
    assert!(first < millis(4), "{first:?}");
    // The client probes for the answer no sooner than the module would, and ever more rarely; nothing is sent twice for it.
    let asked = probes(&pair, CLIENT, started);
    assert!(asked.len() <= 2 && asked.iter().all(|at| *at >= millis(5)), "{asked:?}");
    assert_eq!(pair.counters(SERVER).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-2
#[test]
fn every_unanswered_question_doubles_the_wait_up_to_half_the_timeout() {
    let mut pair = Pair::acquainted(|config| {
        config.peer_timeout(secs(1));
    });
    pair.nodes[SERVER].up = false;
    let started = pair.now;
    let call = pair.call(100);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let at = probes(&pair, CLIENT, started);
    let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for pair in gaps.windows(2) {
        let ratio = pair[1].as_secs_f64() / pair[0].as_secs_f64();
        assert!((1.6..=2.2).contains(&ratio) || pair[1] < millis(140), "{gaps:?}");
    }
    assert!((6..=14).contains(&at.len()), "{at:?}");
    let took = pair.ended_at(CLIENT, call).saturating_since(started);
    assert!(took >= secs(1) && took < millis(1_002), "{took:?}");
}

//= docs/protocol.md#life-4
#[test]
fn a_process_that_was_stopped_asks_before_it_gives_up() {
    let mut pair = Pair::acquainted(|_| {});
    pair.answer_with(3_000);
    let call = pair.call(100);
    pair.drive_for(micros(12));
    // The client does not run for ten timeouts; the link dropped the packets that arrived meanwhile.
    pair.nodes[CLIENT].up = false;
    pair.now = pair.now + secs(10);
    pair.drive_for(micros(100));
    pair.nodes[CLIENT].up = true;
    pair.drive_for(millis(900));
    pair.response(call);
}

//= docs/protocol.md#loss-7
#[test]
fn the_same_is_not_sent_again_more_than_twice_in_a_moment() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hook =
        Some(Box::new(
            |passing| {
                if passing.data(SERVER).is_some() { Fate::Drop } else { Fate::Pass }
            },
        ));
    pair.call(50_000);
    pair.drive_until(|net| !net.sent_by(CLIENT, PacketType::Resend).is_empty());
    let resend = pair.sent_by(CLIENT, PacketType::Resend)[0].clone();
    let before = pair.counters(SERVER).retransmitted_bytes;
    for _ in 0..1_000 {
        pair.inject(path(CLIENT), SERVER, &resend.bytes);
        let now = pair.now;
        pair.drive_for(std::time::Duration::ZERO);
        assert_eq!(pair.now, now);
    }
    pair.drive_for(micros(900));
    let again = pair.counters(SERVER).retransmitted_bytes - before;
    assert!(again <= 2 * 50_000 + 1_416, "{again}");
    assert!(pair.counters(SERVER).resends_limited > 900);
}

/// Node 1 sends a long message to node 0 and, over a link that they fill, node 2 sends others.
fn busy_link(lengths: [usize; 2]) -> (Net, apus_proto::RpcKey) {
    let mut net = Net::new(3, |_, config| {
        config.link_mbps(10_000).fifo_share(0).peer_budget(1 << 30);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    for from in [1, 2] {
        net.call_from(from, 0, body(300_000, 1));
        net.drive();
    }
    net.sent.clear();
    let call = net.call_from(1, 0, body(lengths[0], 1));
    net.drive_for(millis(1));
    let other = body(lengths[1], 2);
    for _ in 0..30 {
        net.call_from(2, 0, other.clone());
    }
    (net, call)
}

//= docs/protocol.md#loss-8
#[test]
fn data_that_others_overtake_is_not_asked_for() {
    let (mut net, call) = busy_link([2_000_000, 400_000]);
    let began = net.now;
    // The switch forwards the shorter messages first, for 8 ms.
    net.hook = Some(Box::new(move |passing| {
        let waits = passing.data(1).is_some();
        let until = millis(8).saturating_sub(passing.at.saturating_since(began));
        if waits { Fate::Late(until) } else { Fate::Pass }
    }));
    net.drive_until(|net| net.outcome(1, call).is_some());
    assert_eq!(net.counters(0).resends_sent, 0);
    assert_eq!(net.counters(1).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-8
#[test]
fn a_loss_of_the_shorter_message_is_noticed_on_a_full_link() {
    let (mut net, call) = busy_link([1_700_000, 3_000_000]);
    // The lost packet was not granted yet when the others began, so it arrives at a level above theirs.
    net.hook = Some(Box::new(|passing| {
        let last = passing.data(1).is_some_and(|data| data.offset > 1_600_000 && !data.retransmit);
        if last { Fate::Drop } else { Fate::Pass }
    }));
    let began = net.now;
    net.drive_until(|net| net.outcome(1, call).is_some());
    let took = net.now.saturating_since(began);
    assert!(took < millis(4), "{took:?}");
    assert!(net.counters(0).requests >= 3);
}

//= docs/protocol.md#loss-8
#[test]
fn a_loss_of_the_longest_message_is_noticed_although_the_link_is_full() {
    let (mut net, call) = busy_link([4_000_000, 1_000_000]);
    let mut dropped = 0;
    net.hook = Some(Box::new(move |passing| {
        let lost = passing.data(1).is_some_and(|data| data.offset > 1_000_000 && !data.retransmit);
        dropped += u32::from(lost);
        if lost && dropped < 100 { Fate::Drop } else { Fate::Pass }
    }));
    let began = net.now;
    net.drive_until(|net| net.counters(0).resends_sent > 0);
    let took = net.now.saturating_since(began);
    assert!(took < millis(24), "{took:?}");
    net.drive_until(|net| net.outcome(1, call).is_some());
}

//= docs/protocol.md#loss-9
#[test]
fn what_was_sent_just_now_is_not_sent_again() {
    let mut pair = Pair::acquainted(|_| {});
    for _ in 0..3 {
        pair.call(300_000);
        pair.drive();
    }
    pair.sent.clear();
    pair.answer_with(1);
    pair.call(30_000);
    pair.drive_for(micros(5));
    ask_client(&mut pair);
    assert_eq!(pair.sent_by(CLIENT, PacketType::Busy).len(), 1);
    pair.drive();
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-9
#[test]
fn on_a_long_path_what_may_be_under_way_is_not_sent_again() {
    let mut pair = Pair::with(|config| {
        config.resend_initial(millis(200));
    });
    pair.latency = millis(20);
    for _ in 0..3 {
        pair.call(300_000);
        pair.drive();
    }
    pair.sent.clear();
    pair.answer_with(1);
    pair.call(30_000);
    pair.drive_for(millis(10));
    ask_client(&mut pair);
    assert_eq!(pair.sent_by(CLIENT, PacketType::Busy).len(), 1);
    pair.drive();
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-9
#[test]
fn a_pause_of_the_client_does_not_make_lost_packets_be_taken_for_late() {
    let mut pair = Pair::new();
    pair.call(100);
    pair.drive_for(micros(15));
    pair.now = pair.now + secs(50); // The first measured answer.
    pair.drive();
    // Their second packets are lost.
    let mut lost = 0;
    pair.hook = Some(Box::new(move |passing| {
        let second = passing.data(CLIENT).is_some_and(|data| data.offset > 0);
        lost += usize::from(second);
        if second && lost == 1 { Fate::Drop } else { Fate::Pass }
    }));
    let (began, call) = (pair.now, pair.call(2_000));
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let took = pair.now.saturating_since(began);
    assert!(took < millis(50), "{took:?}");
    pair.drive();
}

/// Requests from the client all of the request that it sent first.
fn ask_client(pair: &mut Pair) {
    let header = *pair.sent_by(CLIENT, PacketType::Data)[0].packet().header();
    let resend =
        apus_wire::Resend { offset: 0, length: None, priority: apus_wire::Priority::HIGHEST };
    let header = apus_wire::Header {
        source_port: header.dest_port,
        dest_port: header.source_port,
        sender_id: header.sender_id.flipped(),
    };
    let mut packet = [0; apus_wire::MAX_HEADER];
    let length = resend.emit(&header, &mut packet);
    pair.inject(path(SERVER), CLIENT, &packet[..length]);
    pair.drive_for(micros(1));
}

//= docs/protocol.md#loss-9
#[test]
fn a_question_for_the_response_that_comes_late_brings_nothing_of_it() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let call = pair.call(100);
    pair.drive_until(|net| !net.sent_by(CLIENT, PacketType::Resend).is_empty());
    let probe = pair.sent_by(CLIENT, PacketType::Resend)[0].clone();
    pair.drive_for(millis(1));
    pair.reply_from(SERVER, body(1_000_000, 7));
    // The acknowledgement is still missing.
    pair.drive_until(|net| net.active(CLIENT) == 0);
    for _ in 0..10 {
        pair.drive_for(millis(1));
        pair.repeat(&probe);
    }
    pair.drive();
    assert_eq!(pair.response(call), &body(1_000_000, 7));
    assert_eq!(pair.counters(SERVER).retransmitted_bytes, 0);
}

//= docs/protocol.md#loss-10
#[test]
fn a_node_that_was_not_run_takes_what_waits_before_it_asks() {
    let mut pair = Pair::acquainted(|_| {});
    pair.call(2_000_000);
    pair.drive_for(micros(200));
    assert!(pair.counters(SERVER).granted_bytes > 0);
    // The server is stopped for 10 ms; its timers are handled before its packets.
    pair.now = pair.now + millis(10);
    let now = pair.now;
    pair.endpoint(SERVER).handle_timeout(now);
    pair.drive();
    assert_eq!(pair.counters(SERVER).resends_sent, 0);
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 0);
}

/// Returns the time of a request whose packets are all lost the first time, if a tenth of it may be retransmitted at a time.
fn all_lost_once(pair: &mut Pair) -> std::time::Duration {
    let mut seen = std::collections::BTreeSet::new();
    pair.hook = Some(Box::new(move |passing| match passing.data(CLIENT) {
        Some(data) if seen.insert(data.offset) => Fate::Drop,
        _ => Fate::Pass,
    }));
    let (began, call) = (pair.now, pair.call(100_000));
    pair.drive();
    pair.response(call);
    pair.ended_at(CLIENT, call).saturating_since(began)
}

fn narrow(config: &mut Config) {
    config.unscheduled(100_000).max_incoming(10_000);
}

//= docs/protocol.md#measure-3
//= docs/protocol.md#loss-7
#[test]
fn a_grant_that_losses_kept_back_is_no_measure_of_the_round_trip() {
    let mut pair = Pair::with(narrow);
    let until = pair.now + millis(400);
    pair.hook = Some(Box::new(move |passing| match passing.data(CLIENT) {
        Some(data) if data.offset > 0 && passing.at < until => Fate::Drop,
        _ => Fate::Pass,
    }));
    let call = pair.call(200_000);
    pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    let took = all_lost_once(&mut pair);
    assert!(took < millis(200), "{took:?}");
}

//= docs/protocol.md#loss-7
#[test]
fn what_is_lost_is_sent_again_soon_to_a_slow_service() {
    let mut pair = Pair::with(narrow);
    pair.hold();
    // No delay of the network alone is measured.
    pair.hook = Some(Box::new(|passing| match passing.is(PacketType::Busy, SERVER) {
        true => Fate::Drop,
        false => Fate::Pass,
    }));
    pair.call(100);
    pair.drive_for(millis(400));
    pair.reply_from(SERVER, body(1, 1));
    pair.drive();
    pair.answer_with(1);
    let took = all_lost_once(&mut pair);
    assert!(took < millis(200), "{took:?}");
}

//= docs/protocol.md#loss-9
#[test]
fn a_late_word_that_the_request_is_unknown_brings_nothing() {
    let mut pair = Pair::acquainted(|_| {});
    pair.hold();
    let until = pair.now + millis(1);
    pair.hook = Some(Box::new(move |passing| match passing.data(CLIENT) {
        Some(_) if passing.at < until => Fate::Drop,
        _ if passing.is(PacketType::RpcUnknown, SERVER) => Fate::Twice(millis(30)),
        _ => Fate::Pass,
    }));
    pair.call(30_000);
    pair.drive_for(millis(100));
    assert!(pair.counters(CLIENT).unknown_received > 1);
    assert_eq!(pair.counters(CLIENT).retransmitted_bytes, 30_000);
}
