//! Incomplete messages at one instant.

use std::collections::BTreeMap;

use super::delay::side;
use crate::merged::{Merged, Moment};
use crate::nodes::{CallKey, Nodes};
use crate::report::{Cell, Report};

/// A message, as its two ends know it.
#[derive(Default)]
struct MessageState {
    length: Option<u32>,
    /// Offset up to which the sender has sent.
    sent: u32,
    /// Offset up to which the sender may send.
    allowed: u32,
    /// Time and node of the sender's first record.
    sender: Option<(u64, usize)>,
    /// Bytes that the receiver has.
    received: u32,
    /// Offset up to which the receiver has granted.
    granted: u32,
    /// Time and node of the receiver's first record.
    receiver: Option<(u64, usize)>,
    complete: bool,
}

/// Messages by their calls, each with whether the client sends it.
#[derive(Default)]
struct Messages(BTreeMap<(CallKey, bool), MessageState>);

impl Messages {
    fn of(&mut self, call: CallKey, from_client: bool) -> &mut MessageState {
        self.0.entry((call, from_client)).or_default()
    }

    fn take(&mut self, merged: &Merged, nodes: &Nodes, moment: &Moment) {
        let Some((call, at_client)) = nodes.call(merged, moment) else { return };
        let here = (moment.nanos, nodes.of_ring(moment.ring));
        let [_, _, a, b] = moment.arguments;
        match merged.name(moment) {
            "sendmsg_request" | "sendmsg_response" => {
                let message = self.of(call, at_client);
                (message.length, message.sender) = (Some(a), Some(here));
            }
            "data_xmit" | "granted_xmit" => {
                let message = self.of(call, at_client);
                message.sent = message.sent.max(a.saturating_add(b));
                message.sender.get_or_insert(here);
            }
            "grant_received" => {
                let message = self.of(call, at_client);
                message.allowed = message.allowed.max(a);
            }
            "data_received" => {
                let message = self.of(call, !at_client);
                message.received = message.received.saturating_add(b);
                message.receiver.get_or_insert(here);
            }
            "grant_xmit" => {
                let message = self.of(call, !at_client);
                message.granted = message.granted.max(a);
            }
            "request_complete" | "response_complete" => self.of(call, !at_client).complete = true,
            // A failed call has no messages.
            "call_failed" => {
                self.of(call, true).complete = true;
                self.of(call, false).complete = true;
            }
            _ => {}
        }
    }
}

/// Messages that every node was sending and receiving at a time: those with unsent bytes, and those that had arrived in part.
#[must_use]
pub fn snapshot(merged: &Merged, at: u64) -> Report {
    let (nodes, mut messages) = (Nodes::of(merged), Messages::default());
    for moment in merged.moments.iter().take_while(|moment| moment.nanos <= at) {
        messages.take(merged, &nodes, moment);
    }
    let mut report = Report::default();
    let columns = ["node", "id", "pair", "from", "length", "sent", "may_send", "since_us"];
    let table = report.table("outgoing", &columns);
    let open = || messages.0.iter().filter(|(_, message)| !message.complete);
    for ((call, from_client), message) in open() {
        let Some((since, node)) = message.sender else { continue };
        if message.length.is_none_or(|length| message.sent < length) {
            let start = start(nodes.name(node), *call, *from_client, message);
            let allowed = message.allowed.max(message.sent);
            table.row(start.into_iter().chain([
                message.sent.into(),
                allowed.into(),
                Cell::nanos(since),
            ]));
        }
    }
    let columns = ["node", "id", "pair", "from", "length", "received", "granted", "since_us"];
    let table = report.table("incoming", &columns);
    for ((call, from_client), message) in open() {
        let Some((since, node)) = message.receiver else { continue };
        let start = start(nodes.name(node), *call, *from_client, message);
        // Bytes that arrived without a grant need none.
        let granted = message.granted.max(message.received);
        table.row(start.into_iter().chain([
            message.received.into(),
            granted.into(),
            Cell::nanos(since),
        ]));
    }
    report
}

fn start(node: &str, call: CallKey, from_client: bool, message: &MessageState) -> [Cell; 5] {
    let (id, pair) = (call.id.into(), Cell::hex(call.pair));
    [node.into(), id, pair, side(from_client).into(), message.length.into()]
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn a_message_goes_out_until_it_is_sent_and_comes_in_until_it_is_whole() {
        let merged = script(
            "0 c sendmsg_request 2 9 3000
             10 c data_xmit 2 9 0 1000
             20 s data_received 3 9 0 1000
             21 s grant_xmit 3 9 3000 0
             30 c grant_received 2 9 3000 0
             31 c granted_xmit 2 9 1000 2000
             50 s data_received 3 9 1000 2000
             51 s request_complete 3 9 3000",
        );
        let at = |at, table, column| snapshot(&merged, at).cell(table, 0, column).cloned();
        assert_eq!(at(25, "outgoing", "sent"), Some(Cell::Count(1000)));
        assert_eq!(at(30, "outgoing", "may_send"), Some(Cell::Count(3000)));
        assert_eq!(at(31, "outgoing", "sent"), None);
        assert_eq!(at(31, "incoming", "granted"), Some(Cell::Count(3000)));
        assert_eq!(at(51, "incoming", "node"), None);
    }
}
