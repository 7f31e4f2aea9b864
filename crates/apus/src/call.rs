//! An outstanding call: a thread waits for it, a task awaits it, or it is given up.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus_proto::{SocketKey, Time};
use bytes::Bytes;

use crate::delivery::Regime;
use crate::delivery::parker::{self, Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::engine::Engine;
use crate::engine::lock::Guard;
use crate::error::CallError;
use crate::mail::{CallKey, Mail};
use crate::observe::spans::CallSpan;
use crate::socket::SocketInner;
use crate::sync::clock;

/// A call that is under way. Begun by [`CallBuilder::start`](crate::CallBuilder::start). A thread waits for the result with
/// [`wait`](Self::wait); a task awaits the call, a future for any executor.
///
/// A dropped call is given up: its response is dropped, and the server is notified. A call keeps its client's port open.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut config = apus::Config::new();
/// # config.listen("127.0.0.1:0".parse()?);
/// # let node = apus::Node::start(&config)?;
/// # let port = node.bind(4000)?;
/// # let address = apus::Address::new(node.local_addr(), 4000);
/// # std::thread::spawn(move || {
/// #     port.serve(|request| {
/// #         let body = request.body().clone();
/// #         let _ = request.reply(body);
/// #     });
/// # });
/// # let client = node.client()?;
/// // Both requests are under way before the first wait.
/// let first = client.call(address, "one").start()?;
/// let second = client.call(address, "two").start()?;
/// assert_eq!(first.wait()?, "one");
/// assert_eq!(second.wait()?, "two");
/// # Ok(())
/// # }
/// ```
///
/// A task awaits the call instead.
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

    /// [`wait`](Self::wait) for at most `timeout`, for a thread that has other work in between. The call goes on after `timeout`;
    /// only its [deadline](crate::CallBuilder::deadline) ends it.
    ///
    /// # Errors
    ///
    /// The call itself, if it has not ended.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut config = apus::Config::new();
    /// # config.listen("127.0.0.1:0".parse()?);
    /// # let node = apus::Node::start(&config)?;
    /// # let port = node.bind(4000)?; // Answers once the first wait is over.
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # let client = node.client()?;
    /// let call = client.call(address, "a request that takes long").start()?;
    /// let call = call.wait_timeout(Duration::from_millis(1)).expect_err("no answer yet");
    /// port.recv()?.reply("done")?;
    /// assert_eq!(call.wait()?, "done");
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_timeout(mut self, timeout: Duration) -> Result<Result<Bytes, CallError>, Self> {
        let shared = &*self.socket.shared;
        let mut awaited = AwaitCall { call: self.key, socket: self.socket.key };
        let result = shared.enter().and_then(|engine| {
            let now = clock::now();
            shared.wait(engine, &mut awaited, now, Some(now + timeout))
        });
        match result {
            Ok(Some(result)) => Ok(self.end(result)),
            Ok(None) => Err(self),
            Err(unusable) => Ok(self.end(Err(unusable.into()))),
        }
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
    /// # let port = node.bind(4000)?;
    /// # let address = apus::Address::new(node.local_addr(), 4000);
    /// # std::thread::spawn(move || {
    /// #     port.serve(|request| {
    /// #         let body = request.body().clone();
    /// #         let _ = request.reply(body);
    /// #     });
    /// # });
    /// # let client = node.client()?;
    /// let mut call = client.call(address, "hello").start()?;
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

    /// Polls the call under the lock of its engine.
    pub(crate) fn poll_locked(
        &mut self,
        socket: &SocketInner,
        mut engine: Guard<'_>,
        now: Time,
        context: &Context<'_>,
    ) -> Poll<Result<Bytes, CallError>> {
        let regime = socket.shared.regime;
        if engine.holds_back() || regime == Regime::AlwaysPolls {
            engine.turn(now);
        }
        if let Some(result) = engine.mail.take_result(self.key) {
            drop(engine);
            return Poll::Ready(self.end(result));
        }
        if regime == Regime::AlwaysPolls {
            context.waker().wake_by_ref();
        } else {
            let waiter = Waiter::task(parker::next_id(), context.waker());
            engine.mail.wait_for_call(self.key, waiter);
            engine.need_progress();
            engine.transmit_due(now);
        }
        Poll::Pending
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
        match socket.shared.enter() {
            Ok(engine) => self.poll_locked(&socket, engine, clock::now(), context),
            Err(unusable) => Poll::Ready(self.end(Err(unusable.into()))),
        }
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
            let now = clock::now();
            engine.transmit(now);
            engine.transmit_due(now);
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
/// # let port = node.bind(4000)?; // Answers nothing.
/// # let address = apus::Address::new(node.local_addr(), 4000);
/// # let client = node.client()?;
/// let call = client.call(address, "a request that takes long").start()?;
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
            let now = clock::now();
            engine.transmit(now);
            engine.transmit_due(now);
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
