//! pFabric (Alizadeh et al., SIGCOMM 2013): switches send the packet with the fewest bytes left first and drop the one with the
//! most. Hosts send at full rate and recover by timeouts alone.
//!
//! Simple on purpose: every packet carries the bytes that its message had left when it was sent, is acknowledged separately, and is
//! retransmitted after a timeout. After five timeouts in a row, a flow sends one packet at a time (its "probe mode"). Window, port
//! buffer and timeout follow the round trip and the rate of the network ([`Scaled`]).

use std::collections::{BTreeSet, VecDeque};

use crate::fabric::{Fabric, Packet};
use crate::framing::Framing;
use crate::transport::{Message, Transport};

/// The network for which the next three values hold: that of the Homa paper, with 10 Gb/s at hosts, and its round trip of a full
/// packet and an acknowledgement between racks.
const RATE_GBPS: u64 = 10;
const ROUND_TRIP_PS: u64 = 7_768_000;
/// Upper bound on bytes in flight of a message: 12 packets (section 5).
const WINDOW_BYTES: u64 = 12 * 1_538;
/// Bytes a port holds (section 5).
const PORT_BYTES: u64 = 36_000;
/// Silence before a retransmission (section 5).
const TIMEOUT_PS: u64 = 45_000_000;
/// Timeouts in a row after which a flow sends one packet at a time.
const PROBE_AFTER: u32 = 5;

/// A packet's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PfabricHeader {
    /// Serial number of the message, which distinguishes late packets of an earlier message with the same number.
    serial: u64,
    /// Index of the packet in the message.
    packet: u32,
    is_ack: bool,
}

/// The values of pFabric's paper for 10 Gb/s, for another network: bytes in proportion to the bytes of a round trip, times in
/// proportion to the round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scaled {
    /// Upper bound on packets in flight of a message.
    window: usize,
    /// Bytes a port holds.
    pub(crate) port_bytes: u64,
    timeout_ps: u64,
}

impl Scaled {
    /// `round_trip_ps` is that of a full packet and its acknowledgement on the longest path of the network.
    pub(crate) fn of(round_trip_ps: u64, gbps: u64, framing: Framing) -> Self {
        let timeout_ps = TIMEOUT_PS * round_trip_ps / ROUND_TRIP_PS;
        let bytes = |paper: u64| paper * gbps * round_trip_ps / (RATE_GBPS * ROUND_TRIP_PS);
        let packet = u64::from(framing.data_wire(framing.payload()));
        let window = bytes(WINDOW_BYTES).div_ceil(packet) as usize;
        // A port holds two packets at least, or it would be idle while the next one arrives.
        Self { window, port_bytes: bytes(PORT_BYTES).max(2 * packet), timeout_ps }
    }
}

#[derive(Debug)]
struct Flow {
    message: Message,
    serial: u64,
    packets: u32,
    next: u32,
    /// Packets in flight, oldest first: time and index.
    under_way: VecDeque<(u64, u32)>,
    /// Packets to be retransmitted.
    again: BTreeSet<u32>,
    acked: Vec<bool>,
    acked_count: u32,
    /// Bytes that are not acknowledged.
    left: u32,
    arrived: Vec<bool>,
    arrived_count: u32,
    timeouts: u32,
    is_timed: bool,
}

#[derive(Debug)]
pub(crate) struct Pfabric {
    flows: Vec<Option<Flow>>,
    /// Flows of each host that may send, by remaining bytes.
    ready: Vec<BTreeSet<(u32, u32)>>,
    framing: Framing,
    scaled: Scaled,
    serial: u64,
    timeouts: u64,
    sent_again: u64,
}

impl Flow {
    fn may_send(&self, window: usize) -> bool {
        let window = if self.timeouts >= PROBE_AFTER { 1 } else { window };
        let has_more = self.next < self.packets || !self.again.is_empty();
        has_more && self.under_way.len() < window
    }
}

