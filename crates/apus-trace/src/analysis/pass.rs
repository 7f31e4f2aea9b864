//! Whether packets of short messages overtake those of long ones in the network.

use std::collections::BTreeMap;

use super::WORST;
use crate::merged::Merged;
use crate::nodes::Nodes;
use crate::packets::{Packet, PacketType, packets};
use crate::report::{Cell, Report, counted};

/// Short and long packets to one node.
#[derive(Clone, Copy, Default)]
struct Passing {
    short: usize,
    /// Pairs of a short packet and a long packet that was in flight when the short one was sent.
    behind: usize,
    /// Pairs of [`behind`](Self::behind) whose short packet arrived first.
    passed: usize,
    /// Pairs of a long packet and a short packet that was in flight when the long one was sent.
    ahead: usize,
    /// Pairs of [`ahead`](Self::ahead) whose long packet arrived first.
    inverted: usize,
}

/// How often packets of messages up to `short` bytes overtake packets of longer messages to the same node, and are overtaken by
/// them. With working priorities, most of the short packets overtake, and few are overtaken.
#[must_use]
pub fn pass(merged: &Merged, short: u32) -> Report {
    let nodes = Nodes::of(merged);
    let mut to: BTreeMap<usize, Vec<(u64, u64, bool)>> = BTreeMap::new();
    for packet in packets(merged, &nodes).iter().filter(|packet| packet.kind == PacketType::Data) {
        let (Some(arrival), Some(is_short)) = (packet.received, is_short(packet, short)) else {
            continue;
        };
        let node = nodes.of_ring(arrival.ring);
        to.entry(node).or_default().push((packet.sent, arrival.at, is_short));
    }
    let (mut all, mut report) = (Passing::default(), Report::default());
    let mut rows: Vec<_> = to.iter().map(|(node, packets)| (*node, passing(packets))).collect();
    for (_, row) in &rows {
        all.short += row.short;
        all.behind += row.behind;
        all.passed += row.passed;
        all.ahead += row.ahead;
        all.inverted += row.inverted;
    }
    if all.behind > 0 {
        report.find(format!(
            "{} were sent while longer messages' packets were on their way to the same node: of {} such packets, {:.0} % \
             were overtaken; of {} that were sent after a short one, {:.0} % came before it",
            counted(all.short, "short packet"),
            all.behind,
            percent(all.passed, all.behind),
            all.ahead,
            percent(all.inverted, all.ahead)
        ));
    }
    report.fact("passed_share", Cell::share(all.passed, all.behind));
    report.fact("inverted_share", Cell::share(all.inverted, all.ahead));
    let columns = [
        "to",
        "short_packets",
        "behind_long",
        "passed",
        "passed_share",
        "before_long",
        "inverted",
        "inverted_share",
    ];
    let table = report.table("nodes", &columns);
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.behind));
    for (node, row) in rows.into_iter().take(WORST * WORST) {
        let Passing { short, behind, passed, ahead, inverted } = row;
        let shares = [Cell::share(passed, behind), Cell::share(inverted, ahead)];
        let [passed_share, inverted_share] = shares;
        let counts = [nodes.name(node).into(), short.into(), behind.into(), passed.into()];
        let rest = [passed_share, ahead.into(), inverted.into(), inverted_share];
        table.row(counts.into_iter().chain(rest));
    }
    report
}

fn percent(part: usize, whole: usize) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// `None` for retransmitted packets, and if the length of the message is unknown.
fn is_short(packet: &Packet, short: u32) -> Option<bool> {
    packet.message.filter(|_| !packet.again).map(|length| length <= short)
}

/// Counts pairs of packets in the order of transmission, each given by the times of transmission and arrival, and whether it is
/// short.
fn passing(packets: &[(u64, u64, bool)]) -> Passing {
    let mut count = Passing::default();
    let mut under_way: Vec<(u64, bool)> = Vec::new();
    for &(sent, received, is_short) in packets {
        under_way.retain(|(until, _)| *until > sent);
        let others = under_way.iter().filter(|(_, other)| *other != is_short);
        let (others, passed) = others.fold((0, 0), |(others, passed), (until, _)| {
            (others + 1, passed + usize::from(*until > received))
        });
        let (pairs, first) = if is_short {
            count.short += usize::from(others > 0);
            (&mut count.behind, &mut count.passed)
        } else {
            (&mut count.ahead, &mut count.inverted)
        };
        (*pairs, *first) = (*pairs + others, *first + passed);
        under_way.push((received, is_short));
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_packets_pass_those_that_come_after_them() {
        let long = (0, 100, false);
        let count = passing(&[long, (10, 50, true), (20, 120, true), (90, 110, false)]);
        assert_eq!((count.short, count.behind, count.passed), (2, 2, 1));
        assert_eq!((count.ahead, count.inverted), (1, 1));
    }
}
