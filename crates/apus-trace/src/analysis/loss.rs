//! Packets that did not arrive, or arrived too late.

use std::collections::BTreeMap;

use super::WORST;
use super::delay::side;
use crate::distribution::Distribution;
use crate::merged::Merged;
use crate::nodes::Nodes;
use crate::packets::{Packet, PacketType, packets};
use crate::report::{Cell, Report, counted};

/// Packets that did not arrive, although their receiver's trace continues for longer than any packet took.
#[must_use]
pub fn lost(merged: &Merged) -> Report {
    let (nodes, mut report) = (Nodes::of(merged), Report::default());
    let all = packets(merged, &nodes);
    let table =
        report.table("kinds", &["packet", "sent", "lost", "share", "lost_bytes", "not_known"]);
    let mut findings = Vec::new();
    for kind in PacketType::ALL {
        let of_kind: Vec<_> = all.iter().filter(|packet| packet.kind == kind).collect();
        let lost: Vec<_> = of_kind.iter().filter(|packet| packet.lost).collect();
        let bytes: u64 = lost.iter().map(|packet| u64::from(packet.bytes)).sum();
        let open = of_kind.iter().filter(|it| it.received.is_none() && !it.lost).count();
        if !lost.is_empty() {
            let packets = counted(lost.len(), &format!("{} packet", kind.name()));
            findings.push(format!("{packets} of {} did not arrive", of_kind.len()));
        }
        let (sent, count) = (of_kind.len(), lost.len());
        let share = Cell::share(count, sent - open);
        table.row([
            kind.name().into(),
            sent.into(),
            count.into(),
            share,
            bytes.into(),
            open.into(),
        ]);
    }
    report.findings = findings;
    of_pairs(&mut report, &nodes, &all);
    let columns = ["packet", "id", "pair", "from", "offset", "bytes", "sent_us", "again"];
    let table = report.table("packets", &columns);
    for packet in all.iter().filter(|packet| packet.lost).take(WORST * WORST) {
        let [kind, from] = [packet.kind.name(), side(packet.from_client)].map(Cell::from);
        let again = Cell::from(if packet.again { "yes" } else { "no" });
        // The trace does not record which bytes were retransmitted.
        let offset = if packet.again { Cell::Missing } else { packet.offset.into() };
        let (id, pair, sent) =
            (packet.call.id.into(), Cell::hex(packet.call.pair), Cell::nanos(packet.sent));
        table.row([kind, id, pair, from, offset, packet.bytes.into(), sent, again]);
    }
    report
}

fn of_pairs(report: &mut Report, nodes: &Nodes, all: &[Packet]) {
    let mut pairs: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for packet in all {
        let from = nodes.of_ring(packet.sender);
        let to = nodes.receiver(packet.call, packet.from_client, from);
        let (sent, lost) = pairs.entry((from, to)).or_default();
        (*sent, *lost) = (*sent + 1, *lost + usize::from(packet.lost));
    }
    let table = report.table("ways", &["from", "to", "sent", "lost", "share"]);
    for ((from, to), (sent, lost)) in pairs {
        let to = to.map(|to| nodes.name(to));
        table.row([
            nodes.name(from).into(),
            to.into(),
            sent.into(),
            lost.into(),
            Cell::share(lost, sent),
        ]);
    }
}

/// A packet that arrived after later bytes of its message.
struct Late<'a> {
    packet: &'a Packet,
    /// Time since the first later packet arrived.
    by: u64,
}

