//! Sockets: calls out, requests in.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus_proto::{Address, SocketKey, Time};
use bytes::Bytes;

use crate::call::{AwaitCall, Call, CallOptions};
use crate::clock;
use crate::delivery::Regime;
use crate::engine::Engine;
use crate::error::{CallError, RecvError};
use crate::mail::{Face, Mail};
use crate::parker::{self, Waiter, WaiterId};
use crate::request::{Incoming, More, Request};
use crate::shared::Shared;
use crate::spin::Spin;
use crate::stats::SocketStats;
use crate::wait::Awaited;

/// A Homa port of a node: makes calls, takes requests, or both.
///
/// Clones are the same socket; any number of threads and tasks may use it at once, for calls and
/// for receiving alike. A request goes to one of those who wait for it: to a thread that is polling,
/// else to the one that slept last. The port is closed when the last clone and the last unanswered
/// [`Request`] are dropped; what is outstanding then is forgotten on both sides without a word to
/// the peer, so a response given just before may be lost (see [`Node::close`](crate::Node::close)).
#[derive(Clone)]
pub struct Socket {
    inner: Arc<SocketInner>,
}

/// One open port; closes it when dropped.
pub(crate) struct SocketInner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: SocketKey,
    port: u16,
}

impl Drop for SocketInner {
    fn drop(&mut self) {
        let mut engine = self.shared.lock_for_cleanup();
        engine.close(self.key);
        self.shared.unlock(engine);
    }
}

impl Socket {
    pub(crate) fn new(shared: Arc<Shared>, key: SocketKey, port: u16) -> Self {
        Self { inner: Arc::new(SocketInner { shared, key, port }) }
    }

    /// The Homa port: 1 to 32767 for a server port, from 32768 for an automatic client port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// What has been delivered through this socket, and by how many wake-ups. Zero once it is closed.
    #[must_use]
    pub fn stats(&self) -> SocketStats {
        let mut engine = self.inner.shared.lock();
        engine.mail.mailbox(self.inner.key).map(|mailbox| mailbox.stats).unwrap_or_default()
    }

    /// Sends a request and waits for its response. [`start`](Self::start) and
    /// [`Call::wait`] in one, and what they say holds here; costs no allocation but the response.
    ///
    /// Without a deadline this ends when the response is there or the peer has been silent for
    /// configuration `peer_timeout` (1 s).
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub fn call(&self, to: Address, body: impl Into<Bytes>) -> Result<Bytes, CallError> {
        self.call_with(to, body, CallOptions::default())
    }

