//! Bytes that were granted and have not arrived.

use std::collections::BTreeMap;

use super::end;
use crate::distribution::Distribution;
use crate::level::{self, Level};
use crate::merged::Merged;
use crate::nodes::Nodes;
use crate::report::{Cell, Report, counted};

/// A message with grants, as its two ends see it.
#[derive(Default)]
struct GrantedMessage {
    /// Offset up to which the receiver has granted.
    granted: u32,
    /// Offset up to which the sender knows of grants.
    known: u32,
    /// Bytes that have arrived.
    received: u32,
    /// Offset up to which the sender has sent.
    sent: u32,
    /// Its share of the incoming level.
    incoming: i64,
    /// Its share of the outgoing level.
    outgoing: i64,
    /// Unused grants: the granted offset, and the times at which the grant was queued and received.
    unused: Vec<(u32, Option<u64>, Option<u64>)>,
}

/// Delays of grants.
#[derive(Default)]
struct Lags {
    to_sender: Vec<u64>,
    to_xmit: Vec<u64>,
    to_data: Vec<u64>,
}

/// Bytes that receivers have granted and not received, and bytes that senders may send and have not sent, over time. Also the delay
/// from a grant to its effect.
#[must_use]
pub fn grants(merged: &Merged, interval: u64) -> Report {
    let (nodes, end) = (Nodes::of(merged), end(merged));
    let mut messages: BTreeMap<_, GrantedMessage> = BTreeMap::new();
    let mut levels: Vec<[Level; 2]> = vec![Default::default(); nodes.count()];
    let (mut lags, mut count) = (Lags::default(), 0);
    for moment in &merged.moments {
        let Some((call, at_client)) = nodes.call(merged, moment) else { continue };
        let at = moment.nanos;
        let [_, _, a, b] = moment.arguments;
        let event = merged.name(moment);
        let Some(is_sender) = at_sender(event) else { continue };
        count += usize::from(event == "grant_xmit");
        let message = messages.entry((call, at_client == is_sender)).or_default();
        message.note(event, at, a, b, &mut lags);
        let [incoming, outgoing] = &mut levels[nodes.of_ring(moment.ring)];
        if is_sender {
            let now = i64::from(message.known.saturating_sub(message.sent));
            outgoing.change(at, now - std::mem::replace(&mut message.outgoing, now));
        } else {
            let now = i64::from(message.granted.saturating_sub(message.received));
            incoming.change(at, now - std::mem::replace(&mut message.incoming, now));
        }
    }
    let mut report = Report::default();
    report.fact("grants", count);
    let unknown = messages.values().filter(|message| message.is_stuck()).count();
    if unknown > 0 {
        let messages = counted(unknown, "message");
        report.find(format!("{messages} ended the trace with granted bytes that did not arrive"));
    }
    let columns = [&["stage"][..], &Distribution::TIMES].concat();
    let table = report.table("stages", &columns);
    for (name, times) in [
        ("grant queued to received", lags.to_sender),
        ("grant received to its data sent", lags.to_xmit),
        ("grant queued to its data received", lags.to_data),
    ] {
        let times: Distribution = times.into_iter().collect();
        table.row([name.into()].into_iter().chain(times.times()));
    }
    of_nodes(&mut report, &nodes, &levels, end);
    let columns = ["from_us", "unreceived_mean", "unreceived_most", "unsent_mean", "unsent_most"];
    let changes =
        levels.into_iter().fold([Level::default(), Level::default()], |mut sum, levels| {
            sum.iter_mut().zip(levels).for_each(|(sum, level)| sum.add(level));
            sum
        });
    let table = report.table("over_time", &columns);
    level::fill(table, &changes.each_ref(), interval, end);
    report
}

fn of_nodes(report: &mut Report, nodes: &Nodes, levels: &[[Level; 2]], end: u64) {
    let columns = ["node", "unreceived_mean", "unreceived_most", "unsent_mean", "unsent_most"];
    let table = report.table("nodes", &columns);
    for (node, [incoming, outgoing]) in levels.iter().enumerate() {
        let [incoming, outgoing] = [incoming, outgoing].map(|level| level.overall(end));
        let most = [incoming, outgoing].map(|during| Cell::Count(during.most.max(0) as u64));
        let [in_most, out_most] = most;
        let (name, unreceived, unsent) = (nodes.name(node), incoming.mean, outgoing.mean);
        table.row([name.into(), unreceived.into(), in_most, unsent.into(), out_most]);
    }
}

/// Whether an event is recorded at the message's sender; `None` for other events.
fn at_sender(event: &str) -> Option<bool> {
    match event {
        "data_xmit" | "granted_xmit" | "grant_received" | "sendmsg_request"
        | "sendmsg_response" => Some(true),
        "grant_xmit" | "data_received" | "request_complete" | "response_complete" => Some(false),
        _ => None,
    }
}

impl GrantedMessage {
    fn note(&mut self, event: &str, at: u64, a: u32, b: u32, lags: &mut Lags) {
        match event {
            "grant_xmit" => {
                self.granted = self.granted.max(a);
                self.unused.push((a, Some(at), None));
            }
            "grant_received" => {
                self.known = self.known.max(a);
                match self.unused.iter_mut().find(|(offset, ..)| *offset == a) {
                    Some((_, Some(queued), received)) => {
                        *received = Some(at);
                        lags.to_sender.push(at.saturating_sub(*queued));
                    }
                    Some(_) => {}
                    None => self.unused.push((a, None, Some(at))),
                }
            }
            "data_xmit" | "granted_xmit" => {
                self.sent = self.sent.max(a.saturating_add(b));
                let used = self.unused.iter_mut().filter(|(offset, ..)| *offset <= self.sent);
                let received = used.filter_map(|(.., received)| received.take());
                lags.to_xmit.extend(received.map(|received| at.saturating_sub(received)));
            }
            "data_received" => {
                self.received = self.received.saturating_add(b);
                let end = a.saturating_add(b);
                let arrived = self.unused.extract_if(.., |(offset, ..)| *offset <= end);
                let queued = arrived.filter_map(|(_, queued, _)| queued);
                lags.to_data.extend(queued.map(|queued| at.saturating_sub(queued)));
            }
            "request_complete" | "response_complete" => self.received = u32::MAX,
            _ => {}
        }
    }

    /// Whether granted bytes have not arrived.
    fn is_stuck(&self) -> bool {
        self.granted > self.received
    }
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn granted_bytes_are_missing_until_they_come() {
        let report = grants(
            &script(
                "0 c data_xmit 2 9 0 1000
                 10 s data_received 3 9 0 1000
                 20 s grant_xmit 3 9 3000 0
                 30 c grant_received 2 9 3000 0
                 40 c granted_xmit 2 9 1000 2000
                 60 s data_received 3 9 1000 2000
                 80 s request_complete 3 9 3000",
            ),
            20,
        );
        let most = |row, column| report.cell("stages", row, column).cloned().unwrap();
        assert_eq!([0, 1, 2].map(|row| most(row, "most_us")), [0.01, 0.01, 0.04].map(Cell::Number));
        // 2,000 bytes are missing at the server from 20 to 60, and unsent at the client from 30 to 40.
        assert_eq!(report.cell("nodes", 1, "unreceived_mean"), Some(&Cell::Number(1000.0)));
        assert_eq!(report.cell("nodes", 0, "unsent_mean"), Some(&Cell::Number(250.0)));
        assert_eq!(report.cell("over_time", 0, "unreceived_most"), Some(&Cell::Count(2000)));
        assert_eq!(report.findings, [""; 0]);
    }
}
