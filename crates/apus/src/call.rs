//! An outstanding call: a thread waits for it, a task awaits it, or it is given up.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus_proto::{Cookie, SocketKey, Time};
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

    /// Whether a call waits until other calls of the node have ended, if the limits and budgets of the node have no room for it.
    /// Default `true`.
    ///
    /// A call without room ends with [`CallError::OverBudget`] or [`CallError::TooManyCalls`]:
    ///
    /// * at once with `false`, if no other call of the node is under way, and if 1,024 calls wait already;
    /// * at its deadline;
    /// * without a deadline, when nothing has moved for the setting `peer_timeout` and the application has not taken responses.
    ///
    /// Calls of [`Client::send`](crate::Client::send) never wait.
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

    /// Sends the call's place in a distributed trace to the server ([`Request::trace_context`](crate::Request::trace_context)). The
    /// packet with the first byte of the request is 28 bytes longer. Linux hosts get no context.
    ///
    /// ```
    /// use apus::CallOptions;
    ///
    /// // From the header of an HTTP request.
    /// let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let mut options = CallOptions::new();
    /// options.trace_context(traceparent.parse()?);
    /// # Ok::<(), apus::ParseTraceContextError>(())
    /// ```
    pub const fn trace_context(&mut self, context: TraceContext) -> &mut Self {
        self.trace = Some(context);
        self
    }

    /// The trace context that the application has given.
    #[inline]
    pub(crate) fn given_trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// The core's options for a call that begins now and carries this trace context. The engine sets the cookie.
    #[inline]
    pub(crate) fn with_trace(
        &self,
        now: Time,
        trace: Option<TraceContext>,
    ) -> apus_proto::CallOptions {
        let (deadline, trace) = (self.deadline_from(now), trace.map(Box::new));
        apus_proto::CallOptions { cookie: Cookie::default(), deadline, trace }
    }

    #[inline]
    pub(crate) fn deadline_from(&self, now: Time) -> Option<Time> {
        self.deadline.map(|deadline| now + deadline)
    }
}

/// A started call whose result was not taken. A thread waits for the result with [`wait`](Self::wait); a task awaits the call, a
/// future for any executor.
///
/// A dropped call is given up: its response is dropped, and the server is notified. A call keeps its client's port open.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut config = apus::Config::new();
/// # config.listen("127.0.0.1:0".parse()?);
/// # let node = apus::Node::start(&config)?;
/// # let service = node.bind(4000)?;
/// # let address = apus::Address::new(node.local_addr(), 4000);
/// # std::thread::spawn(move || {
/// #     service.serve(|request| {
/// #         let body = request.body().clone();
/// #         let _ = request.reply(body);
/// #     });
/// # });
/// # let client = node.client()?;
/// // Both requests are under way before the first wait.
/// let first = client.start(address, "one")?;
/// let second = client.start(address, "two")?;
/// assert_eq!(first.wait()?, "one");
/// assert_eq!(second.wait()?, "two");
/// # Ok(())
/// # }
/// ```
///
/// A task awaits the call instead:
///
/// ```no_run
/// # async fn example(client: apus::Client, address: apus::Address) -> Result<(), apus::CallError> {
/// let response = client.start(address, "one")?.await?;
/// # Ok(())
/// # }
/// ```
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
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let service = node.bind(4000)?;
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # std::thread::spawn(move || {
    /// #     service.serve(|request| {
    /// #         let body = request.body().clone();
    /// #         let _ = request.reply(body);
    /// #     });
    /// # });
    /// # let client = node.client()?;
    /// let mut call = client.start(address, "hello")?;
    /// let response = loop {
    ///     match call.try_take() {
    ///         Ok(result) => break result?,
    ///         Err(unfinished) => call = unfinished, // The program does other work here.
    ///     }
    /// };
    /// assert_eq!(response, "hello");
    /// # Ok(())
    /// # }
    /// ```
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
            engine.opportunistic_turn(now);
            result = engine.mail.take_result(self.key);
            engine.transmit_due(now);
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
        parker::count_task_poll();
        let socket = Arc::clone(&self.socket);
        let shared = &*socket.shared;
        let mut engine = match shared.enter() {
            Ok(engine) => engine,
            Err(unusable) => return Poll::Ready(self.end(Err(unusable.into()))),
        };
        let now = clock::now();
        if engine.holds_back() || shared.regime == Regime::AlwaysPolls {
            engine.turn(now);
        }
        if let Some(result) = engine.mail.take_result(self.key) {
            drop(engine);
            return Poll::Ready(self.end(result));
        }
        if shared.regime == Regime::AlwaysPolls {
            context.waker().wake_by_ref();
        } else {
            let waiter = Waiter::task(parker::next_id(), context.waker());
            engine.mail.wait_for_call(self.key, waiter);
            engine.need_progress();
            engine.transmit_due(now);
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
            engine.transmit_due(clock::now());
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
///
/// ```
/// use std::thread;
/// use apus::CallError;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut config = apus::Config::new();
/// # config.listen("127.0.0.1:0".parse()?);
/// # let node = apus::Node::start(&config)?;
/// # let service = node.bind(4000)?; // Answers nothing.
/// # let address = apus::Address::new(node.local_addr(), 4000);
/// # let client = node.client()?;
/// let call = client.start(address, "a request that takes long")?;
/// let canceller = call.canceller();
/// thread::spawn(move || canceller.cancel());
/// assert_eq!(call.wait(), Err(CallError::Cancelled));
/// # Ok(())
/// # }
/// ```
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
            engine.transmit_due(clock::now());
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
