//! Sockets: calls out, requests in.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus_net::shard_of;
use apus_proto::{SocketKey, Time};
use bytes::Bytes;

use crate::address::Address;
use crate::call::{AwaitCall, Call, CallOptions};
use crate::clock;
use crate::cross_shard::CrossShardWaiters;
use crate::delivery::Regime;
use crate::engine::Engine;
use crate::error::{CallError, OpenError, RecvError};
use crate::mail::{self, Arrival, CompletionMode, Queue};
use crate::node::Parts;
use crate::parker::{self, Waiter, WaiterId};
use crate::request::{Flush, Incoming, Request};
use crate::serving::{self, Serving, Takers};
use crate::shared::{Guard, Shared};
use crate::slots::Key;
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
///
/// A socket keeps its node running, also when the [`Node`](crate::Node) itself was dropped.
#[derive(Clone)]
pub struct Socket {
    /// One in each shard of the node.
    ends: Arc<[Arc<SocketInner>]>,
}

/// One open port of one shard; closes it when dropped.
pub(crate) struct SocketInner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: SocketKey,
    port: u16,
    /// What it shares with the ends in other shards, if there are any.
    cross_shard: Option<Arc<CrossShardWaiters>>,
    /// Keeps the node running.
    node: Arc<Parts>,
    /// Of the socket; counted at its end in the first shard.
    pub(crate) takers: Takers,
}

impl Drop for SocketInner {
    fn drop(&mut self) {
        let Ok(mut engine) = self.shared.enter() else { return };
        engine.close(self.key);
    }
}

impl SocketInner {
    /// Opens a port, or an automatic client port, in one shard. `cross_shard`: that of the socket, and the
    /// shard's number, if there are several.
    pub(crate) fn open(
        node: &Arc<Parts>,
        shared: &Arc<Shared>,
        port: Option<u16>,
        cross_shard: Option<(&Arc<CrossShardWaiters>, usize)>,
    ) -> Result<Arc<Self>, OpenError> {
        let mut engine = shared.enter()?;
        let key = engine.endpoint.open(port)?;
        let port = engine.endpoint.port(key).expect("opened a moment ago, under the same lock");
        engine
            .mail
            .open(key, cross_shard.map(|(cross_shard, shard)| (Arc::clone(cross_shard), shard)));
        let cross_shard = cross_shard.map(|(cross_shard, _)| Arc::clone(cross_shard));
        let (shared, node) = (Arc::clone(shared), Arc::clone(node));
        Ok(Arc::new(Self { shared, key, port, cross_shard, node, takers: Takers::default() }))
    }

    /// This is the port with that number of the node that `other` is a port of.
    pub(crate) fn is_port(&self, other: &Self, port: u16) -> bool {
        self.port == port && Arc::ptr_eq(&self.node, &other.node)
    }
}

impl Socket {
    /// `ends`: one in each shard, at least one.
    pub(crate) fn new(ends: Arc<[Arc<SocketInner>]>) -> Self {
        Self { ends }
    }

    /// The end that has the traffic with a peer.
    #[inline]
    fn end(&self, peer: SocketAddr) -> &Arc<SocketInner> {
        match &*self.ends {
            [only] => only,
            ends => &ends[shard_of(peer, ends.len())],
        }
    }

    /// The shard in which the calling thread waits for whatever comes.
    #[inline]
    fn home(&self) -> usize {
        match self.ends.len() {
            1 => 0,
            shards => usize::try_from(parker::thread_id()).unwrap_or(0) % shards,
        }
    }

