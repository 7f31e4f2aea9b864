//! TCP in three flavours: NewReno (RFC 6582), CUBIC (RFC 9438) and DCTCP (RFC 8257).
//!
//! As simple as comparison allows. A message has its own connection, which is open beforehand, so there is no handshake. The
//! initial window is ten packets (RFC 6928). Every packet is acknowledged. Three duplicate acknowledgements or a timeout (RFC 6298,
//! at least 1 ms, as datacenters set it) mean loss. There are no delayed acknowledgements and no SACK. Hosts send round robin over
//! their connections, like fair queueing in the kernel.

use std::collections::VecDeque;

use crate::fabric::{Fabric, Packet};
use crate::framing::Framing;
use crate::transport::{Message, Transport};

/// Packets of the initial window.
const INITIAL_WINDOW: f64 = 10.0;
/// Least silence before a retransmission.
const TIMEOUT_MIN_PS: u64 = 1_000_000_000;
/// DCTCP's marking threshold: 65 packets at 10 Gb/s (SIGCOMM 2010 section 3.5).
pub(crate) const DCTCP_MARK_BYTES: u64 = 65 * 1_538;
/// DCTCP's weight of a new estimate.
const DCTCP_GAIN: f64 = 1.0 / 16.0;
/// CUBIC's constant C (RFC 9438 section 5).
const CUBIC_C: f64 = 0.4;
/// CUBIC's multiplicative decrease (RFC 9438 section 5).
const CUBIC_BETA: f64 = 0.7;

/// The variant of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flavour {
    NewReno,
    Cubic,
    Dctcp,
}

/// A packet's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpHeader {
    serial: u64,
    /// DATA: the packet's index. ACK: all packets before this one have arrived.
    packet: u32,
    is_ack: bool,
    /// Time at which the acknowledged packet was sent.
    sent: u64,
    /// Whether the acknowledged packet was marked.
    echo: bool,
}

#[derive(Debug)]
struct ControlBlock {
    message: Message,
    serial: u64,
    packets: u32,
    /// Sender: first unacknowledged packet.
    first: u32,
    /// Next packet to send.
    next: u32,
    window: f64,
    threshold: f64,
    duplicates: u32,
    /// Loss is being repaired until this packet is acknowledged.
    recover: Option<u32>,
    smoothed: f64,
    deviation: f64,
    backoff: u32,
    /// Time at which the oldest packet is given up.
    deadline: u64,
    is_timed: bool,
    is_queued: bool,
    /// CUBIC: window at the last loss.
    window_max: f64,
    /// Time at which the window began to grow after it; `None` until then.
    epoch: Option<u64>,
    /// DCTCP: share of marked packets.
    share: f64,
    /// Marked packets in this round trip.
    marked: u32,
    /// Acknowledged packets in this round trip.
    acked: u32,
    /// Packet that ends this round trip.
    round_end: u32,
    /// Receiver: first missing packet.
    expected: u32,
    /// Whether each packet has arrived.
    arrived: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct Tcp {
    flavour: Flavour,
    connections: Vec<Option<ControlBlock>>,
    /// Connections of each host that may send, in turn.
    turns: Vec<VecDeque<u32>>,
    framing: Framing,
    serial: u64,
    timeouts: u64,
    fast: u64,
}

impl ControlBlock {
    fn new(message: Message, serial: u64, packets: u32) -> Self {
        Self {
            message,
            serial,
            packets,
            first: 0,
            next: 0,
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            duplicates: 0,
            recover: None,
            smoothed: 0.0,
            deviation: 0.0,
            backoff: 0,
            deadline: 0,
            is_timed: false,
            is_queued: false,
            window_max: 0.0,
            epoch: None,
            share: 0.0,
            marked: 0,
            acked: 0,
            round_end: 0,
            expected: 0,
            arrived: vec![false; packets as usize],
        }
    }

    fn may_send(&self) -> bool {
        self.next < self.packets && f64::from(self.next - self.first) < self.window
    }

    fn timeout(&self) -> u64 {
        let base = (self.smoothed + 4.0 * self.deviation) as u64;
        base.max(TIMEOUT_MIN_PS) << self.backoff.min(6)
    }

    fn measure(&mut self, sample: f64) {
        if self.smoothed == 0.0 {
            (self.smoothed, self.deviation) = (sample, sample / 2.0);
        } else {
            self.deviation += ((self.smoothed - sample).abs() - self.deviation) / 4.0;
            self.smoothed += (sample - self.smoothed) / 8.0;
        }
    }

