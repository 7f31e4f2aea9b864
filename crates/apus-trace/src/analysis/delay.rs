//! Delays of packets, by stage.

use std::collections::BTreeMap;

use super::handoffs::{Take, takes};
use super::{Times, WORST};
use crate::calls::{TracedCall, calls};
use crate::distribution::Distribution;
use crate::merged::Merged;
use crate::nodes::Nodes;
use crate::packets::{Packet, PacketType, packets};
use crate::report::{Cell, Report};

/// A kind of packets, and the test for it.
pub(super) type Class = (&'static str, fn(&Packet) -> bool);

/// The kinds of packets that analyses distinguish.
pub(super) const CLASSES: [Class; 3] = [
    ("single-packet messages", Packet::is_message),
    ("other data", |packet| packet.kind == PacketType::Data && !packet.is_message()),
    ("grants", |packet| packet.kind == PacketType::Grant),
];

/// Delays of packets by stage, waits of complete messages for the application, and batch sizes of the link.
#[must_use]
pub fn delay(merged: &Merged) -> Report {
    let mut report = Report::default();
    let all = packets(merged, &Nodes::of(merged));
    let round_trip = calls(merged).iter().filter_map(TracedCall::round_trip).min();
    report.fact("least_round_trip_us", round_trip.map(Cell::nanos));
    let (flushes, batches) = (Times::of(merged, "link_flush"), Times::of(merged, "link_recv"));
    let columns = [&["packets", "stage"][..], &Distribution::TIMES].concat();
    let table = report.table("packets", &columns);
    for (class, is_of) in CLASSES {
        let lifetimes = all.iter().filter(|packet| is_of(packet) && !packet.again);
        let lifetimes = lifetimes.filter_map(|packet| Some((packet, packet.received?)));
        let mut stages: [Vec<u64>; 4] = Default::default();
        for (packet, arrival) in lifetimes {
            stages[0].extend(packet.delay());
            if let Some(flushed) = flushes.next(packet.sender, packet.sent) {
                stages[1].push(flushed - packet.sent);
                stages[2].push(arrival.at.saturating_sub(flushed));
            }
            let handled = batches.next(arrival.ring, arrival.at);
            stages[3].extend(handled.map(|handled| handled - arrival.at));
        }
        let names =
            ["xmit to receipt", "xmit to flush", "flush to receipt", "receipt to batch end"];
        for (name, times) in names.iter().copied().zip(stages) {
            let times: Distribution = times.into_iter().collect();
            if times.count() == 0 && name != names[0] {
                continue; // A simulation has no flushes.
            }
            table.row([class.into(), name.into()].into_iter().chain(times.times()));
        }
    }
    of_takes(&mut report, &takes(merged));
    of_batches(&mut report, merged);
    longest(&mut report, &all);
    report
}

fn of_takes(report: &mut Report, takes: &[Take]) {
    let columns = [&["wait"][..], &Distribution::TIMES].concat();
    let table = report.table("waits", &columns);
    let hand_offs: Distribution = takes.iter().map(Take::wait).collect();
    let wake_ups: Distribution = takes.iter().filter_map(Take::wake_up).collect();
    for (name, times) in [("complete to taken", hand_offs), ("complete to thread woken", wake_ups)]
    {
        table.row([name.into()].into_iter().chain(times.times()));
    }
}

/// Batches of the link, by their number of packets rounded up to a power of two.
fn of_batches(report: &mut Report, merged: &Merged) {
    let table = report.table("batches", &["link", "up_to", "batches", "packets"]);
    for (name, event) in [("received", "link_recv"), ("flushed", "link_flush")] {
        let mut sizes: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for moment in merged.moments.iter().filter(|moment| merged.name(moment) == event) {
            let packets = moment.arguments[0];
            let (count, sum) =
                sizes.entry(packets.checked_next_power_of_two().unwrap_or(packets)).or_default();
            (*count, *sum) = (*count + 1, *sum + u64::from(packets));
        }
        for (size, (count, sum)) in sizes {
            table.row([name.into(), size.into(), count.into(), sum.into()]);
        }
    }
}

fn longest(report: &mut Report, all: &[Packet]) {
    let columns = ["packet", "id", "pair", "from", "offset", "bytes", "sent_us", "took_us"];
    let table = report.table("longest", &columns);
    let mut longest: Vec<_> =
        all.iter().filter_map(|packet| Some((packet.delay()?, packet))).collect();
    longest.sort_by_key(|(delay, _)| std::cmp::Reverse(*delay));
    for (delay, packet) in longest.into_iter().take(WORST) {
        let [kind, from] = [packet.kind.name(), side(packet.from_client)].map(Cell::from);
        let (id, pair) = (packet.call.id.into(), Cell::hex(packet.call.pair));
        let (sent, took) = (Cell::nanos(packet.sent), Cell::nanos(delay));
        table.row([kind, id, pair, from, packet.offset.into(), packet.bytes.into(), sent, took]);
    }
}

/// The name of a packet's sender.
pub(super) fn side(is_client: bool) -> &'static str {
    if is_client { "client" } else { "server" }
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn a_packet_waits_for_the_flush_the_network_and_its_batch() {
        let report = delay(&script(
            "0 c sendmsg_request 2 9 100
             1000 c data_xmit 2 9 0 100
             3000 c link_flush 1
             7000 s data_received 3 9 0 100
             8000 s request_complete 3 9 100
             15000 s link_recv 1 156
             16000 s recvmsg_request 3 9 100",
        ));
        let p50 = |row| report.cell("packets", row, "p50_us").cloned().unwrap();
        assert_eq!([0, 1, 2, 3].map(p50), [6.0, 2.0, 4.0, 8.0].map(Cell::Number));
        assert_eq!(report.cell("packets", 5, "count"), Some(&Cell::Count(0)));
        assert_eq!(report.cell("waits", 0, "p50_us"), Some(&Cell::Number(8.0)));
        assert_eq!(report.cell("batches", 0, "packets"), Some(&Cell::Count(1)));
        assert_eq!(report.cell("longest", 0, "took_us"), Some(&Cell::Number(6.0)));
    }
}