    /// The Homa port: 1 to 32767 for a server port, from 32768 for an automatic client port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ends[0].port
    }

    /// What has been delivered through this socket, and by how many wake-ups. Zero once it is closed,
    /// and in a forked child of the process that opened it.
    #[must_use]
    pub fn stats(&self) -> SocketStats {
        let mut stats = SocketStats::default();
        for end in &*self.ends {
            let Ok(mut engine) = end.shared.enter() else { continue };
            stats
                .add(engine.mail.mailbox(end.key).map(|mailbox| mailbox.stats).unwrap_or_default());
        }
        stats
    }

    /// Makes the node at `to` known, and waits for that: one round trip. The first call to a node does it by itself
    /// otherwise, and takes a round trip longer than later ones. At once if the node is known. Between nodes on a raw
    /// link (`homa://`) there is nothing to do.
    ///
    /// # Errors
    ///
    /// See [`CallError`]; [`CallError::NoSuchPort`] is known of a node that is met for the first time.
    pub fn connect(&self, to: Address, options: CallOptions) -> Result<(), CallError> {
        let end = self.end(to.host);
        let (mut engine, to) = end.shared.enter_towards(to)?;
        let now = clock::now();
        let call = engine.connect(now, end.key, to, options.deadline_from(now))?;
        engine.transmit(now);
        let mut awaited = AwaitCall { call, socket: end.key };
        let ended = end.shared.wait(engine, &mut awaited, now, None)?;
        ended.expect("a wait without end has a result").map(drop)
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
        let (end, mut engine, mut now, call) = self.begin(to, body.into(), options)?;
        let mut awaited = AwaitCall { call, socket: end.key };
        if let Some(served) = serving::serves_itself(end, &mut *engine.link, to) {
            let result = end.shared.wait(engine, &mut awaited, now, Some(now + OWN_SERVICE))?;
            if let Some(result) = result {
                return result;
            }
            if served.takers.is_one() {
                drop(Call::new(Arc::clone(end), call));
                return Err(CallError::OwnService { after: OWN_SERVICE });
            }
            engine = end.shared.lock()?;
            now = clock::now();
        }
        end.shared.wait(engine, &mut awaited, now, None)?.expect("a wait without end has a result")
    }

    /// Sends a request. The [`Call`] is waited for by a thread or awaited as a future; dropping it
    /// gives the call up.
    ///
    /// The body is handed over, not copied: use [`Bytes`], `Vec<u8>` or `&'static [u8]`. It is
    /// transmitted before this returns as far as may be sent without a grant; the rest goes on while
    /// anybody waits, or in the background (see [`Delivery`](crate::Delivery)).
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
        let (end, mut engine, now, call) = self.begin(to, body.into(), options)?;
        engine.see_to(now);
        drop(engine);
        Ok(Call::new(Arc::clone(end), call))
    }

    /// Sends a request as far as may be now. The lock is still held.
    #[inline]
    fn begin(
        &self,
        to: Address,
        body: Bytes,
        options: CallOptions,
    ) -> Result<(&Arc<SocketInner>, Guard<'_>, Time, Key), CallError> {
        let end = self.end(to.host);
        let (mut engine, to) = end.shared.enter_towards(to)?;
        let now = clock::now();
        let deadline = options.deadline_from(now);
        let call = engine.call(now, end.key, to, body, CompletionMode::Handle, deadline)?;
        engine.transmit(now);
        Ok((end, engine, now, call))
    }

    /// Sends a request whose result comes out of [`recv`](Self::recv) as [`Incoming::Response`] with
    /// `cookie`: the completion-queue completion, for one thread with many calls outstanding.
    ///
    /// With [`Flush::Later`] the request may stay here until the next operation on the node, so that
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
        flush: Flush,
    ) -> Result<(), CallError> {
        self.send_with(to, body, cookie, flush, CallOptions::default())
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
        flush: Flush,
        options: CallOptions,
    ) -> Result<(), CallError> {
        let body = body.into();
        let end = self.end(to.host);
        let (engine, to) = end.shared.enter_towards(to)?;
        operate(&end.shared, engine, flush, |engine, now| {
            let deadline = options.deadline_from(now);
            engine.call(now, end.key, to, body, CompletionMode::Queue(cookie), deadline).map(drop)
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
        self.ends[0].takers.note_other();
        self.receive(timeout, |queue, end| Incoming::new(next(queue), end))
    }

    /// The next message if one is there; turns the engine once to see.
    ///
    /// # Errors
    ///
    /// [`RecvError::Empty`] when nothing is there, [`RecvError::Closed`] as for `recv`.
    pub fn try_recv(&self) -> Result<Incoming, RecvError> {
        self.ends[0].takers.note_other();
        let mut take = |queue: &mut Queue, end: &_| Incoming::new(next(queue), end);
        let home = self.home();
        for shard in 0..self.ends.len() {
            let end = &self.ends[(home + shard) % self.ends.len()];
            let engine = end.shared.enter()?;
            if let Some(output) = end.look_in_passing(engine, &mut take) {
                return output;
            }
        }
        Err(RecvError::Empty)
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
        self.ends[0].takers.note_other();
        self.receive_batch(batch, max, timeout)
    }

    #[inline]
    fn receive_batch(
        &self,
        batch: &mut Vec<Incoming>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, RecvError> {
        self.receive(timeout, |queue, end| {
            let count = queue.len().min(max.max(1));
            batch.extend((0..count).map(|_| Incoming::new(next(queue), end)));
            count
        })
    }

    /// Waits until something is in the queue of one of the ends, and has `take` take of it.
    #[inline]
    fn receive<T>(
        &self,
        timeout: Option<Duration>,
        mut take: impl FnMut(&mut Queue, &Arc<SocketInner>) -> T,
    ) -> Result<T, RecvError> {
        let home = &self.ends[self.home()];
        let mut engine = home.shared.enter()?;
        let mut now = clock::now();
        let until = timeout.map(|timeout| now + timeout);
        if home.shared.regime == Regime::NobodySleeps && self.ends.len() > 1 {
            drop(engine);
            return self.receive_busy(until, take);
        }
        loop {
            let mut awaited = AwaitMail { end: home, take: &mut take };
            match home.shared.wait(engine, &mut awaited, now, until)? {
                None => return Err(RecvError::Timeout),
                Some(Err(closed)) => return Err(closed),
                Some(Ok(Mail::Here(output))) => return Ok(output),
                Some(Ok(Mail::Elsewhere)) => {}
            }
            for end in self.ends.iter().filter(|end| !Arc::ptr_eq(end, home)) {
                let mut engine = end.shared.lock()?;
                if let Some(output) = end.look(&mut engine, false, &mut take) {
                    return output;
                }
            }
            engine = home.shared.lock()?;
            now = clock::now();
        }
    }

    /// Where nobody sleeps, nobody else turns the engines of other shards.
    fn receive_busy<T>(
        &self,
        until: Option<Time>,
        mut take: impl FnMut(&mut Queue, &Arc<SocketInner>) -> T,
    ) -> Result<T, RecvError> {
        loop {
            for end in &*self.ends {
                // Whoever has the lock turns the engine.
                let Some(engine) = end.shared.try_lock()? else { continue };
                if let Some(output) = end.look_in_passing(engine, &mut take) {
                    return output;
                }
            }
            if until.is_some_and(|until| until <= clock::now()) {
                return Err(RecvError::Timeout);
            }
        }
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
    ///
    /// # Panics of the handler
    ///
    /// A handler that panics ends with its request, not with the service: the caller gets
    /// [`CallError::HandlerPanicked`] unless it was answered before, the panic is counted
    /// (`handler_panics` of [`Stats`](crate::Stats)), and the next request is handled. What the handler
    /// shares with other requests must bear that, as it must bear a panic of another thread. Where
    /// panics abort (`panic = "abort"`), the process ends.
    ///
    /// # A handler that calls its own service
    ///
    /// waits for another thread to serve the call. If no other thread does, it would wait for ever:
    /// [`call`](Self::call) notices that after a second and gives [`CallError::OwnService`]. It does not
    /// notice when the call was begun by [`start`](Self::start), nor when two services call each other.
    /// Use more threads than calls can be nested, futures, or plain functions.
    pub fn serve(&self, mut handler: impl FnMut(Request)) {
        let _serving = Serving::begin(&self.ends[0]);
        let mut batch = Vec::with_capacity(SERVE_BATCH);
        let mut quick = true;
        while let Ok(count) = self.receive_batch(&mut batch, SERVE_BATCH, None) {
            let began = clock::now();
            let together = quick && count > 1;
            // All of a batch came to one end.
            let cork = together.then(|| batch.first().and_then(Incoming::end).map(Cork::new));
            for incoming in batch.drain(..) {
                if let Incoming::Request(request) = incoming {
                    let handled = panic::catch_unwind(AssertUnwindSafe(|| handler(request)));
                    if handled.is_err() {
                        self.count_handler_panic();
                    }
                }
            }
            drop(cork);
            let count = u32::try_from(count).expect("a batch is small");
            quick = clock::now().saturating_since(began) < QUICK * count;
        }
    }

    #[cold]
    fn count_handler_panic(&self) {
        if let Ok(mut engine) = self.ends[0].shared.enter() {
            engine.counters.handler_panics += 1;
        }
    }

    /// Closes the port now, whoever still holds the socket: every thread and task that waits for it
    /// is woken with `Closed`, outstanding calls end, requests not answered are given up. Does nothing
    /// in a forked child of the process that opened it.
    pub fn shutdown(&self) {
        for end in &*self.ends {
            let Ok(mut engine) = end.shared.enter() else { return };
            engine.close(end.key);
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("port", &self.port()).finish_non_exhaustive()
    }
}

/// Does one operation that does not wait, and transmits unless another operation follows.
#[inline]
pub(crate) fn operate<T, E>(
    shared: &Shared,
    mut engine: Guard<'_>,
    flush: Flush,
    operation: impl FnOnce(&mut Engine, Time) -> Result<T, E>,
) -> Result<T, E> {
    let stay = flush == Flush::Later || CORKED.get() == std::ptr::from_ref(shared).addr();
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
    Ok(result)
}

thread_local! {
    /// The node for which this thread holds operations back, as the address of its [`Shared`].
    static CORKED: Cell<usize> = const { Cell::new(0) };
}

/// While it lives, this thread's operations on a node stay queued.
struct Cork {
    end: Arc<SocketInner>,
    before: usize,
}

impl Cork {
    fn new(end: &Arc<SocketInner>) -> Self {
        let shared = &*end.shared;
        Self { end: Arc::clone(end), before: CORKED.replace(std::ptr::from_ref(shared).addr()) }
    }
}

impl Drop for Cork {
    fn drop(&mut self) {
        CORKED.set(self.before);
        let Ok(mut engine) = self.end.shared.enter() else { return };
        if engine.corked().is_some() && !engine.stopped {
            let now = clock::now();
            engine.transmit(now);
            engine.see_to(now);
        }
    }
}

/// How long a call that a handler makes to its own service waits before it looks whether any thread is
/// there to serve it: others may be about to begin.
const OWN_SERVICE: Duration = Duration::from_secs(1);

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
        socket.ends[0].takers.note_other();
        self.leave();
        let mut take = |queue: &mut Queue, end: &_| Incoming::new(next(queue), end);
        let id = parker::next_id();
        for end in &*socket.ends {
            let shared = &*end.shared;
            let mut engine = match shared.enter() {
                Ok(engine) => engine,
                Err(unusable) => return Poll::Ready(Err(unusable.into())),
            };
            let now = clock::now();
            let nobody_sleeps = shared.regime == Regime::NobodySleeps;
            if engine.corked().is_some() || nobody_sleeps {
                engine.turn(now);
            }
            if let Some(output) = end.look(&mut engine, true, &mut take) {
                drop(engine);
                self.leave();
                return Poll::Ready(output);
            }
            if !nobody_sleeps {
                // From here on it may be called, by this end or by one before.
                self.waiting = Some(id);
                engine.mail.wait_for_mail(end.key, Waiter::Task(id, context.waker().clone()));
                engine.need_progress();
                engine.see_to(now);
            }
        }
        if self.waiting.is_none() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Recv<'_> {
    /// Waits nowhere any more.
    fn leave(&mut self) {
        let Some(id) = self.waiting.take() else {
            return;
        };
        for end in &*self.socket.ends {
            let Ok(mut engine) = end.shared.enter() else { continue };
            engine.mail.leave_mail(end.key, id);
            engine.mail.pass_on(end.key);
        }
    }
}

impl Drop for Recv<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Recv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").field("socket", self.socket).finish_non_exhaustive()
    }
}

/// The oldest of a queue.
#[inline]
fn next(queue: &mut Queue) -> Arrival {
    queue.pop().expect("looked at a moment ago: it is not empty")
}

impl SocketInner {
    /// What `take` takes of the queue, if anything is there. `home`: the thread waits in this shard.
    #[inline]
    fn look<T>(
        self: &Arc<Self>,
        engine: &mut Engine,
        home: bool,
        take: &mut impl FnMut(&mut Queue, &Arc<Self>) -> T,
    ) -> Option<Result<T, RecvError>> {
        let Some(mailbox) = engine.mail.mailbox(self.key) else {
            return Some(Err(RecvError::Closed));
        };
        let output = (!mailbox.queue.is_empty()).then(|| take(&mut mailbox.queue, self));
        mailbox.looked(home);
        if output.is_some() {
            engine.mail.note_change(self.key);
        }
        output.map(Ok)
    }

    /// The same; turns the engine to see if nothing is there.
    fn look_in_passing<T>(
        self: &Arc<Self>,
        mut engine: Guard<'_>,
        take: &mut impl FnMut(&mut Queue, &Arc<Self>) -> T,
    ) -> Option<Result<T, RecvError>> {
        let mut output = self.look(&mut engine, true, take);
        if output.is_none() {
            let now = clock::now();
            engine.turn_in_passing(now);
            output = self.look(&mut engine, true, take);
            engine.see_to(now);
        }
        output
    }
}

/// Waiting for messages of a socket, at one of its ends.
struct AwaitMail<'a, F> {
    end: &'a Arc<SocketInner>,
    take: &'a mut F,
}

