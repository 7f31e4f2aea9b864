//! Calls within the host: their life cycle.

use std::mem;
use std::time::Duration;

use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

use crate::body::Body;
use crate::budget::for_others;
use crate::endpoint::Endpoint;
use crate::endpoint::batch::Events;
use crate::endpoint::event::{CallOptions, Event};
use crate::error::{Awaited, CallError, CallFailed, CallStory, ReplyError};
use crate::local::{
    CallRole, ClientCall, LocalCall, LocalPeer, MessageKind, MessageSink, OutboundMessage, Words,
    is_local,
};
use crate::remote::Remote;
use crate::rights::PathKind;
use crate::slab::{Handle, RpcKey, SocketKey};
use crate::sockets::{ServedBy, Socket};
use crate::time::{Time, sooner};
use crate::timer::is_over;
use crate::usage::{Account, Change, Charge, RPC_BYTES};

/// Sends the trace context of a request that follows.
#[cold]
fn send_trace(path: PathId, id: u64, context: &TraceContext, sink: &mut dyn MessageSink) {
    //= docs/protocol.md#local-9
    let context = Bytes::copy_from_slice(&context.to_bytes()).into();
    sink.send(path, MessageKind::Trace.encode(id), &context);
}

/// Time after which a refused request is sent again; each refusal doubles it.
const RETRY_MIN: Duration = Duration::from_millis(1);
/// Upper bound on that time.
const RETRY_MAX: Duration = Duration::from_millis(64);

/// Number of budgets of a peer that a path may hold for it: one of requests, one of responses, and refusals and longer responses
/// beside them.
const LOAD_BUDGETS: u64 = 4;

/// Number of unanswered probes after which a peer counts as lost, at least.
const PROBES_MIN: u32 = 2;

/// Upper bound on the timers of calls handled at a time.
const DUE_MAX: usize = 64;

impl Endpoint {
    /// Adds the peer at `path`, which is [local](PathId::local) and takes whole messages from now on.
    pub fn add_local(&mut self, now: Time, path: PathId) {
        self.local.add(now, path, self.rights.of(path));
    }

    /// Removes the peer at `path`, which has ended or broke the protocol. Calls to it fail with `error`, except those that were
    /// [taken out](Self::take_unsent) before, and its requests are given up.
    pub fn remove_local(&mut self, path: PathId, error: CallFailed) {
        //= docs/protocol.md#local-6
        for key in self.local.find(|call| call.peer == path.index()) {
            if self.local.get(key).is_some_and(|call| call.account() == Account::Own) {
                self.fail_local(key, error.clone());
            } else {
                self.parts.counters.requests_orphaned += 1;
                self.end_local(key);
            }
        }
        self.local.remove(path);
    }

    /// Returns the path within the host of the call that the peer knows by `id`.
    #[must_use]
    pub fn local_path_of(&self, id: u64) -> Option<PathId> {
        let key = RpcKey::from_bits(id);
        let call = self.local.get(key).filter(|_| is_local(key))?;
        self.local.path_at(call.peer)
    }

    /// Returns whether the peer at `path` is [known](Self::add_local) and has no calls in either direction.
    #[must_use]
    pub fn is_local_idle(&self, path: PathId) -> bool {
        self.local.peer(path).is_some_and(|peer| peer.calls == 0 && peer.usage.charged == 0)
    }

    /// Sets the bytes that the path holds for the peer: messages that the peer does not read, and parts of messages that it has
    /// sent. They are charged to its budget, so that requests without room beside them are refused. Returns `false` if they are
    /// many times the budget, or if they exceed this peer's share while all together exceed the total budget. The caller must end
    /// the path then, because its peer sends requests and never reads the responses.
    #[inline]
    #[must_use]
    pub fn set_local_load(&mut self, path: PathId, bytes: u64) -> bool {
        //= docs/protocol.md#local-4
        self.local.set_load(path, bytes);
        let config = &self.parts.config;
        let fits_all = self.local.load <= config.total_budget
            || bytes <= config.total_budget / self.local.loaded().max(1);
        fits_all && bytes <= config.peer_budget.saturating_mul(LOAD_BUDGETS)
    }

