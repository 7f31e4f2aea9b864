//! Everything is counted exactly once.

use std::collections::BTreeSet;

use crate::pair::*;
use apus_proto::Counters;

/// Returns the counters that are not zero.
fn counted(counters: &Counters) -> Vec<(&'static str, u64)> {
    counters.iter().filter(|&(_, value)| value != 0).collect()
}

#[test]
fn names_are_unique() {
    let counters = Counters::default();
    let names: BTreeSet<_> = counters.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), counters.iter().count());
    assert!(names.iter().all(|name| {
        name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    }));
}

#[test]
fn a_simple_exchange_is_counted_once_everywhere() {
    let mut pair = Pair::unacquainted();
    pair.answer_with(10);
    pair.call(100);
    pair.drive();
    // OPEN, CONFIRM, DATA, CUTOFFS and ACK; TOKEN, DATA, CUTOFFS and NEED_ACK.
    let client = [
        ("calls", 1),
        ("calls_completed", 1),
        ("packets_received", 4),
        ("packets_sent", 5),
        ("data_packets_sent", 1),
        ("data_packets_received", 1),
        ("need_acks_received", 1),
        ("cutoffs_received", 1),
        ("data_bytes_received", 10),
        ("data_bytes_sent", 100),
        ("acks_sent", 1),
        ("cutoffs_sent", 1),
        ("opens_sent", 1),
        ("peers_met", 1),
        ("priority6_bytes", 100),
        ("priority6_packets", 1),
        ("received_bytes_to_64", 10),
        ("sent_bytes_to_128", 100),
    ];
    assert_eq!(counted(pair.counters(CLIENT)), client);
    let server = [
        ("requests", 1),
        ("requests_plain", 1),
        ("responses", 1),
        ("packets_received", 5),
        ("packets_sent", 4),
        ("data_packets_sent", 1),
        ("data_packets_received", 1),
        ("acks_received", 1),
        ("cutoffs_received", 1),
        ("data_bytes_received", 100),
        ("data_bytes_sent", 10),
        ("need_acks_sent", 1),
        ("cutoffs_sent", 1),
        ("opens_received", 1),
        ("peers_met", 1),
        ("priority6_bytes", 10),
        ("priority6_packets", 1),
        ("received_bytes_to_128", 100),
        ("sent_bytes_to_64", 10),
    ];
    assert_eq!(counted(pair.counters(SERVER)), server);
}

#[test]
fn a_scheduled_message_is_counted_once_everywhere() {
    let mut pair = Pair::acquainted(|config| {
        config.fifo_share(0);
    });
    pair.answer_with(1);
    let before: Vec<_> = [CLIENT, SERVER].map(|node| pair.counters(node).clone()).into();
    pair.call(300_000);
    pair.drive();
    let counted = |node: usize, name: &str| {
        let value = |counters: &Counters| {
            counters.iter().find(|counter| counter.0 == name).expect("a counter").1
        };
        value(pair.counters(node)) - value(&before[node])
    };
    let unscheduled = 40_000u64.div_ceil(1_416) * 1_416;
    assert_eq!(counted(SERVER, "granted_bytes"), 300_000 - unscheduled);
    assert_eq!(counted(SERVER, "grants_sent"), counted(CLIENT, "grants_received"));
    assert_eq!(counted(CLIENT, "data_bytes_sent"), 300_000);
    assert_eq!(counted(SERVER, "data_bytes_received"), 300_000);
    assert_eq!(counted(CLIENT, "priority4_bytes"), unscheduled);
    assert_eq!(counted(CLIENT, "priority0_bytes"), 300_000 - unscheduled);
    for node in [CLIENT, SERVER] {
        for name in ["retransmitted_bytes", "duplicate_packets", "gaps", "resends_sent"] {
            assert_eq!(counted(node, name), 0, "{name}");
        }
    }
}

/// Calls that were timed, and the names of the classes that they are in.
fn timed(counters: &Counters) -> (u64, Vec<&'static str>) {
    let classes = counters.iter().filter(|(name, value)| {
        name.starts_with("timed_calls_") && *name != "timed_calls_ns" && *value > 0
    });
    let (names, values): (Vec<_>, Vec<_>) = classes.unzip();
    (values.iter().sum(), names)
}

#[test]
fn some_calls_are_timed() {
    let mut pair = Pair::acquainted(|_| {});
    for _ in 0..2_000 {
        let call = pair.call(100);
        pair.drive_until(|net| net.outcome(CLIENT, call).is_some());
    }
    let counters = pair.counters(CLIENT);
    let (calls, classes) = timed(counters);
    assert!((20..50).contains(&calls), "{calls} of 2,000");
    // The pair's network takes as long for each, and nothing else takes time.
    assert_eq!(classes.len(), 1, "{classes:?}");
    let each = counters.timed_calls_ns / calls / 1_000;
    let most: u64 = classes[0].split('_').nth(3).and_then(|it| it.parse().ok()).expect("a number");
    assert!(each <= most && each > most / 2, "{each} us in {classes:?}");
    assert_eq!(timed(pair.counters(SERVER)).0, 0);
}
