//! TCP in three flavours: NewReno (RFC 6582), CUBIC (RFC 9438) and DCTCP (RFC 8257).
//!
//! As simple as comparison allows. A message has its own connection, which is open beforehand, so there is no handshake and no
//! message waits for another one in a stream. The initial window is ten packets (RFC 6928).
//!
//! - **Acknowledgements**: every packet is acknowledged on its own, without delay, so the sender knows as much as with SACK.
//! - **Losses**: a packet is lost if three packets that were sent later have been acknowledged (RFC 6675), or after a timeout
//!   (RFC 6298) of at least `tcp.rto_min_us`, and of at least the time of full queues. A timeout is undone if an acknowledgement of
//!   an earlier transmission arrives after it (RFC 3522).
//! - **Slow start** of CUBIC ends by HyStart++ (RFC 9406), that of DCTCP with the first mark, that of NewReno with the first loss.
//! - **Hosts** send round robin over their connections, like fair queueing in the kernel.
//!
//! | file | contents |
//! |---|---|
//! | `window` | the congestion window of each flavour |
//! | `scoreboard` | the packets of a message: waiting, in flight, lost, acknowledged; the timeout |

mod scoreboard;
mod window;

use std::collections::VecDeque;

use crate::fabric::{Fabric, Packet};
use crate::framing::Framing;
use crate::transport::{Message, Transport};

pub(crate) use self::window::Flavour;

use self::scoreboard::{RoundTrip, Scoreboard, SentPacket};
use self::window::{AckedPacket, CongestionWindow};

/// DCTCP's marking threshold at 10 Gb/s: 65 packets (SIGCOMM 2010 section 3.5).
pub(crate) const DCTCP_MARK_BYTES: u64 = 65 * 1_538;

/// A packet's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpHeader {
    serial: u64,
    /// The packet's index in the message. An acknowledgement repeats it.
    packet: u32,
    is_ack: bool,
    /// Time at which the packet was sent.
    sent: u64,
    /// Whether the acknowledged packet was marked.
    echo: bool,
}

#[derive(Debug)]
struct Connection {
    message: Message,
    serial: u64,
    sending: Scoreboard,
    window: CongestionWindow,
    round_trip: RoundTrip,
    /// Time at which the packets in flight are given up.
    deadline: u64,
    is_timed: bool,
    is_queued: bool,
    undo: Option<Undo>,
    arriving: Arriving,
}

/// The state before a timeout, for the case that the packets were only late.
#[derive(Debug)]
struct Undo {
    at: u64,
    window: CongestionWindow,
    given_up: VecDeque<SentPacket>,
}

/// The packets of a message at its receiver.
#[derive(Debug)]
struct Arriving {
    arrived: Vec<bool>,
    missing: u32,
}

impl Arriving {
    fn new(packets: u32) -> Self {
        Self { arrived: vec![false; packets as usize], missing: packets }
    }