    /// Sets the bytes of memory that the path has created for messages to the peer. They are charged to its budget, as far as they
    /// leave room there for one longest message, so that requests without room beside them are refused. The total budget does not
    /// count them: the memory of all paths has a limit of its own.
    pub fn set_local_memory(&mut self, path: PathId, bytes: u64) {
        //= docs/protocol.md#local-4
        let config = &self.parts.config;
        let longest = RPC_BYTES + u64::from(config.message_max);
        self.local.set_memory(path, bytes.min(config.peer_budget.saturating_sub(longest)));
    }

    /// Returns the upper bound on the bytes of messages kept for all peers.
    #[must_use]
    pub fn total_budget(&self) -> u64 {
        self.parts.config.total_budget
    }

    /// Returns the silence after which a peer counts as gone.
    #[must_use]
    pub fn peer_timeout(&self) -> Duration {
        self.parts.config.peer_timeout
    }

    /// Forgets a run of a peer over UDP that has probably ended, so that the next call begins with a first contact. Does nothing if
    /// RPCs with it are active, which detect the end themselves.
    pub fn forget_run(&mut self, path: PathId) {
        //= docs/protocol.md#local-6
        if let Some(key) = self.peers.find(path)
            && self.peers[key].rpcs == 0
            && !self.peers[key].native
        {
            self.forget_peer(key);
        }
    }

    /// Ends the calls and requests of a closing socket.
    pub(super) fn close_local(&mut self, socket: SocketKey) {
        for key in self.local.find(|call| call.socket == socket) {
            //= docs/protocol.md#life-7
            self.abort_local(key, UnknownReason::Finished);
        }
    }

    /// Starts a call to a peer within the host.
    pub(super) fn call_local(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        body: Body,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        self.departures(now, socket, to.path).call(to.port, body, options, |_, _| false)
    }

    /// Checks whether a call within the host may begin. Returns the local port, and the bytes that may be charged more.
    #[inline]
    pub(super) fn check_local_call(
        &self,
        socket: SocketKey,
        path: PathId,
        length: usize,
    ) -> Result<(u16, u64), CallError> {
        let &Socket { port, rule, .. } =
            self.parts.sockets.get(socket).ok_or(CallError::SocketClosed)?;
        let peer = self.local.peer(path).ok_or(CallError::PathEnded)?;
        //= docs/protocol.md#seal-6
        if peer.rights.calls & rule == 0 {
            return Err(CallError::NotExpected);
        }
        let limit = self.parts.config.calls_max;
        if peer.calls >= limit {
            return Err(CallError::TooManyCalls { limit });
        }
        //= docs/protocol.md#local-4
        let room = self.local_room(peer, socket, Account::Own);
        if length as u64 + RPC_BYTES > room {
            let room = room.saturating_sub(RPC_BYTES);
            return Err(CallError::OverBudget { length, room });
        }
        Ok((port, room))
    }

    /// Returns the bytes that may be charged more for a complete message.
    #[inline(always)]
    pub(super) fn local_room(&self, peer: &LocalPeer, socket: SocketKey, account: Account) -> u64 {
        let config = &self.parts.config;
        // Bytes that the path holds for own calls are charged already.
        let (load, all) = match account {
            Account::Own => (0, 0),
            Account::Theirs => (peer.held, self.local.load),
        };
        let of_peer = peer.usage.room(load, account, config.peer_budget, config.peer_budget);
        let total = config.total_budget;
        let parts = &self.parts;
        let others = parts.others.held + all;
        let of_all = parts.total.usage.room(others, account, total, for_others(total));
        let of_socket = parts.sockets.get(socket).map_or(u64::MAX, |socket| {
            let budget = config.socket_budget;
            socket.usage.room(socket.others, account, budget, for_others(budget))
        });
        of_peer.min(of_all).min(of_socket)
    }

