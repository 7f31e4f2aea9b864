//! Room in the budgets, for arriving and for outgoing messages.

use apus_wire::{RpcUnknown, UnknownReason};

use crate::budget::{Books, Room, Total};
use crate::config::Config;
use crate::control::Body;
use crate::endpoint::Endpoint;
use crate::endpoint::parts::Parts;
use crate::endpoint::step::End;
use crate::grant::Messages;
use crate::hosts::Joined;
use crate::incoming::Incoming;
use crate::peer::Peer;
use crate::rpcs::Rpcs;
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::sockets::Sockets;
use crate::time::Time;
use crate::usage::{Account, RPC_BYTES};

/// Upper bound on the requests given up for one new request.
const GIVEN_UP_MAX: usize = 16;

/// Upper bound on the requests examined for a slow one.
const LOOKED_AT_MAX: usize = 64;

/// The arriving messages, and the room left for them.
pub(super) struct Table<'a> {
    pub(super) config: &'a Config,
    pub(super) rpcs: &'a mut Rpcs,
    pub(super) sockets: &'a Sockets,
    pub(super) total: &'a Total,
    pub(super) others: u64,
}

impl Messages for Table<'_> {
    fn message(&mut self, key: RpcKey) -> Option<(&mut Incoming, PeerKey)> {
        let rpc = self.rpcs.get_mut(key)?;
        let peer = rpc.peer;
        rpc.incoming_mut().map(|message| (message, peer))
    }

    fn room(&self, key: RpcKey, peer: &Peer) -> Room {
        let Some(rpc) = self.rpcs.get(key) else { return Room::NONE };
        let books = Books {
            config: self.config,
            rpcs: self.rpcs,
            sockets: self.sockets,
            total: self.total,
            others: self.others,
        };
        let length = rpc.incoming().map_or(0, |message| message.length);
        books.room(peer, rpc.socket, rpc.account(), (Some(key), length))
    }
}

impl Parts {
    /// Returns whether `bytes` more fit every budget, for any purpose.
    #[inline]
    pub(super) fn has_plenty(&self, peer: &Peer, socket: SocketKey, bytes: u64) -> bool {
        let socket = self.sockets.get(socket);
        self.total.has_plenty(&self.config, peer, socket, self.others.held, bytes)
    }

    /// Returns the bytes for which [`has_plenty`](Self::has_plenty) is true.
    pub(super) fn plenty(&self, peer: &Peer, socket: SocketKey) -> u64 {
        let socket = self.sockets.get(socket);
        self.total.plenty(&self.config, peer, socket, self.others.held)
    }
}

