//! The network between the nodes, with its current faults.

use std::fmt::Display;
use std::time::Duration;

use apus_seal::{VERSION_HINT, VERSION_SEALED};
use apus_wire::{Data, Packet, PathId};

use crate::chance::{below, happens};
use crate::check::addresses::attacker;
use crate::check::compact;
use crate::check::hostile::{self, IssuedToken};
use crate::check::ledger::Violation;
use crate::check::scenario::FaultType;
use crate::check::world::{CLIENT_PORT, PORT, World, WorldEvent};

/// Upper bound on recorded packets that a hostile node may copy.
const SEEN_MAX: usize = 64;

impl World<'_> {
    pub(super) fn mtu(&self) -> usize {
        let limits = self.kinds().filter_map(|kind| match kind {
            FaultType::Mtu { bytes } => Some(bytes.max(Data::LEN_MAX + 1)),
            _ => None,
        });
        limits.fold(self.scenario.mtu, usize::min)
    }

    /// The current faults.
    pub(super) fn kinds(&self) -> impl Iterator<Item = FaultType> + '_ {
        let all = self.scenario.faults.iter().zip(&self.active);
        all.filter(|&(_, &active)| active).map(|(fault, _)| fault.kind)
    }

    /// Delivers transmitted packets, or loses them.
    pub(super) fn carry(&mut self) -> Result<(), Violation> {
        if self.scenario.is_sealed {
            return self.carry_sealed();
        }
        for packet in std::mem::take(&mut self.outbox) {
            let (from, to, packet) = (packet.node, packet.path, packet.bytes);
            self.tally.packets += 1;
            let Some(owner) = self.addresses.owner(to) else {
                let node = &mut self.nodes[from];
                node.to_attacker += packet.len() as u64;
                if let Ok(Packet::Token { credentials, .. }) = Packet::parse(&packet) {
                    let met = node.issued.is_some_and(|token| token.met);
                    node.issued = Some(IssuedToken { credentials, confirmed: false, met });
                }
                self.note(|| describe(from, "the attacker", &packet));
                continue;
            };
            if self.seen.len() < SEEN_MAX && happens(&mut self.rng, 100_000) {
                self.seen.push(packet.clone());
            }
            let name = self.work.sent(self.now, from, owner, &packet)?;
            let kind = packet.get(11).copied();
            if self.cross(from, owner, to, packet, kind) {
                self.work.disturbed(&name);
            }
        }
        Ok(())
    }

    /// Sends a packet through the network. Returns whether a fault affected it.
    pub(super) fn cross(
        &mut self,
        from: usize,
        to: usize,
        address: PathId,
        mut packet: Vec<u8>,
        packet_type: Option<u8>,
    ) -> bool {
        let (mut extra, mut copy) = (Duration::ZERO, None);
        let mut lost = self.addresses.of[to] != address;
        let (mut buffer, faults) = (u64::MAX, self.tally.faults);
        let kinds: Vec<FaultType> = self.kinds().collect();
        for kind in kinds {
            let rng = &mut self.rng;
            match kind {
                FaultType::Loss { per_million, only } => {
                    let meant = only.is_none_or(|kind| packet_type == Some(kind as u8));
                    lost |= meant && happens(rng, per_million);
                }
                FaultType::Corrupt { per_million } => lost |= happens(rng, per_million),
                FaultType::CorruptUnnoticed { per_million } if happens(rng, per_million) => {
                    let at = below(rng, packet.len() as u32) as usize;
                    packet[at] ^= 1 << below(rng, 8);
                    self.tally.faults += 1;
                }
                FaultType::Duplicate { per_million, late } if happens(rng, per_million) => {
                    copy = Some(late.mul_f64(f64::from(below(rng, 1000)) / 1000.0));
                }
                FaultType::Reorder { per_million, late } if happens(rng, per_million) => {
                    extra += late.mul_f64(f64::from(below(rng, 1000)) / 1000.0);
                }
                FaultType::Delay { extra: more } => extra += more,
                FaultType::LinkDown { node } => lost |= node == from || node == to,
                FaultType::Partition { mask } => lost |= (mask >> from ^ mask >> to) & 1 == 1,
                FaultType::Buffer { bytes } => buffer = buffer.min(bytes),
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
        let (sender, from, to) = (Some(from), self.addresses.of[from], address);
        if let Some(late) = copy {
            self.tally.faults += 1;
            self.schedule(
                arrives + late,
                WorldEvent::Arrive { to, from, sender, packet: packet.clone() },
            );
        }
        self.tally.faults += u64::from(!extra.is_zero());
        self.schedule(arrives + extra, WorldEvent::Arrive { to, from, sender, packet });
        self.tally.faults > faults
    }

    /// Delivers a packet to the current owner of its address.
    pub(super) fn arrive(
        &mut self,
        to: PathId,
        from: PathId,
        sender: Option<usize>,
        packet: Vec<u8>,
    ) -> Result<(), Violation> {
        let Some(to) = self.addresses.reached(to) else { return Ok(()) };
        let is_there = self.nodes[to].up && self.nodes[to].paused.is_none();
        if self.scenario.is_sealed {
            return self.arrive_sealed(to, from, packet, is_there);
        }
        if let Some(sender) = sender {
            if is_there {
                self.work.arrived(self.now, sender, to, &packet);
            } else {
                self.work.missed(sender, to, &packet);
            }
        } else if from == attacker() {
            self.nodes[to].from_attacker += packet.len() as u64;
        }
        let now = self.local(to);
        let node = &mut self.nodes[to];
        if is_there {
            compact::pass(&mut node.endpoint, now, from, &packet);
            return self.turn(to);
        }
        if node.up && node.queue.len() < node.queue_max {
            node.queue.push((from, packet));
        }
        Ok(())
    }

    /// Sends the next packet of a fault's attacker.
    pub(super) fn hostile(&mut self, index: usize) -> Result<(), Violation> {
        if let FaultType::Reports { .. } = self.scenario.faults[index].kind {
            return self.report();
        }
        if self.scenario.is_sealed {
            self.attack();
            return Ok(());
        }
        let (to, from, packet) = match self.scenario.faults[index].kind {
            FaultType::Hostile { manner, .. } => {
                let to = below(&mut self.rng, self.nodes.len() as u32) as usize;
                let (rng, seen) = (&mut self.rng, &self.seen);
                let issued = &mut self.nodes[to].issued;
                (to, attacker(), hostile::packet(rng, manner, issued, seen, PORT))
            }
            FaultType::Forged { source, target, .. } => {
                let packet = hostile::forged(&mut self.rng, [PORT, CLIENT_PORT]);
                self.work.forged(self.now, source, target, &packet);
                self.note(|| format!("forged: {}", describe(source, target, &packet)));
                (target, self.addresses.of[source], packet)
            }
            _ => return Ok(()),
        };
        self.tally.faults += 1;
        if from == attacker() {
            self.note(|| describe("the attacker", to, &packet));
        }
        let to = self.addresses.of[to];
        let arrive = WorldEvent::Arrive { to, from, sender: None, packet };
        self.schedule(self.now + self.scenario.delay, arrive);
        Ok(())
    }
}

pub(super) fn describe(from: impl Display, to: impl Display, packet: &[u8]) -> String {
    if let Some(&[0, 0, mark @ (VERSION_SEALED | VERSION_HINT), marks]) = packet.first_chunk() {
        let name = if mark == VERSION_HINT { "hint" } else { "record" };
        return format!("{from} -> {to} {name} of {} bytes, marks {marks:#04x}", packet.len());
    }
    match Packet::parse(packet) {
        Ok(Packet::Data { header, data, payload }) => format!(
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
