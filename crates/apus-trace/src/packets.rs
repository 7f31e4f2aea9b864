//! Packets in a merged trace, with the times of transmission and arrival.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::merged::{Merged, Moment};
use crate::nodes::{CallKey, Nodes};

/// Types of packets about calls, in the order of tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PacketType {
    Data,
    Grant,
    Resend,
    Busy,
    Unknown,
    NeedAck,
}

impl PacketType {
    pub(crate) const ALL: [Self; 6] =
        [Self::Data, Self::Grant, Self::Resend, Self::Busy, Self::Unknown, Self::NeedAck];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Data => "DATA",
            Self::Grant => "GRANT",
            Self::Resend => "RESEND",
            Self::Busy => "BUSY",
            Self::Unknown => "RPC_UNKNOWN",
            Self::NeedAck => "NEED_ACK",
        }
    }
}

/// A packet that was given to the link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub(crate) kind: PacketType,
    pub(crate) call: CallKey,
    pub(crate) from_client: bool,
    /// Of DATA, its offset in the message; of other packets, the first argument of their event.
    pub(crate) offset: u32,
    /// Bytes of payload.
    pub(crate) bytes: u32,
    /// Length of the message, if the traces have it.
    pub(crate) message: Option<u32>,
    /// Time at which it was given to the link.
    pub(crate) sent: u64,
    /// The ring of the sending thread.
    pub(crate) sender: usize,
    /// Whether it retransmits requested bytes.
    pub(crate) again: bool,
    /// Time and ring of its arrival.
    pub(crate) received: Option<Arrival>,
    /// Whether it did not arrive, although the receiver's trace covers the time.
    pub(crate) lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: u64,
    pub(crate) ring: usize,
}

impl Packet {
    /// Time from the sender's link to the receiver's core, in ns. 0 if the clocks disagree.
    pub(crate) fn delay(&self) -> Option<u64> {
        Some(self.received?.at.saturating_sub(self.sent))
    }

    /// Whether it is a whole message.
    pub(crate) fn is_message(&self) -> bool {
        self.kind == PacketType::Data && self.offset == 0 && self.message == Some(self.bytes)
    }
}

/// Bytes given to the link at once: one packet, or several consecutive ones.
#[derive(Debug)]
struct Sent {
    at: u64,
    ring: usize,
    offset: u32,
    bytes: u32,
    again: bool,
    /// The ranges that arrived.
    arrived: Vec<Range<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct Reception {
    at: u64,
    ring: usize,
    offset: u32,
    bytes: u32,
}

/// Packets of one kind about one call, in one direction.
#[derive(Debug, Default)]
struct Flow {
    sent: Vec<Sent>,
    received: Vec<Reception>,
    /// Ranges that the receiver requested again, with the time.
    asked: Vec<(u64, Range<u32>)>,
    message: Option<u32>,
}

/// Kind and call of a flow, and whether the client sends.
type FlowKey = (PacketType, CallKey, bool);

/// The packets of a trace, in the order of transmission. Packets that only their receiver recorded are left out.
pub(crate) fn packets(merged: &Merged, nodes: &Nodes) -> Vec<Packet> {
    let mut flows = Flows::default();
    for moment in &merged.moments {
        flows.take(merged, nodes, moment);
    }
    let mut packets = Vec::new();
    for (key, flow) in flows.0 {
        match key.0 {
            PacketType::Data => flow.match_data(key, &mut packets),
            _ => flow.match_control(key, &mut packets),
        }
    }
    find_lost(&mut packets, nodes);
    packets.sort_by_key(|packet| packet.sent);
    packets
}

/// The flows of a trace.
#[derive(Default)]
struct Flows(BTreeMap<FlowKey, Flow>);

impl Flows {
    fn take(&mut self, merged: &Merged, nodes: &Nodes, moment: &Moment) {
        let Some((call, at_client)) = nodes.call(merged, moment) else { return };
        let (event, at, ring) = (merged.name(moment), moment.nanos, moment.ring);
        let [_, _, offset, bytes] = moment.arguments;
        match event {
            "data_xmit" | "granted_xmit" | "retransmit" => {
                let again = event == "retransmit";
                let sent = Sent { at, ring, offset, bytes, again, arrived: Vec::new() };
                self.flow(PacketType::Data, call, at_client).sent.push(sent);
            }
            "data_received" => {
                let received = Reception { at, ring, offset, bytes };
                self.flow(PacketType::Data, call, !at_client).received.push(received);
            }
            "sendmsg_request" | "sendmsg_response" => {
                self.flow(PacketType::Data, call, at_client).has(offset);
            }
            "request_complete" | "response_complete" => {
                self.flow(PacketType::Data, call, !at_client).has(offset);
            }
            _ => {}
        }
        if event == "resend_xmit" {
            let asked = (at, offset..offset.saturating_add(bytes));
            self.flow(PacketType::Data, call, !at_client).asked.push(asked);
        }
        match control(event) {
            Some((kind, true)) => {
                let sent = Sent { at, ring, offset, bytes: 0, again: false, arrived: Vec::new() };
                self.flow(kind, call, at_client).sent.push(sent);
            }
            Some((kind, false)) => {
                let received = Reception { at, ring, offset, bytes: 0 };
                self.flow(kind, call, !at_client).received.push(received);
            }
            None => {}
        }
    }

