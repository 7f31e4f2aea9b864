//! A call on its way: waited for by a thread, awaited by a task, or given up.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus_proto::{SocketKey, Time};
use apus_wire::TraceContext;
use bytes::Bytes;

use crate::delivery::Regime;
use crate::delivery::parker::{self, Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::engine::Engine;
use crate::error::CallError;
use crate::mail::{CallKey, Mail};
use crate::observe::spans::CallSpan;
use crate::socket::SocketInner;
use crate::sync::clock;

/// Options of a call. Setters return the options, so that they can be chained.
///
/// ```no_run
/// # use apus::{Address, CallError, CallOptions, Client};
/// # use std::time::Duration;
/// # fn example(client: &Client, to: Address) -> Result<(), CallError> {
/// client.call_with(to, "hello", CallOptions::new().deadline(Duration::from_millis(20)))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallOptions {
    deadline: Option<Duration>,
    trace: Option<TraceContext>,
    /// The call ends at once if there is no room for it.
    refused: bool,
}

impl CallOptions {
    /// The defaults: no deadline, no trace context, and the call waits for room.
    #[must_use]
    pub const fn new() -> Self {
        Self { deadline: None, trace: None, refused: false }
    }

    /// Whether a call for which the limits and budgets of the node have no room waits until other calls of the node have ended, at
    /// most until its deadline. Then, or at once with `false`, it ends with [`CallError::OverBudget`] or [`CallError::TooManyCalls`].
    /// The same holds when no call is under way, or nothing moves for the setting `peer_timeout` and the call has no deadline, while
    /// responses that the application has not taken are in the way; and for calls beyond 1,024 that wait. Calls of [`Client::send`](crate::Client::send) never wait. Default `true`.
    pub const fn wait_for_room(&mut self, waits: bool) -> &mut Self {
        self.refused = !waits;
        self
    }

    #[inline]
    pub(crate) const fn waits(&self) -> bool {
        !self.refused
    }

    /// Ends the call with [`CallError::Deadline`] if it has no response this long after its start. Zero ends it at once; its
    /// request may have been sent. Without a deadline, which is the default, the call ends when the peer has been silent for
    /// the setting `peer_timeout`.
    pub const fn deadline(&mut self, deadline: Duration) -> &mut Self {
        self.deadline = Some(deadline);
        self
    }

    /// Tells the server where the call belongs in a distributed trace ([`Request::trace_context`](crate::Request::trace_context)):
    /// 28 bytes more in the packet with the first byte of the request. Of no other effect. A Linux host is not told.
    pub const fn trace_context(&mut self, context: TraceContext) -> &mut Self {
        self.trace = Some(context);
        self
    }

    /// The trace context that the application has given.
    #[inline]
    pub(crate) fn given_trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// Of a call that begins now and tells this trace context. The cookie is the engine's affair.
    #[inline]
    pub(crate) fn with_trace(
        &self,
        now: Time,
        trace: Option<TraceContext>,
    ) -> apus_proto::CallOptions {
        let (deadline, trace) = (self.deadline_from(now), trace.map(Box::new));
        apus_proto::CallOptions { cookie: 0, deadline, trace }
    }

    #[inline]
    pub(crate) fn deadline_from(&self, now: Time) -> Option<Time> {
        self.deadline.map(|deadline| now + deadline)
    }
}

/// A started call, whose result was not taken. A thread waits for the result with [`wait`](Self::wait); a task awaits the call,
/// a future for any executor.
///
/// Dropping it gives the call up: its response is dropped, and the server is told. A call keeps its client's port open.
#[must_use = "dropping a call gives it up"]
pub struct Call {
    socket: Arc<SocketInner>,
    key: CallKey,
    /// The result was handed out.
    taken: bool,
    span: CallSpan,
}

impl Call {
    pub(crate) fn new(socket: Arc<SocketInner>, key: CallKey, span: CallSpan) -> Self {
        Self { socket, key, taken: false, span }
    }

    /// The result is handed out.
    #[inline]
    fn end(&mut self, result: Result<Bytes, CallError>) -> Result<Bytes, CallError> {
        self.taken = true;
        self.span.end(&result);
        self.span = CallSpan::none();
        result
    }