impl Pfabric {
    pub(crate) fn new(hosts: usize, framing: Framing, scaled: Scaled) -> Self {
        Self {
            flows: Vec::new(),
            ready: vec![BTreeSet::new(); hosts],
            framing,
            scaled,
            serial: 0,
            timeouts: 0,
            sent_again: 0,
        }
    }

    /// Sends one packet of the flow with the least left, if the host's link is idle.
    fn pump(&mut self, fabric: &mut Fabric<PfabricHeader>, host: u32) {
        if !fabric.nic_is_idle(host) {
            return;
        }
        let Some(&(left, number)) = self.ready[host as usize].first() else { return };
        let flow = self.flows[number as usize].as_mut().expect("ready flows exist");
        let packet = match flow.again.pop_first() {
            Some(packet) => {
                self.sent_again += 1;
                packet
            }
            None => {
                flow.next += 1;
                flow.next - 1
            }
        };
        flow.under_way.push_back((fabric.now, packet));
        let payload = payload_of(self.framing, flow.message, packet);
        let header = PfabricHeader { serial: flow.serial, packet, is_ack: false };
        let Message { from, to, .. } = flow.message;
        let mut out = Packet::new(header, from, to, self.framing.data_wire(payload));
        out.message = number;
        out.rank = flow.left;
        if !flow.is_timed {
            flow.is_timed = true;
            fabric.timer(fabric.now + self.scaled.timeout_ps, number, flow.serial as u32);
        }
        if !flow.may_send(self.scaled.window) {
            self.ready[host as usize].remove(&(left, number));
        }
        fabric.send(out);
    }

    /// Updates a flow's place in `ready`. `left` is its previous number of remaining bytes.
    fn place(&mut self, number: u32, left: u32) {
        let Some(flow) = &self.flows[number as usize] else { return };
        let ready = &mut self.ready[flow.message.from as usize];
        ready.remove(&(left, number));
        if flow.may_send(self.scaled.window) {
            ready.insert((flow.left, number));
        }
    }

    fn on_data(&mut self, fabric: &mut Fabric<PfabricHeader>, packet: Packet<PfabricHeader>) {
        let Packet { header, message, from, to, .. } = packet;
        let ack = PfabricHeader { is_ack: true, ..header };
        let mut out =
            Packet::new(ack, u32::from(to), u32::from(from), self.framing.control_wire(12));
        out.message = message;
        fabric.send_answer(out);
        let Some(flow) = self.flow(message, header.serial) else { return };
        if !std::mem::replace(&mut flow.arrived[header.packet as usize], true) {
            flow.arrived_count += 1;
            if flow.arrived_count == flow.packets {
                fabric.finished.push(message);
            }
        }
    }

    fn on_ack(&mut self, fabric: &mut Fabric<PfabricHeader>, packet: Packet<PfabricHeader>) {
        let Packet { header, message, .. } = packet;
        let framing = self.framing;
        let Some(flow) = self.flow(message, header.serial) else { return };
        let left = flow.left;
        flow.timeouts = 0;
        flow.under_way.retain(|&(_, packet)| packet != header.packet);
        flow.again.remove(&header.packet);
        if !std::mem::replace(&mut flow.acked[header.packet as usize], true) {
            flow.acked_count += 1;
            flow.left -= payload_of(framing, flow.message, header.packet);
        }
        let (host, is_over) = (flow.message.from, flow.acked_count == flow.packets);
        self.place(message, left);
        if is_over {
            self.flows[message as usize] = None;
            fabric.retired.push(message);
        }
        self.pump(fabric, host);
    }

    fn flow(&mut self, number: u32, serial: u64) -> Option<&mut Flow> {
        self.flows.get_mut(number as usize)?.as_mut().filter(|flow| flow.serial == serial)
    }
}