    /// The window after a loss.
    fn reduced(&mut self, flavour: Flavour) -> f64 {
        let beta = if flavour == Flavour::Cubic { CUBIC_BETA } else { 0.5 };
        self.window_max = self.window;
        self.epoch = None;
        (self.window * beta).max(2.0)
    }

    /// Grows the window after `count` packets were acknowledged without loss.
    fn grow(&mut self, flavour: Flavour, now: u64, count: f64) {
        if self.window < self.threshold {
            self.window += count;
            return;
        }
        let mut step = count / self.window;
        if flavour == Flavour::Cubic {
            let epoch = *self.epoch.get_or_insert(now);
            let elapsed = (now - epoch) as f64 / 1e12 + self.smoothed / 1e12;
            let k = cube_root(self.window_max * (1.0 - CUBIC_BETA) / CUBIC_C);
            let offset = elapsed - k;
            let target = CUBIC_C * offset * offset * offset + self.window_max;
            // Never slower than NewReno (RFC 9438 section 4.3).
            step = step.max((target - self.window) / self.window * count).min(count / 2.0);
        }
        self.window += step;
    }

    /// DCTCP: once per round trip, the window shrinks by half the share of marked packets.
    fn note_mark(&mut self, echo: bool, count: u32) {
        self.acked += count.max(1);
        self.marked += if echo { count.max(1) } else { 0 };
        if self.first < self.round_end {
            return;
        }
        let share = f64::from(self.marked) / f64::from(self.acked);
        self.share += (share - self.share) * DCTCP_GAIN;
        if self.marked > 0 {
            self.window = (self.window * (1.0 - self.share / 2.0)).max(1.0);
            self.threshold = self.window;
        }
        (self.acked, self.marked, self.round_end) = (0, 0, self.next);
    }
}

/// Cube root by Newton's method, which is the same on every machine.
fn cube_root(x: f64) -> f64 {
    let mut root = x.clamp(1e-9, 1e9).sqrt().max(1e-3);
    for _ in 0..40 {
        root -= (root * root * root - x) / (3.0 * root * root);
    }
    root
}

impl Tcp {
    pub(crate) fn new(flavour: Flavour, hosts: usize, framing: Framing) -> Self {
        Self {
            flavour,
            connections: Vec::new(),
            turns: vec![VecDeque::new(); hosts],
            framing,
            serial: 0,
            timeouts: 0,
            fast: 0,
        }
    }

    fn queue(&mut self, number: u32) {
        let Some(connection) = &mut self.connections[number as usize] else { return };
        if !connection.is_queued && connection.may_send() {
            connection.is_queued = true;
            self.turns[connection.message.from as usize].push_back(number);
        }
    }

    /// Sends one packet of the connection whose turn it is, if the host's link is idle.
    fn pump(&mut self, fabric: &mut Fabric<TcpHeader>, host: u32) {
        while fabric.nic_is_idle(host) {
            let Some(number) = self.turns[host as usize].pop_front() else { return };
            let Some(connection) = self.connections[number as usize].as_mut() else { continue };
            connection.is_queued = false;
            if connection.message.from == host && connection.may_send() {
                let packet = connection.next;
                connection.next += 1;
                self.emit(fabric, number, packet);
            }
            self.queue(number);
        }
    }

    fn emit(&mut self, fabric: &mut Fabric<TcpHeader>, number: u32, packet: u32) {
        let Some(connection) = &mut self.connections[number as usize] else { return };
        let before = packet * self.framing.payload();
        let payload = (connection.message.bytes - before).min(self.framing.payload());
        let header = TcpHeader {
            serial: connection.serial,
            packet,
            is_ack: false,
            sent: fabric.now,
            echo: false,
        };
        let Message { from, to, .. } = connection.message;
        let mut out = Packet::new(header, from, to, self.framing.data_wire(payload));
        out.message = number;
        if !connection.is_timed {
            connection.is_timed = true;
            connection.deadline = fabric.now + connection.timeout();
            fabric.timer(connection.deadline, number, connection.serial as u32);
        }
        fabric.send(out);
    }

