//! Rights of peers: their changes, and the refusal of requests and calls for want of them.

use apus_wire::{Header, PathId, RpcUnknown, UnknownReason};

use crate::contact::Contact;
use crate::control::Body;
use crate::endpoint::Endpoint;
use crate::endpoint::parts::Parts;
use crate::error::CallError;
use crate::local::is_local;
use crate::outgoing::Outgoing;
use crate::peer::Peer;
use crate::rights::{PathKind, Rights};
use crate::rpc::{Phase, Rpc};
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::sockets::RequestLimits;

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
    /// Requests that arrive are refused if their peers have no right by the new rule. Those that have arrived stay: the caller passes
    /// them to [`refuse_if_forbidden`](Self::refuse_if_forbidden) if they were not begun. Takes time in proportion to the RPCs if the
    /// socket has any.
    ///
    /// # Panics
    ///
    /// If the rule is above 63.
    pub fn set_rule(&mut self, socket: SocketKey, rule: u8) {
        assert!(rule < 64, "rules are 0 to 63");
        self.parts.sockets.set_rule(socket, rule);
        if self.socket_held(socket) == 0 {
            return;
        }
        for slot in 0..self.rpcs.slots() {
            if let Some((key, rpc)) = self.rpcs.at(slot)
                && rpc.socket == socket
                && rpc.phase.is_incoming()
            {
                self.refuse_if_forbidden(key);
            }
        }
    }

    //= docs/protocol.md#seal-6
    /// Refuses a request that the application has not begun to execute, if the rule of its socket does not name its peer any more.
    /// The client gets the reason, and the request is remembered as any refused one. Returns whether it was refused.
    pub fn refuse_if_forbidden(&mut self, key: RpcKey) -> bool {
        if is_local(key) {
            return self.refuse_local_if_forbidden(key);
        }
        let is_request = |phase: &Phase| phase.is_in_service() || phase.is_incoming();
        let step = self.step(key).filter(|it| !it.rpc.is_client() && is_request(&it.rpc.phase));
        let Some(mut step) = step else { return false };
        let rule = step.parts.sockets.get(step.rpc.socket).map_or(0, |socket| socket.rule);
        if step.peer.rights.requests & rule != 0 {
            return false;
        }
        //= docs/protocol.md#linux-3
        // A Linux client gets its answer when it asks or sends the request again.
        if !step.peer.native {
            let reason = PathKind::of(step.peer.path).refusal();
            step.control(Body::Unknown(RpcUnknown { reason }));
            let change = step.peer.refuse_request(step.rpc.id.flipped(), reason);
            step.parts.total.usage.add(change);
        }
        self.parts.counters.refused_not_allowed += 1;
        self.remove_rpc(key);
        true
    }

    /// Limits the requests to a socket, beside the limits of all sockets. Does nothing if the socket is closed.
    pub fn limit_requests(&mut self, socket: SocketKey, limits: RequestLimits) {
        self.parts.sockets.limit(socket, limits);
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