    /// Charges the budgets of a call. Returns its peer.
    #[inline]
    pub(super) fn charge_local(
        &mut self,
        peer: usize,
        socket: SocketKey,
        change: Change,
    ) -> Option<&mut LocalPeer> {
        let peer = self.local.peer_at(peer)?;
        change.apply(&mut peer.usage);
        if let Some(socket) = self.parts.sockets.get_mut(socket) {
            change.apply(&mut socket.usage);
        }
        change.apply(&mut self.parts.total.usage);
        Some(peer)
    }

    /// Removes a call without an event.
    #[inline]
    pub(super) fn end_local(&mut self, key: RpcKey) -> Option<LocalCall> {
        let call = self.local.take(key)?;
        if let CallRole::Server { watched: true, .. } = call.role {
            self.parts.note_cancelled(call.socket, key);
        }
        let account = call.account();
        let change = Change::new(call.charge, Charge::default(), account);
        if let Some(peer) = self.charge_local(call.peer, call.socket, change) {
            peer.calls = peer.calls.saturating_sub(u32::from(account == Account::Own));
        }
        self.parts.grants.make_room();
        Some(call)
    }

    fn fail_local(&mut self, key: RpcKey, error: CallFailed) {
        let Some(call) = self.end_local(key) else { return };
        let CallRole::Client(ClientCall { cookie, body, .. }) = call.role else { return };
        self.discard(body);
        self.parts.counters.calls_failed += 1;
        self.parts.events.push_back(Event::Failed {
            socket: call.socket,
            rpc: key,
            cookie,
            path: None,
            error,
        });
    }

    /// Returns the progress of a call of this node until now.
    #[cold]
    fn local_story(&mut self, now: Time, key: RpcKey) -> Option<Box<CallStory>> {
        let (call, peer) = self.local.with_peer(key)?;
        let client = call.client_mut()?;
        let length = u32::try_from(client.body.len()).unwrap_or(u32::MAX);
        // A request that waits to be sent again was refused.
        let sent = if client.waits { 0 } else { length };
        Some(Box::new(CallStory {
            id: call.id as u32,
            waited_for: Awaited::Response,
            request: length,
            sent,
            granted: length,
            response: None,
            received: 0,
            peer_silent_for: Some(now.saturating_since(peer.last_rx)),
            probes_unanswered: peer.probes,
        }))
    }

    /// Sends the messages that wait within the host.
    #[inline]
    pub fn poll_messages(&mut self, now: Time, sink: &mut dyn MessageSink) {
        while let Some(message) = self.local.outbound.pop_front() {
            match message {
                OutboundMessage::Request(key) => self.send_request(now, key, sink),
                OutboundMessage::Response(path, id, body) => {
                    sink.send(path, MessageKind::Response.encode(id), &body);
                    self.discard(body);
                }
                OutboundMessage::Control(path, MessageKind::Abort, id) => {
                    // A stopped peer then does not keep the request of a call that has ended.
                    let is_request = |words| matches!(MessageKind::decode(words), Some((MessageKind::Request { .. }, it)) if it == id);
                    if !sink.withdraw(path, &is_request) {
                        //= docs/protocol.md#local-5
                        sink.send_after(path, MessageKind::Abort.encode(id), &is_request);
                    }
                }
                OutboundMessage::Control(path, kind, id) => {
                    sink.send(path, kind.encode(id), &Body::default());
                }
            }
        }
    }

    #[inline]
    fn send_request(&mut self, now: Time, key: RpcKey, sink: &mut dyn MessageSink) {
        let Some((call, peer)) = self.local.with_peer(key) else { return };
        let remaining = call.expires.map(|at| at.saturating_since(now));
        let (path, id) = (peer.path, call.id);
        let Some(client) = call.client_mut() else { return };
        let (from, to) = client.ports;
        if let Some(trace) = &client.trace {
            send_trace(path, id, trace, sink);
        }
        //= docs/protocol.md#local-1
        sink.send(path, MessageKind::Request { from, to, remaining }.encode(id), &client.body);
    }

