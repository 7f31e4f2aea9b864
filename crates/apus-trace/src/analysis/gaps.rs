//! Stops of threads and nodes.

use std::collections::BTreeMap;

use super::{WORST, thread};
use crate::distribution::Distribution;
use crate::merged::{Merged, Moment};
use crate::nodes::Nodes;
use crate::packets::{Packet, packets};
use crate::report::{Cell, Report, counted};

/// A time in which a node recorded nothing, although packets waited for it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stop {
    /// The node; `None` if all nodes stood still.
    node: Option<usize>,
    from: u64,
    until: u64,
    /// Threads whose last record is neither a sleep nor a return to the application.
    awake: usize,
    /// Packets that were sent to the node in this time and had to wait.
    waiting: usize,
    /// The wait of the first of them beyond the least delay, in ns.
    waited: u64,
}

/// Packets to a node, in the order in which they were sent.
#[derive(Clone, Default)]
struct Arrivals {
    /// Times of transmission and arrival of each packet.
    times: Vec<(u64, u64)>,
    /// The least time between the two.
    least: u64,
}

/// Times of at least `threshold` nanoseconds in which a node, or all nodes, recorded nothing although a packet waited as long. Also
/// times in which a thread that was not asleep recorded nothing.
///
/// A thread that polls without result or runs the application records nothing either, so threads are listed by their previous
/// record.
#[must_use]
pub fn gaps(merged: &Merged, threshold: u64) -> Report {
    let (nodes, mut report) = (Nodes::of(merged), Report::default());
    let packets = packets(merged, &nodes);
    let mut stops = stops(merged, &nodes, &packets, threshold);
    stops.sort_by_key(|stop| std::cmp::Reverse((stop.waited, stop.node.is_some())));
    let name = |stop: &Stop| stop.node.map_or("all nodes", |node| nodes.name(node)).to_owned();
    if let Some(stop) = stops.iter().find(|stop| stop.node.is_some()) {
        report.find(format!(
            "{} stood still for {:.1} us, {:.1} us after the first record, while {} waited, for up to {:.1} us",
            name(stop),
            (stop.until - stop.from) as f64 / 1e3,
            stop.from as f64 / 1e3,
            counted(stop.waiting, "packet"),
            stop.waited as f64 / 1e3
        ));
    }
    report.fact("stops", stops.len());
    let columns = ["node", "from_us", "took_us", "waited_us", "packets_waiting", "threads_awake"];
    let table = report.table("stops", &columns);
    for stop in stops.iter().take(WORST) {
        let times = [stop.from, stop.until - stop.from, stop.waited].map(Cell::nanos);
        let counts = [stop.waiting, stop.awake].map(Cell::from);
        table.row([name(stop).into()].into_iter().chain(times).chain(counts));
    }
    of_threads(&mut report, merged, threshold);
    report
}

/// The stops of each node, and the stops of all nodes at once if there are several.
fn stops(merged: &Merged, nodes: &Nodes, packets: &[Packet], threshold: u64) -> Vec<Stop> {
    let all = nodes.count();
    // The last entry stands for all nodes.
    let mut arrivals = vec![Arrivals { least: u64::MAX, ..Arrivals::default() }; all + 1];
    for packet in packets {
        let (Some(arrival), Some(delay)) = (packet.received, packet.delay()) else { continue };
        for it in [nodes.of_ring(arrival.ring), all] {
            arrivals[it].times.push((packet.sent, arrival.at));
            arrivals[it].least = arrivals[it].least.min(delay);
        }
    }
    let (mut before, mut awake) = (vec![None; all + 1], vec![0; all + 1]);
    let (mut quiet, mut stops) = (vec![true; merged.rings.len()], Vec::new());
    for moment in &merged.moments {
        let (node, until) = (nodes.of_ring(moment.ring), moment.nanos);
        for it in [node, all] {
            let from: Option<u64> = before[it].replace(until);
            let Some(from) = from.filter(|from| until - from >= threshold) else { continue };
            let (waiting, waited) = arrivals[it].waiting(from, until, threshold);
            if waiting > 0 && (it < all || all > 1) {
                let node = Some(it).filter(|it| *it < all);
                stops.push(Stop { node, from, until, awake: awake[it], waiting, waited });
            }
        }
        let is_quiet = is_quiet(merged, moment);
        let was_quiet = std::mem::replace(&mut quiet[moment.ring], is_quiet);
        for it in [node, all] {
            awake[it] = awake[it] + usize::from(was_quiet) - usize::from(is_quiet);
        }
    }
    stops
}

