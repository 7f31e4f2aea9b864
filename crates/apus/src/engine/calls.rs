//! Calls and responses of the application. Nothing is transmitted by them yet.

use std::mem;

use apus_proto::slab::Handle;
use apus_proto::{Body, CallOptions, Cookie, Endpoint, Remote, RpcKey, SocketKey, Time, TraceMark};
use apus_wire::PathId;
use bytes::Bytes;

use super::Engine;
use crate::address::Address;
use crate::error::{CallError, ReplyError};
use crate::mail::{CallKey, CompletionMode, Mail};

impl Engine {
    /// Starts a call; nothing is transmitted yet. `waits`: where it goes, if it may wait for room.
    #[inline]
    pub(crate) fn call(
        &mut self,
        now: Time,
        socket: SocketKey,
        (to, waits): (Remote, Option<&Address>),
        body: Body,
        completion: CompletionMode,
        options: CallOptions,
    ) -> Result<CallKey, CallError> {
        let to = self.route(now, to);
        self.report_backlog();
        let call = self.mail.expect_call(socket, completion);
        // The core drops the options of a call that it refuses.
        let deadline = options.deadline;
        let trace = if waits.is_some() { options.trace.clone() } else { None };
        let options = CallOptions { cookie: Cookie::Key(call.to_bits()), ..options };
        match self.begin_rpc(now, socket, to, body, options) {
            Ok(rpc) => {
                let mark = self.endpoint.take_trace_mark(rpc);
                self.mail.call_started(call, rpc, mark);
                self.endpoint.report_paths(&mut *self.link);
                Ok(call)
            }
            Err(error) => {
                let options = CallOptions { deadline, trace, ..CallOptions::default() };
                let again = waits.map(|to| (*to, options));
                let error = self.refused(socket, to.path, error);
                self.wait_for_room(call, socket, again, error)
            }
        }
    }

    /// Starts a call whose result goes to the queue of the socket; nothing is transmitted yet.
    #[inline]
    pub(crate) fn send(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        body: Body,
        cookie: u64,
        options: CallOptions,
    ) -> Result<(), CallError> {
        let to = self.route(now, to);
        self.report_backlog();
        self.send_by(now, socket, to, body, cookie, options)
    }

    /// Starts a call as [`send`](Self::send) does, by this very path, of which the endpoint knows the properties.
    #[inline]
    pub(crate) fn send_by(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        body: Body,
        cookie: u64,
        options: CallOptions,
    ) -> Result<(), CallError> {
        let options = CallOptions { cookie: Cookie::Queue(cookie), ..options };
        let begun = self.begin_rpc(now, socket, to, body, options);
        let rpc = begun.map_err(|error| self.refused(socket, to.path, error))?;
        if let Some(mark) = self.endpoint.take_trace_mark(rpc) {
            keep_mark(&mut self.mail, &mut self.endpoint, (socket, cookie), rpc, mark);
        }
        self.endpoint.report_paths(&mut *self.link);
        Ok(())
    }

    /// Starts calls to one service whose results go to the queue of the socket; nothing is transmitted yet. Removes those that have
    /// begun from `calls`.
    pub(crate) fn send_many(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        calls: &mut Vec<(Bytes, u64)>,
    ) -> Result<(), CallError> {
        let to = self.route(now, to);
        self.report_backlog();
        let (mut begun, mut sent) = (0, Ok(()));
        if let Some(mut near) = self.near(now, socket, to.path) {
            for (body, cookie) in &mut *calls {
                let options = CallOptions { cookie: Cookie::Queue(*cookie), ..Default::default() };
                let begin = near.call(to.port, mem::take(body).into(), options);
                sent = begin.map(drop).map_err(CallError::refused);
                if sent.is_err() {
                    break;
                }
                begun += 1;
            }
            drop(near);
        } else {
            (begun, sent) = self.send_many_far(now, socket, to, calls);
            if sent == Err(CallError::refused(apus_proto::CallError::NotExpected)) {
                sent = Err(self.refused(socket, to.path, apus_proto::CallError::NotExpected));
            }
        }
        if sent.is_err()
            && let Some((body, _)) = calls.get_mut(begun)
        {
            *body = self.endpoint.take_refused().unwrap_or_default().into_bytes();
        }
        calls.drain(..begun);
        sent
    }

    /// Starts calls over the network. Returns the number of those that have begun before the first refusal.
    fn send_many_far(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        calls: &mut [(Bytes, u64)],
    ) -> (usize, Result<(), CallError>) {
        let Self { endpoint, mail, link, .. } = self;
        let mut messages = endpoint.short_messages(now, socket, to.path);
        let (mut begun, mut sent) = (0, Ok(()));
        for (body, cookie) in calls {
            let options = CallOptions { cookie: Cookie::Queue(*cookie), ..Default::default() };
            match messages.call(to.port, mem::take(body), options) {
                Ok(rpc) => {
                    if let Some(mark) = messages.take_trace_mark(rpc) {
                        keep_mark(mail, messages.endpoint(), (socket, *cookie), rpc, mark);
                    }
                }
                Err(error) => {
                    sent = Err(CallError::refused(error));
                    break;
                }
            }
            begun += 1;
        }
        drop(messages);
        endpoint.report_paths(&mut **link);
        (begun, sent)
    }