    /// Notes a packet. Returns whether the message is complete with it.
    fn note(&mut self, packet: u32) -> bool {
        let is_new = !std::mem::replace(&mut self.arrived[packet as usize], true);
        self.missing -= u32::from(is_new);
        is_new && self.missing == 0
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Repairs {
    timeouts: u64,
    undone: u64,
    fast: u64,
    sent_again: u64,
}

#[derive(Debug)]
pub(crate) struct Tcp {
    flavour: Flavour,
    connections: Vec<Option<Connection>>,
    /// Connections of each host that may send, in turn.
    turns: Vec<VecDeque<u32>>,
    framing: Framing,
    timeout_min: u64,
    serial: u64,
    repairs: Repairs,
}

impl Connection {
    fn may_send(&self) -> bool {
        self.sending.has_more() && self.window.has_room(self.sending.in_flight())
    }

    fn on_ack(&mut self, now: u64, header: TcpHeader, repairs: &mut Repairs) {
        if let Some(undo) = self.undo.take()
            && header.sent < undo.at
        {
            self.window = undo.window;
            self.sending.restore(undo.given_up);
            repairs.undone += 1;
        }
        let effect = self.sending.ack(header.packet, header.sent);
        self.round_trip.measure((now - header.sent) as f64);
        self.deadline = now + self.round_trip.timeout();
        if effect.is_new {
            let smoothed = self.round_trip.smoothed();
            let (sent, is_marked) = (header.sent, header.echo);
            self.window.on_ack(AckedPacket { now, sent, smoothed, is_marked });
        }
        if let Some(sent) = effect.lost_sent {
            repairs.fast += u64::from(self.window.on_loss(now, sent));
        }
    }

    fn on_timeout(&mut self, now: u64) {
        let before = self.window;
        let given_up = self.sending.give_up();
        self.window.on_timeout(now);
        self.round_trip.on_timeout();
        // After a second timeout in a row, only what was sent before the first one may be late.
        self.undo.get_or_insert(Undo { at: now, window: before, given_up });
    }
}

impl Tcp {
    pub(crate) fn new(flavour: Flavour, hosts: usize, framing: Framing, timeout_min: u64) -> Self {
        Self {
            flavour,
            connections: Vec::new(),
            turns: vec![VecDeque::new(); hosts],
            framing,
            timeout_min,
            serial: 0,
            repairs: Repairs::default(),
        }
    }

    fn connection(&mut self, number: u32, serial: u64) -> Option<&mut Connection> {
        let found = self.connections.get_mut(number as usize)?.as_mut();
        found.filter(|connection| connection.serial == serial)
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
            // The number may belong to a message of another host by now.
            let Some(connection) = self.connections[number as usize].as_mut() else { continue };
            if connection.message.from != host {
                continue;
            }
            connection.is_queued = false;
            if connection.may_send() {
                self.send_packet(fabric, number);
            }
            self.queue(number);
        }
    }

    fn send_packet(&mut self, fabric: &mut Fabric<TcpHeader>, number: u32) {
        let Some(connection) = &mut self.connections[number as usize] else { return };
        let Some((packet, again)) = connection.sending.send_next(fabric.now) else { return };
        self.repairs.sent_again += u64::from(again);
        let before = packet * self.framing.payload();
        let payload = (connection.message.bytes - before).min(self.framing.payload());
        let (serial, sent) = (connection.serial, fabric.now);
        let header = TcpHeader { serial, packet, is_ack: false, sent, echo: false };
        let Message { from, to, .. } = connection.message;
        let mut out = Packet::new(header, from, to, self.framing.data_wire(payload));
        out.message = number;
        if !connection.is_timed {
            connection.is_timed = true;
            connection.deadline = fabric.now + connection.round_trip.timeout();
            fabric.timer(connection.deadline, number, serial as u32);
        }
        fabric.send(out);
    }

    fn on_data(&mut self, fabric: &mut Fabric<TcpHeader>, packet: Packet<TcpHeader>) {
        let Packet { header, message, from, to, marked, .. } = packet;
        // Without a connection, the message has ended: the packet was sent twice.
        if let Some(connection) = self.connection(message, header.serial)
            && connection.arriving.note(header.packet)
        {
            fabric.finished.push(message);
        }
        let ack = TcpHeader { is_ack: true, echo: marked, ..header };
        let mut out =
            Packet::new(ack, u32::from(to), u32::from(from), self.framing.control_wire(12));
        out.message = message;
        fabric.send_answer(out);
    }

    fn on_ack(&mut self, fabric: &mut Fabric<TcpHeader>, packet: Packet<TcpHeader>) {
        let Packet { header, message: number, .. } = packet;
        let mut repairs = self.repairs;
        let Some(connection) = self.connection(number, header.serial) else { return };
        let host = connection.message.from;
        connection.on_ack(fabric.now, header, &mut repairs);
        let has_ended = connection.sending.is_acked();
        self.repairs = repairs;
        if has_ended {
            self.connections[number as usize] = None;
            fabric.retired.push(number);
        } else {
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
        let connection = Connection {
            message,
            serial: self.serial,
            sending: Scoreboard::new(packets),
            window: CongestionWindow::new(self.flavour),
            round_trip: RoundTrip::new(self.timeout_min),
            deadline: 0,
            is_timed: false,
            is_queued: false,
            undo: None,
            arriving: Arriving::new(packets),
        };
        let number = message.number as usize;
        if number >= self.connections.len() {
            self.connections.resize_with(number + 1, || None);
        }
        self.connections[number] = Some(connection);
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
        let Some(Some(connection)) = self.connections.get_mut(number as usize) else { return };
        if connection.serial as u32 != serial {
            return;
        }
        if fabric.now < connection.deadline {
            return fabric.timer(connection.deadline, number, serial);
        }
        if connection.sending.in_flight() > 0 {
            connection.on_timeout(fabric.now);
            self.repairs.timeouts += 1;
        }
        connection.deadline = fabric.now + connection.round_trip.timeout();
        fabric.timer(connection.deadline, number, serial);
        let host = connection.message.from;
        self.queue(number);
        self.pump(fabric, host);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Repairs { timeouts, undone, fast, sent_again } = self.repairs;
        vec![
            ("timeouts", timeouts),
            ("timeouts_undone", undone),
            ("fast_retransmissions", fast),
            ("packets_sent_again", sent_again),
        ]
    }
}
