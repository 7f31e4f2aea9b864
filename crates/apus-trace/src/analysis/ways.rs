//! Packets from node to node.

use std::collections::BTreeMap;

use super::{WORST, end};
use crate::calls::calls;
use crate::distribution::Distribution;
use crate::level::{self, Level};
use crate::merged::Merged;
use crate::nodes::Nodes;
use crate::packets::{Packet, PacketType, packets};
use crate::report::{Cell, Report};

/// Arrived packets, by sending and receiving node.
fn by_way(nodes: &Nodes, packets: Vec<Packet>) -> BTreeMap<(usize, usize), Vec<(Packet, u64)>> {
    let mut ways: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for packet in packets {
        let Some(arrival) = packet.received else { continue };
        let way = (nodes.of_ring(packet.sender), nodes.of_ring(arrival.ring));
        ways.entry(way).or_default().push((packet, arrival.at));
    }
    ways
}

/// Bytes of DATA in flight from node to node, over time.
#[must_use]
pub fn net(merged: &Merged, interval: u64) -> Report {
    let (nodes, end, mut report) = (Nodes::of(merged), end(merged), Report::default());
    let mut all = Level::default();
    let columns =
        ["from", "to", "packets", "bytes", "under_way_mean", "under_way_most", "p50_us", "p99_us"];
    let table = report.table("ways", &columns);
    for ((from, to), packets) in by_way(&nodes, packets(merged, &nodes)) {
        let data = || packets.iter().filter(|(packet, _)| packet.kind == PacketType::Data);
        let mut level = Level::default();
        for (packet, at) in data() {
            level.raise(packet.sent, *at, packet.bytes.into());
        }
        let during = level.overall(end);
        let times: Distribution = data().filter_map(|(packet, _)| packet.delay()).collect();
        let bytes: u64 = data().map(|(packet, _)| u64::from(packet.bytes)).sum();
        let [from, to] = [from, to].map(|node| Cell::from(nodes.name(node)));
        let [p50, p99] = [times.median(), times.percentile(99)].map(Cell::nanos);
        let most = Cell::Count(during.most.max(0) as u64);
        table.row([
            from,
            to,
            times.count().into(),
            bytes.into(),
            during.mean.into(),
            most,
            p50,
            p99,
        ]);
        all.add(level);
    }
    let table = report.table("over_time", &["from_us", "under_way_mean", "under_way_most"]);
    level::fill(table, &[&all], interval, end);
    report
}

/// The least delay from node to node, of DATA and of other packets.
#[must_use]
pub fn minlatency(merged: &Merged) -> Report {
    let (nodes, mut report) = (Nodes::of(merged), Report::default());
    let columns = ["from", "to", "data_us", "control_us", "both_ways_us", "packets"];
    let table = report.table("ways", &columns);
    let ways = by_way(&nodes, packets(merged, &nodes));
    let least = |way: (usize, usize), is_data: bool| {
        let packets = ways.get(&way)?.iter();
        let of_kind = packets.filter(|(packet, _)| (packet.kind == PacketType::Data) == is_data);
        of_kind.filter_map(|(packet, _)| packet.delay()).min()
    };
    for (&(from, to), packets) in &ways {
        let [there, back] = [(from, to), (to, from)].map(|way| least(way, true));
        let both = there.zip(back).map(|(there, back)| Cell::nanos(there.saturating_add(back)));
        let control = least((from, to), false).map(Cell::nanos);
        let [from, to] = [from, to].map(|node| Cell::from(nodes.name(node)));
        table.row([
            from,
            to,
            there.map(Cell::nanos).into(),
            control.into(),
            both.into(),
            packets.len().into(),
        ]);
    }
    report
}