    /// [`call`](Self::call) with a deadline.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub fn call_with(
        &self,
        to: Address,
        body: impl Into<Bytes>,
        options: CallOptions,
    ) -> Result<Bytes, CallError> {
        let body = body.into();
        let shared = &*self.inner.shared;
        let mut engine = shared.lock();
        let now = clock::now();
        let deadline = options.deadline_from(now);
        let call = engine.call(now, self.inner.key, to, body, Face::Handle, deadline)?;
        engine.transmit(now);
        let mut awaited = AwaitCall { call, socket: self.inner.key };
        shared.wait(engine, &mut awaited, now, None).expect("a wait without end has a result")
    }

    /// Sends a request. The [`Call`] is waited for by a thread or awaited as a future; dropping it
    /// gives the call up.
    ///
    /// The body is handed over, not copied: use [`Bytes`], `Vec<u8>` or `&'static [u8]`. It is
    /// transmitted before this returns as far as may be sent without a grant; the rest goes on while
    /// anybody waits, or in the background (see [`Delivery`]).
    ///
    /// # Errors
    ///
    /// Those of [`CallError`] that are misuse or local; nothing was sent then.
    pub fn start(
        &self,
        to: Address,
        body: impl Into<Bytes>,
        options: CallOptions,
    ) -> Result<Call, CallError> {
        let body = body.into();
        let shared = &*self.inner.shared;
        let mut engine = shared.lock();
        let now = clock::now();
        let deadline = options.deadline_from(now);
        let call = engine.call(now, self.inner.key, to, body, Face::Handle, deadline)?;
        engine.transmit(now);
        engine.see_to(now);
        shared.unlock(engine);
        Ok(Call::new(Arc::clone(&self.inner), call))
    }

    /// Sends a request whose result comes out of [`recv`](Self::recv) as [`Incoming::Response`] with
    /// `cookie`: the completion-queue face, for one thread with many calls outstanding.
    ///
    /// With [`More::Yes`] the request may stay here until the next operation on the node, so that
    /// many share datagrams and system calls.
    ///
    /// # Errors
    ///
    /// Those of [`CallError`] that are misuse or local; nothing was sent then, and nothing will come
    /// out of `recv`.
    pub fn send(
        &self,
        to: Address,
        body: impl Into<Bytes>,
        cookie: u64,
        more: More,
    ) -> Result<(), CallError> {
        self.send_with(to, body, cookie, more, CallOptions::default())
    }

    /// [`send`](Self::send) with a deadline.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_with(
        &self,
        to: Address,
        body: impl Into<Bytes>,
        cookie: u64,
        more: More,
        options: CallOptions,
    ) -> Result<(), CallError> {
        let body = body.into();
        let shared = &*self.inner.shared;
        operate(shared, more, |engine, now| {
            let deadline = options.deadline_from(now);
            engine.call(now, self.inner.key, to, body, Face::Queue(cookie), deadline).map(drop)
        })
    }

    /// Waits for the next request, or response to [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// [`RecvError::Closed`] when the socket was shut down or the node closed.
    pub fn recv(&self) -> Result<Incoming, RecvError> {
        self.recv_until(None)
    }

    /// [`recv`](Self::recv), but no longer than `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvError::Timeout`] when nothing came, [`RecvError::Closed`] as for `recv`.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Incoming, RecvError> {
        self.recv_until(Some(timeout))
    }

    fn recv_until(&self, timeout: Option<Duration>) -> Result<Incoming, RecvError> {
        let shared = &*self.inner.shared;
        let engine = shared.lock();
        let now = clock::now();
        let until = timeout.map(|timeout| now + timeout);
        let mut awaited = AwaitOne { socket: &self.inner };
        shared.wait(engine, &mut awaited, now, until).unwrap_or(Err(RecvError::Timeout))
    }

    /// The next message if one is there; turns the engine once to see.
    ///
    /// # Errors
    ///
    /// [`RecvError::Timeout`] when nothing is there, [`RecvError::Closed`] as for `recv`.
    pub fn try_recv(&self) -> Result<Incoming, RecvError> {
        let shared = &*self.inner.shared;
        let mut engine = shared.lock();
        let mut awaited = AwaitOne { socket: &self.inner };
        let mut output = awaited.take(&mut engine);
        if output.is_none() {
            let now = clock::now();
            engine.turn_in_passing(now);
            output = awaited.take(&mut engine);
            engine.see_to(now);
        }
        shared.unlock(engine);
        output.unwrap_or(Err(RecvError::Timeout))
    }

    /// Waits for the next message, then takes as many as are there, up to `max`: one lock for a
    /// batch. Appends them to `batch` and returns how many. `timeout` as in
    /// [`recv_timeout`](Self::recv_timeout); `None`: without end. `max` counts as 1 if it is 0.
    ///
    /// # Errors
    ///
    /// As [`recv_timeout`](Self::recv_timeout).
    pub fn recv_many(
        &self,
        batch: &mut Vec<Incoming>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, RecvError> {
        let shared = &*self.inner.shared;
        let engine = shared.lock();
        let now = clock::now();
        let until = timeout.map(|timeout| now + timeout);
        let mut awaited = AwaitMany { socket: &self.inner, batch, max: max.max(1) };
        shared.wait(engine, &mut awaited, now, until).unwrap_or(Err(RecvError::Timeout))
    }

    /// [`recv`](Self::recv) as a future, for any executor. Dropping it loses no message.
    pub fn recv_async(&self) -> Recv<'_> {
        Recv { socket: self, waiting: None }
    }

    /// Takes requests until the socket or the node is closed, and gives each to `handler`.
    ///
    /// Requests that come together are handled together: their responses share datagrams and system
    /// calls when the handler is quick (below 5 µs a request in the batch before), and go out one by
    /// one when it is not. A handler may move the [`Request`] to another thread and return.
    /// Responses to [`send`](Self::send) are dropped here: use another socket for such calls.
    pub fn serve(&self, mut handler: impl FnMut(Request)) {
        let mut batch = Vec::with_capacity(SERVE_BATCH);
        let mut quick = true;
        while let Ok(count) = self.recv_many(&mut batch, SERVE_BATCH, None) {
            let began = clock::now();
            let together = quick && count > 1;
            let cork = together.then(|| Cork::new(&self.inner.shared));
            for incoming in batch.drain(..) {
                if let Incoming::Request(request) = incoming {
                    handler(request);
                }
            }
            drop(cork);
            let count = u32::try_from(count).expect("a batch is small");
            quick = clock::now().saturating_since(began) < QUICK * count;
        }
    }

    /// Closes the port now, whoever still holds the socket: every thread and task that waits for it
    /// is woken with `Closed`, outstanding calls end, requests not answered are given up.
    pub fn shutdown(&self) {
        let mut engine = self.inner.shared.lock();
        engine.close(self.inner.key);
        self.inner.shared.unlock(engine);
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("port", &self.inner.port).finish_non_exhaustive()
    }
}

/// Does one operation that does not wait, and transmits unless more follows.
#[inline]
pub(crate) fn operate<T, E>(
    shared: &Shared,
    more: More,
    operation: impl FnOnce(&mut Engine, Time) -> Result<T, E>,
) -> Result<T, E> {
    let mut engine = shared.lock();
    let stay = more == More::Yes || CORKED.get() == std::ptr::from_ref(shared).addr();
    if stay {
        // One reading of the clock serves a whole burst.
        let now = engine.corked().unwrap_or_else(clock::now);
        let result = operation(&mut engine, now)?;
        engine.cork(now);
        return Ok(result);
    }
    let now = clock::now();
    let result = operation(&mut engine, now)?;
    engine.transmit(now);
    engine.see_to(now);
    shared.unlock(engine);
    Ok(result)
}