    /// Begins the RPC of a call. A request within the host goes into the ring of its peer before the rest of the work, which the
    /// peer's core then does not wait for.
    #[inline]
    fn begin_rpc(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        body: Body,
        options: CallOptions,
    ) -> Result<RpcKey, apus_proto::CallError> {
        if let Some(mut near) = self.near(now, socket, to.path) {
            return near.call(to.port, body, options);
        }
        self.endpoint.call(now, socket, to, body, options)
    }

    /// The id of a call that has begun, as its packets have it.
    pub(crate) fn rpc_id(&self, call: CallKey) -> Option<u64> {
        self.endpoint.rpc_id(self.mail.rpc(call)?)
    }

    /// The best way to a node: through memory if it shares some with this one.
    #[inline]
    pub(crate) fn route(&mut self, now: Time, to: Remote) -> Remote {
        if to.path.is_local() {
            return to;
        }
        if let Self { neighbours: Some(neighbours), link, .. } = self
            && let Some(local) = neighbours.local_path_to(now, to.path, &mut **link)
        {
            return Remote::new(local, to.port);
        }
        self.know_path(now, to.path);
        to
    }

    /// Makes a peer known; nothing is transmitted yet. Ends as a call with an empty response.
    pub(crate) fn connect(
        &mut self,
        now: Time,
        socket: SocketKey,
        to: Remote,
        deadline: Option<Time>,
    ) -> Result<CallKey, CallError> {
        let call = self.mail.expect_call(socket, CompletionMode::Handle);
        if to.path.is_local() {
            self.mail.connected(call); // The engine makes it known at the first call.
            return Ok(call);
        }
        self.know_path(now, to.path);
        if let Self { neighbours: Some(neighbours), link, .. } = self {
            neighbours.local_path_to(now, to.path, &mut **link); // Begins a meeting if need be.
        }
        let options = CallOptions { cookie: Cookie::Key(call.to_bits()), deadline, trace: None };
        match self.endpoint.connect(now, socket, to, options) {
            Ok(rpc) => {
                let mark = self.endpoint.take_trace_mark(rpc);
                self.mail.call_started(call, rpc, mark);
                self.endpoint.report_paths(&mut *self.link);
                if let Some(neighbours) = &mut self.neighbours {
                    neighbours.wait_for_meeting(to.path, call, deadline);
                }
                self.deliver(); // If the peer is known, the call has ended.
                Ok(call)
            }
            Err(error) => {
                self.mail.forget_call(call);
                Err(self.refused(socket, to.path, error))
            }
        }
    }

    /// Cancels the calls of a socket whose results go to its queue with this cookie.
    pub(crate) fn cancel_sent(&mut self, socket: SocketKey, cookie: u64) -> bool {
        let mut cancelled = false;
        for rpc in self.endpoint.find_calls(socket, Cookie::Queue(cookie)) {
            self.endpoint.abort(rpc);
            self.mail.fail_call(socket, Cookie::Queue(cookie), CallError::Cancelled);
            cancelled = true;
        }
        for call in self.mail.find_sent(socket, cookie) {
            if let Some(rpc) = self.mail.cancel_call(call) {
                self.endpoint.abort(rpc);
            }
            cancelled = true;
        }
        cancelled
    }

    /// Returns the error of a call that the core has refused.
    #[cold]
    fn refused(
        &mut self,
        socket: SocketKey,
        path: PathId,
        error: apus_proto::CallError,
    ) -> CallError {
        match &self.sealed_peers {
            Some(peers) if error == apus_proto::CallError::NotExpected => {
                let neighbours = self.neighbours.as_ref().filter(|_| path.is_local());
                let shown_by = neighbours.and_then(|neighbours| neighbours.udp(path));
                peers.unexpected(shown_by.unwrap_or(path), self.mail.rule(socket))
            }
            _ => CallError::refused(error),
        }
    }

    /// Gives a response; nothing is transmitted yet.
    #[inline]
    pub(crate) fn reply(
        &mut self,
        now: Time,
        socket: SocketKey,
        rpc: RpcKey,
        to: PathId,
        body: Body,
    ) -> Result<(), ReplyError> {
        if self.mail.mailbox(socket).is_none() {
            self.endpoint.discard(body);
            return Err(ReplyError::Gone);
        }
        if !to.is_local() && self.endpoint.is_active(rpc) {
            self.know_path(now, to); // Its peer holds the path.
        }
        if let Some(mut near) = self.near(now, socket, to) {
            return near.reply(rpc, body).map_err(ReplyError::refused);
        }
        self.endpoint.reply(now, rpc, body).map_err(ReplyError::refused)
    }
}

/// Keeps the mark of a call in the time trace until the application takes the response, which goes to the queue of a socket with a
/// cookie.
#[cold]
fn keep_mark(
    mail: &mut Mail,
    endpoint: &mut Endpoint,
    (socket, cookie): (SocketKey, u64),
    rpc: RpcKey,
    mark: TraceMark,
) {
    let call = mail.expect_call(socket, CompletionMode::Queue(cookie));
    mail.call_started(call, rpc, Some(mark));
    endpoint.set_cookie(rpc, Cookie::Key(call.to_bits()));
}
