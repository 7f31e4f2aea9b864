//! A step of one RPC: its state, its peer and the shared parts, borrowed side by side.

use apus_wire::Acked;
use bytes::Bytes;

use crate::control::Body;
use crate::cookie::Cookie;
use crate::endpoint::parts::Parts;
use crate::error::CallFailed;
use crate::incoming::Incoming;
use crate::peer::Peer;
use crate::rpc::{Phase, Rpc};
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::time::Time;
use crate::trace::{TraceEvent, of_sent};
use crate::usage::Account;

/// One RPC, looked up once. A step touches no other RPC and no other peer.
pub(super) struct Step<'a> {
    pub(super) key: RpcKey,
    pub(super) rpc: &'a mut Rpc,
    pub(super) peer: &'a mut Peer,
    pub(super) parts: &'a mut Parts,
}

/// The end of an RPC after a step; `Endpoint::end` does the rest.
pub(super) enum End {
    /// The client's application gets an error.
    Failed(CallFailed),
    /// The client's application gets the response.
    Responded(Bytes),
    /// No event follows.
    Forgotten,
}

/// The facts about an ended RPC that are still needed.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) peer: PeerKey,
    pub(super) socket: SocketKey,
    pub(super) cookie: Cookie,
    pub(super) local_port: u16,
    pub(super) acked: Acked,
    pub(super) is_client: bool,
}

