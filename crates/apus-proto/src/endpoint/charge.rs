//! What is charged for RPCs.

use crate::budget::{Account, Books, RPC_BYTES, Room, Total};
use crate::config::Config;
use crate::endpoint::{Endpoint, Socket};
use crate::grant::Messages;
use crate::incoming::Incoming;
use crate::peer::Peer;
use crate::rpc::Rpc;
use crate::slab::{PeerKey, RpcKey, Slab, SocketKey};

/// The messages that arrive, and what is left for them.
pub(super) struct Table<'a> {
    pub(super) config: &'a Config,
    pub(super) rpcs: &'a mut Slab<RpcKey, Rpc>,
    pub(super) sockets: &'a Slab<SocketKey, Socket>,
    pub(super) total: &'a Total,
    pub(super) others: u64,
}

impl Messages for Table<'_> {
    fn message(&mut self, key: RpcKey) -> Option<(&mut Incoming, PeerKey)> {
        let rpc = self.rpcs.get_mut(key)?;
        let peer = rpc.peer;
        rpc.incoming.as_deref_mut().map(|message| (message, peer))
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

impl Endpoint {
    pub(super) fn books(&self) -> Books<'_> {
        Books {
            config: &self.config,
            rpcs: &self.rpcs,
            sockets: &self.sockets,
            total: &self.total,
            others: self.others.held,
        }
    }

    /// Whether `bytes` more fit every budget, whatever they are for.
    #[inline]
    pub(super) fn has_plenty(&self, of: PeerKey, socket: SocketKey, bytes: u64) -> bool {
        let socket = self.sockets.get(socket);
        self.peers.get(of).is_some_and(|peer| {
            self.total.has_plenty(&self.config, peer, socket, self.others.held, bytes)
        })
    }

    /// Makes the RPC hold `bytes`, whatever it held before.
    pub(super) fn charge(&mut self, key: RpcKey, bytes: u64) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        if bytes < rpc.held {
            self.grants.make_room();
        }
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        self.total.charge(rpc, bytes, peer, self.sockets.get_mut(rpc.socket));
    }

    /// Whether a message of `length` bytes may begin to arrive, of which `unasked` come without a
    /// grant, as its sender says.
    pub(super) fn admits(
        &self,
        of: PeerKey,
        socket: SocketKey,
        account: Account,
        length: u32,
        unasked: u32,
    ) -> bool {
        if self.has_plenty(of, socket, RPC_BYTES + u64::from(length)) {
            return true;
        }
        let Some(peer) = self.peers.get(of) else { return false };
        let unasked = unasked.min(length).min(self.config.unscheduled_max);
        self.books().admits(peer, socket, account, length, unasked)
    }

    /// A message begins to arrive for an RPC.
    pub(super) fn begin_arriving(&mut self, key: RpcKey, message: Incoming) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let (account, length) = (rpc.account(), message.length);
        rpc.incoming = Some(Box::new(message));
        self.total.shares.begin(account, length, key);
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        peer.shares.begin(account, length, key);
        if let Some(socket) = self.sockets.get_mut(rpc.socket) {
            socket.shares.begin(account, length, key);
        }
    }

    /// The message that arrives for an RPC is whole, or arrives no more.
    #[inline]
    pub(super) fn end_arriving(&mut self, key: RpcKey) -> Option<Box<Incoming>> {
        let rpc = self.rpcs.get_mut(key)?;
        let mut message = rpc.incoming.take()?;
        let (account, length) = (rpc.account(), message.length);
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        self.grants.forget(key, &mut message, peer, rpc.peer);
        self.total.shares.end(account, length, key);
        peer.shares.end(account, length, key);
        if let Some(socket) = self.sockets.get_mut(rpc.socket) {
            socket.shares.end(account, length, key);
        }
        Some(message)
    }

    /// The longest message that may be sent in place of what the RPC, if any, holds.
    pub(super) fn room_to_send(
        &self,
        of: PeerKey,
        socket: SocketKey,
        account: Account,
        before: u64,
    ) -> u64 {
        let Some(peer) = self.peers.get(of) else { return 0 };
        let room = self.books().room_to_send(peer, socket, account, before);
        room.saturating_sub(RPC_BYTES)
    }

    /// Says how many responses to a socket's calls, and bytes of them, wait for the application in a queue
    /// behind [`Endpoint::poll_event`]. They are charged to the socket's and the total budget, so that
    /// who does not take responses gets no further ones.
    pub fn set_untaken(&mut self, socket: SocketKey, responses: u64, bytes: u64) {
        let bytes = responses * RPC_BYTES + bytes;
        //= docs/protocol.md#hostile-9
        let Some(socket) = self.sockets.get_mut(socket) else { return };
        let before = std::mem::replace(&mut socket.untaken, bytes);
        socket.held = socket.held - before + bytes;
        self.total.held = self.total.held - before + bytes;
        if bytes < before {
            self.grants.make_room();
        }
    }

    /// Bytes charged to a socket, with what is kept free for messages that arrive: for its ends at the
    /// host's other endpoints. 0 if it is closed.
    #[must_use]
    pub fn socket_held(&self, socket: SocketKey) -> u64 {
        let books = self.books();
        self.sockets.get(socket).map_or(0, |socket| socket.held + books.reserved_of(&socket.shares))
    }

    /// What the ends of a socket at the host's other endpoints hold, summed: it has one budget. For a
    /// host with several endpoints; one alone never needs it.
    pub fn set_socket_others(&mut self, socket: SocketKey, held: u64) {
        //= docs/protocol.md#host-4
        let Some(socket) = self.sockets.get_mut(socket) else { return };
        if std::mem::replace(&mut socket.others, held) > held {
            self.grants.make_room();
        }
    }

    /// What may be charged more for an RPC.
    pub(super) fn room(&self, key: RpcKey) -> Room {
        let Some(rpc) = self.rpcs.get(key) else { return Room::NONE };
        let Some(peer) = self.peers.get(rpc.peer) else { return Room::NONE };
        self.books().room(peer, rpc.socket, rpc.account(), Some(key))
    }

    /// Whether `bytes` more of a message may come.
    #[inline]
    pub(super) fn affords(&self, key: RpcKey, bytes: usize) -> bool {
        let Some(rpc) = self.rpcs.get(key) else { return true };
        rpc.incoming.as_deref().is_none_or(|message| {
            let come = message.length.min(message.received.saturating_add(bytes as u32));
            let more = u64::from(come.saturating_sub(message.charged));
            more == 0 || self.has_plenty(rpc.peer, rpc.socket, more) || more <= self.room(key).bytes
        })
    }

    /// Charges a message up to `bytes`: so many have come, or may come.
    #[inline]
    pub(super) fn charge_arriving(&mut self, key: RpcKey, bytes: u32) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let Some(message) = rpc.incoming.as_deref_mut() else { return };
        if bytes > message.charged {
            let held = rpc.held + u64::from(bytes - message.charged);
            message.charged = bytes;
            self.charge(key, held);
        }
    }
}
