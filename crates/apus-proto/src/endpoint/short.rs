//! Short calls and responses over the network that begin together.
//!
//! The peer, the budgets and the time of the timers are looked up once for all of them, and their charges change once. A message that
//! needs more than that goes the way of a single one.

use apus_wire::PathId;

use crate::body::Body;
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::Endpoint;
use crate::endpoint::event::CallOptions;
use crate::endpoint::reply::response_rto;
use crate::error::{CallError, ReplyError};
use crate::local::is_local;
use crate::outgoing::Outgoing;
use crate::remote::Remote;
use crate::rpc::{Phase, Rpc};
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::sockets::Socket;
use crate::time::{Time, nanos};
use crate::timer::{Place, TICK};
use crate::trace::TraceMark;
use crate::usage::{Account, Change, Charge, RPC_BYTES};

/// Short calls of a socket to the node at the end of a path, or responses of it. Their charges are exact again when the value is
/// dropped.
#[derive(Debug)]
pub struct ShortMessages<'a> {
    endpoint: &'a mut Endpoint,
    now: Time,
    socket: SocketKey,
    path: PathId,
    calls: Option<Begun>,
    responses: Option<Answering>,
}

/// Calls that have begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    peer: PeerKey,
    /// The client's port.
    port: u16,
    number: u32,
    /// Upper bound on `number`.
    most: u32,
    /// Upper bound on the length of a request.
    longest: usize,
    /// Bytes that amply fit each budget.
    plenty: u64,
    /// Bytes not charged yet.
    owed: u64,
    rto: u64,
    place: Place,
}

/// Responses to one peer.
#[derive(Clone, Copy, Debug)]
struct Answering {
    peer: PeerKey,
    /// Upper bound on the length of a response.
    longest: usize,
    /// Bytes that amply fit each budget.
    plenty: u64,
    /// Charges of the requests, which still count.
    before: u64,
    /// Charges of the responses, which do not count yet.
    after: u64,
}

impl Endpoint {
    /// Begins calls of a socket to the node at the end of a path, or responses of it, over the network.
    #[inline]
    pub fn short_messages(
        &mut self,
        now: Time,
        socket: SocketKey,
        path: PathId,
    ) -> ShortMessages<'_> {
        ShortMessages { endpoint: self, now, socket, path, calls: None, responses: None }
    }
}

