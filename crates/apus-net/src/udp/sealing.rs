//! The sealed paths of a UDP link: their keys, received records, and events for the driver of handshakes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use apus_seal::{
    AssociationId, Associations, Hint, Installation, Kept, OVERHEAD, OpenError, SealLimits,
    Successor,
};
use apus_wire::{PathId, Priority, is_native};

use super::UdpLink;
use super::peer::{self, Peer};
use super::recv::Senders;
use crate::address::RawAddress;
use crate::link::LinkCounters;
use crate::sealed::{Cipher, PathKeys, SealEvent, SealedPaths};
use crate::sys;

/// Upper bound on the hints of one receive call.
const HINTS_MAX: usize = 64;

/// Room in front of an opened payload for its header, which stands behind it in the record.
const HEADER_ROOM: usize = 128;

pub(super) struct Sealing {
    associations: Associations<Cipher, SocketAddr>,
    /// Time is measured from here.
    epoch: Instant,
    /// The time of the last batch.
    now: Duration,
    events: VecDeque<SealEvent>,
    /// Hints to send, and the addresses that caused them.
    hints: Vec<(Hint, SocketAddr)>,
    /// Datagrams that came before their keys, which are there now.
    kept: Vec<Kept<SocketAddr>>,
    /// The path of the last record that came from another address than that of its path.
    foreign: Option<PathId>,
    /// Memory for the DATA packet that is opened.
    pub(super) packet: Vec<u8>,
}

/// An opened record.
pub(super) struct Record<'a> {
    pub(super) origin: Origin,
    /// A packet or a bundle.
    pub(super) content: &'a [u8],
}

/// The origin of an opened record.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) id: AssociationId,
    /// The path; `None` if the record came from another address than that of the path.
    pub(super) home: Option<PathId>,
}

impl Sealing {
    pub(super) fn new(shard: u8) -> Self {
        Self {
            associations: Associations::new(shard, SealLimits::default()),
            epoch: Instant::now(),
            now: Duration::ZERO,
            events: VecDeque::new(),
            hints: Vec::new(),
            kept: Vec::new(),
            foreign: None,
            packet: Vec::new(),
        }
    }

    /// Reads the clock, once for a batch.
    #[inline]
    pub(super) fn begin_batch(&mut self) {
        if !self.associations.is_empty() {
            self.now = self.epoch.elapsed();
        }
    }

    /// Writes the counters of sealed paths.
    pub(super) fn count(&self, counters: &mut LinkCounters) {
        let own = self.associations.counters();
        counters.sealed_sent = own.sealed;
        counters.sealed_received = own.opened;
        counters.sealed_malformed = own.dropped_malformed;
        counters.dropped_unknown_keys = own.dropped_unknown_id + own.dropped_epoch;
        counters.dropped_forged = own.dropped_forged;
        counters.dropped_replay = own.dropped_replay;
        counters.replay_too_old = own.replay_too_old;
        counters.dropped_unverified = own.dropped_unverified;
        counters.hints_believed = own.hints_believed;
        counters.hints_ignored += own.hints_ignored;
        counters.key_updates = own.key_updates;
    }

    /// Appends the record of a packet to `records`. `header` is empty for a packet or bundle in one piece. Returns `false` if the path
    /// has no keys; nothing is appended then.
    #[inline]
    pub(super) fn seal(
        &mut self,
        id: AssociationId,
        level: Priority,
        (header, payload): (&[u8], &[u8]),
        records: &mut Vec<u8>,
    ) -> bool {
        let start = records.len();
        records.resize(start + OVERHEAD + header.len() + payload.len(), 0);
        let sealed = self.associations.seal_parts(
            self.now,
            id,
            level,
            payload,
            header,
            &mut records[start..],
        );
        if sealed.is_err() {
            records.truncate(start);
        }
        sealed.is_ok()
    }

