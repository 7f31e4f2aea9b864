//! Calls: their beginning and their end.

use apus_wire::{Header, MAX_LINUX_MESSAGE, PathId, RpcId, Token};
use bytes::Bytes;

use crate::body::Body;
use crate::contact::{Contact, Opening};
use crate::cookie::Cookie;
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::Endpoint;
use crate::endpoint::event::{CallOptions, Event};
use crate::endpoint::expire::Room;
use crate::endpoint::step::{Ended, connecting};
use crate::error::{CallError, CallFailed};
use crate::local::is_local;
use crate::outgoing::Outgoing;
use crate::peer::{CERTAIN_FOR, Peer};
use crate::remote::Remote;
use crate::rpc::{Phase, Rpc};
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::sockets::Socket;
use crate::time::{Time, nanos};
use crate::trace::TraceEvent;
use crate::usage::{Account, RPC_BYTES};

/// A call that may begin: its peer is found, and no state has changed yet.
pub(super) struct Admitted {
    peer: PeerKey,
    socket: SocketKey,
    /// The local and the remote port.
    ports: (u16, u16),
    /// Whether its request fits each budget amply.
    is_ample: bool,
}

impl Endpoint {
    /// Starts a call: `body` goes to the service at `to`, and an [`Event::Response`] or [`Event::Failed`] follows.
    ///
    /// # Errors
    ///
    /// If the request is too large, or empty and for a Linux host, if the socket is closed, or if a limit is reached.
    pub fn call(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        let body = body.into();
        if to.path.is_local() {
            return self.call_local(now, socket, to, body, options);
        }
        let length = body.len();
        let admitted =
            self.check_length(to, length).and_then(|()| self.admit_call(now, socket, to, length));
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                self.discard(body);
                return Err(error);
            }
        };
        let is_ample = admitted.is_ample;
        let key = self.begin_call(now, admitted, Some(body), options);
        if !is_ample {
            self.exempt(key);
        }
        self.start_call(now, key);
        Ok(key)
    }

    /// Makes the peer at `to` known before the first call. An [`Event::Connected`] or [`Event::Failed`] follows. Takes one round
    /// trip if the peer is not known yet.
    ///
    /// # Errors
    ///
    /// The errors of [`call`](Self::call).
    pub fn connect(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        let admitted = self.admit_call(now, socket, to, 0)?;
        let key = self.begin_call(now, admitted, None, options);
        self.start_call(now, key);
        Ok(key)
    }

    /// Replaces the cookie of a call that has not ended and goes over the network.
    pub fn set_cookie(&mut self, rpc: RpcKey, cookie: Cookie) {
        if let Some(rpc) = self.rpcs.get_mut(rpc) {
            rpc.cookie = cookie;
        }
    }

    /// Returns the id of an RPC that has not ended, the same at both ends: the id in the client's packets or, within the host, in
    /// the client's messages.
    #[must_use]
    pub fn rpc_id(&self, rpc: RpcKey) -> Option<u64> {
        match is_local(rpc) {
            true => self.local.get(rpc).map(|call| call.id),
            false => self.rpcs.get(rpc).map(|rpc| rpc.id.client_form().0),
        }
    }

    /// Returns an error if a request of this length cannot be sent there.
    #[inline]
    pub(super) fn check_length(&self, to: Remote, length: usize) -> Result<(), CallError> {
        let limit = MAX_LINUX_MESSAGE.min(self.parts.config.message_max);
        if (1..=limit as usize).contains(&length) {
            return Ok(());
        }
        self.check_unusual_length(to, length)
    }

    /// Checks a length that not every peer takes.
    #[cold]
    fn check_unusual_length(&self, to: Remote, length: usize) -> Result<(), CallError> {
        let limit = self.parts.config.message_max;
        if length > limit as usize {
            return Err(CallError::MessageTooLarge { length, limit });
        }
        //= docs/protocol.md#linux-1
        match length {
            0 if to.path.is_native() => Err(CallError::EmptyForLinux),
            _ if length > MAX_LINUX_MESSAGE as usize && to.path.is_native() => {
                Err(CallError::TooLargeForLinux { length })
            }
            _ => Ok(()),
        }
    }

    /// Checks whether an RPC with a request of this length can begin, and finds its peer.
    #[inline]
    fn admit_call(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        length: usize,
    ) -> Result<Admitted, CallError> {
        let &Socket { port: local_port, rule, .. } =
            self.parts.sockets.get(socket).ok_or(CallError::SocketClosed)?;
        let config = &self.parts.config;
        let (peers_max, calls_max) = (config.peers_max, config.calls_max);
        let too_many = CallError::TooManyPeers { limit: peers_max };
        let key = self.peer_for_call(now, to.path).ok_or(too_many)?;
        let mut peer = &self.peers[key];
        //= docs/protocol.md#seal-6
        if peer.rights.calls & rule == 0 {
            self.not_expected(key)?;
            peer = &self.peers[key];
        }
        //= docs/protocol.md#hostile-9
        let is_ample = self.parts.has_plenty(peer, socket, RPC_BYTES + length as u64);
        if !is_ample {
            let room = self.room_to_send(key, socket, Account::Own, 0);
            if length as u64 > room {
                return Err(CallError::OverBudget { length, room });
            }
        }
        if peer.server.calls >= calls_max {
            return Err(CallError::TooManyCalls { limit: calls_max });
        }
        Ok(Admitted { peer: key, socket, ports: (local_port, to.port), is_ample })
    }

    /// Begins an RPC as a client. Without a `body`, it ends once the peer is known.
    #[inline]
    fn begin_call(
        &mut self,
        now: Time,
        admitted: Admitted,
        body: Option<Body>,
        options: CallOptions,
    ) -> RpcKey {
        let Admitted { peer: peer_key, socket, ports, .. } = admitted;
        if !self.peers[peer_key].is_confirmed() {
            self.confirm_peer(peer_key); // The server of a call needs no proof of its address.
        }
        let (peer, parts) = (&mut self.peers[peer_key], &mut self.parts);
        // Fewer than 2^32 RPCs fit into their table.
        peer.server.calls = peer.server.calls.wrapping_add(1);
        peer.rpcs = peer.rpcs.wrapping_add(1);
        let mut cost = RPC_BYTES;
        let birth = parts.next_birth();
        let most = parts.unscheduled_most();
        let phase = match body {
            Some(body) => {
                let length = body.len() as u32;
                cost += u64::from(length);
                parts.counters.message_given(length.into());
                let table = peer.server.cutoffs.as_ref();
                let priority = unscheduled_priority(table, parts.config.priorities, length);
                let unscheduled = peer.unscheduled_of(&parts.config, length);
                Phase::Outgoing(Outgoing::new(body, unscheduled.min(most), priority, birth))
            }
            None => Phase::Connecting,
        };
        let mut rpc = Rpc::new(peer.server.ids.next(), phase, peer_key, socket, ports, now);
        //= docs/protocol.md#incast-1
        //= docs/protocol.md#host-4
        let outstanding = u64::from(parts.outstanding) + parts.others.calls;
        rpc.incast = outstanding >= u64::from(parts.config.incast_threshold);
        rpc.cookie = options.cookie;
        rpc.expires = options.deadline;
        rpc.trace = options.trace;
        rpc.probing.rto = peer.response_rto_nanos(&parts.config);
        let ours = if rpc.phase.is_connecting() { 0 } else { cost };
        let charged_socket = parts.sockets.get_mut(socket);
        rpc.charge = parts.total.charge_new(Account::Own, (cost, ours), peer, charged_socket);
        parts.outstanding = parts.outstanding.wrapping_add(1);
        parts.counters.calls += 1;
        parts.counters.calls_in_incast += u64::from(rpc.incast);
        let key = self.rpcs.insert(rpc);
        if let Some(mut step) = self.step(key) {
            // A lower bound. A timer that runs out early is set again.
            let due =
                now.after(step.rpc.probing.rto.min(nanos(step.parts.config.peer_timeout) / 4));
            let due = step.rpc.expires.map_or(due, |expires| due.min(expires));
            step.parts.arm_at(now, due, key, step.rpc);
            step.trace(TraceEvent::SendmsgRequest, (cost - RPC_BYTES) as u32, ports.1.into());
        }
        key
    }

    /// Starts to transmit a call: at once, or once the peer is known.
    #[inline]
    pub(super) fn start_call(&mut self, now: Time, key: RpcKey) {
        let Some(mut step) = self.step(key) else { return };
        let (peer, header) = (step.rpc.peer, step.rpc.header());
        if !step.peer.contact.may_send() {
            self.defer_until_met(now, key);
        } else if !step.peer.native && step.peer.is_doubtful(now) {
            self.doubt(now, peer, header);
            self.peers[peer].flight.awaits_answer = true;
            self.defer_until_met(now, key);
        } else if step.rpc.phase.is_connecting() {
            self.connected(key);
        } else {
            step.requeue();
        }
    }

    /// Defers a call until the peer is known.
    fn defer_until_met(&mut self, now: Time, key: RpcKey) {
        let Some(step) = self.step(key) else { return };
        let (peer_key, header) = (step.rpc.peer, step.rpc.header());
        let (place, takes) = match &mut step.rpc.phase {
            Phase::Outgoing(message) => {
                step.parts.order.defer(key, message);
                (message.srpt_key(key), message.unscheduled.into())
            }
            _ => (connecting(key), 0),
        };
        let first = step.peer.rpcs == 1;
        step.peer.flight.defer(place, takes);
        if let Some(opening) = step.peer.contact.opening_mut().filter(|_| first) {
            *opening = Opening::new(now, header);
            self.send_open(now, peer_key);
        }
    }

    /// Ends a call without a request, whose peer is known now.
    pub(super) fn connected(&mut self, key: RpcKey) {
        let Some(ended) = self.remove_rpc(key) else { return };
        self.parts.counters.calls_completed += 1;
        let Ended { socket, cookie, .. } = ended;
        self.parts.events.push_back(Event::Connected { socket, rpc: key, cookie });
    }

    /// Ends a call with its complete response.
    pub(super) fn complete_call(&mut self, now: Time, key: RpcKey, body: Bytes) {
        if self.parts.sampler.chooses(self.parts.counters.calls_completed) {
            self.time_call(now, key);
        }
        let Some(ended) = self.remove_rpc(key) else { return };
        self.parts.counters.calls_completed += 1;
        if self.parts.tracer.chooses(ended.acked.client_id) {
            let mark = self.peers[ended.peer].trace_mark(ended.acked.client_id);
            self.parts.tracer.record(TraceEvent::ResponseComplete, mark, body.len() as u32, 0);
        }
        let peer = &mut self.peers[ended.peer];
        if peer.compact {
            if peer.server.ack_ranges.push(ended.acked.client_id) {
                self.parts.send_ack_ranges(ended.peer, ended.local_port, ended.acked.server_port);
            }
        } else if let Some(acks) = peer.push_ack(ended.acked) {
            self.parts.send_acks(ended.peer, ended.local_port, acks);
        }
        let Ended { socket, cookie, .. } = ended;
        self.parts.events.push_back(Event::Response { socket, rpc: key, cookie, body });
    }

    #[cold]
    #[inline(never)]
    fn time_call(&mut self, now: Time, key: RpcKey) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        self.parts.counters.call_timed(now.saturating_since(rpc.started));
    }

    /// Ends one RPC with a run of a peer that is over.
    pub(super) fn end_with_run(
        &mut self,
        now: Time,
        key: RpcKey,
        successor: &Result<PeerKey, CallFailed>,
    ) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        if !rpc.is_client() {
            self.parts.counters.requests_orphaned += 1;
            self.remove_rpc(key);
            return;
        }
        let sent = rpc.has_sent_request();
        let is_current = |peer: &Peer| !peer.contact.is_over();
        match successor {
            //= docs/protocol.md#once-3
            _ if sent => self.fail(key, CallFailed::MayHaveExecuted),
            &Ok(successor) if self.peers.get(successor).is_some_and(is_current) => {
                let peer = &self.peers[successor];
                if peer.contact.may_send() && !self.parts.may_begin(rpc, peer.rights.calls) {
                    return self.fail(key, CallFailed::NotExpected);
                }
                self.begin_anew(now, key, successor);
            }
            Ok(_) => self.fail(key, CallFailed::NotSent),
            Err(error) => self.fail(key, error.clone()),
        }
    }

    /// Moves a call to another run of the server. Its last byte was never transmitted, so no server has executed it.
    fn begin_anew(&mut self, now: Time, key: RpcKey, successor: PeerKey) {
        let Some(mut step) = self.step(key) else { return };
        step.parts.counters.calls_begun_anew += 1;
        let request = step.rpc.outgoing();
        let request =
            request.map(|message| (message.message(), message.unscheduled_priority, message.birth));
        step.leave_peer();
        let (peer, parts) = (&mut self.peers[successor], &self.parts);
        peer.rpcs = peer.rpcs.saturating_add(1);
        peer.server.calls = peer.server.calls.saturating_add(1);
        let id: RpcId = peer.server.ids.next();
        let rto = peer.response_rto_nanos(&parts.config);
        let most = parts.unscheduled_most();
        let mut cost = RPC_BYTES;
        let phase = request.map_or(Phase::Connecting, |(body, priority, birth)| {
            cost += body.len() as u64;
            let unscheduled = peer.unscheduled_of(&parts.config, body.len() as u32).min(most);
            Phase::Outgoing(Outgoing::new(body, unscheduled, priority, birth))
        });
        self.rpcs.rename(key, successor, id);
        let Some(mut step) = self.step(key) else { return };
        let rpc = &mut *step.rpc;
        (rpc.phase, rpc.probing.rto) = (phase, rto);
        (rpc.probing.queued, rpc.disturbed) = (false, true);
        rpc.note_progress(now);
        step.charge(cost);
        self.start_call(now, key);
        if let Some(mut step) = self.step(key) {
            step.arm(now);
        }
    }

    /// Returns the peer for calls by `path`, new if necessary; `None` if the table is full of peers in use.
    #[inline]
    pub(super) fn peer_for_call(&mut self, now: Time, path: PathId) -> Option<PeerKey> {
        if let Some(key) = self.peers.find(path) {
            let peer = &self.peers[key];
            //= docs/protocol.md#contact-6
            let certain = now.saturating_since(peer.last_rx) < CERTAIN_FOR
                && peer.contact.met().is_none_or(|met| met.may_be_known(now));
            if certain || peer.rpcs > 0 || peer.native {
                return Some(key);
            }
            self.forget_peer(key); // It may have forgotten this node: a new first contact follows.
        }
        if !self.make_room(now, Room::ForServer) {
            return None;
        }
        let key = if path.is_native() {
            self.insert_native(now, path)
        } else {
            let nothing = Header { source_port: 1, dest_port: 1, sender_id: RpcId(0) };
            let contact = Contact::Opening(Opening::new(now, nothing));
            let token: Token = self.secrets.token();
            self.insert_peer(Peer::known(path, token, contact, now))
        };
        self.peers.take_path(key);
        Some(key)
    }
}
