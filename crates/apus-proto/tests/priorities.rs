//! The levels of packets, and their adaptation to the traffic.

use std::collections::BTreeSet;

use crate::pair::*;
use apus_wire::{Cutoffs, Packet, PacketType};

/// Returns level and cutoff version of each DATA packet of the client.
fn data(pair: &Pair) -> Vec<(u8, u16)> {
    let packets = pair.sent_by(CLIENT, PacketType::Data);
    packets
        .iter()
        .map(|sent| {
            let Packet::Data { data, .. } = sent.packet() else { unreachable!() };
            (sent.priority.get(), data.cutoff_version)
        })
        .collect()
}

fn cutoffs_sent(net: &Net, node: usize) -> Vec<Cutoffs> {
    let packets = net.sent_by(node, PacketType::Cutoffs);
    packets
        .iter()
        .map(|sent| match sent.packet() {
            Packet::Cutoffs { cutoffs, .. } => cutoffs,
            _ => unreachable!(),
        })
        .collect()
}

//= docs/protocol.md#prio-2
#[test]
fn a_stranger_sends_at_level_six_until_it_knows_better() {
    let mut pair = Pair::new();
    pair.answer_with(1);
    for _ in 0..3 {
        pair.call(100);
        pair.drive();
    }
    let [(6, 0), (7, version), (7, _)] = data(&pair)[..] else { panic!("{:?}", data(&pair)) };
    assert_eq!(cutoffs_sent(&pair, SERVER)[0].version, version);
}

//= docs/protocol.md#prio-2
#[test]
fn the_level_follows_the_length_of_the_whole_message() {
    for (length, level) in [(1, 7), (200, 7), (201, 6), (2_800, 6), (15_000, 5), (15_001, 4)] {
        let mut pair = Pair::acquainted(|_| {});
        pair.call(length);
        pair.drive();
        assert_eq!(levels(&pair, CLIENT), BTreeSet::from([level]), "{length}");
    }
}

//= docs/protocol.md#prio-4
#[test]
fn scheduled_packets_use_the_lowest_levels_that_distinguish_messages() {
    let mut net = Net::new(5, |_, config| {
        config.fifo_share(0).confirm_peers(false);
    });
    net.nodes[0].app = App::Answer(Box::new(|_| body(1, 1)));
    net.call_from(1, 0, body(600_000, 1));
    net.drive();
    let scheduled = |net: &Net| -> BTreeSet<u8> {
        let grants = net.sent_by(0, PacketType::Grant);
        let level = |sent: &&Sent| match sent.packet() {
            Packet::Grant { grant, .. } => grant.priority.get(),
            _ => unreachable!(),
        };
        grants.iter().map(level).collect()
    };
    assert_eq!(scheduled(&net), BTreeSet::from([0]));
    for (n, length) in [(1, 900_000), (2, 700_000), (3, 500_000), (4, 300_000)] {
        net.call_from(n, 0, body(length, 1));
    }
    net.drive();
    assert_eq!(scheduled(&net), BTreeSet::from([0, 1, 2, 3]));
    // Scheduled DATA uses the level of the grant.
    assert_eq!(levels(&net, 4).iter().filter(|&&level| level < 4).count(), 1);
}

//= docs/protocol.md#prio-3
#[test]
fn a_peer_with_an_old_table_receives_the_new_one_but_not_at_every_packet() {
    let mut pair = Pair::new();
    pair.latency = millis(3);
    pair.answer_with(1);
    pair.call(30_000);
    pair.drive();
    assert_eq!(cutoffs_sent(&pair, SERVER).len(), 1);
    pair.sent.clear();
    pair.call(30_000);
    pair.drive();
    assert_eq!(cutoffs_sent(&pair, SERVER), []);
}

//= docs/protocol.md#prio-1
#[test]
fn the_table_is_computed_from_the_traffic() {
    let mut pair = Pair::acquainted(|_| {});
    pair.keep_sent = false;
    for _ in 0..101 {
        for n in 0..100 {
            pair.call(10 * n + 1);
        }
        pair.drive();
    }
    assert_eq!(pair.counters(SERVER).cutoffs_changed, 1);
    pair.keep_sent = true;
    for length in [1, 400, 600, 800, 1_000] {
        pair.call(length);
    }
    pair.drive();
    let levels = levels(&pair, CLIENT);
    assert!(levels.len() >= 4 && levels.contains(&7), "{levels:?}");
}

#[test]
fn one_level_is_enough() {
    for priorities in [1, 2, 3, 4] {
        let mut pair = Pair::acquainted(|config| {
            config.priorities(priorities);
        });
        for length in [1, 10_000, 500_000] {
            pair.call(length);
        }
        pair.drive();
        let top = pair.sent.iter().map(|sent| sent.priority.get()).max();
        assert_eq!(top, Some(priorities - 1));
        pair.assert_clean();
    }
}

#[test]
fn bytes_are_counted_by_level() {
    let mut pair = Pair::acquainted(|_| {});
    let before = pair.counters(CLIENT).bytes_by_priority;
    pair.call(100);
    pair.call(10_000);
    pair.drive();
    let after = pair.counters(CLIENT).bytes_by_priority;
    let mut expected = [0; 8];
    (expected[7], expected[5]) = (100, 10_000);
    assert_eq!(std::array::from_fn(|level| after[level] - before[level]), expected);
}

//= docs/protocol.md#prio-6
#[test]
fn with_priority_by_rest_packets_rise_as_less_is_left() {
    let mut pair = Pair::acquainted(|config| {
        config.priority_by_rest(true).unscheduled(4_000).unscheduled_min(4_000).fifo_share(0);
    });
    pair.answer_with(1);
    pair.call(3_000);
    pair.drive();
    let levels: Vec<u8> = data(&pair).into_iter().map(|(level, _)| level).collect();
    // 3,000 bytes, then 1,584, then 168 are left.
    assert_eq!(levels, [5, 6, 7]);
}

//= docs/protocol.md#prio-6
#[test]
fn with_priority_by_rest_the_end_of_a_long_message_goes_like_a_short_one() {
    let mut pair = Pair::acquainted(|config| {
        config.priority_by_rest(true).window_max(10_000).fifo_share(0);
        config.unscheduled(10_000).unscheduled_min(10_000).unscheduled_max(10_000);
    });
    pair.answer_with(1);
    pair.call(60_000);
    pair.drive();
    let sent = pair.sent_by(SERVER, PacketType::Grant);
    let grants: Vec<(u32, u8)> = sent
        .iter()
        .map(|sent| match sent.packet() {
            Packet::Grant { grant, .. } => (grant.offset, grant.priority.get()),
            _ => unreachable!(),
        })
        .collect();
    let (last, before) = grants.split_last().expect("a long message is granted");
    assert!(before.iter().all(|&(offset, level)| offset < 60_000 && level == 0), "{grants:?}");
    assert_eq!(*last, (60_000, 5));
}