/// Where there is mail.
enum Mail<T> {
    /// At this end, and taken.
    Here(T),
    /// At another one.
    Elsewhere,
}

impl<T, F: FnMut(&mut Queue, &Arc<SocketInner>) -> T> Awaited for AwaitMail<'_, F> {
    type Output = Result<Mail<T>, RecvError>;

    #[inline]
    fn take(&mut self, engine: &mut Engine) -> Option<Self::Output> {
        match self.end.look(engine, true, self.take) {
            Some(output) => Some(output.map(Mail::Here)),
            None => {
                let elsewhere =
                    self.end.cross_shard.as_ref().is_some_and(|cross_shard| cross_shard.has_mail());
                elsewhere.then_some(Ok(Mail::Elsewhere))
            }
        }
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        if let Some(cross_shard) = &self.end.cross_shard {
            cross_shard.enlist(waiter.clone());
        }
        engine.mail.wait_for_mail(self.end.key, waiter);
    }

    fn delist(&self, engine: &mut Engine, id: WaiterId) -> bool {
        if let Some(cross_shard) = &self.end.cross_shard {
            cross_shard.delist(id);
        }
        engine.mail.leave_mail(self.end.key, id)
    }

    fn socket(&self) -> Option<SocketKey> {
        Some(self.end.key)
    }

    fn spin<'m>(&self, mail: &'m mut mail::Mail) -> Option<&'m mut Spin> {
        mail.mailbox(self.end.key).map(|mailbox| &mut mailbox.receive_spin)
    }
}