    fn on_data(&mut self, fabric: &mut Fabric<TcpHeader>, packet: Packet<TcpHeader>) {
        let Packet { header, message, from, to, marked, .. } = packet;
        let mut expected = u32::MAX; // The message has ended: all packets have arrived.
        let found = self.connections.get_mut(message as usize).and_then(Option::as_mut);
        if let Some(connection) = found.filter(|connection| connection.serial == header.serial) {
            let was_whole = connection.expected == connection.packets;
            connection.arrived[header.packet as usize] = true;
            while connection.arrived.get(connection.expected as usize) == Some(&true) {
                connection.expected += 1;
            }
            expected = connection.expected;
            if !was_whole && expected == connection.packets {
                fabric.finished.push(message);
            }
        }
        let ack = TcpHeader { is_ack: true, packet: expected, echo: marked, ..header };
        let mut out =
            Packet::new(ack, u32::from(to), u32::from(from), self.framing.control_wire(12));
        out.message = message;
        fabric.send_answer(out);
    }

    fn on_ack(&mut self, fabric: &mut Fabric<TcpHeader>, packet: Packet<TcpHeader>) {
        let Packet { header, message: number, .. } = packet;
        let (flavour, now) = (self.flavour, fabric.now);
        let found = self.connections.get_mut(number as usize).and_then(Option::as_mut);
        let Some(connection) = found.filter(|c| c.serial == header.serial) else { return };
        let host = connection.message.from;
        let upto = header.packet.min(connection.packets);
        let mut repair = None;
        if upto > connection.first {
            let count = upto - connection.first;
            connection.first = upto;
            connection.next = connection.next.max(upto);
            connection.duplicates = 0;
            connection.backoff = 0;
            connection.measure((now - header.sent) as f64);
            connection.deadline = now + connection.timeout();
            match connection.recover {
                Some(recover) if upto < recover => repair = Some(upto), // Partial.
                Some(_) => {
                    connection.recover = None;
                    connection.window = connection.threshold;
                }
                None => connection.grow(flavour, now, f64::from(count)),
            }
            if flavour == Flavour::Dctcp {
                connection.note_mark(header.echo, count);
            }
        } else if connection.first < connection.next {
            connection.duplicates += 1;
            if connection.recover.is_some() {
                connection.window += 1.0;
            } else if connection.duplicates == 3 {
                connection.threshold = connection.reduced(flavour);
                connection.window = connection.threshold + 3.0;
                connection.recover = Some(connection.next);
                repair = Some(connection.first);
                self.fast += 1;
            }
        }
        if self.connections[number as usize].as_ref().is_some_and(|c| c.first == c.packets) {
            self.connections[number as usize] = None;
            fabric.retired.push(number);
        } else if let Some(packet) = repair {
            self.emit(fabric, number, packet);
        }
        if self.connections[number as usize].is_some() {
            self.queue(number);
        }
        self.pump(fabric, host);
    }
}

impl Transport for Tcp {
    type Header = TcpHeader;

    fn start(&mut self, fabric: &mut Fabric<TcpHeader>, message: Message) {
        let packets = message.bytes.div_ceil(self.framing.payload()).max(1);
        self.serial += 1;
        let number = message.number as usize;
        if number >= self.connections.len() {
            self.connections.resize_with(number + 1, || None);
        }
        self.connections[number] = Some(ControlBlock::new(message, self.serial, packets));
        self.queue(message.number);
        self.pump(fabric, message.from);
    }

    fn receive(&mut self, fabric: &mut Fabric<TcpHeader>, _: u32, index: u32) {
        let packet = *fabric.packet(index);
        fabric.remove(index);
        if packet.header.is_ack {
            self.on_ack(fabric, packet);
        } else {
            self.on_data(fabric, packet);
        }
    }

    fn nic_free(&mut self, fabric: &mut Fabric<TcpHeader>, host: u32) {
        self.pump(fabric, host);
    }

    fn timer(&mut self, fabric: &mut Fabric<TcpHeader>, number: u32, serial: u32) {
        let flavour = self.flavour;
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        if connection.serial as u32 != serial {
            return;
        }
        if fabric.now < connection.deadline {
            return fabric.timer(connection.deadline, number, serial);
        }
        // Everything unacknowledged is retransmitted, one packet first (RFC 5681 section 3.1).
        if connection.first < connection.next {
            connection.threshold = connection.reduced(flavour);
            connection.window = 1.0;
            connection.next = connection.first;
            connection.recover = None;
            connection.duplicates = 0;
            connection.round_end = connection.first;
            connection.backoff += 1;
            self.timeouts += 1;
        }
        connection.deadline = fabric.now + connection.timeout();
        fabric.timer(connection.deadline, number, serial);
        let host = connection.message.from;
        self.queue(number);
        self.pump(fabric, host);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("timeouts", self.timeouts), ("fast_retransmissions", self.fast)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots() {
        for x in [0.001, 1.0, 8.0, 27.0, 1_000.0] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-9, "{x}: {root}");
        }
    }
}
