//! Messages within the host that arrive or leave together: budgets and peers are looked up once for all of them, and charged once.

use std::time::Duration;

use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

use crate::body::Body;
use crate::cookie::Cookie;
use crate::endpoint::Endpoint;
use crate::endpoint::event::{CallOptions, Event};
use crate::error::{CallError, ReplyError};
use crate::local::{
    Answered, CallRole, ClientCall, LocalCall, MessageKind, OutboundMessage, Words,
};
use crate::remote::Remote;
use crate::slab::{Handle, RpcKey, SocketKey};
use crate::time::Time;
use crate::usage::{Account, Change, Charge, RPC_BYTES};

/// Messages that arrive from one peer within the host. Their charges are exact again when the value is dropped.
#[derive(Debug)]
pub struct Arrivals<'a> {
    endpoint: &'a mut Endpoint,
    now: Time,
    path: PathId,
    requests: Option<Admitted>,
    responses: Option<Ended>,
}

/// Destination of messages for the application.
pub trait Inbox {
    /// Takes a request, as [`Event::Request`] has it.
    fn request(&mut self, request: ArrivedRequest);

    /// Takes the response of a call, as [`Event::Response`] has it.
    fn response(&mut self, socket: SocketKey, rpc: RpcKey, cookie: Cookie, body: Bytes);
}

/// A request that has arrived.
#[derive(Debug)]
pub struct ArrivedRequest {
    /// The destination socket.
    pub socket: SocketKey,
    /// The RPC to answer.
    pub rpc: RpcKey,
    /// The client's port.
    pub from: u16,
    /// Time at which the client gives the call up, if it has stated one.
    pub deadline: Option<Time>,
    /// The call's context in a distributed trace, if the client has stated one.
    pub trace: Option<Box<TraceContext>>,
    /// The request.
    pub body: Bytes,
}

/// Requests to one port.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    port: u16,
    socket: SocketKey,
    /// Upper bound on the cost of one request.
    most: u64,
    /// Bytes that may be charged more.
    room: u64,
    /// Bytes not charged yet.
    owed: u64,
}

/// Ended calls of one socket.
#[derive(Clone, Copy, Debug)]
struct Ended {
    socket: SocketKey,
    calls: u32,
    /// Sum of their charges, which still count.
    charged: Charge,
}

impl Endpoint {
    /// Begins to take messages of the peer at `path`, which arrived by `now`.
    #[inline]
    pub fn arrivals(&mut self, now: Time, path: PathId) -> Arrivals<'_> {
        if let Some(peer) = self.local.peer_mut(path) {
            (peer.last_rx, peer.probes) = (now, 0);
        }
        Arrivals { endpoint: self, now, path, requests: None, responses: None }
    }

    /// Begins calls of a socket to the peer at `path`, or responses of it.
    #[inline]
    pub fn departures(&mut self, now: Time, socket: SocketKey, path: PathId) -> Departures<'_> {
        Departures { endpoint: self, now, socket, path, calls: None, answered: None }
    }
}