thread_local! {
    /// The node for which this thread holds operations back, as the address of its [`Shared`].
    static CORKED: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, this thread's operations on a node stay queued.
struct Cork<'a> {
    shared: &'a Shared,
    before: usize,
}

impl<'a> Cork<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, before: CORKED.replace(std::ptr::from_ref(shared).addr()) }
    }
}

impl Drop for Cork<'_> {
    fn drop(&mut self) {
        CORKED.set(self.before);
        let mut engine = self.shared.lock_for_cleanup();
        if engine.corked().is_some() && !engine.stopped {
            let now = clock::now();
            engine.transmit(now);
            engine.see_to(now);
        }
        self.shared.unlock(engine);
    }
}

/// Requests handled together by [`Socket::serve`]: bounds how long the first response is held back.
const SERVE_BATCH: usize = 64;

/// A handler that takes less than this is quick.
const QUICK: Duration = Duration::from_micros(5);

/// [`Socket::recv_async`].
#[must_use = "a future does nothing unless polled"]
pub struct Recv<'a> {
    socket: &'a Socket,
    /// The id under which a waker is registered.
    waiting: Option<WaiterId>,
}

impl Future for Recv<'_> {
    type Output = Result<Incoming, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let socket = self.socket;
        let shared = &*socket.inner.shared;
        let mut awaited = AwaitOne { socket: &socket.inner };
        let mut engine = shared.lock();
        if let Some(id) = self.waiting.take() {
            awaited.delist(&mut engine, id);
        }
        let now = clock::now();
        if engine.corked().is_some() || shared.regime == Regime::NobodySleeps {
            engine.turn(now);
        }
        if let Some(output) = awaited.take(&mut engine) {
            shared.unlock(engine);
            return Poll::Ready(output);
        }
        if shared.regime == Regime::NobodySleeps {
            context.waker().wake_by_ref();
        } else {
            let id = parker::next_id();
            awaited.enlist(&mut engine, Waiter::Task(id, context.waker().clone()));
            self.waiting = Some(id);
            engine.need_progress();
            engine.see_to(now);
        }
        shared.unlock(engine);
        Poll::Pending
    }
}

impl Drop for Recv<'_> {
    fn drop(&mut self) {
        let Some(id) = self.waiting else {
            return;
        };
        let inner = &self.socket.inner;
        let mut engine = inner.shared.lock_for_cleanup();
        engine.mail.leave_mail(inner.key, id);
        engine.mail.pass_on(inner.key);
        inner.shared.unlock(engine);
    }
}

impl fmt::Debug for Recv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").field("socket", self.socket).finish_non_exhaustive()
    }
}

/// Waiting for one message of a socket.
struct AwaitOne<'a> {
    socket: &'a Arc<SocketInner>,
}

impl Awaited for AwaitOne<'_> {
    type Output = Result<Incoming, RecvError>;

    #[inline]
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output> {
        let Some(mailbox) = engine.mail.mailbox(self.socket.key) else {
            return Some(Err(RecvError::Closed));
        };
        mailbox.queue.pop_front().map(|arrival| Ok(Incoming::new(arrival, self.socket)))
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        engine.mail.wait_for_mail(self.socket.key, waiter);
    }

    fn delist(&self, engine: &mut Engine, id: WaiterId) -> bool {
        engine.mail.leave_mail(self.socket.key, id)
    }

    fn socket(&self) -> Option<SocketKey> {
        Some(self.socket.key)
    }

    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin> {
        mail.mailbox(self.socket.key).map(|mailbox| &mut mailbox.receive_spin)
    }
}

/// Waiting for a batch of messages of a socket.
struct AwaitMany<'a> {
    socket: &'a Arc<SocketInner>,
    batch: &'a mut Vec<Incoming>,
    max: usize,
}

impl Awaited for AwaitMany<'_> {
    type Output = Result<usize, RecvError>;

    #[inline]
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output> {
        let Some(mailbox) = engine.mail.mailbox(self.socket.key) else {
            return Some(Err(RecvError::Closed));
        };
        let count = mailbox.queue.len().min(self.max);
        if count == 0 {
            return None;
        }
        let arrivals = mailbox.queue.drain(..count);
        self.batch.extend(arrivals.map(|arrival| Incoming::new(arrival, self.socket)));
        Some(Ok(count))
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        engine.mail.wait_for_mail(self.socket.key, waiter);
    }

    fn delist(&self, engine: &mut Engine, id: WaiterId) -> bool {
        engine.mail.leave_mail(self.socket.key, id)
    }

    fn socket(&self) -> Option<SocketKey> {
        Some(self.socket.key)
    }

    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin> {
        mail.mailbox(self.socket.key).map(|mailbox| &mut mailbox.receive_spin)
    }
}