    fn flow(&mut self, kind: PacketType, call: CallKey, from_client: bool) -> &mut Flow {
        self.0.entry((kind, call, from_client)).or_default()
    }
}

/// The kind of a control packet, and whether its sender records the event.
fn control(event: &str) -> Option<(PacketType, bool)> {
    Some(match event {
        "grant_xmit" => (PacketType::Grant, true),
        "grant_received" => (PacketType::Grant, false),
        "resend_xmit" => (PacketType::Resend, true),
        "resend_received" => (PacketType::Resend, false),
        "busy_xmit" => (PacketType::Busy, true),
        "busy_received" => (PacketType::Busy, false),
        "unknown_xmit" => (PacketType::Unknown, true),
        "unknown_received" => (PacketType::Unknown, false),
        "need_ack_xmit" => (PacketType::NeedAck, true),
        "need_ack_received" => (PacketType::NeedAck, false),
        _ => return None,
    })
}

impl Flow {
    /// Notes the length of the message. A simulation only counts the bytes of long messages, so they arrive with a length of 0.
    fn has(&mut self, length: u32) {
        self.message = self.message.max(Some(length));
    }

    /// Matches each arrival with a retransmission of its bytes if there is one, and otherwise with their first transmission.
    fn match_data(mut self, key: FlowKey, packets: &mut Vec<Packet>) {
        let (again, mut once): (Vec<_>, Vec<_>) =
            self.sent.into_iter().partition(|sent| sent.again);
        self.sent = again;
        once.sort_by_key(|sent| sent.offset);
        for received in std::mem::take(&mut self.received) {
            let range = received.offset..received.offset.saturating_add(received.bytes);
            let is_asked = self.asked.iter().any(|(at, asked)| {
                *at <= received.at && asked.start < range.end && range.start < asked.end
            });
            let fits = |sent: &&mut Sent| {
                let arrived: u32 =
                    sent.arrived.iter().map(ExactSizeIterator::len).sum::<usize>() as u32;
                sent.at <= received.at && arrived.saturating_add(received.bytes) <= sent.bytes
            };
            let sent = self.sent.iter_mut().filter(|_| is_asked).find(fits).or_else(|| {
                let after = once.partition_point(|sent| sent.offset <= range.start);
                let sent = &mut once[after.checked_sub(1)?];
                (range.start < sent.offset.saturating_add(sent.bytes.max(1))).then_some(sent)
            });
            let Some(sent) = sent else { continue };
            sent.arrived.push(range);
            let arrival = Arrival { at: received.at, ring: received.ring };
            let (offset, bytes) = (received.offset, received.bytes);
            packets.push(packet(key, self.message, sent, offset, bytes, Some(arrival)));
        }
        for sent in once.iter().chain(&self.sent) {
            for hole in sent.holes() {
                let bytes = hole.end - hole.start;
                packets.push(packet(key, self.message, sent, hole.start, bytes, None));
            }
        }
    }