impl Arrivals<'_> {
    /// Takes a message. A request or a response that the application gets goes to `inbox`. Never fails: a message that no honest peer
    /// sends is counted and dropped.
    #[inline]
    pub fn take(&mut self, words: Words, body: Bytes, inbox: &mut impl Inbox) {
        match MessageKind::decode(words) {
            Some((MessageKind::Request { from, to, remaining }, id)) => {
                self.take_request((from, to), remaining, id, body, inbox);
            }
            Some((MessageKind::Response, id)) => self.take_response(id, body, inbox),
            _ => {
                let (now, path) = (self.now, self.path);
                self.endpoint().handle_control(now, path, words, body);
            }
        }
    }

    /// It is `now`. Deadlines and answers of the peer are compared with a time that is not before their arrival: this process may
    /// have read its clock and then not run for a while.
    #[inline]
    pub fn note_time(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Returns the endpoint, with exact charges.
    #[inline]
    pub fn endpoint(&mut self) -> &mut Endpoint {
        self.settle();
        self.endpoint
    }

    #[inline]
    fn take_request(
        &mut self,
        (from, to): (u16, u16),
        remaining: Option<Duration>,
        id: u64,
        body: Bytes,
        inbox: &mut impl Inbox,
    ) {
        let length = body.len() as u64;
        let cost = RPC_BYTES + length;
        let is_known = |it: &Admitted| {
            it.port == to && cost <= it.most && cost <= it.room.wrapping_sub(it.owed)
        };
        let admitted = match &self.requests {
            Some(admitted) if is_known(admitted) => Ok(admitted.socket),
            _ => self.admit(to, body.len()),
        };
        let (now, path, peer) = (self.now, self.path, self.path.index());
        let endpoint = &mut *self.endpoint;
        let socket = match admitted {
            Ok(socket) => socket,
            Err(reason) => {
                endpoint.refuse_request(path, id, reason);
                return endpoint.discard(body);
            }
        };
        let deadline = remaining.map(|remaining| now + remaining);
        let charge = Charge { bytes: cost, ours: 0, unconfirmed: false };
        let role = CallRole::Server { cancelled: false, watched: false };
        let times = (now, deadline);
        //= docs/protocol.md#local-3
        let inserted =
            endpoint.local.insert_request(LocalCall::new((peer, id), socket, times, charge, role));
        let Some(rpc) = inserted else {
            endpoint.parts.counters.refused_duplicate_requests += 1;
            return endpoint.discard(body);
        };
        if let Some(admitted) = &mut self.requests {
            admitted.owed += cost;
        }
        let trace = endpoint.local.peer_at(peer).and_then(|peer| peer.take_trace(id));
        if let Some(due) = deadline {
            endpoint.local.wheel.insert(now, due, rpc);
        }
        endpoint.parts.counters.requests += 1;
        endpoint.parts.counters.message_received(length);
        inbox.request(ArrivedRequest { socket, rpc, from, deadline, trace, body });
    }

    /// Looks up the socket of a request, and the room for it and for later ones.
    #[inline(never)]
    fn admit(&mut self, port: u16, length: usize) -> Result<SocketKey, UnknownReason> {
        self.settle();
        let endpoint = &*self.endpoint;
        let (socket, room) = endpoint.check_local_request(self.path, port, length)?;
        let config = &endpoint.parts.config;
        let most = config.least_budget().min(RPC_BYTES + u64::from(config.message_max));
        self.requests = Some(Admitted { port, socket, most, room, owed: 0 });
        Ok(socket)
    }

    #[inline]
    fn take_response(&mut self, id: u64, body: Bytes, inbox: &mut impl Inbox) {
        let rpc = RpcKey::from_bits(id);
        let length = body.len() as u64;
        // The charge for the request leaves room for a response of the same length.
        let answered = self.endpoint.local.end_answered(rpc, self.path.index(), RPC_BYTES + length);
        let Some(Answered { socket, started, charge, cookie, request }) = answered else {
            return self.take_longer(rpc, body, inbox);
        };
        if self.responses.as_ref().is_none_or(|ended| ended.socket != socket) {
            self.settle();
            self.responses = Some(Ended { socket, calls: 0, charged: Charge::default() });
        }
        if let Some(ended) = &mut self.responses {
            ended.calls = ended.calls.wrapping_add(1);
            ended.charged.bytes += charge.bytes;
            ended.charged.ours += charge.ours;
        }
        self.endpoint.discard(request);
        self.endpoint.note_answer(self.now, started, body.len());
        inbox.response(socket, rpc, cookie, body);
    }

    /// Takes a response that is longer than its request, or that answers no call.
    #[cold]
    fn take_longer(&mut self, rpc: RpcKey, body: Bytes, inbox: &mut impl Inbox) {
        let (now, path) = (self.now, self.path);
        let endpoint = self.endpoint();
        if !endpoint.admits_response(path, rpc.to_bits(), body.len()) {
            return endpoint.discard(body);
        }
        let Some(LocalCall { socket, started, role, .. }) = endpoint.end_local(rpc) else { return };
        let CallRole::Client(ClientCall { cookie, body: request, .. }) = role else { return };
        endpoint.discard(request);
        endpoint.note_answer(now, started, body.len());
        inbox.response(socket, rpc, cookie, body);
    }

    /// Charges the messages that were taken.
    #[inline]
    fn settle(&mut self) {
        if self.requests.is_some() || self.responses.is_some() {
            self.settle_any();
        }
    }

    #[inline(never)]
    fn settle_any(&mut self) {
        let peer = self.path.index();
        if let Some(Admitted { socket, owed: bytes, .. }) = self.requests {
            self.requests = None;
            let charge = Charge { bytes, ours: 0, unconfirmed: false };
            let change = Change::new(Charge::default(), charge, Account::Theirs);
            self.endpoint.charge_local(peer, socket, change);
        }
        if let Some(Ended { socket, calls, charged }) = self.responses {
            self.responses = None;
            let change = Change::new(charged, Charge::default(), Account::Own);
            if let Some(peer) = self.endpoint.charge_local(peer, socket, change) {
                peer.calls = peer.calls.saturating_sub(calls);
            }
            self.endpoint.parts.grants.make_room();
        }
    }
}

