//! What is charged for RPCs.

use crate::budget::{Account, Books, Room, Shares};
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
    pub(super) held: u64,
    pub(super) shares: &'a Shares,
    pub(super) strangers: u64,
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
            held: self.held,
            shares: self.shares,
            strangers: self.strangers,
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
            held: self.held,
            shares: &self.shares,
            strangers: self.strangers,
        }
    }

    /// Makes the RPC hold `bytes`, whatever it held before.
    pub(super) fn charge(&mut self, key: RpcKey, bytes: u64) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let before = std::mem::replace(&mut rpc.held, bytes);
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        let theirs = rpc.account() == Account::Theirs;
        let socket = self.sockets.get_mut(rpc.socket);
        let of_socket = socket.map(|socket| (&mut socket.held, &mut socket.shares));
        let of_all = (&mut self.held, &mut self.shares);
        let budgets = [Some((&mut peer.held, &mut peer.shares)), of_socket, Some(of_all)];
        for (held, shares) in budgets.into_iter().flatten() {
            *held = *held - before + bytes;
            if theirs {
                shares.theirs = shares.theirs - before + bytes;
            }
        }
        let strange = !peer.is_confirmed() && bytes > 0;
        if std::mem::replace(&mut rpc.strange, strange) {
            self.strangers -= before;
        }
        if strange {
            self.strangers += bytes;
        }
        if bytes < before {
            self.grants.make_room();
        }
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
        let Some(peer) = self.peers.get(of) else { return false };
        let unasked = unasked.min(length).min(self.config.unscheduled_max);
        self.books().admits(peer, socket, account, length, unasked)
    }

    /// A message begins to arrive for an RPC.
    pub(super) fn begin_arriving(&mut self, key: RpcKey, message: Incoming) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let (account, length) = (rpc.account(), message.length);
        rpc.incoming = Some(Box::new(message));
        self.shares.begin(account, length, key);
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        peer.shares.begin(account, length, key);
        if let Some(socket) = self.sockets.get_mut(rpc.socket) {
            socket.shares.begin(account, length, key);
        }
    }

    /// The message that arrives for an RPC is whole, or arrives no more.
    pub(super) fn end_arriving(&mut self, key: RpcKey) -> Option<Box<Incoming>> {
        let rpc = self.rpcs.get_mut(key)?;
        let mut message = rpc.incoming.take()?;
        let (account, length) = (rpc.account(), message.length);
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        self.grants.forget(key, &mut message, peer, rpc.peer);
        self.shares.end(account, length, key);
        peer.shares.end(account, length, key);
        if let Some(socket) = self.sockets.get_mut(rpc.socket) {
            socket.shares.end(account, length, key);
        }
        Some(message)
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
        let message = self.rpcs.get(key).and_then(|rpc| rpc.incoming.as_deref());
        message.is_none_or(|message| {
            let come = message.length.min(message.received.saturating_add(bytes as u32));
            come <= message.charged || u64::from(come - message.charged) <= self.room(key).bytes
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