    /// Matches each arrival of a control packet with the last earlier packet of the same content that has not arrived.
    fn match_control(mut self, key: FlowKey, packets: &mut Vec<Packet>) {
        for received in std::mem::take(&mut self.received) {
            let same = |sent: &&Sent| sent.offset == received.offset && sent.at <= received.at;
            let arrival = Some(Arrival { at: received.at, ring: received.ring });
            let open = |sent: &&Sent| sent.arrived.is_empty();
            let Some(at) = self.sent.iter().rposition(|sent| same(&sent) && open(&sent)) else {
                continue;
            };
            let sent = &mut self.sent[at];
            sent.arrived.push(0..0);
            packets.push(packet(key, self.message, sent, sent.offset, 0, arrival));
        }
        for sent in self.sent.iter().filter(|sent| sent.arrived.is_empty()) {
            packets.push(packet(key, self.message, sent, sent.offset, 0, None));
        }
    }
}

impl Sent {
    /// Ranges that did not arrive. The trace does not record the offsets of retransmitted bytes.
    fn holes(&self) -> Vec<Range<u32>> {
        let mut arrived = self.arrived.clone();
        arrived.sort_by_key(|range| range.start);
        let end = self.offset.saturating_add(self.bytes);
        if self.again {
            let count: usize = arrived.iter().map(ExactSizeIterator::len).sum();
            let left = self.bytes.saturating_sub(count as u32);
            let hole = self.offset..self.offset.saturating_add(left);
            return Some(hole).filter(|_| left > 0).into_iter().collect();
        }
        let (mut holes, mut at) = (Vec::new(), self.offset);
        for range in arrived {
            if range.start > at {
                holes.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < end {
            holes.push(at..end);
        }
        holes
    }
}

fn packet(
    (kind, call, from_client): FlowKey,
    message: Option<u32>,
    sent: &Sent,
    offset: u32,
    bytes: u32,
    received: Option<Arrival>,
) -> Packet {
    let (again, sender, sent) = (sent.again, sent.ring, sent.at);
    Packet {
        kind,
        call,
        from_client,
        offset,
        bytes,
        message,
        sent,
        sender,
        again,
        received,
        lost: false,
    }
}

/// Upper bound on a packet's delay if no packet of the traces arrived, in ns.
const UNKNOWN_DELAY: u64 = 1_000_000;

/// Marks lost packets: the receiver's trace lacks them, although it continues for longer than any packet took.
fn find_lost(packets: &mut [Packet], nodes: &Nodes) {
    let longest = packets.iter().filter_map(Packet::delay).max().unwrap_or(UNKNOWN_DELAY);
    for packet in packets.iter_mut().filter(|packet| packet.received.is_none()) {
        let sender = nodes.of_ring(packet.sender);
        let receiver = nodes.receiver(packet.call, packet.from_client, sender);
        packet.lost = receiver.is_some_and(|node| {
            nodes.knows(node, packet.sent) && nodes.knows(node, packet.sent.saturating_add(longest))
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    /// Kind, offset, bytes, sent, received, again, lost.
    type Found = (PacketType, u32, u32, u64, Option<u64>, bool, bool);

    fn of(lines: &str) -> Vec<Found> {
        let merged = script(lines);
        let packets = packets(&merged, &Nodes::of(&merged));
        let values = packets.into_iter().map(|packet| {
            let Packet { kind, offset, bytes, sent, again, lost, .. } = packet;
            (kind, offset, bytes, sent, packet.received.map(|arrival| arrival.at), again, lost)
        });
        values.collect()
    }

    #[test]
    fn a_burst_is_as_many_packets_as_arrive_and_a_hole_is_lost() {
        let found = of("0 c data_xmit 2 9 0 3000
             10 s data_received 3 9 0 1000
             12 s data_received 3 9 2000 1000
             40 s sleep 0");
        let data = PacketType::Data;
        assert_eq!(found[0], (data, 0, 1000, 0, Some(10), false, false));
        assert_eq!(found[1], (data, 2000, 1000, 0, Some(12), false, false));
        assert_eq!(found[2], (data, 1000, 1000, 0, None, false, true));
    }

    #[test]
    fn what_was_asked_for_arrives_of_the_later_transmission() {
        let found = of("0 c data_xmit 2 9 0 1000
             20 s resend_xmit 3 9 0 1000
             25 c resend_received 2 9 0 1000
             30 c retransmit 2 9 1000 1000
             40 s data_received 3 9 0 1000
             90 s sleep 0");
        assert_eq!(found[0], (PacketType::Data, 0, 1000, 0, None, false, true));
        assert_eq!(found[1], (PacketType::Resend, 0, 0, 20, Some(25), false, false));
        assert_eq!(found[2], (PacketType::Data, 0, 1000, 30, Some(40), true, false));
    }

    #[test]
    fn a_grant_that_did_not_arrive_is_lost_if_its_receiver_recorded_on() {
        let lines = "0 s grant_xmit 3 9 5000 6
             10 s grant_xmit 3 9 6000 6
             15 c grant_received 2 9 6000 6";
        let grants = |lines: &str| of(lines).iter().map(|it| it.6).collect::<Vec<_>>();
        assert_eq!(grants(lines), [true, false]);
        // The client's trace ends before the grant can arrive.
        assert_eq!(grants("0 c sendmsg_request 2 9 9\n1 s grant_xmit 3 9 5000 6"), [false]);
    }
}