    /// Returns whether a message of `length` bytes that begins to arrive within the host is accepted. If not, its sender gets a
    /// report or its call ends, and the caller must drop the message.
    pub fn admits_message(&mut self, path: PathId, words: Words, length: usize) -> bool {
        match MessageKind::decode(words) {
            Some((MessageKind::Request { to, .. }, id)) => {
                let refusal = self.check_local_request(path, to, length).err();
                refusal.map(|reason| self.refuse_request(path, id, reason)).is_none()
            }
            Some((MessageKind::Response, id)) => self.admits_response(path, id, length),
            _ => false,
        }
    }

    /// Returns the destination socket of a request and the bytes that may be charged more, or the reason for refusing the request.
    #[inline]
    pub(super) fn check_local_request(
        &self,
        path: PathId,
        port: u16,
        length: usize,
    ) -> Result<(SocketKey, u64), UnknownReason> {
        let ServedBy { socket, rule, .. } =
            self.parts.sockets.serves(port).ok_or(UnknownReason::NoSuchPort)?;
        let peer = self.local.peer(path).ok_or(UnknownReason::Unknown)?;
        //= docs/protocol.md#seal-6
        if peer.rights.requests & rule == 0 {
            return Err(PathKind::of(path).refusal());
        }
        let cost = RPC_BYTES + length as u64;
        let config = &self.parts.config;
        //= docs/protocol.md#local-4
        if length > config.message_max as usize || cost > config.least_budget() {
            return Err(UnknownReason::TooLarge);
        }
        let room = self.local_room(peer, socket, Account::Theirs);
        if cost > room {
            return Err(UnknownReason::OverBudget);
        }
        Ok((socket, room))
    }

    #[cold]
    pub(super) fn refuse_request(&mut self, path: PathId, id: u64, reason: UnknownReason) {
        if let Some(peer) = self.local.peer_mut(path) {
            peer.take_trace(id);
        }
        let is_forbidden = reason == UnknownReason::NotAllowed;
        self.parts.counters.refused_not_allowed += u64::from(is_forbidden);
        self.refuse_local(path, id, reason);
    }

    /// Refuses a request within the host as [`refuse_if_forbidden`](Self::refuse_if_forbidden) does.
    #[cold]
    pub(super) fn refuse_local_if_forbidden(&mut self, key: RpcKey) -> bool {
        let Some(call) = self.local.get(key).filter(|call| call.account() == Account::Theirs)
        else {
            return false;
        };
        let (socket, peer, id) = (call.socket, call.peer, call.id);
        let Some(path) = self.local.path_at(peer) else { return false };
        let rule = self.parts.sockets.get(socket).map_or(0, |socket| socket.rule);
        if self.local.peer(path).is_none_or(|peer| peer.rights.requests & rule != 0) {
            return false;
        }
        self.end_local(key);
        self.refuse_request(path, id, PathKind::of(path).refusal());
        true
    }

    fn refuse_local(&mut self, path: PathId, id: u64, reason: UnknownReason) {
        self.local.outbound.push_back(OutboundMessage::Control(
            path,
            MessageKind::Refused(reason),
            id,
        ));
    }

    /// Returns the call that a peer answers.
    #[inline]
    fn answered_call(&self, path: PathId, id: u64) -> Option<RpcKey> {
        let key = RpcKey::from_bits(id);
        let is_its = |call: &LocalCall| call.peer == path.index() && call.account() == Account::Own;
        (is_local(key) && self.local.get(key).is_some_and(is_its)).then_some(key)
    }

    #[inline]
    pub(super) fn admits_response(&mut self, path: PathId, id: u64, length: usize) -> bool {
        let Some(key) = self.answered_call(path, id) else { return false };
        // The charge for the request leaves room for a response of the same length, and no response exceeds the limit for messages.
        let charged = self.local.get(key).map_or(0, |call| call.charge.bytes);
        length as u64 + RPC_BYTES <= charged || self.has_room_for_response(path, key, length)
    }