/// Makes events of messages.
pub(super) struct Events {
    pub(super) path: PathId,
    pub(super) event: Option<Event>,
}

impl Inbox for Events {
    fn request(&mut self, request: ArrivedRequest) {
        let ArrivedRequest { socket, rpc, from, deadline, trace, body } = request;
        let from = Remote::new(self.path, from);
        self.event = Some(Event::Request { socket, rpc, from, deadline, trace, body });
    }

    fn response(&mut self, socket: SocketKey, rpc: RpcKey, cookie: Cookie, body: Bytes) {
        self.event = Some(Event::Response { socket, rpc, cookie, body });
    }
}

impl Drop for Arrivals<'_> {
    #[inline]
    fn drop(&mut self) {
        self.settle();
    }
}

/// Calls of a socket to one peer within the host, or responses of it. Their charges are exact again when the value is dropped.
#[derive(Debug)]
pub struct Departures<'a> {
    endpoint: &'a mut Endpoint,
    now: Time,
    socket: SocketKey,
    path: PathId,
    calls: Option<Begun>,
    /// Sum of the charges of answered requests, which still count.
    answered: Option<Charge>,
}

/// Calls that have begun.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// The client's port.
    port: u16,
    number: u32,
    /// Upper bound on `number`.
    most: u32,
    /// Bytes that may be charged more.
    room: u64,
    /// Bytes not charged yet.
    owed: u64,
}