impl ShortMessages<'_> {
    /// Returns the endpoint, with exact charges.
    #[inline]
    pub fn endpoint(&mut self) -> &mut Endpoint {
        self.settle();
        self.endpoint
    }

    /// Returns the mark of a call that has begun, as [`Endpoint::take_trace_mark`] does.
    #[inline]
    pub fn take_trace_mark(&mut self, key: RpcKey) -> Option<TraceMark> {
        self.endpoint.take_trace_mark(key)
    }

    /// Starts a call to the service at `port`, as [`Endpoint::call`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::call`]. [`Endpoint::take_refused`] returns the body.
    #[inline]
    pub fn call(
        &mut self,
        port: u16,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        let body = body.into();
        let length = body.len();
        let cost = RPC_BYTES + length as u64;
        let fits = |it: &Begun| {
            it.number < it.most
                && (1..=it.longest).contains(&length)
                && cost <= it.plenty.saturating_sub(it.owed)
        };
        let is_plain = options.deadline.is_none()
            && options.trace.is_none()
            && (self.calls.as_ref().is_some_and(fits)
                || self.look_up() && self.calls.as_ref().is_some_and(fits));
        let begun = self.calls.as_mut().filter(|_| is_plain);
        let endpoint = &mut *self.endpoint;
        let id = begun.as_ref().and_then(|it| endpoint.peers[it.peer].server.ids.next_counted());
        let Some((begun, id)) = begun.zip(id.filter(|&id| !endpoint.parts.tracer.chooses(id)))
        else {
            self.settle();
            let to = Remote::new(self.path, port);
            return self.endpoint.call(self.now, self.socket, to, body, options);
        };
        let (peer, parts) = (&mut endpoint.peers[begun.peer], &mut endpoint.parts);
        let _ = peer.server.ids.next();
        let (table, priorities) = (peer.server.cutoffs.as_ref(), parts.config.priorities);
        let priority = unscheduled_priority(table, priorities, length as u32);
        let mut message = Outgoing::new(body, length as u32, priority, parts.next_birth());
        message.note_short();
        let (phase, ports) = (Phase::Outgoing(message), (begun.port, port));
        let mut rpc = Rpc::new(id, phase, begun.peer, self.socket, ports, self.now);
        //= docs/protocol.md#incast-1
        //= docs/protocol.md#host-4
        let outstanding = u64::from(parts.outstanding) + parts.others.calls;
        rpc.incast = outstanding >= u64::from(parts.config.incast_threshold);
        rpc.cookie = options.cookie;
        rpc.probing.rto = begun.rto;
        rpc.charge = Charge { bytes: cost, ours: cost, unconfirmed: false };
        rpc.armed = begun.place.expires();
        (begun.number, begun.owed) = (begun.number.wrapping_add(1), begun.owed + cost);
        parts.outstanding = parts.outstanding.wrapping_add(1);
        parts.counters.calls += 1;
        parts.counters.calls_in_incast += u64::from(rpc.incast);
        parts.counters.message_given(length as u64);
        let key = endpoint.rpcs.insert(rpc);
        parts.wheel.put(begun.place, key);
        parts.order.push_short(key);
        Ok(key)
    }

    /// Looks up the peer of calls and the room for them. Returns `false` if they have to begin one by one.
    #[inline(never)]
    fn look_up(&mut self) -> bool {
        self.settle();
        if self.path.is_local() {
            return false;
        }
        let (now, endpoint) = (self.now, &mut *self.endpoint);
        let Some(&Socket { port, rule, .. }) = endpoint.parts.sockets.get(self.socket) else {
            return false;
        };
        let Some(key) = endpoint.peer_for_call(now, self.path) else { return false };
        let (peer, parts) = (&endpoint.peers[key], &mut endpoint.parts);
        //= docs/protocol.md#seal-6
        if peer.rights.calls & rule == 0 {
            return false;
        }
        if peer.native || !peer.contact.may_send() || peer.is_doubtful(now) {
            return false;
        }
        let config = &parts.config;
        let rto = peer.response_rto_nanos(config);
        // A lower bound. A timer that runs out early is set again.
        let due = now.after(rto.min(nanos(config.peer_timeout) / 4));
        let most = config.calls_max.saturating_sub(peer.server.calls);
        let (longest, plenty) = (parts.longest_short(), parts.plenty(peer, self.socket));
        let place = parts.wheel.place(now, due);
        self.calls =
            Some(Begun { peer: key, port, number: 0, most, longest, plenty, owed: 0, rto, place });
        true
    }

    /// Answers a request, as [`Endpoint::reply`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::reply`]. [`Endpoint::take_refused`] returns the body.
    #[inline]
    pub fn reply(&mut self, key: RpcKey, body: impl Into<Body>) -> Result<(), ReplyError> {
        match self.reply_short(key, body.into()) {
            None => Ok(()),
            Some(body) => {
                self.settle();
                self.endpoint.reply(self.now, key, body)
            }
        }
    }

    /// Answers a request, or returns the body if it has to go the way of a single one.
    #[inline(always)]
    fn reply_short(&mut self, key: RpcKey, body: Body) -> Option<Body> {
        let (now, length) = (self.now, body.len());
        if is_local(key) {
            return Some(body);
        }
        let Some(rpc) = self.endpoint.rpcs.get(key) else { return Some(body) };
        let peer_key = rpc.peer;
        if self.responses.as_ref().is_none_or(|it| it.peer != peer_key) {
            self.look_up_client(peer_key);
        }
        let Some(answering) = &mut self.responses else { return Some(body) };
        let endpoint = &mut *self.endpoint;
        let Some(rpc) = endpoint.rpcs.get_mut(key) else { return Some(body) };
        let (peer, parts) = (&endpoint.peers[peer_key], &mut endpoint.parts);
        let (cost, request) = (RPC_BYTES + length as u64, rpc.charge.bytes);
        let is_plain = rpc.phase.is_in_service()
            && rpc.socket == self.socket
            && !(rpc.cancelled || rpc.incast || rpc.charge.unconfirmed)
            && (1..=answering.longest).contains(&length)
            && (cost <= request || answering.after + cost <= answering.plenty)
            && !parts.tracer.chooses(rpc.id);
        if !is_plain {
            return Some(body);
        }
        parts.note_call(now, request.saturating_sub(RPC_BYTES), length as u64);
        let (table, priorities) = (peer.server.cutoffs.as_ref(), parts.config.priorities);
        let priority = unscheduled_priority(table, priorities, length as u32);
        rpc.note_progress(now);
        rpc.expires = None; // The client acknowledges the response.
        rpc.probing.queued = false;
        rpc.probing.rto = response_rto(now, rpc.started, length as u32, peer, &parts.config);
        let mut message = Outgoing::new(body, length as u32, priority, parts.next_birth());
        message.note_short();
        rpc.phase = Phase::Outgoing(message);
        rpc.charge = Charge { bytes: cost, ours: cost, unconfirmed: false };
        (answering.before, answering.after) = (answering.before + request, answering.after + cost);
        parts.counters.responses += 1;
        parts.counters.message_given(length as u64);
        let least = now + parts.config.resend_min.min(parts.config.peer_timeout) + TICK;
        if rpc.armed <= now || rpc.armed >= least {
            parts.arm(now, key, rpc);
        }
        parts.order.push_short(key);
        None
    }

    #[inline(never)]
    fn look_up_client(&mut self, key: PeerKey) {
        self.settle();
        let (peer, parts) = (&self.endpoint.peers[key], &self.endpoint.parts);
        if peer.native {
            return;
        }
        let (longest, plenty) = (parts.longest_short(), parts.plenty(peer, self.socket));
        self.responses = Some(Answering { peer: key, longest, plenty, before: 0, after: 0 });
    }

    /// Charges the messages that have begun.
    #[inline]
    fn settle(&mut self) {
        if self.calls.is_some() || self.responses.is_some() {
            self.settle_any();
        }
    }

    #[inline(never)]
    fn settle_any(&mut self) {
        let parts = &mut self.endpoint.parts;
        let socket = self.socket;
        if let Some(Begun { peer, number, owed: bytes, .. }) = self.calls.take() {
            let peer = &mut self.endpoint.peers[peer];
            peer.server.calls = peer.server.calls.saturating_add(number);
            peer.rpcs = peer.rpcs.saturating_add(number);
            let charge = Charge { bytes, ours: bytes, unconfirmed: false };
            let change = Change::new(Charge::default(), charge, Account::Own);
            parts.total.apply(change, peer, parts.sockets.get_mut(socket));
        }
        if let Some(Answering { peer, before, after, .. }) = self.responses.take() {
            let peer = &mut self.endpoint.peers[peer];
            let charge = |bytes, ours| Charge { bytes, ours, unconfirmed: false };
            let change = Change::new(charge(before, 0), charge(after, after), Account::Theirs);
            parts.total.apply(change, peer, parts.sockets.get_mut(socket));
            if after < before {
                parts.grants.make_room();
            }
        }
    }
}

impl Drop for ShortMessages<'_> {
    #[inline]
    fn drop(&mut self) {
        self.settle();
    }
}