/// Excess of DATA packets' delays over the least delay of their way, from node to node, and the worst packets of each way.
#[must_use]
pub fn pairs(merged: &Merged) -> Report {
    let (nodes, mut report) = (Nodes::of(merged), Report::default());
    let columns = [
        "from",
        "to",
        "packets",
        "least_us",
        "excess_p50_us",
        "excess_p90_us",
        "excess_p99_us",
        "excess_most_us",
        "worst_at_us",
    ];
    let mut rows = Vec::new();
    for (way, packets) in by_way(&nodes, packets(merged, &nodes)) {
        let data =
            packets.iter().filter(|(packet, _)| packet.kind == PacketType::Data && !packet.again);
        let delays: Vec<_> =
            data.filter_map(|(packet, _)| Some((packet.delay()?, packet.sent))).collect();
        let times: Distribution = delays.iter().map(|(delay, _)| *delay).collect();
        let worst = delays.iter().max().map(|(_, sent)| *sent);
        rows.push((way, times, worst));
    }
    rows.sort_by_key(|(_, times, _)| std::cmp::Reverse(times.percentile(99)));
    let table = report.table("ways", &columns);
    for ((from, to), times, worst) in rows {
        let least = times.least();
        let excess = [times.median(), times.percentile(90), times.percentile(99), times.most()];
        let excess = excess.map(|time| Cell::nanos(time - least));
        let [from, to] = [from, to].map(|node| Cell::from(nodes.name(node)));
        let start = [from, to, times.count().into(), Cell::nanos(least)];
        table.row(start.into_iter().chain(excess).chain([worst.map(Cell::nanos).into()]));
    }
    report
}

/// Round trips of calls whose request and response have up to `short` bytes, and the longest of them.
#[must_use]
pub fn rtt(merged: &Merged, short: u32) -> Report {
    let mut report = Report::default();
    let is_short = |length: Option<u32>| length.is_some_and(|length| length <= short);
    let all = calls(merged);
    let of_short = all.iter().filter(|call| is_short(call.request) && is_short(call.response));
    let mut short: Vec<_> = of_short.filter_map(|call| Some((call.round_trip()?, call))).collect();
    short.sort_by_key(|(took, _)| std::cmp::Reverse(*took));
    let times: Distribution = short.iter().map(|(took, _)| *took).collect();
    let undisturbed = short.iter().filter(|(_, call)| call.disturbances == 0);
    let undisturbed: Distribution = undisturbed.map(|(took, _)| *took).collect();
    let columns = [&["calls"][..], &Distribution::TIMES].concat();
    let table = report.table("round_trips", &columns);
    for (name, times) in [("all", times), ("without retransmission", undisturbed)] {
        table.row([name.into()].into_iter().chain(times.times()));
    }
    let columns = ["id", "pair", "begun_us", "took_us", "request", "response", "disturbed"];
    let table = report.table("longest", &columns);
    for (took, call) in short.into_iter().take(WORST) {
        let [begun, took] = [call.first, took].map(Cell::nanos);
        let (id, pair) = (call.id.into(), Cell::hex(call.pair));
        let lengths = [call.request.into(), call.response.into()];
        let [request, response] = lengths;
        table.row([id, pair, begun, took, request, response, call.disturbances.into()]);
    }
    report
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    const CALL: &str = "0 c sendmsg_request 2 9 100
        10 c data_xmit 2 9 0 100
        30 s data_received 3 9 0 100
        40 s sendmsg_response 3 9 50
        50 s data_xmit 3 9 0 50
        80 c data_received 2 9 0 50
        90 c recvmsg_response 2 9 50
        100 c data_xmit 4 9 0 100
        170 s data_received 5 9 0 100
        200 s sleep 0";

    #[test]
    fn ways_have_a_least_delay_and_what_exceeds_it() {
        let report = minlatency(&script(CALL));
        assert_eq!(report.cell("ways", 0, "data_us"), Some(&Cell::Number(0.02)));
        assert_eq!(report.cell("ways", 0, "both_ways_us"), Some(&Cell::Number(0.05)));
        let report = pairs(&script(CALL));
        assert_eq!(report.cell("ways", 0, "excess_most_us"), Some(&Cell::Number(0.05)));
        assert_eq!(report.cell("ways", 0, "worst_at_us"), Some(&Cell::Number(0.1)));
    }

    #[test]
    fn bytes_are_on_their_way_until_they_arrive() {
        let report = net(&script(CALL), 100);
        assert_eq!(report.cell("ways", 0, "under_way_mean"), Some(&Cell::Number(45.0)));
        assert_eq!(report.cell("over_time", 0, "under_way_mean"), Some(&Cell::Number(35.0)));
        assert_eq!(report.cell("over_time", 1, "under_way_most"), Some(&Cell::Count(100)));
    }

    #[test]
    fn round_trips_of_short_calls() {
        let report = rtt(&script(CALL), 100);
        assert_eq!(report.cell("longest", 0, "took_us"), Some(&Cell::Number(0.09)));
        assert_eq!(rtt(&script(CALL), 99).cell("round_trips", 0, "count"), Some(&Cell::Count(0)));
    }
}