    fn has_room_for_response(&mut self, path: PathId, key: RpcKey, length: usize) -> bool {
        let room = self.local.get(key).zip(self.local.peer(path)).map_or(0, |(call, peer)| {
            self.local_room(peer, call.socket, Account::Own) + call.charge.bytes
        });
        let limit = u64::from(self.parts.config.message_max).min(room.saturating_sub(RPC_BYTES));
        if length as u64 <= limit {
            return true;
        }
        let [length, limit] =
            [length as u64, limit].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        self.fail_local(key, CallFailed::ResponseTooLarge { length, limit });
        false
    }

    /// Takes a message that has arrived within the host. Never fails: a message that no honest peer sends is counted and dropped.
    #[inline]
    pub fn handle_message(&mut self, now: Time, path: PathId, words: Words, body: Bytes) {
        if self.local.peer(path).is_none() {
            return;
        }
        let mut events = Events { path, event: None };
        self.arrivals(now, path).take(words, body, &mut events);
        self.parts.events.extend(events.event);
    }

    /// Takes a message that is neither a request nor a response.
    pub(super) fn handle_control(&mut self, now: Time, path: PathId, words: Words, body: Bytes) {
        match MessageKind::decode(words) {
            Some((MessageKind::Refused(reason), id)) => {
                self.on_local_refused(now, path, id, reason)
            }
            Some((MessageKind::Failed, id)) => self.on_local_failed(path, id, &body),
            Some((MessageKind::Abort, id)) => self.on_local_abort(path, id),
            Some((MessageKind::Trace, id)) => self.on_local_trace(path, id, &body),
            Some((MessageKind::Probe, _)) => {
                self.local.outbound.push_back(OutboundMessage::Control(
                    path,
                    MessageKind::Alive,
                    0,
                ));
            }
            Some((MessageKind::Alive, _)) => {}
            _ => self.parts.counters.dropped_malformed += 1,
        }
        self.discard(body);
    }

    /// Counts the response of a call that has ended.
    #[inline]
    pub(super) fn note_answer(&mut self, now: Time, started: Time, length: usize) {
        if self.parts.sampler.chooses(self.parts.counters.calls_completed) {
            self.parts.counters.call_timed(now.saturating_since(started));
        }
        self.parts.counters.calls_completed += 1;
        self.parts.counters.message_received(length as u64);
    }

    fn on_local_refused(&mut self, now: Time, path: PathId, id: u64, reason: UnknownReason) {
        let Some(key) = self.answered_call(path, id) else { return };
        let Some(call) = self.local.get_mut(key) else { return };
        let (started, expires) = (call.started, call.expires);
        let Some(client) = call.client_mut() else { return };
        let length = u32::try_from(client.body.len()).unwrap_or(u32::MAX);
        let error = match reason {
            UnknownReason::NoSuchPort => CallFailed::NoSuchPort,
            UnknownReason::TooLarge => CallFailed::RequestTooLarge { length },
            UnknownReason::HandlerPanicked => CallFailed::HandlerPanicked,
            UnknownReason::NotAllowed => CallFailed::NotAllowed,
            UnknownReason::SealedOnly => CallFailed::SealedOnly,
            UnknownReason::OverBudget => {
                let after = now.saturating_since(started);
                if after < self.parts.config.peer_timeout {
                    //= docs/protocol.md#local-4
                    let pause =
                        RETRY_MIN.saturating_mul(1 << client.refusals.min(6)).min(RETRY_MAX);
                    client.refusals = client.refusals.saturating_add(1);
                    client.waits = true;
                    self.local.wheel.insert(now, now + pause, key);
                    return;
                }
                let Some(story) = self.local_story(now, key) else { return };
                CallFailed::Overloaded { after, story }
            }
            //= docs/protocol.md#life-3
            _ if expires.is_some_and(|expires| is_over(now, started, expires)) => {
                let after = expires.map_or(Duration::ZERO, |at| at.saturating_since(started));
                let Some(story) = self.local_story(now, key) else { return };
                CallFailed::DeadlineExceeded { after, story }
            }
            _ => CallFailed::ResponseLost,
        };
        self.fail_local(key, error);
    }