    /// Waits for the result. The calling thread turns the engine meanwhile, as the delivery mode says. A thread that polls
    /// needs no wake-up.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub fn wait(mut self) -> Result<Bytes, CallError> {
        let shared = &*self.socket.shared;
        let engine = shared.enter()?;
        let mut awaited = AwaitCall { call: self.key, socket: self.socket.key };
        let result = shared.wait(engine, &mut awaited, clock::now(), None);
        let result = match result {
            Ok(result) => result.expect("a wait without end has a result"),
            Err(unusable) => Err(unusable.into()),
        };
        self.end(result)
    }

    /// The result if the call has ended. Turns the engine once to find out.
    ///
    /// # Errors
    ///
    /// The call itself, if it has not ended.
    pub fn try_take(mut self) -> Result<Result<Bytes, CallError>, Self> {
        match self.look() {
            Some(result) => Ok(self.end(result)),
            None => Err(self),
        }
    }

    /// The result if the call has ended.
    fn look(&self) -> Option<Result<Bytes, CallError>> {
        let mut engine = match self.socket.shared.enter() {
            Ok(engine) => engine,
            Err(unusable) => return Some(Err(unusable.into())),
        };
        let mut result = engine.mail.take_result(self.key);
        if result.is_none() {
            let now = clock::now();
            engine.turn_in_passing(now);
            result = engine.mail.take_result(self.key);
            engine.see_to(now);
        }
        result
    }

    /// Ends the call with [`CallError::Cancelled`] unless it has ended. The request may be executed nevertheless.
    pub fn cancel(&self) {
        self.canceller().cancel();
    }

    /// A handle by which another thread can cancel this call.
    #[must_use]
    pub fn canceller(&self) -> Canceller {
        Canceller { socket: Arc::clone(&self.socket), key: self.key }
    }
}

impl Future for Call {
    type Output = Result<Bytes, CallError>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.taken, "a call has one result");
        let socket = Arc::clone(&self.socket);
        let shared = &*socket.shared;
        let mut engine = match shared.enter() {
            Ok(engine) => engine,
            Err(unusable) => return Poll::Ready(self.end(Err(unusable.into()))),
        };
        let now = clock::now();
        if engine.corked().is_some() || shared.regime == Regime::NobodySleeps {
            engine.turn(now);
        }
        if let Some(result) = engine.mail.take_result(self.key) {
            drop(engine);
            return Poll::Ready(self.end(result));
        }
        if shared.regime == Regime::NobodySleeps {
            context.waker().wake_by_ref();
        } else {
            let waiter = Waiter::Task(parker::next_id(), context.waker().clone());
            engine.mail.wait_for_call(self.key, waiter);
            engine.need_progress();
            engine.see_to(now);
        }
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        self.span.give_up();
        let Ok(mut engine) = self.socket.shared.enter() else { return };
        if let Some(rpc) = engine.mail.forget_call(self.key) {
            engine.endpoint.abort(rpc);
            engine.see_to(clock::now());
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

/// Cancels a [`Call`] from another thread or task. Does nothing once the call has ended, or in a forked child of the process
/// that made the call.
#[derive(Clone)]
pub struct Canceller {
    socket: Arc<SocketInner>,
    key: CallKey,
}

impl Canceller {
    /// Ends the call with [`CallError::Cancelled`] unless it has ended, and wakes the thread or task that waits for it.
    pub fn cancel(&self) {
        let Ok(mut engine) = self.socket.shared.enter() else { return };
        if let Some(rpc) = engine.mail.cancel_call(self.key) {
            engine.endpoint.abort(rpc);
            engine.see_to(clock::now());
        }
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}

/// Waiting for the result of a call.
pub(crate) struct AwaitCall {
    pub(crate) call: CallKey,
    pub(crate) socket: SocketKey,
}

impl Awaited for AwaitCall {
    type Output = Result<Bytes, CallError>;

    #[inline]
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output> {
        engine.mail.take_result(self.call)
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        engine.mail.wait_for_call(self.call, waiter);
    }

    fn delist(&self, engine: &mut Engine, _id: WaiterId) -> bool {
        engine.mail.leave_call(self.call)
    }

    fn socket(&self) -> Option<SocketKey> {
        Some(self.socket)
    }

    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin> {
        mail.mailbox(self.socket).map(|mailbox| &mut mailbox.call_spin)
    }
}