/// Bytes of the payload of a message's packet.
fn payload_of(framing: Framing, message: Message, packet: u32) -> u32 {
    (message.bytes - packet * framing.payload()).min(framing.payload())
}

impl Transport for Pfabric {
    type Header = PfabricHeader;

    fn start(&mut self, fabric: &mut Fabric<PfabricHeader>, message: Message) {
        let packets = message.bytes.div_ceil(self.framing.payload()).max(1);
        self.serial += 1;
        let flow = Flow {
            message,
            serial: self.serial,
            packets,
            next: 0,
            under_way: VecDeque::new(),
            again: BTreeSet::new(),
            acked: vec![false; packets as usize],
            acked_count: 0,
            left: message.bytes,
            arrived: vec![false; packets as usize],
            arrived_count: 0,
            timeouts: 0,
            is_timed: false,
        };
        let number = message.number as usize;
        if number >= self.flows.len() {
            self.flows.resize_with(number + 1, || None);
        }
        self.flows[number] = Some(flow);
        self.ready[message.from as usize].insert((message.bytes, message.number));
        self.pump(fabric, message.from);
    }

    fn receive(&mut self, fabric: &mut Fabric<PfabricHeader>, _: u32, index: u32) {
        let packet = *fabric.packet(index);
        fabric.remove(index);
        if packet.header.is_ack {
            self.on_ack(fabric, packet);
        } else {
            self.on_data(fabric, packet);
        }
    }

    fn nic_free(&mut self, fabric: &mut Fabric<PfabricHeader>, host: u32) {
        self.pump(fabric, host);
    }

    fn timer(&mut self, fabric: &mut Fabric<PfabricHeader>, number: u32, serial: u32) {
        let Some(Some(flow)) = self.flows.get_mut(number as usize) else { return };
        if flow.serial as u32 != serial {
            return;
        }
        let (left, timeout_ps) = (flow.left, self.scaled.timeout_ps);
        let late = fabric.now.saturating_sub(timeout_ps);
        let before = flow.again.len();
        while flow.under_way.front().is_some_and(|&(sent, _)| sent <= late) {
            let (_, packet) = flow.under_way.pop_front().expect("the condition has seen it");
            flow.again.insert(packet);
        }
        if flow.again.len() > before {
            flow.timeouts += 1;
            self.timeouts += 1;
        }
        // The time at which the next packet expires, or one timeout from now if none is in flight.
        let oldest = flow.under_way.front().map_or(fabric.now, |&(sent, _)| sent);
        fabric.timer(oldest + timeout_ps, number, serial);
        let host = flow.message.from;
        self.place(number, left);
        self.pump(fabric, host);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("timeouts", self.timeouts), ("packets_sent_again", self.sent_again)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::Ideal;
    use crate::topology::{Graph, Links, Topology};

    fn scaled(links: Links) -> Scaled {
        let framing = Framing::default();
        let ideal = Ideal::new(&Graph::new(&Topology::PAPER, &links), &links, framing);
        Scaled::of(ideal.round_trip_picos(), links.host_gbps, framing)
    }

    #[test]
    fn the_values_of_the_paper_hold_at_10_gbps_and_follow_the_round_trip_and_the_rate() {
        let paper = Scaled { window: 12, port_bytes: PORT_BYTES, timeout_ps: TIMEOUT_PS };
        assert_eq!(scaled(Links::default()), paper);
        let fast = scaled(Links { host_gbps: 100, core_gbps: 400, ..Links::default() });
        // Latency of software and switches is most of the round trip, which does not shrink with the rate.
        assert!((70..90).contains(&fast.window) && fast.timeout_ps < TIMEOUT_PS, "{fast:?}");
        assert!((220_000..260_000).contains(&fast.port_bytes), "{fast:?}");
        let far = scaled(Links { core_wire_ns: Some(10_000), ..Links::default() });
        assert!(far.window > 60 && far.timeout_ps > 5 * TIMEOUT_PS, "{far:?}");
    }
}