impl Departures<'_> {
    /// Starts a call to the service at `port`, as [`Endpoint::call`] does. `send` sends the request, unless it returns `false` or
    /// earlier messages wait: then [`Endpoint::poll_messages`] sends it.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::call`]. [`Endpoint::take_refused`] returns the body.
    #[inline]
    pub fn call(
        &mut self,
        port: u16,
        body: Body,
        options: CallOptions,
        send: impl FnOnce(Words, &Body) -> bool,
    ) -> Result<RpcKey, CallError> {
        let length = body.len();
        let cost = RPC_BYTES + length as u64;
        let from = match self.begin(port, length) {
            Ok(from) => from,
            Err(error) => {
                self.endpoint.discard(body);
                return Err(error);
            }
        };
        let CallOptions { cookie, deadline, trace } = options;
        let (peer, socket, now) = (self.path.index(), self.socket, self.now);
        let charge = Charge { bytes: cost, ours: cost, unconfirmed: false };
        let ports = (from, port);
        let may_send = trace.is_none() && self.endpoint.local.outbound.is_empty();
        let client = ClientCall { cookie, ports, body, trace, refusals: 0, waits: false };
        //= docs/protocol.md#local-2
        let rpc = self.endpoint.local.insert_call(|id| {
            let role = CallRole::Client(client);
            LocalCall::new((peer, id), socket, (now, deadline), charge, role)
        });
        let local = &mut self.endpoint.local;
        let is_sent = may_send
            && local.get_mut(rpc).and_then(LocalCall::client_mut).is_some_and(|client| {
                let remaining = deadline.map(|at| at.saturating_since(now));
                let kind = MessageKind::Request { from, to: port, remaining };
                //= docs/protocol.md#local-1
                send(kind.encode(rpc.to_bits()), &client.body)
            });
        if !is_sent {
            local.outbound.push_back(OutboundMessage::Request(rpc));
        }
        if let Some(due) = deadline {
            local.wheel.insert(now, due, rpc);
        }
        let counters = &mut self.endpoint.parts.counters;
        counters.calls += 1;
        counters.message_given(length as u64);
        Ok(rpc)
    }

    /// Checks whether a call may begin, and counts it. Returns the client's port.
    #[inline]
    fn begin(&mut self, port: u16, length: usize) -> Result<u16, CallError> {
        self.endpoint.check_length(Remote::new(self.path, port), length)?;
        let cost = RPC_BYTES + length as u64;
        let has_room = |begun: &Begun| {
            begun.number < begun.most && cost <= begun.room.wrapping_sub(begun.owed)
        };
        if !self.calls.as_ref().is_some_and(has_room) {
            self.look_up(length)?;
        }
        let Some(begun) = &mut self.calls else { return Err(CallError::PathEnded) };
        begun.number = begun.number.wrapping_add(1);
        begun.owed += cost;
        Ok(begun.port)
    }

    /// Looks up the room for a call and later ones.
    #[inline(never)]
    fn look_up(&mut self, length: usize) -> Result<(), CallError> {
        self.settle();
        let endpoint = &*self.endpoint;
        let (port, room) = endpoint.check_local_call(self.socket, self.path, length)?;
        let peer = endpoint.local.peer(self.path).ok_or(CallError::PathEnded)?;
        let most = endpoint.parts.config.calls_max.saturating_sub(peer.calls);
        self.calls = Some(Begun { port, number: 0, most, room, owed: 0 });
        Ok(())
    }

    /// Answers a request of the peer to the socket, as [`Endpoint::reply`] does. `send` sends the response, unless it returns `false`
    /// or earlier messages wait: then [`Endpoint::poll_messages`] sends it.
    ///
    /// # Errors
    ///
    /// The errors of [`Endpoint::reply`]. [`Endpoint::take_refused`] returns the body.
    #[inline]
    pub fn reply(
        &mut self,
        key: RpcKey,
        body: Body,
        send: impl FnOnce(Words, &Body) -> bool,
    ) -> Result<(), ReplyError> {
        let length = body.len();
        let limit = self.endpoint.parts.config.message_max;
        let ended = match length <= limit as usize {
            true => self.endpoint.local.end_request(key, self.path.index(), self.socket),
            false => None,
        };
        let Some((id, charge)) = ended else {
            return self.refuse_reply(key, body);
        };
        let answered = self.answered.get_or_insert_default();
        answered.bytes += charge.bytes;
        answered.ours += charge.ours;
        let endpoint = &mut *self.endpoint;
        endpoint.parts.counters.responses += 1;
        endpoint.parts.counters.message_given(length as u64);
        if endpoint.local.outbound.is_empty() && send(MessageKind::Response.encode(id), &body) {
            endpoint.discard(body);
        } else {
            endpoint.local.outbound.push_back(OutboundMessage::Response(self.path, id, body));
        }
        Ok(())
    }

    /// Returns the body of the call or response that was refused just now.
    #[cold]
    pub fn take_refused(&mut self) -> Body {
        self.endpoint.take_refused().unwrap_or_default()
    }

    /// Refuses a response: its request is no longer in service, or it is too long.
    #[cold]
    fn refuse_reply(&mut self, key: RpcKey, body: Body) -> Result<(), ReplyError> {
        self.settle();
        let (length, limit) = (body.len(), self.endpoint.parts.config.message_max);
        self.endpoint.discard(body);
        if length > limit as usize && self.endpoint.is_local_active(key) {
            return Err(ReplyError::MessageTooLarge { length, limit });
        }
        self.endpoint.end_local(key);
        Err(ReplyError::NotInService)
    }

    /// Charges the messages that have begun.
    #[inline]
    fn settle(&mut self) {
        if self.calls.is_some() || self.answered.is_some() {
            self.settle_any();
        }
    }

    #[inline(never)]
    fn settle_any(&mut self) {
        let (peer, socket, now) = (self.path.index(), self.socket, self.now);
        if let Some(Begun { number, owed: bytes, .. }) = self.calls
            && number > 0
        {
            let charge = Charge { bytes, ours: bytes, unconfirmed: false };
            let change = Change::new(Charge::default(), charge, Account::Own);
            let check = now + self.endpoint.parts.config.peer_timeout / 4;
            self.endpoint.local.next_check.get_or_insert(check);
            if let Some(peer) = self.endpoint.charge_local(peer, socket, change) {
                if peer.calls == 0 {
                    peer.last_rx = peer.last_rx.max(now); // The peer's silence counts from now on.
                    peer.probes = 0;
                }
                peer.calls = peer.calls.saturating_add(number);
            }
        }
        self.calls = None;
        if let Some(charged) = self.answered.take() {
            let change = Change::new(charged, Charge::default(), Account::Theirs);
            self.endpoint.charge_local(peer, socket, change);
            self.endpoint.parts.grants.make_room();
        }
    }
}

impl Drop for Departures<'_> {
    #[inline]
    fn drop(&mut self) {
        self.settle();
    }
}