impl Endpoint {
    pub(super) fn books(&self) -> Books<'_> {
        Books {
            config: &self.parts.config,
            rpcs: &self.rpcs,
            sockets: &self.parts.sockets,
            total: &self.parts.total,
            others: self.parts.others.held,
        }
    }

    /// Adds a peer that becomes known.
    pub(super) fn insert_peer(&mut self, mut peer: Peer) -> PeerKey {
        peer.rights = self.rights.of(peer.path);
        let key = self.peers.insert(peer);
        self.join_host(key);
        key
    }

    /// Adds a peer to its host, to which it is charged together with others.
    pub(super) fn join_host(&mut self, key: PeerKey) {
        //= docs/protocol.md#hostile-12
        let number = self.peers[key].path.host();
        let hosts = &mut self.parts.total.hosts;
        let (host, first) = match hosts.join(number, key) {
            Joined::Alone => return,
            Joined::Shared(host) => (host, None),
            Joined::Second(host, first) => (host, Some(first)),
        };
        for key in first.into_iter().chain([key]) {
            if let Some(peer) = self.peers.get_mut(key) {
                hosts.add(host, &peer.usage);
                peer.host = Some(host);
            }
        }
    }

    /// Removes a peer from its host, because the peer is forgotten or moves to another host.
    pub(super) fn leave_host(&mut self, key: PeerKey) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if let Some(host) = peer.host.take() {
            self.parts.total.hosts.subtract(host, &peer.usage);
        }
        self.parts.total.hosts.leave(peer.path.host());
    }

    /// Returns whether a message of `length` bytes may begin to arrive. Its sender states that `unasked` of them arrive without a
    /// grant.
    pub(super) fn admits(
        &self,
        peer: PeerKey,
        socket: SocketKey,
        account: Account,
        length: u32,
        unasked: u32,
    ) -> bool {
        let peer = &self.peers[peer];
        if self.parts.has_plenty(peer, socket, RPC_BYTES + u64::from(length)) {
            return true;
        }
        let unasked = unasked.min(length).min(self.parts.config.unscheduled_max);
        self.books().admits(peer, socket, account, length, unasked)
    }

    /// Gives up slow requests, the slowest of some first, while the budgets are more than half full and a new request needs
    /// `bytes`. Otherwise clients that send a byte now and then would exclude others. The clients of these requests request room
    /// again. Work is bounded.
    #[cold]
    pub(super) fn give_up_slow(&mut self, now: Time, peer: PeerKey, socket: SocketKey, bytes: u64) {
        //= docs/protocol.md#hostile-11
        for _ in 0..GIVEN_UP_MAX {
            let Some(key) = self.slowest(now, peer, socket, bytes) else { return };
            let Some(step) = self.step(key) else { return };
            let (peer, header) = (step.rpc.peer, step.rpc.header());
            let takes_reasons = !step.peer.native;
            step.parts.counters.requests_too_slow += 1;
            if takes_reasons {
                let reason = UnknownReason::OverBudget;
                self.parts.control(peer, header, Body::Unknown(RpcUnknown { reason }));
            }
            self.end(now, key, Some(End::Forgotten));
        }
    }

    /// Returns the request with the fewest recent bytes, among some that are charged to a budget without ample room.
    fn slowest(
        &mut self,
        now: Time,
        peer: PeerKey,
        socket: SocketKey,
        bytes: u64,
    ) -> Option<RpcKey> {
        let parts = &self.parts;
        let Config { peer_budget, socket_budget, total_budget, .. } = parts.config;
        let of_peer = &self.peers[peer].usage;
        let of_host = self.peers[peer].host.map(|host| parts.total.hosts.usage(host));
        let of_socket = parts.sockets.get(socket);
        let usage = if !of_peer.has_plenty(bytes, 0, peer_budget) {
            of_peer
        } else if let Some(host) = of_host.filter(|it| !it.has_plenty(bytes, 0, peer_budget)) {
            host
        } else if let Some(socket) =
            of_socket.filter(|it| !it.usage.has_plenty(bytes, it.others, socket_budget))
        {
            &socket.usage
        } else if !parts.total.usage.has_plenty(bytes, parts.others.held, total_budget) {
            &parts.total.usage
        } else {
            return None;
        };
        let interval = parts.config.slow_interval();
        let mut slowest: Option<(u32, RpcKey)> = None;
        let mut last = None;
        for place in usage.arriving(Account::Theirs, self.slow_looked_at).take(LOOKED_AT_MAX) {
            last = Some(place);
            let message = self.rpcs.get(place.1).and_then(|rpc| rpc.incoming());
            if let Some(bytes) = message.and_then(|message| message.slow(now, interval)) {
                let found = (bytes, place.1);
                slowest = Some(slowest.map_or(found, |before| before.min(found)));
            }
        }
        self.slow_looked_at = last.unwrap_or(self.slow_looked_at);
        slowest.map(|(_, key)| key)
    }

    /// Returns the length of the longest message that may be sent, in place of the charged bytes `before`.
    pub(super) fn room_to_send(
        &self,
        peer: PeerKey,
        socket: SocketKey,
        account: Account,
        before: u64,
    ) -> u64 {
        let room = self.books().room_to_send(&self.peers[peer], socket, account, before);
        room.saturating_sub(RPC_BYTES)
    }

    /// Records that the outgoing message of an RPC, which has just begun, does not count against arriving messages in the budgets
    /// that have no room for it.
    #[cold]
    #[inline(never)]
    pub(super) fn exempt(&mut self, key: RpcKey) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        let (peer, socket, account) = (rpc.peer, rpc.socket, rpc.account());
        let books = self.books();
        let exempt = books.without_room(&self.peers[peer], socket, account, rpc.charge.ours);
        let of_host = self.peers[peer].host;
        let of_peer = &mut self.peers[peer].usage;
        let total = &mut self.parts.total;
        let of_host = of_host.map(|host| total.hosts.usage_mut(host));
        let of_socket = self.parts.sockets.get_mut(socket).map(|socket| &mut socket.usage);
        let usages = [Some(of_peer), of_host, of_socket, Some(&mut total.usage)];
        for usage in usages.into_iter().zip(exempt).filter_map(|(usage, is)| usage.filter(|_| is)) {
            usage.exempt[account as usize] = Some(key);
        }
    }

    /// Returns the bytes that may be charged more for an RPC whose arriving message has `length` bytes.
    pub(super) fn room(&self, key: RpcKey, length: u32) -> u64 {
        let Some(rpc) = self.rpcs.get(key) else { return 0 };
        let peer = &self.peers[rpc.peer];
        self.books().room(peer, rpc.socket, rpc.account(), (Some(key), length)).bytes
    }

    /// Returns whether `bytes` more of the arriving message of an RPC fit the budgets.
    #[inline]
    pub(super) fn affords(&mut self, key: RpcKey, bytes: usize) -> bool {
        let Some(step) = self.step(key) else { return false };
        let (length, more) = step.rpc.incoming().map_or((0, 0), |message| {
            let come = message.length.min(message.received.saturating_add(bytes as u32));
            (message.length, u64::from(come.saturating_sub(message.charged)))
        });
        more == 0 || step.has_plenty(more) || more <= self.room(key, length)
    }

    /// Sets the number and the bytes of responses to a socket's calls that wait for the application in a queue behind
    /// [`Endpoint::poll_event`]. They are charged to the socket's and the total budget, so that an application that does not take
    /// responses gets no further ones.
    pub fn set_undelivered(&mut self, socket: SocketKey, responses: u64, bytes: u64) {
        let bytes = responses * RPC_BYTES + bytes;
        //= docs/protocol.md#hostile-9
        let Some(socket) = self.parts.sockets.get_mut(socket) else { return };
        let before = std::mem::replace(&mut socket.undelivered, bytes);
        socket.usage.charged = socket.usage.charged - before + bytes;
        let total = &mut self.parts.total.usage;
        total.charged = total.charged - before + bytes;
        if bytes < before {
            self.parts.grants.make_room();
        }
    }

    /// Returns the bytes charged to a socket, including the reserve for arriving messages, for the socket's ends at the host's
    /// other endpoints. 0 if the socket is closed.
    #[must_use]
    pub fn socket_held(&self, socket: SocketKey) -> u64 {
        let socket = self.parts.sockets.get(socket);
        socket.map_or(0, |socket| socket.usage.charged + self.books().reserved_of(&socket.usage))
    }

    /// Sets the bytes charged to the socket's ends at the host's other endpoints, as a sum: the socket has one budget. A host with
    /// a single endpoint never needs it.
    pub fn set_socket_others(&mut self, socket: SocketKey, held: u64) {
        //= docs/protocol.md#host-4
        let Some(socket) = self.parts.sockets.get_mut(socket) else { return };
        if std::mem::replace(&mut socket.others, held) > held {
            self.parts.grants.make_room();
        }
    }
}