/// Upper bound on packets examined that were sent before a stop.
const ON_THEIR_WAY: usize = 256;

impl Arrivals {
    /// The number of packets sent in a stop that waited for its end for at least `threshold`, and the wait of the first.
    fn waiting(&self, from: u64, until: u64, threshold: u64) -> (usize, u64) {
        // Earlier packets may wait as well: the node stopped before it took them.
        let before = self.times.partition_point(|(sent, _)| *sent < from);
        let first = before.saturating_sub(ON_THEIR_WAY);
        let last = until.saturating_sub(self.least).saturating_sub(threshold);
        if from > last {
            return (0, 0);
        }
        let sent = self.times[first..].iter().take_while(|(sent, _)| *sent <= last);
        let waited = sent.filter(|(_, received)| *received >= until);
        let waited = waited.map(|(sent, _)| until - from.max(*sent) - self.least);
        let waited: Vec<_> = waited.collect();
        (waited.len(), waited.first().copied().unwrap_or(0))
    }
}

/// Whether a thread may record nothing after this record.
fn is_quiet(merged: &Merged, moment: &Moment) -> bool {
    matches!(merged.name(moment), "sleep" | "recvmsg_request" | "recvmsg_response")
}

/// Times between records of a thread, by the earlier record, except for records of going to sleep.
fn of_threads(report: &mut Report, merged: &Merged, threshold: u64) {
    let mut before: Vec<Option<&Moment>> = vec![None; merged.rings.len()];
    let mut gaps: BTreeMap<(usize, &str), Vec<u64>> = BTreeMap::new();
    for moment in &merged.moments {
        let Some(last) = before[moment.ring].replace(moment) else { continue };
        let (took, name) = (moment.nanos - last.nanos, merged.name(last));
        if took >= threshold && name != "sleep" {
            gaps.entry((moment.ring, name)).or_default().push(took);
        }
    }
    let columns = [&["thread", "after"][..], &Distribution::TIMES].concat();
    let table = report.table("threads", &columns);
    let gaps = gaps.into_iter().map(|(key, times)| (key, times.into_iter().collect()));
    let mut gaps: Vec<(_, Distribution)> = gaps.collect();
    gaps.sort_by_key(|(_, times)| std::cmp::Reverse(times.most()));
    for ((ring, after), times) in gaps {
        table.row([thread(merged, ring).into(), after.into()].into_iter().chain(times.times()));
    }
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn a_node_stands_still_if_packets_wait_for_it() {
        let report = gaps(
            &script(
                "0 s link_recv 1
                 1 s sleep 0
                 100 c data_xmit 2 9 0 100
                 5000 s wake_up 0
                 5001 s data_received 3 9 0 100
                 5002 s sleep 0
                 9000 c data_xmit 4 9 0 100
                 9010 s wake_up 0
                 9050 s data_received 5 9 0 100",
            ),
            1_000,
        );
        let cell = |row, column| report.cell("stops", row, column).cloned();
        assert_eq!(cell(0, "took_us"), Some(Cell::Number(4.999)));
        assert_eq!(cell(0, "waited_us"), Some(Cell::Number(4.85)));
        assert!(report.findings[0].starts_with("s.1 stood still for 5.0 us"), "{report:?}");
        // From 5.002 to 9.01 µs the node was idle, and the second packet had the least delay.
        let nodes = report.tables[0].rows.iter().map(|row| row[0].clone());
        assert_eq!(nodes.collect::<Vec<_>>(), ["s.1", "all nodes"].map(Cell::from));
    }

    #[test]
    fn a_packet_that_was_on_its_way_waits_as_well() {
        let report = gaps(
            &script(
                "0 c data_xmit 2 9 0 100
                 50 s data_received 3 9 0 100
                 1000 c data_xmit 4 9 0 100
                 1010 s lock_wait 5
                 9000 s data_received 5 9 0 100",
            ),
            1_000,
        );
        let waited = report.cell("stops", 0, "waited_us").cloned();
        assert_eq!(waited, Some(Cell::Number(7.94)), "{report:?}");
    }

    #[test]
    fn a_thread_that_sleeps_has_no_gap() {
        let report = gaps(&script("0 s sleep 0\n5000 s wake_up 0\n9000 s link_recv 1"), 1_000);
        assert_eq!(report.cell("threads", 0, "after"), Some(&Cell::from("wake_up")));
        assert_eq!(report.cell("threads", 0, "count"), Some(&Cell::Count(1)));
    }
}
