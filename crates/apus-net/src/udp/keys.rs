//! The keys of sealed paths: installed by the driver of handshakes, and events for it.

use std::net::SocketAddr;

use apus_seal::{AssociationId, Installation, Successor};
use apus_wire::{PathId, is_native};

use super::UdpLink;
use super::peer;
use crate::address::RawAddress;
use crate::sealed::{PathKeys, SealEvent, SealedPaths};
use crate::sys;

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
        while let Some((hint, to)) = self.sealing.hints.pop() {
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
        let peer = self.peers.get_mut(path).expect("it has an address");
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
