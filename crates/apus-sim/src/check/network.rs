//! The network between the nodes, with its faults of the moment.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use apus_wire::{DEFAULT_UDP_PORT, MAX_HEADER, PacketSink, Transmit};

use crate::chance::{below, happens};
use crate::check::ledger::Violation;
use crate::check::scenario::Kind;
use crate::check::world::{Step, World};

/// Packets of others that a hostile node keeps to send them again.
const SEEN_MAX: usize = 64;

pub(super) fn address_of(node: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, node as u8)), DEFAULT_UDP_PORT)
}

/// A hostile node's.
pub(super) fn stranger() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)), DEFAULT_UDP_PORT)
}

pub(super) fn node_of(address: SocketAddr) -> Option<usize> {
    match address.ip() {
        IpAddr::V4(ip) if ip.octets()[1] == 0 => Some(usize::from(ip.octets()[3])),
        _ => None,
    }
}

impl World<'_> {
    pub(super) fn mtu(&self) -> usize {
        let limits = self.kinds().filter_map(|kind| match kind {
            Kind::Mtu { bytes } => Some(bytes.max(MAX_HEADER + 1)),
            _ => None,
        });
        limits.fold(self.scenario.mtu, usize::min)
    }

    /// The faults of this moment.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        let all = self.scenario.faults.iter().zip(&self.active);
        all.filter(|&(_, &active)| active).map(|(fault, _)| fault.kind)
    }

    /// Brings what was sent to where it goes, or not.
    pub(super) fn carry(&mut self) -> Result<(), Violation> {
        for (from, to, packet) in std::mem::take(&mut self.outbox) {
            self.tally.packets += 1;
            let Some(to) = node_of(to).filter(|&to| to < self.nodes.len()) else {
                self.nodes[from].to_stranger += packet.len() as u64;
                continue;
            };
            if self.seen.len() < SEEN_MAX && happens(&mut self.rng, 100_000) {
                self.seen.push(packet.clone());
            }
            let (sender, receiver) = (self.run_of(from), self.run_of(to));
            let name = self.work.sent(self.now, sender, receiver, &packet)?;
            if self.cross(from, to, packet) {
                self.work.disturbed(&name);
            }
        }
        Ok(())
    }

    /// A node, and which run of it there is.
    pub(super) fn run_of(&self, node: usize) -> (usize, u32) {
        (node, self.nodes[node].life)
    }

    /// Whether something befell the packet on the way.
    fn cross(&mut self, from: usize, to: usize, mut packet: Vec<u8>) -> bool {
        let (mut extra, mut copy, mut lost) = (Duration::ZERO, None, false);
        let (mut buffer, faults) = (u64::MAX, self.tally.faults);
        let kinds: Vec<Kind> = self.kinds().collect();
        for kind in kinds {
            let rng = &mut self.rng;
            match kind {
                Kind::Loss { per_million, only } => {
                    let meant = only.is_none_or(|kind| packet.get(11) == Some(&(kind as u8)));
                    lost |= meant && happens(rng, per_million);
                }
                Kind::Corrupt { per_million } => lost |= happens(rng, per_million),
                Kind::CorruptUnnoticed { per_million } if happens(rng, per_million) => {
                    let at = below(rng, packet.len() as u32) as usize;
                    packet[at] ^= 1 << below(rng, 8);
                    self.tally.faults += 1;
                }
                Kind::Duplicate { per_million, late } if happens(rng, per_million) => {
                    copy = Some(late.mul_f64(f64::from(below(rng, 1000)) / 1000.0));
                }
                Kind::Reorder { per_million, late } if happens(rng, per_million) => {
                    extra += late.mul_f64(f64::from(below(rng, 1000)) / 1000.0);
                }
                Kind::Delay { extra: more } => extra += more,
                Kind::LinkDown { node } => lost |= node == from || node == to,
                Kind::Partition { mask } => lost |= (mask >> from ^ mask >> to) & 1 == 1,
                Kind::Buffer { bytes } => buffer = buffer.min(bytes),
                _ => {}
            }
        }
        let reach = self.now + self.scenario.delay;
        let waiting = self.nodes[to].busy_until.saturating_sub(reach);
        let queued = waiting.as_nanos() as u64 * self.scenario.gbps / 8;
        lost |= queued + packet.len() as u64 > buffer;
        if lost {
            self.tally.faults += 1;
            self.note(|| format!("lost: {} ", describe(from, to, &packet)));
            return true;
        }
        let sending = Duration::from_nanos(packet.len() as u64 * 8 / self.scenario.gbps);
        let arrives = reach.max(self.nodes[to].busy_until) + sending;
        self.nodes[to].busy_until = arrives;
        self.note(|| describe(from, to, &packet));
        let from = address_of(from);
        if let Some(late) = copy {
            self.tally.faults += 1;
            self.step(arrives + late, Step::Arrive { to, from, packet: packet.clone() });
        }
        self.tally.faults += u64::from(!extra.is_zero());
        self.step(arrives + extra, Step::Arrive { to, from, packet });
        self.tally.faults > faults
    }
}

fn describe(from: usize, to: usize, packet: &[u8]) -> String {
    match apus_wire::Packet::parse(packet) {
        Ok(apus_wire::Packet::Data { header, data, payload }) => format!(
            "{from} -> {to} DATA {} {}..{} of {}, granted {}{}",
            header.sender_id,
            data.offset,
            data.offset as usize + payload.len(),
            data.message_length,
            data.incoming,
            if data.retransmit { ", again" } else { "" },
        ),
        Ok(other) => format!("{from} -> {to} {other:?}"),
        Err(error) => format!("{from} -> {to} {} bytes, {error}", packet.len()),
    }
}

/// Where a node's endpoint puts its packets.
pub(super) struct Outbox<'a> {
    pub(super) node: usize,
    pub(super) mtu: usize,
    pub(super) packets: &'a mut Vec<(usize, SocketAddr, Vec<u8>)>,
}

impl PacketSink for Outbox<'_> {
    fn send(&mut self, packet: Transmit<'_>) {
        let bytes = [packet.header, packet.payload()].concat();
        self.packets.push((self.node, packet.to, bytes));
    }

    fn max_packet(&self, _: SocketAddr) -> usize {
        self.mtu
    }
}