    /// Opens a received record: a DATA packet into `packet`, anything else in place.
    #[inline]
    pub(super) fn open<'a>(
        &mut self,
        from: SocketAddr,
        datagram: &'a mut [u8],
        packet: &'a mut Vec<u8>,
    ) -> Result<Record<'a>, OpenError> {
        let admitted = self.associations.admit(from, datagram)?;
        let home = admitted.path();
        if admitted.header_len() == 0 {
            let opened = admitted.open_in_place(self.now)?;
            let origin = Origin { id: opened.id, home };
            return Ok(Record { origin, content: opened.text });
        }
        let end = HEADER_ROOM + admitted.text_len();
        if packet.len() < end {
            packet.resize(end, 0);
        }
        let opened = admitted.open_into(self.now, &mut packet[HEADER_ROOM..])?;
        let (origin, header_len) = (Origin { id: opened.id, home }, opened.header_len);
        let (start, behind) = (HEADER_ROOM - header_len, end - header_len);
        packet.copy_within(behind..end, start);
        Ok(Record { origin, content: &packet[start..behind] })
    }

    //= docs/protocol.md#seal-9
    /// Notes that a datagram deserves a hint.
    #[cold]
    pub(super) fn want_hint(&mut self, hint: Hint, to: SocketAddr) {
        if self.hints.len() < HINTS_MAX {
            self.hints.push((hint, to));
        }
    }

    /// Takes a hint from the address of a path.
    #[cold]
    pub(super) fn take_hint(&mut self, path: PathId, id: AssociationId, datagram: &[u8]) {
        self.now = self.epoch.elapsed();
        if self.associations.handle_hint(self.now, id, datagram).is_ok() {
            self.events.push_back(SealEvent::Doubted(path));
        }
    }

    /// Reports that a path without keys has packets to send.
    #[cold]
    pub(super) fn want_keys(&mut self, path: PathId) {
        self.events.push_back(SealEvent::Wanted(path));
    }

    //= docs/protocol.md#seal-10
    /// Makes the path of another address the one of the association.
    #[cold]
    pub(super) fn move_to(&mut self, id: AssociationId, path: PathId, address: SocketAddr) {
        if self.associations.path(id).is_some_and(|home| home != path) {
            self.associations.move_to(id, path, address);
        }
    }

    #[inline]
    pub(super) fn has_hints(&self) -> bool {
        !self.hints.is_empty()
    }

    #[inline]
    pub(super) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Returns the datagrams that came before their keys, once.
    pub(super) fn take_kept(&mut self) -> Vec<Kept<SocketAddr>> {
        std::mem::take(&mut self.kept)
    }
}

/// Returns the path of an opened record.
#[inline]
pub(super) fn path_of(
    senders: &mut Senders<'_>,
    origin: Origin,
    from: SocketAddr,
) -> Option<PathId> {
    match origin.home {
        Some(home) if senders.peers.place(home).is_some() => Some(home),
        _ => other_path_of(senders, origin, from),
    }
}

//= docs/protocol.md#seal-10
/// Returns the path of a record that came from another address, or whose path was forgotten. The address may be forged, so the path
/// takes the place of no other one.
#[cold]
fn other_path_of(senders: &mut Senders<'_>, origin: Origin, from: SocketAddr) -> Option<PathId> {
    let Senders { peers, connected, family, sealing, .. } = senders;
    let listed = peers.find_sealed(from);
    let known = [listed, sealing.foreign].into_iter().flatten().find(|&path| {
        let keys = peers.get(path).and_then(|peer| peer.keys);
        keys == Some(origin.id) && peers.address(path) == Some(from)
    });
    if known.is_some() {
        return known;
    }
    let raw = RawAddress::encode(from, *family)?;
    let is_listed = listed.is_none() && origin.home.is_some();
    let path = peer::add_sealed(peers, connected, from, raw, Some(origin.id), is_listed);
    if origin.home.is_some() {
        sealing.move_to(origin.id, path, from);
    } else {
        sealing.foreign = Some(path);
    }
    Some(path)
}