/// Packets that arrived after later bytes of their message, and by how much.
#[must_use]
pub fn ooo(merged: &Merged) -> Report {
    let (nodes, mut report) = (Nodes::of(merged), Report::default());
    let all = packets(merged, &nodes);
    let mut messages: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for packet in all.iter().filter(|packet| packet.kind == PacketType::Data) {
        let Some(arrival) = packet.received else { continue };
        let key = (packet.call, packet.from_client);
        messages.entry(key).or_default().push((arrival.at, packet));
    }
    let mut late = Vec::new();
    for packets in messages.values_mut() {
        packets.sort_by_key(|(at, _)| *at);
        find_late(packets, &mut late);
    }
    let arrived = messages.values().map(Vec::len).sum::<usize>();
    let (again, once): (Vec<_>, Vec<_>) = late.iter().partition(|late| late.packet.again);
    if let Some(longest) = once.iter().map(|late| late.by).max() {
        report.find(format!(
            "{} of {arrived} arrived after later bytes of their messages, by up to {:.1} us",
            counted(once.len(), "packet"),
            longest as f64 / 1e3
        ));
    }
    report.fact("packets", arrived);
    let columns = [&["transmission"][..], &Distribution::TIMES].concat();
    let table = report.table("late", &columns);
    for (name, late) in [("first", once), ("after a RESEND", again)] {
        let times: Distribution = late.iter().map(|late| late.by).collect();
        table.row([name.into()].into_iter().chain(times.times()));
    }
    late.sort_by_key(|late| std::cmp::Reverse(late.by));
    let table =
        report.table("latest", &["id", "pair", "from", "offset", "bytes", "sent_us", "late_us"]);
    for Late { packet, by } in late.into_iter().take(WORST) {
        let (id, pair) = (packet.call.id.into(), Cell::hex(packet.call.pair));
        let [sent, by] = [packet.sent, by].map(Cell::nanos);
        let from = side(packet.from_client).into();
        table.row([id, pair, from, packet.offset.into(), packet.bytes.into(), sent, by]);
    }
    report
}

/// Finds late packets of a message, whose packets are in the order of arrival.
fn find_late<'a>(packets: &[(u64, &'a Packet)], late: &mut Vec<Late<'a>>) {
    // First arrival of bytes beyond each offset. Offsets and times both rise.
    let mut firsts: Vec<(u32, u64)> = Vec::new();
    for &(at, packet) in packets {
        let before = firsts.partition_point(|(offset, _)| *offset <= packet.offset);
        match firsts.get(before) {
            Some(&(_, since)) => late.push(Late { packet, by: at - since }),
            None if firsts.last().is_none_or(|(offset, _)| *offset < packet.offset) => {
                firsts.push((packet.offset, at));
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    const LOSS: &str = "0 c data_xmit 2 9 0 3000
        10 s data_received 3 9 1000 1000
        14 s data_received 3 9 2000 1000
        20 s resend_xmit 3 9 0 1000
        30 c resend_received 2 9 0 1000
        31 c retransmit 2 9 3000 1000
        45 s data_received 3 9 0 1000
        50 s grant_xmit 3 9 5000 0
        90 c sleep 0
        99 s sleep 0";

    #[test]
    fn lost_packets_are_counted_by_kind() {
        let report = lost(&script(LOSS));
        let expected = ["1 DATA packet of 4 did not arrive", "1 GRANT packet of 1 did not arrive"];
        assert_eq!(report.findings, expected);
        assert_eq!(report.cell("packets", 0, "offset"), Some(&Cell::Count(0)));
        assert_eq!(report.cell("ways", 0, "lost"), Some(&Cell::Count(1)));
    }

    #[test]
    fn late_packets_are_distinguished_from_lost_ones_by_their_retransmission() {
        let report = ooo(&script(LOSS));
        assert_eq!(report.findings, [""; 0]);
        assert_eq!(report.cell("late", 1, "most_us"), Some(&Cell::Number(0.035)));
        let report = ooo(&script(
            "0 c data_xmit 2 9 0 3000
             10 s data_received 3 9 0 1000
             12 s data_received 3 9 2000 1000
             15 s data_received 3 9 1000 1000",
        ));
        assert_eq!(report.cell("late", 0, "most_us"), Some(&Cell::Number(0.003)));
        assert_eq!(report.cell("latest", 0, "offset"), Some(&Cell::Count(1000)));
    }
}