    fn on_local_failed(&mut self, path: PathId, id: u64, error: &[u8]) {
        match (self.answered_call(path, id), CallFailed::decode(error)) {
            (Some(key), Some(error)) => self.fail_local(key, error),
            (Some(_), None) => self.parts.counters.dropped_malformed += 1,
            (None, _) => {}
        }
    }

    /// Keeps the trace context of a request that will arrive.
    #[cold]
    fn on_local_trace(&mut self, path: PathId, id: u64, context: &[u8]) {
        match (TraceContext::from_bytes(context), self.local.peer_mut(path)) {
            (Some(context), Some(peer)) => peer.put_trace(id, context),
            _ => self.parts.counters.dropped_malformed += 1,
        }
    }

    #[cold]
    fn on_local_abort(&mut self, path: PathId, id: u64) {
        if let Some(peer) = self.local.peer_mut(path) {
            peer.take_trace(id);
        }
        let Some(key) = self.local.find_request(path, id) else { return };
        self.parts.counters.requests_cancelled += u64::from(self.is_local_active(key));
        self.cancel_local(key);
    }

    /// Marks a request whose client no longer waits for the response.
    fn cancel_local(&mut self, key: RpcKey) {
        let Some(LocalCall { socket, role: CallRole::Server { cancelled, watched }, .. }) =
            self.local.get_mut(key)
        else {
            return;
        };
        *cancelled = true;
        if mem::replace(watched, false) {
            self.parts.note_cancelled(*socket, key);
        }
    }

    pub(super) fn watch_local(&mut self, key: RpcKey) -> bool {
        match self.local.get_mut(key) {
            Some(LocalCall { role: CallRole::Server { cancelled: false, watched }, .. }) => {
                *watched = true;
                true
            }
            _ => false,
        }
    }

    /// Answers a request of a peer within the host.
    pub(super) fn reply_local(
        &mut self,
        now: Time,
        key: RpcKey,
        body: Body,
    ) -> Result<(), ReplyError> {
        let call = self.local.get(key);
        let found = call.and_then(|call| Some((call.socket, self.local.path_at(call.peer)?)));
        let Some((socket, path)) = found else {
            self.discard(body);
            return Err(ReplyError::NotInService);
        };
        self.departures(now, socket, path).reply(key, body, |_, _| false)
    }

    /// Gives a call up, at either side.
    pub(super) fn abort_local(&mut self, key: RpcKey, reason: UnknownReason) -> bool {
        let Some(call) = self.end_local(key) else { return false };
        let Some(path) = self.local.path_at(call.peer) else { return false };
        let kind = match call.role {
            CallRole::Client(ClientCall { body, .. }) => {
                self.parts.counters.calls_aborted += 1;
                self.discard(body);
                //= docs/protocol.md#local-5
                MessageKind::Abort
            }
            CallRole::Server { .. } => {
                self.parts.counters.requests_abandoned += 1;
                MessageKind::Refused(reason)
            }
        };
        self.local.outbound.push_back(OutboundMessage::Control(path, kind, call.id));
        true
    }

    pub(super) fn is_local_active(&self, key: RpcKey) -> bool {
        let call = self.local.get(key);
        call.is_some_and(|call| !matches!(call.role, CallRole::Server { cancelled: true, .. }))
    }

    /// Returns the time at which calls within the host have something to do, if there are any.
    #[inline]
    pub(super) fn local_timeout(&self) -> Option<Time> {
        if !self.local.expired.is_empty() {
            return Some(Time::ZERO);
        }
        sooner(self.local.wheel.next(), self.local.next_check)
    }

    pub(super) fn handle_local_timeout(&mut self, now: Time) {
        for _ in 0..DUE_MAX {
            let local = &mut self.local;
            if local.expired.is_empty() && !local.wheel.expire(now, &mut local.expired) {
                break;
            }
            if let Some(key) = self.local.expired.pop() {
                self.on_local_due(now, key);
            }
        }
        if self.local.next_check.is_some_and(|at| at <= now) {
            self.check_local_peers(now);
        }
    }

