//! pFabric (Alizadeh et al., SIGCOMM 2013): switches send the packet with the fewest bytes left first and drop the one with the
//! most. Hosts send at full rate and recover by timeouts alone.
//!
//! Simple on purpose: every packet carries the bytes that its message had left when it was sent, is acknowledged separately, and is
//! retransmitted after a timeout. The window is a round trip. After five timeouts in a row, a flow sends one packet at a time (its
//! "probe mode"). A port holds two round trips of bytes (section 5: 36 kB at 10 Gb/s).

use std::collections::{BTreeSet, VecDeque};

use crate::fabric::{Fabric, Packet};
use crate::framing::Framing;
use crate::transport::{Message, Transport};

/// Bytes a port holds.
pub(crate) const PORT_BYTES: u64 = 36_000;
/// Upper bound on packets in flight: one round trip, and half of one again for queueing.
const WINDOW: usize = 12;
/// Three round trips (section 4.3: about 45 µs for 15 µs of round trip).
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
    arrived: Vec<bool>,
    arrived_count: u32,
    timeouts: u32,
    is_timed: bool,
}

#[derive(Debug)]
pub(crate) struct Pfabric {
    flows: Vec<Option<Flow>>,
    /// Flows of each host that may send, by remaining packets.
    ready: Vec<BTreeSet<(u32, u32)>>,
    framing: Framing,
    serial: u64,
    timeouts: u64,
    sent_again: u64,
}

impl Flow {
    fn left(&self) -> u32 {
        self.packets - self.acked_count
    }

    fn may_send(&self) -> bool {
        let window = if self.timeouts >= PROBE_AFTER { 1 } else { WINDOW };
        let has_more = self.next < self.packets || !self.again.is_empty();
        has_more && self.under_way.len() < window
    }
}

impl Pfabric {
    pub(crate) fn new(hosts: usize, framing: Framing) -> Self {
        Self {
            flows: Vec::new(),
            ready: vec![BTreeSet::new(); hosts],
            framing,
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
        let before = packet * self.framing.payload();
        let payload = (flow.message.bytes - before).min(self.framing.payload());
        let header = PfabricHeader { serial: flow.serial, packet, is_ack: false };
        let Message { from, to, .. } = flow.message;
        let mut out = Packet::new(header, from, to, self.framing.data_wire(payload));
        out.message = number;
        out.rank = flow.left();
        if !flow.is_timed {
            flow.is_timed = true;
            fabric.timer(fabric.now + TIMEOUT_PS, number, flow.serial as u32);
        }
        if !flow.may_send() {
            self.ready[host as usize].remove(&(left, number));
        }
        fabric.send(out);
    }

    /// Updates a flow's place in `ready`. `left` is its previous number of remaining packets.
    fn place(&mut self, number: u32, left: u32) {
        let Some(flow) = &self.flows[number as usize] else { return };
        let ready = &mut self.ready[flow.message.from as usize];
        ready.remove(&(left, number));
        if flow.may_send() {
            ready.insert((flow.left(), number));
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
        let Some(flow) = self.flow(message, header.serial) else { return };
        let left = flow.left();
        flow.timeouts = 0;
        flow.under_way.retain(|&(_, packet)| packet != header.packet);
        flow.again.remove(&header.packet);
        if !std::mem::replace(&mut flow.acked[header.packet as usize], true) {
            flow.acked_count += 1;
        }
        let (host, is_over) = (flow.message.from, flow.acked_count == flow.packets);
        self.place(message, left);
        if is_over {
            self.ready[host as usize].remove(&(0, message));
            self.flows[message as usize] = None;
            fabric.retired.push(message);
        }
        self.pump(fabric, host);
    }

    fn flow(&mut self, number: u32, serial: u64) -> Option<&mut Flow> {
        self.flows.get_mut(number as usize)?.as_mut().filter(|flow| flow.serial == serial)
    }
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
        self.ready[message.from as usize].insert((packets, message.number));
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
        let left = flow.left();
        let late = fabric.now.saturating_sub(TIMEOUT_PS);
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
        fabric.timer(oldest + TIMEOUT_PS, number, serial);
        let host = flow.message.from;
        self.place(number, left);
        self.pump(fabric, host);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("timeouts", self.timeouts), ("packets_sent_again", self.sent_again)]
    }
}