impl Step<'_> {
    /// Records an event of the RPC, if the RPC was chosen.
    #[inline]
    pub(super) fn trace(&mut self, event: TraceEvent, a: u32, b: u32) {
        if self.parts.tracer.chooses(self.rpc.id) {
            self.trace_chosen(event, a, b);
        }
    }

    #[cold]
    #[inline(never)]
    fn trace_chosen(&mut self, event: TraceEvent, a: u32, b: u32) {
        let mark = self.peer.trace_mark(self.rpc.id);
        self.parts.tracer.record(event, mark, a, b);
        if matches!(event, TraceEvent::SendmsgRequest | TraceEvent::RequestComplete) {
            // The engine may ask for the mark, to record when the application takes the message.
            self.parts.tracer.keep(self.key, mark);
        }
    }

    /// Queues a control packet about the RPC.
    pub(super) fn control(&mut self, body: Body) {
        if self.parts.tracer.chooses(self.rpc.id)
            && let Some((event, a, b)) = of_sent(&body)
        {
            self.trace(event, a, b);
        }
        self.parts.control(self.rpc.peer, self.rpc.header(), body);
    }

    /// Moves the outgoing message to its present place in the sending order.
    #[inline]
    pub(super) fn requeue(&mut self) {
        if let Some(message) = self.rpc.outgoing_mut() {
            self.parts.order.update(self.key, message);
        }
    }

    /// Sets the timer so that the RPC is examined when it is due.
    #[inline]
    pub(super) fn arm(&mut self, now: Time) {
        self.parts.arm(now, self.key, self.rpc);
    }

    /// Records a packet of the peer about the RPC: everything transmitted for the RPC, and earlier, has arrived.
    #[inline]
    pub(super) fn note_arrived(&mut self) {
        if let Some(message) = self.rpc.outgoing() {
            self.peer.flight.arrived(message.mark);
        }
    }

    /// Charges `bytes` for the RPC, in place of its earlier charge.
    #[inline]
    pub(super) fn charge(&mut self, bytes: u64) {
        if bytes < self.rpc.charge.bytes {
            self.parts.grants.make_room();
        }
        let socket = self.parts.sockets.get_mut(self.rpc.socket);
        self.parts.total.charge(self.rpc, bytes, self.peer, socket);
    }

    /// Charges the arriving message up to `offset`, which was received or granted.
    #[inline]
    pub(super) fn charge_arriving(&mut self, offset: u32) {
        let Some(message) = self.rpc.incoming_mut().filter(|message| offset > message.charged)
        else {
            return;
        };
        let more = u64::from(offset.saturating_sub(message.charged));
        message.charged = offset;
        self.charge(self.rpc.charge.bytes + more);
    }

    /// Returns whether `bytes` more fit every budget, for any purpose.
    #[inline]
    pub(super) fn has_plenty(&self, bytes: u64) -> bool {
        self.parts.has_plenty(self.peer, self.rpc.socket, bytes)
    }

    /// Cancels a request whose client no longer waits for the response. A request that the application has, or will get, stays
    /// charged until the application has ended it.
    pub(super) fn cancel(&mut self) -> Option<End> {
        match self.rpc.phase {
            Phase::InService => {
                //= docs/protocol.md#hostile-1
                self.rpc.cancelled = true;
                self.note_cancelled();
                return None;
            }
            Phase::Incoming { .. } => {
                // Packets of the request that are still under way begin nothing.
                let change = self.peer.take_request(self.rpc.id.client_form());
                self.parts.total.usage.add(change);
            }
            Phase::Outgoing(_) | Phase::Connecting => {}
        }
        Some(End::Forgotten)
    }

    /// Reports that the client of a watched request no longer waits.
    #[inline]
    pub(super) fn note_cancelled(&mut self) {
        if self.rpc.watched {
            self.rpc.watched = false;
            self.parts.note_cancelled(self.rpc.socket, self.key);
        }
    }

    /// Begins to receive a message.
    pub(super) fn begin_arriving(&mut self, message: Incoming) {
        let (account, length) = (self.rpc.account(), message.length);
        self.rpc.receive(message);
        self.parts.total.usage.begin(account, length, self.key);
        self.peer.usage.begin(account, length, self.key);
        if let Some(host) = self.peer.host.filter(|_| account == Account::Theirs) {
            self.parts.total.hosts.usage_mut(host).begin(account, length, self.key);
        }
        if let Some(socket) = self.parts.sockets.get_mut(self.rpc.socket) {
            socket.usage.begin(account, length, self.key);
        }
    }

    /// Removes the arriving message, which is complete or arrives no more.
    #[inline]
    pub(super) fn end_arriving(&mut self) -> Option<Box<Incoming>> {
        let mut message = self.rpc.take_incoming()?;
        let (account, length) = (self.rpc.account(), message.length);
        self.parts.grants.forget(self.key, &mut message, self.peer, self.rpc.peer);
        self.parts.total.usage.end(account, length, self.key);
        self.peer.usage.end(account, length, self.key);
        if let Some(host) = self.peer.host.filter(|_| account == Account::Theirs) {
            self.parts.total.hosts.usage_mut(host).end(account, length, self.key);
        }
        if let Some(socket) = self.parts.sockets.get_mut(self.rpc.socket) {
            socket.usage.end(account, length, self.key);
        }
        Some(message)
    }

    /// Removes the RPC from all state of its peer, and the body from its outgoing message.
    #[inline]
    pub(super) fn leave_peer(&mut self) {
        if self.rpc.phase.is_incoming() {
            self.end_arriving();
        }
        match &mut self.rpc.phase {
            Phase::Outgoing(message) => {
                if message.is_blocked() {
                    self.peer.forget_blocked(self.key);
                } else if message.is_deferred() {
                    self.peer.flight.forget(message.srpt_key(self.key));
                }
                self.peer.flight.arrived(message.mark);
                self.parts.order.unrank(self.key, message);
                self.parts.spent.0.push(std::mem::take(&mut message.body));
            }
            Phase::Connecting => self.peer.flight.forget(connecting(self.key)),
            Phase::Incoming { .. } | Phase::InService => {}
        }
        self.peer.rpcs = self.peer.rpcs.saturating_sub(1);
        self.peer.server.calls =
            self.peer.server.calls.saturating_sub(u32::from(self.rpc.is_client()));
        let socket = self.parts.sockets.get_mut(self.rpc.socket);
        self.parts.total.discharge(self.rpc, self.peer, socket);
        self.parts.grants.make_room();
    }

    #[inline]
    pub(super) fn ended(&self) -> Ended {
        let rpc = &*self.rpc;
        Ended {
            peer: rpc.peer,
            socket: rpc.socket,
            cookie: rpc.cookie,
            local_port: rpc.local_port,
            acked: Acked { client_id: rpc.id.client_form(), server_port: rpc.remote_port },
            is_client: rpc.is_client(),
        }
    }
}

/// Returns the place of a call without a request among those that wait for the peer.
pub(super) fn connecting(key: RpcKey) -> (u32, u64, RpcKey) {
    (0, 0, key)
}