    fn on_local_due(&mut self, now: Time, key: RpcKey) {
        let Some(call) = self.local.get_mut(key) else { return };
        let (started, expires) = (call.started, call.expires);
        let is_client = call.account() == Account::Own;
        if expires.is_none_or(|due| due > now) {
            let waits = call.client_mut().is_some_and(|client| mem::take(&mut client.waits));
            if waits {
                self.local.outbound.push_back(OutboundMessage::Request(key));
            }
            if let Some(due) = expires {
                self.local.wheel.insert(now, due, key);
            }
            return;
        }
        if !is_client {
            self.parts.counters.requests_expired += u64::from(self.is_local_active(key));
            return self.cancel_local(key);
        }
        //= docs/protocol.md#local-5
        let after = now.saturating_since(started);
        let aborted = self.local.with_peer(key).map(|(call, peer)| (peer.path, call.id));
        if let Some((path, id)) = aborted {
            self.local.outbound.push_back(OutboundMessage::Control(path, MessageKind::Abort, id));
        }
        if let Some(story) = self.local_story(now, key) {
            self.fail_local(key, CallFailed::DeadlineExceeded { after, story });
        }
    }

    /// Probes silent peers that calls wait for, and doubts those that stay silent.
    fn check_local_peers(&mut self, now: Time) {
        //= docs/protocol.md#local-6
        let timeout = self.parts.config.peer_timeout;
        let (mut any, mut probes, mut doubted) = (false, Vec::new(), Vec::new());
        for peer in self.local.peers().filter(|peer| peer.calls > 0) {
            any = true;
            let silent = now.saturating_since(peer.last_rx);
            // Time alone is no proof: this process may not have run, with the answers waiting.
            if silent >= timeout && peer.probes >= PROBES_MIN {
                if !mem::replace(&mut peer.doubted, true) {
                    doubted.push(peer.path);
                }
            } else if silent >= timeout / 4 {
                peer.probes = peer.probes.saturating_add(1);
                probes.push(OutboundMessage::Control(peer.path, MessageKind::Probe, 0));
            }
        }
        self.local.outbound.extend(probes);
        self.local.doubted.extend(doubted);
        self.local.next_check = any.then(|| now + timeout / 4);
    }

    /// Returns a path within the host whose peer has been silent for `peer_timeout` while calls wait for it, and has answered no probe.
    /// The driver looks whether the process of the peer runs, and then calls [`judge_local`](Self::judge_local).
    pub fn poll_doubted(&mut self) -> Option<PathId> {
        self.local.doubted.pop()
    }

    /// Ends the calls to the doubted peer at `path`, unless its process `runs`: a process that gets no processor time is silent, too.
    /// Its calls go on then, and it is doubted again after as many probes.
    pub fn judge_local(&mut self, now: Time, path: PathId, runs: bool) {
        //= docs/protocol.md#local-6
        let Some(peer) = self.local.peer_mut(path).filter(|peer| peer.doubted) else { return };
        peer.doubted = false;
        let (silent_for, probes_unanswered) = (now.saturating_since(peer.last_rx), peer.probes);
        if silent_for < self.parts.config.peer_timeout {
            return; // It has answered meanwhile.
        }
        if runs {
            peer.probes = 0;
            return;
        }
        let of_peer =
            |call: &LocalCall| call.peer == path.index() && call.account() == Account::Own;
        for key in self.local.find(of_peer) {
            //= docs/protocol.md#local-5
            if let Some(call) = self.local.get(key) {
                let abort = OutboundMessage::Control(path, MessageKind::Abort, call.id);
                self.local.outbound.push_back(abort);
            }
            if let Some(story) = self.local_story(now, key) {
                let waited_for = Awaited::Response;
                let error =
                    CallFailed::PeerTimeout { waited_for, silent_for, probes_unanswered, story };
                self.fail_local(key, error);
            }
        }
    }
}
