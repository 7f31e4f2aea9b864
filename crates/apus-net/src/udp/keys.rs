//! The keys of sealed paths: installed by the driver of handshakes, and events for it.

use std::net::SocketAddr;
use std::time::Duration;

use apus_seal::{AssociationId, Installation, LoggedKey, RefreshSalt, Role, Successor};
use apus_wire::{PathId, is_native};

use super::UdpLink;
use super::peer;
use crate::address::RawAddress;
use crate::sealed::{PathKeys, SealEvent, SealedKey, SealedPaths};
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

    //= docs/protocol.md#seal-10
    /// Notes that the core knows a peer by a path, whose keys may have belonged to another address of the peer.
    pub(super) fn follow(&mut self, path: PathId) {
        let Some(address) = self.peers.address(path) else { return };
        let Some(id) = self.peers.get(path).and_then(|peer| peer.keys) else { return };
        let Some(home) = self.sealing.associations.path(id).filter(|&home| home != path) else {
            return;
        };
        self.sealing.associations.move_to(id, path, address);
        self.peers.hold(path);
        self.peers.release(home);
        self.sealing.events.push_back(SealEvent::Moved(home, path));
    }

    /// Assigns a sealed path to an address.
    #[cold]
    fn add_sealed(
        &mut self,
        address: SocketAddr,
        key: Option<SealedKey>,
        raw: RawAddress,
    ) -> PathId {
        self.end_batch();
        peer::add_sealed(&mut self.peers, &mut self.senders, (address, key), raw)
    }

    /// Seals with the latest keys of a path from now on. Earlier ones open datagrams for a time.
    fn seal_with_next(&mut self, path: PathId) {
        let Some(peer) = self.peers.get_mut(path) else { return };
        let Some((id, by)) = peer.next_keys.take() else { return };
        peer.wants_keys = false;
        if let Some(old) = peer.keys.replace(id) {
            //= docs/protocol.md#seal-3
            let now = self.sealing.epoch.elapsed();
            self.sealing.associations.supersede(now, old, by);
        }
    }

    /// Sends what is queued, by the keys that its paths have now.
    fn end_batch(&mut self) {
        if !self.outbox.is_empty() {
            self.send_queued();
        }
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
    fn resolve_sealed(&mut self, to: SocketAddr, key: SealedKey) -> Option<PathId> {
        self.peers.find_sealed(to, key).or_else(|| self.renew_sealed(to, Some(key)))
    }

    fn renew_sealed(&mut self, to: SocketAddr, key: Option<SealedKey>) -> Option<PathId> {
        let raw = RawAddress::encode(to, self.family).filter(|_| !is_native(to))?;
        Some(self.add_sealed(to, key, raw))
    }

    fn sealed_key(&self, path: PathId) -> Option<SealedKey> {
        self.peers.sealed_key(path)
    }

    fn set_sealed_key(&mut self, path: PathId, key: SealedKey) {
        self.peers.set_sealed_key(path, key);
    }

    fn reserve_keys(&mut self, random: u64) -> Option<AssociationId> {
        self.sealing.associations.reserve(random)
    }

    fn install_keys(&mut self, path: PathId, id: AssociationId, keys: PathKeys) -> bool {
        self.end_batch();
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
        self.peers.hold(path);
        let by = if is_refresh { Successor::Refresh } else { Successor::Crossing };
        let peer = self.peers.get_mut(path).expect("it has an address");
        peer.next_keys = Some((id, by));
        //= docs/protocol.md#seal-2
        if role == Role::Server || peer.keys.is_none() {
            self.seal_with_next(path);
        }
        true
    }

    fn confirm_keys(&mut self, id: AssociationId) {
        self.end_batch();
        self.sealing.associations.confirm(id);
        if let Some(path) = self.sealing.associations.path(id)
            && let Some(peer) = self.peers.get(path)
            && peer.next_keys.is_some_and(|(next, _)| next == id)
        {
            self.seal_with_next(path);
        }
    }

    fn remove_keys(&mut self, id: AssociationId) {
        self.end_batch();
        if let Some(path) = self.sealing.associations.path(id) {
            if let Some(peer) = self.peers.get_mut(path) {
                peer.keys = peer.keys.filter(|&keys| keys != id);
                peer.next_keys = peer.next_keys.filter(|&(next, _)| next != id);
            }
            self.peers.release(path);
        }
        self.sealing.associations.remove(id);
    }

    fn end_keys(&mut self, path: PathId) {
        for id in self.sealing.associations.of_path(path) {
            self.remove_keys(id);
        }
    }

    fn forget_want(&mut self, path: PathId) {
        if let Some(peer) = self.peers.get_mut(path) {
            peer.wants_keys = false;
        }
    }

    fn refresh_salt(&self, path: PathId) -> Option<RefreshSalt> {
        self.sealing.associations.refresh_salt(self.peers.get(path)?.keys?).cloned()
    }

    fn refresh_salts(&self, path: PathId) -> Vec<RefreshSalt> {
        let associations = &self.sealing.associations;
        let of_path = associations.of_path(path).into_iter();
        of_path.filter_map(|id| associations.refresh_salt(id).cloned()).collect()
    }

    fn sealed_at(&self, address: SocketAddr) -> Vec<PathId> {
        self.peers.sealed_at(address).collect()
    }

    #[inline]
    fn has_seal_events(&self) -> bool {
        !self.sealing.events.is_empty() || self.sealing.associations.has_logged_keys()
    }

    fn log_keys(&mut self) {
        self.sealing.associations.log_keys();
    }

    fn poll_logged_key(&mut self) -> Option<LoggedKey> {
        self.sealing.associations.poll_logged_key()
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
            self.peers.release(ended.path);
        }
        sealing.events.pop_front()
    }

    fn seal_due_in(&self) -> Option<Duration> {
        let sealing = &self.sealing;
        let due = sealing.associations.poll_timeout()?;
        Some(due.saturating_sub(sealing.epoch.elapsed()))
    }
}
