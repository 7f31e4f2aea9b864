//! Room in the budgets, for messages that arrive and messages that are sent.

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

/// Requests given up at most for one that is new.
const GIVEN_UP_MAX: usize = 16;

/// Requests looked at for one that arrives slowly.
const LOOKED_AT_MAX: usize = 64;

/// The arriving messages, and the room that is left for them.
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
        books.room(peer, rpc.socket, rpc.account(), Some(key))
    }
}

impl Parts {
    /// Whether `bytes` more fit every budget, whatever they are for.
    #[inline]
    pub(super) fn has_plenty(&self, peer: &Peer, socket: SocketKey, bytes: u64) -> bool {
        let socket = self.sockets.get(socket);
        self.total.has_plenty(&self.config, peer, socket, self.others.held, bytes)
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

    /// A peer becomes known.
    pub(super) fn insert_peer(&mut self, peer: Peer) -> PeerKey {
        let key = self.peers.insert(peer);
        self.join_host(key);
        key
    }

    /// A peer is charged together with others of its host.
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

    /// It is so no more: it is forgotten, or moves to another host.
    pub(super) fn leave_host(&mut self, key: PeerKey) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if let Some(host) = peer.host.take() {
            self.parts.total.hosts.subtract(host, &peer.usage);
        }
        self.parts.total.hosts.leave(peer.path.host());
    }

    /// Whether a message of `length` bytes may begin to arrive, of which `unasked` come without a
    /// grant, as its sender says.
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

    /// Gives up requests that arrive slowly, the slowest of some first, while the budgets are more than half full and a newcomer wants
    /// `bytes`. Otherwise whoever sends a byte now and then would keep the others away. Their clients ask for room again. Work is
    /// bounded.
    #[cold]
    pub(super) fn give_up_slow(&mut self, now: Time, peer: PeerKey, socket: SocketKey, bytes: u64) {
        //= docs/protocol.md#hostile-11
        for _ in 0..GIVEN_UP_MAX {
            let Some(key) = self.slowest(now, peer, socket, bytes) else { return };
            let Some(step) = self.step(key) else { return };
            let (peer, header) = (step.rpc.peer, step.rpc.header());
            let is_told = !step.peer.native;
            step.parts.counters.requests_too_slow += 1;
            if is_told {
                let reason = UnknownReason::OverBudget;
                self.parts.control(peer, header, Body::Unknown(RpcUnknown { reason }));
            }
            self.end(now, key, Some(End::Forgotten));
        }
    }

    /// The request of which the fewest bytes came lately, among some that are charged to a budget without plenty of room.
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

    /// The longest message that may be sent in place of the bytes `before`.
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

    /// The bytes that may be charged more for an RPC.
    pub(super) fn room(&self, key: RpcKey) -> u64 {
        let Some(rpc) = self.rpcs.get(key) else { return 0 };
        let peer = &self.peers[rpc.peer];
        self.books().room(peer, rpc.socket, rpc.account(), Some(key)).bytes
    }

    /// Whether `bytes` more of the message that arrives for an RPC may come.
    #[inline]
    pub(super) fn affords(&mut self, key: RpcKey, bytes: usize) -> bool {
        let Some(step) = self.step(key) else { return false };
        let more = step.rpc.incoming().map_or(0, |message| {
            let come = message.length.min(message.received.saturating_add(bytes as u32));
            u64::from(come.saturating_sub(message.charged))
        });
        more == 0 || step.has_plenty(more) || more <= self.room(key)
    }

    /// Says how many responses to a socket's calls, and bytes of them, wait for the application in a queue
    /// behind [`Endpoint::poll_event`]. They are charged to the socket's and the total budget, so that
    /// an application that does not take responses gets no further ones.
    pub fn set_untaken(&mut self, socket: SocketKey, responses: u64, bytes: u64) {
        let bytes = responses * RPC_BYTES + bytes;
        //= docs/protocol.md#hostile-9
        let Some(socket) = self.parts.sockets.get_mut(socket) else { return };
        let before = std::mem::replace(&mut socket.untaken, bytes);
        socket.usage.charged = socket.usage.charged - before + bytes;
        let total = &mut self.parts.total.usage;
        total.charged = total.charged - before + bytes;
        if bytes < before {
            self.parts.grants.make_room();
        }
    }

    /// Bytes charged to a socket, with those kept free for messages that arrive: for its ends at the
    /// host's other endpoints. 0 if it is closed.
    #[must_use]
    pub fn socket_held(&self, socket: SocketKey) -> u64 {
        let socket = self.parts.sockets.get(socket);
        socket.map_or(0, |socket| socket.usage.charged + self.books().reserved_of(&socket.usage))
    }

    /// The bytes charged to the ends of a socket at the host's other endpoints, summed: it has one budget. For a
    /// host with several endpoints; one alone never needs it.
    pub fn set_socket_others(&mut self, socket: SocketKey, held: u64) {
        //= docs/protocol.md#host-4
        let Some(socket) = self.parts.sockets.get_mut(socket) else { return };
        if std::mem::replace(&mut socket.others, held) > held {
            self.parts.grants.make_room();
        }
    }
}
