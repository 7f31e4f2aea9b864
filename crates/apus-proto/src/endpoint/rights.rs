//! Rights of peers: their changes, and the refusal of requests and calls for want of them.

use apus_wire::{Header, PathId, UnknownReason};

use crate::contact::Contact;
use crate::endpoint::Endpoint;
use crate::endpoint::parts::Parts;
use crate::error::CallError;
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::rights::{PathKind, Rights};
use crate::rpc::Rpc;
use crate::slab::{PeerKey, SocketKey};

impl Endpoint {
    /// Sets the rights of all paths of a kind that have no rights of their own. [`Rights::ALL`] at the beginning. Takes time in
    /// proportion to the known peers.
    pub fn set_default_rights(&mut self, kind: PathKind, rights: Rights) {
        self.rights.set_default(kind, rights);
        for key in self.peers.keys() {
            let path = self.peers[key].path;
            if PathKind::of(path) == kind {
                self.peers[key].rights = self.rights.of(path);
            }
        }
        for peer in self.local.peers() {
            peer.rights = self.rights.of(peer.path);
        }
    }

    /// Sets the rights of the node at the end of a path, of any kind. They outlast the contact with the peer, and stay until
    /// [`remove_rights`](Self::remove_rights). If the peer moves (rule contact-7), the path that it moves to gets the same rights,
    /// unless it has own ones.
    ///
    /// Requests in service, and calls under way, go on without a right that is taken away.
    pub fn set_rights(&mut self, path: PathId, rights: Rights) {
        self.rights.set(path, rights);
        self.take_over_rights(path);
    }

    /// Returns the rights of the node at the end of a path.
    #[must_use]
    pub fn rights(&self, path: PathId) -> Rights {
        self.rights.of(path)
    }

    /// Removes the rights that a path has of its own, so that it has those of its kind.
    pub fn remove_rights(&mut self, path: PathId) {
        self.rights.remove(path);
        self.take_over_rights(path);
    }

    /// Sets the rule of a socket, 0 to 63; 0 at the beginning. For a service it is the rule of the peers that may call it, for other
    /// sockets the rule of the peers that may be called. Does nothing if the socket is closed.
    ///
    /// # Panics
    ///
    /// If the rule is above 63.
    pub fn set_rule(&mut self, socket: SocketKey, rule: u8) {
        assert!(rule < 64, "rules are 0 to 63");
        self.parts.sockets.set_rule(socket, rule);
    }

    /// Copies the rights of a path to its peers.
    fn take_over_rights(&mut self, path: PathId) {
        let rights = self.rights.of(path);
        if let Some(peer) = self.local.peer_mut(path) {
            peer.rights = rights;
        }
        for key in self.peers.at(path) {
            self.peers[key].rights = rights;
        }
    }

    /// Returns the reason for refusing the first contact of a node at a path with a port, if it is refused. Counts the refusal.
    pub(super) fn refuses_contact(&mut self, path: PathId, port: u16) -> Option<UnknownReason> {
        let Some(served) = self.parts.sockets.serves(port) else {
            //= docs/protocol.md#life-6
            self.parts.counters.refused_no_port += 1;
            return Some(UnknownReason::NoContact);
        };
        //= docs/protocol.md#seal-6
        if self.rights.of(path).requests & served.rule == 0 {
            self.parts.counters.refused_not_allowed += 1;
            return Some(PathKind::of(path).contact_refusal());
        }
        None
    }

    /// Returns the reason for which a request of a peer is never taken, if it is not: it was refused before, its port is not served, or
    /// the peer has no right.
    pub(super) fn refusal(&self, key: PeerKey, request: &Header) -> Option<UnknownReason> {
        let peer = &self.peers[key];
        if let Some(reason) = peer.has_refused(request.sender_id) {
            return Some(reason);
        }
        let Some(served) = self.parts.sockets.serves(request.dest_port) else {
            return Some(UnknownReason::NoSuchPort);
        };
        //= docs/protocol.md#seal-6
        let is_forbidden = peer.rights.requests & served.rule == 0;
        is_forbidden.then(|| PathKind::of(peer.path).refusal())
    }

    /// Returns the error of a call to a peer that the socket may not call, if that is known before the contact with the peer. A peer
    /// that was made for this call is forgotten.
    #[cold]
    pub(super) fn not_expected(&mut self, key: PeerKey) -> Result<(), CallError> {
        let Peer { path, contact, rpcs, .. } = &self.peers[key];
        if !contact.may_send() && !self.rights.are_known(*path) {
            return Ok(());
        }
        if matches!(contact, Contact::Opening(_)) && *rpcs == 0 {
            self.forget_peer(key);
        }
        Err(CallError::NotExpected)
    }
}

impl Parts {
    /// Returns whether a deferred message may begin, or go on, to a peer with these rights to be called.
    pub(super) fn may_begin(&self, rpc: &Rpc, calls: u64) -> bool {
        //= docs/protocol.md#seal-6
        let is_named = || self.sockets.get(rpc.socket).is_some_and(|it| it.rule & calls != 0);
        !rpc.is_client() || rpc.outgoing().is_some_and(Outgoing::has_begun) || is_named()
    }
}