impl UdpLink {
    /// Returns whether a sealed path has keys. Asks for some if not.
    #[inline]
    pub(super) fn has_keys(&mut self, place: usize, path: PathId) -> bool {
        let peer = self.peers.at_mut(place);
        if peer.keys.is_none() && !std::mem::replace(&mut peer.wants_keys, true) {
            self.sealing.want_keys(path);
        }
        peer.keys.is_some()
    }

    /// Notes that the core knows a peer by a path, whose keys may have belonged to another address of the peer.
    pub(super) fn follow(&mut self, path: PathId) {
        if let Some(address) = self.peers.address(path)
            && let Some(id) = self.peers.get(path).and_then(|peer| peer.keys)
        {
            self.sealing.move_to(id, path, address);
        }
    }

    /// Assigns a sealed path to an address.
    #[cold]
    fn add_sealed(&mut self, address: SocketAddr, raw: RawAddress) -> PathId {
        if !self.outbox.is_empty() {
            self.send_queued();
        }
        peer::add_sealed(&mut self.peers, &mut self.senders, address, raw, None, true)
    }

    /// Answers datagrams whose keys this node does not have.
    #[cold]
    pub(super) fn send_hints(&mut self) {
        for (hint, to) in std::mem::take(&mut self.sealing.hints) {
            let Some(raw) = RawAddress::encode(to, self.family) else { continue };
            self.counters.send_calls += 1;
            let sent = sys::send_to(self.descriptor, &hint.emit(), Some(&raw));
            self.counters.hints_sent += u64::from(sent.is_ok());
        }
    }
}

impl SealedPaths for UdpLink {
    fn resolve_sealed(&mut self, to: SocketAddr) -> Option<PathId> {
        self.peers.find_sealed(to).or_else(|| {
            let raw = RawAddress::encode(to, self.family).filter(|_| !is_native(to))?;
            Some(self.add_sealed(to, raw))
        })
    }

    fn reserve_keys(&mut self, random: u64) -> Option<AssociationId> {
        self.sealing.associations.reserve(random)
    }

    fn install_keys(&mut self, path: PathId, id: AssociationId, keys: PathKeys) -> bool {
        if !self.outbox.is_empty() {
            self.send_queued();
        }
        let is_possible = cfg!(feature = "secure") && path.is_sealed();
        let Some(address) = self.peers.address(path).filter(|_| is_possible) else {
            return false;
        };
        let PathKeys { secret, role, suite, peer_id, lifetime, is_refresh } = keys;
        let new = Installation { secret, role, suite, peer_id, path, address, lifetime };
        let sealing = &mut self.sealing;
        let now = sealing.epoch.elapsed();
        let Some(kept) = sealing.associations.install(now, id, new) else { return false };
        sealing.now = now;
        sealing.kept.extend(kept);
        let peer: &mut Peer = self.peers.get_mut(path).expect("it has an address");
        peer.wants_keys = false;
        if let Some(old) = peer.keys.replace(id) {
            //= docs/protocol.md#seal-3
            let by = if is_refresh { Successor::Refresh } else { Successor::Crossing };
            sealing.associations.supersede(now, old, by);
        }
        true
    }

    fn remove_keys(&mut self, id: AssociationId) {
        if !self.outbox.is_empty() {
            self.send_queued();
        }
        if let Some(path) = self.sealing.associations.path(id)
            && let Some(peer) = self.peers.get_mut(path)
            && peer.keys == Some(id)
        {
            peer.keys = None;
        }
        self.sealing.associations.remove(id);
    }

    fn poll_seal(&mut self) -> Option<SealEvent> {
        let sealing = &mut self.sealing;
        if sealing.associations.poll_timeout().is_some_and(|due| due <= sealing.epoch.elapsed()) {
            sealing.associations.handle_timeout(sealing.epoch.elapsed());
        }
        while let Some(ended) = sealing.associations.poll_ended() {
            if let Some(peer) = self.peers.get_mut(ended.path)
                && peer.keys == Some(ended.id)
            {
                peer.keys = None;
                sealing.events.push_back(SealEvent::Ended(ended.path, ended.reason));
            }
        }
        sealing.events.pop_front()
    }
}
