//! When something is asked for again, from measured delay.

mod pair;

use apus_wire::PacketType;
use pair::*;

/// When a node sent its RESENDs, after `since`.
fn questions(net: &Net, node: usize, since: apus_proto::Time) -> Vec<std::time::Duration> {
    let resends = net.sent_by(node, PacketType::Resend);
    resends.iter().map(|sent| sent.at.saturating_since(since)).collect()
}

//= docs/protocol.md#loss-2
#[test]
fn packets_that_are_late_by_less_than_the_patience_are_not_sent_again() {
    let mut pair = Pair::acquainted(|_| {});
    // The least patience is 2 ms; the round trip here is 20 µs.
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
fn on_a_long_path_the_patience_is_long() {
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
fn on_a_short_path_a_loss_is_noticed_after_the_least_patience() {
    let mut pair = Pair::acquainted(|_| {});
    pair.lose_first(|passing| passing.data(SERVER).is_some());
    let started = pair.now;
    pair.call(100);
    pair.drive();
    let [first] = questions(&pair, CLIENT, started)[..] else { panic!("asked once") };
    assert!(first >= millis(2) && first <= millis(3), "{first:?}");
}

//= docs/protocol.md#loss-2
#[test]
fn a_stranger_is_given_the_initial_patience() {
    let mut pair = Pair::new();
    pair.lose_first(|passing| passing.data(CLIENT).is_some());
    pair.call(100);
    pair.drive();
    let first = questions(&pair, CLIENT, apus_proto::Time::ZERO)[0];
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
    // A piece of a request is lost: the server notices soon.
    pair.drive();
    pair.sent.clear();
    let started = pair.now;
    pair.lose_first(|passing| passing.data(CLIENT).is_some_and(|data| data.offset > 0));
    pair.call(100_000);
    pair.drive_for(millis(20));
    let first = questions(&pair, SERVER, started)[0];
    assert!(first < millis(4), "{first:?}");
    // The answer is asked for no sooner than the module would, and less and less often; nothing is
    // sent twice for it.
    let asked = questions(&pair, CLIENT, started);
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
    let at = questions(&pair, CLIENT, started);
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
    // The client does not run for ten timeouts; what came meanwhile was dropped by the link.
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
        pair.inject(addr(CLIENT), SERVER, &resend.bytes);
        let now = pair.now;
        pair.drive_for(std::time::Duration::ZERO);
        assert_eq!(pair.now, now);
    }
    pair.drive_for(micros(900));
    let again = pair.counters(SERVER).retransmitted_bytes - before;
    assert!(again <= 2 * 50_000 + 1_416, "{again}");
    assert!(pair.counters(SERVER).resends_limited > 900);
}
