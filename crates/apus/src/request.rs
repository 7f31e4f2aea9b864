//! A request on the server's side.

use std::convert::Infallible;
use std::future::{self, Future};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, mem, thread};

use apus_proto::{Body, Endpoint, RpcKey, Time};
use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

use crate::address::Address;
use crate::delivery::Regime;
use crate::delivery::parker::{self, Waiter};
use crate::engine::{Engine, QueuedReply, Reply};
use crate::error::{RecvError, ReplyError};
use crate::flush::{self, Cork, Flush, operate};
use crate::local_caller::LocalCaller;
use crate::mail::queue::{Queue, WaitingRequest};
use crate::observe::spans::{RequestTrace, Scope};
use crate::secure::peer::Peer;
use crate::socket::{Deliverable, Socket, SocketInner};
use crate::sync::clock;

/// A request from a client, executed at most once.
///
/// Any thread may answer it, at any time. Dropping it without an answer gives it up: the client learns after some round trips
/// that there will be no response. If a panic drops it, the client is notified at once
/// ([`HandlerPanicked`](crate::CallError::HandlerPanicked)), unless the client is a Linux host. An unanswered request keeps its
/// port open and counts against the budgets of its client.
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn work(_: &[u8]) -> Vec<u8> { Vec::new() }
/// # fn example(port: apus::Port) {
/// port.serve(|request| {
///     println!("{} bytes from {}", request.body().len(), request.from());
///     if request.remaining().is_some_and(|left| left < Duration::from_millis(1)) {
///         return; // Too late for a response: the request is given up.
///     }
///     let response = work(request.body());
///     let _ = request.reply(response); // The client may have gone.
/// });
/// # }
/// ```
pub struct Request {
    socket: Arc<SocketInner>,
    rpc: RpcKey,
    from: Address,
    /// The way to the client.
    path: PathId,
    /// [`NEVER`] if it has none. Requests are moved several times, so they are kept small.
    deadline: Time,
    /// Time at which the application took the request, if it has a deadline.
    taken: Time,
    trace: RequestTrace,
    body: Bytes,
    answer: ResponseState,
    /// A task has waited for its end.
    watched: AtomicBool,
}

/// The state of the response to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResponseState {
    Open,
    /// It is in the place of the request's body.
    Set,
    Given,
    /// There is none, as after a panic of the handler.
    Failed,
}

/// A time that does not come.
const NEVER: Time = Time::from_nanos(u64::MAX);

impl Deliverable for Request {
    #[inline(always)]
    fn take(queue: &mut Queue, endpoint: &mut Endpoint, end: &Arc<SocketInner>) -> Option<Self> {
        // The usual request is moved once.
        match queue.next_wanted(endpoint) {
            Some(request) => Some(Self::taken(request, end)),
            None if queue.has_requests() => Self::take_behind(queue, endpoint, end),
            None => None,
        }
    }

    #[inline(always)]
    fn take_into(
        place: &mut Result<Self, RecvError>,
        queue: &mut Queue,
        endpoint: &mut Endpoint,
        end: &Arc<SocketInner>,
    ) -> bool {
        if let Some(request) = queue.next_wanted(endpoint) {
            *place = Ok(Self::taken(request, end));
            return true;
        }
        if !queue.has_requests() {
            return false;
        }
        let Some(request) = Self::take_behind(queue, endpoint, end) else { return false };
        *place = Ok(request);
        true
    }

    #[inline]
    fn is_noted(&self) -> bool {
        RequestTrace::may_be_wanted()
    }

    #[cold]
    fn delivered(&mut self, socket: &Socket) {
        let id = || self.socket.shared.enter().ok()?.endpoint.rpc_id(self.rpc);
        self.trace.begin_span(self.from, socket.port(), self.body.len(), id);
    }
}

impl Request {
    #[inline(always)]
    fn taken(request: WaitingRequest, end: &Arc<SocketInner>) -> Self {
        let WaitingRequest { rpc, from, path, deadline, trace, body, .. } = request;
        let socket = Arc::clone(end);
        let trace = RequestTrace::new(trace);
        let taken = if deadline.is_some() { clock::now() } else { NEVER };
        let deadline = deadline.unwrap_or(NEVER);
        let (answer, watched) = (ResponseState::Open, AtomicBool::new(false));
        Self { socket, rpc, from, path, deadline, taken, trace, body, answer, watched }
    }

    /// Takes a request behind those that are not wanted, or a late one.
    #[cold]
    fn take_behind(
        queue: &mut Queue,
        endpoint: &mut Endpoint,
        end: &Arc<SocketInner>,
    ) -> Option<Self> {
        queue.next_request(endpoint).map(|request| Self::taken(request, end))
    }

    /// Has the calling thread hold back its operations on the node while it handles requests that arrived with this one.
    pub(crate) fn cork(&self) -> Cork {
        Cork::new(&self.socket.shared, self.socket.key)
    }

    /// The span of this request ([`apus::tracing`](crate::tracing)), for handlers that [`Port::serve`](crate::Port::serve) does
    /// not call. Calls that are made in it belong to the same trace. Needs the feature `tracing`.
    ///
    /// ```no_run
    /// # fn handle(request: apus::Request) {}
    /// # fn example(request: apus::Request) {
    /// request.span().clone().in_scope(|| handle(request));
    /// # }
    /// ```
    ///
    /// A future enters it with `.instrument(request.span().clone())`.
    #[cfg(feature = "tracing")]
    #[must_use]
    pub fn span(&self) -> &::tracing::Span {
        self.trace.span()
    }

    /// The span, to be entered around a handler.
    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        self.trace.scope()
    }

    /// The client's node and port. The address is not authenticated; [`peer`](Self::peer) is.
    #[must_use]
    pub fn from(&self) -> Address {
        self.from
    }

    /// The process that has made the request, if it is on this host and the request came through memory that is shared with it. The
    /// kernel vouches for its PID and user. `None` for a request over the network, also from a node of this host with which no memory is
    /// shared (yet), for one through a shared engine ([`Config::engine`](crate::Config::engine)), and when the process has ended. A
    /// service that admits callers by this must refuse requests without one.
    ///
    /// ```no_run
    /// # fn example(request: apus::Request) {
    /// let admitted = request.caller().is_some_and(|caller| caller.uid == 1000);
    /// let _ = request.reply(if admitted { "welcome" } else { "refused" });
    /// # }
    /// ```
    #[must_use]
    pub fn caller(&self) -> Option<LocalCaller> {
        if !self.path.is_local() {
            return None;
        }
        self.socket.shared.enter().ok()?.process(self.path)
    }

    /// The client's node, as its certificate names it. `None` if the request came in plain packets, or through memory that is shared
    /// with a node without a certificate.
    ///
    /// ```no_run
    /// # fn example(request: apus::Request) {
    /// match request.peer() {
    ///     Some(peer) => println!("{} calls from {}", peer.name(), request.from()),
    ///     None => println!("somebody without a certificate calls from {}", request.from()),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        self.socket.shared.enter().ok()?.peer(self.path)
    }

    /// The bytes of the request, which may be none.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Takes the bytes of the request, without a copy. [`body`](Self::body) is empty afterwards.
    #[must_use]
    pub fn take_body(&mut self) -> Bytes {
        mem::take(&mut self.body)
    }

    /// The time until the deadline of the call, if it has one; zero when it has passed. A service that makes calls of its own
    /// for this request should give them no more time. Clients on Linux hosts send no deadline.
    ///
    /// ```no_run
    /// # fn example(
    /// #     request: apus::Request, client: apus::Client, storage: apus::Address,
    /// # ) -> Result<(), apus::CallError> {
    /// let mut call = client.call(storage, request.body().clone());
    /// if let Some(left) = request.remaining() {
    ///     call = call.deadline(left);
    /// }
    /// let value = call.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        (self.deadline != NEVER).then(|| self.deadline.saturating_since(clock::now()))
    }

    /// The place of the call in a distributed trace, if the client has sent one ([`CallOptions::trace_context`]). A service that
    /// makes calls of its own for this request gives them a context of the same trace. Any client can name any
    /// trace. Clients on Linux hosts send no context.
    ///
    /// ```no_run
    /// # fn example(request: &apus::Request, client: &apus::Client, storage: apus::Address) -> Result<(), apus::CallError> {
    /// let mut call = client.call(storage, "read");
    /// if let Some(context) = request.trace_context() {
    ///     call = call.trace_context(context); // Or one with the id of a span of this service.
    /// }
    /// call.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`CallOptions::trace_context`]: crate::CallOptions::trace_context
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.trace.context()
    }

    /// Whether the response is no longer needed: the client has given the call up, its deadline has passed, the client is lost,
    /// or the node was closed. A handler that takes long can check this now and then, and stop. Turns the engine once to find
    /// out. A Linux client does not report that it gave a call up.
    ///
    /// ```no_run
    /// # fn example(request: apus::Request, parts: Vec<Vec<u8>>) {
    /// let mut response = Vec::new();
    /// for part in parts {
    ///     if request.is_cancelled() {
    ///         return; // Nobody needs the rest.
    ///     }
    ///     response.extend(part);
    /// }
    /// # let _ = request.reply(response);
    /// # }
    /// ```
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let Ok(mut engine) = self.socket.shared.enter() else { return true };
        let now = clock::now();
        engine.opportunistic_turn(now);
        engine.transmit_due(now);
        !engine.endpoint.is_active(self.rpc)
    }

    /// Waits until the response is no longer needed, for the reasons of [`is_cancelled`](Self::is_cancelled). A task races this against
    /// its work. The last task that polled is woken.
    ///
    /// ```no_run
    /// # async fn work(_: &[u8]) -> Vec<u8> { Vec::new() }
    /// # async fn example(request: apus::Request) {
    /// use futures_util::future::{Either, select};
    /// use std::pin::pin;
    ///
    /// let done = match select(pin!(work(request.body())), pin!(request.cancelled())).await {
    ///     Either::Left((response, _)) => Some(response),
    ///     Either::Right(_) => None, // Nobody needs the rest.
    /// };
    /// if let Some(response) = done {
    ///     let _ = request.reply(response);
    /// }
    /// # }
    /// ```
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + Sync + Unpin {
        future::poll_fn(|context| self.poll_cancelled(context))
    }

    /// Polls for [`cancelled`](Self::cancelled): for a future that holds the request.
    pub fn poll_cancelled(&self, context: &Context<'_>) -> Poll<()> {
        parker::count_task_poll();
        let shared = &self.socket.shared;
        let Ok(mut engine) = shared.enter() else { return Poll::Ready(()) };
        let now = clock::now();
        if engine.holds_back() || shared.regime == Regime::AlwaysPolls {
            engine.turn(now);
        }
        if !engine.endpoint.watch(self.rpc) {
            return Poll::Ready(());
        }
        if shared.regime == Regime::AlwaysPolls {
            context.waker().wake_by_ref();
        } else {
            self.watched.store(true, Ordering::Relaxed);
            let task = Waiter::task(parker::next_id(), context.waker());
            engine.mail.watch(self.socket.key, self.rpc, task);
            engine.need_progress();
            engine.transmit_due(now);
        }
        Poll::Pending
    }

    #[cold]
    fn end_watch(&self) {
        if let Ok(mut engine) = self.socket.shared.enter() {
            engine.mail.end_watch(self.rpc);
        }
    }

    /// Answers the request. The part of the response that may be sent without a grant is transmitted before this returns,
    /// except for quick handlers of [`Port::serve`](crate::Port::serve): their responses leave together. A short one to a
    /// process of this host is accepted then without a look whether that still waits for it. The body is not copied.
    ///
    /// # Errors
    ///
    /// [`ReplyFailed`] gives the request back, which can be answered again or dropped.
    ///
    /// ```no_run
    /// # fn example(request: apus::Request, long: Vec<u8>) {
    /// if let Err(failed) = request.reply(long) {
    ///     let why = failed.to_string();
    ///     let _ = failed.into_request().reply(why); // The client may have gone.
    /// }
    /// # }
    /// ```
    pub fn reply(self, body: impl Into<Body>) -> Result<(), ReplyFailed> {
        self.reply_with(body, Flush::Now)
    }

    /// [`reply`](Self::reply) that may stay queued until the next operation on the node.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply).
    pub fn reply_with(mut self, body: impl Into<Body>, flush: Flush) -> Result<(), ReplyFailed> {
        let body = body.into();
        let length = body.len();
        if self.path.is_local() && self.may_queue(length) {
            self.queue(body);
            return Ok(());
        }
        let result = self.socket.shared.enter_by(self.path).map_err(ReplyError::from);
        let result = result.and_then(|engine| {
            operate(&self.socket.shared, engine, flush, |engine, now| {
                self.note_service_time(engine, now);
                engine.reply(now, self.socket.key, self.rpc, self.path, body)
            })
        });
        match result {
            Ok(()) => {
                self.answered(length);
                Ok(())
            }
            Err(error) => {
                self.trace.reply_failed(&error);
                Err(ReplyFailed { request: Box::new(self), error })
            }
        }
    }

    /// Whether a response of this length may leave with others of the batch that the calling thread handles.
    #[inline]
    fn may_queue(&self, length: usize) -> bool {
        let shared = &self.socket.shared;
        flush::is_corked(shared, self.socket.key) && shared.replies.takes(length)
    }

    #[inline]
    fn queue(mut self, body: Body) {
        self.answered(body.len());
        let taken = (self.taken != NEVER).then_some(self.taken);
        let (socket, rpc, path) = (self.socket.key, self.rpc, self.path);
        self.socket.shared.replies.push(QueuedReply { socket, rpc, path, taken, body });
    }

    #[inline]
    fn answered(&mut self, length: usize) {
        self.answer = ResponseState::Given;
        self.trace.replied(length);
    }

    /// Sets the response that [`reply_all`](Self::reply_all) sends, in place of the request's body. The parts of a long one
    /// are joined.
    pub fn set_reply(&mut self, body: impl Into<Body>) {
        self.body = body.into().into_bytes();
        self.answer = ResponseState::Set;
    }

    /// Answers all requests with a response from [`set_reply`](Self::set_reply), under one lock for those that follow each other and
    /// came from one client. Returns their number, and removes them from `requests`. Requests without a response stay, and those
    /// whose response is refused, for example because the client has gone: their [body](Self::body) is the response, and
    /// [`reply`](Self::reply) returns the reason.
    ///
    /// ```no_run
    /// use apus::{Flush, Request};
    ///
    /// # fn example(port: apus::Port) {
    /// let mut requests = Vec::new();
    /// while port.recv_many(&mut requests, 64, None).is_ok() {
    ///     for request in &mut requests {
    ///         let response = request.take_body();
    ///         request.set_reply(response);
    ///     }
    ///     Request::reply_all(&mut requests, Flush::Now);
    ///     requests.clear(); // Gives up those whose clients have gone.
    /// }
    /// # }
    /// ```
    pub fn reply_all(requests: &mut Vec<Self>, flush: Flush) -> usize {
        let before = requests.len();
        let is_same = |a: &Self, b: &Self| a.path == b.path && Arc::ptr_eq(&a.socket, &b.socket);
        for run in requests.chunk_by_mut(is_same) {
            Self::reply_run(run, flush);
        }
        requests.retain(|request| request.answer != ResponseState::Given);
        before - requests.len()
    }

    /// Answers requests of one port that came by one path.
    fn reply_run(run: &mut [Self], flush: Flush) {
        let Some(first) = run.first() else { return };
        let (socket, path) = (Arc::clone(&first.socket), first.path);
        let Ok(engine) = socket.shared.enter_by(path) else { return };
        let Ok(()) = operate(&socket.shared, engine, flush, |engine, now| {
            for request in run.iter_mut().filter(|request| request.answer == ResponseState::Set) {
                request.note_service_time(engine, now);
            }
            engine.reply_many(now, socket.key, path, run);
            Ok::<_, Infallible>(())
        });
    }

    /// Records the service time.
    #[inline]
    fn note_service_time(&self, engine: &mut Engine, now: Time) {
        if self.taken != NEVER
            && let Some(mailbox) = engine.mail.mailbox(self.socket.key)
        {
            mailbox.queue.note_service_time(now.saturating_since(self.taken));
        }
    }

    /// Gives the request up, as dropping it does.
    pub fn abandon(self) {}

    /// Gives the request up as a panic that drops it does: the client is notified at once
    /// ([`HandlerPanicked`](crate::CallError::HandlerPanicked)), unless it is a Linux host. For handlers in other languages, which
    /// fail without a panic. The counter `handler_panics` counts panics of [`Port::serve`](crate::Port::serve) only.
    pub fn fail(mut self) {
        self.answer = ResponseState::Failed;
    }
}

impl Reply for Request {
    fn rpc(&self) -> RpcKey {
        self.rpc
    }

    #[inline]
    fn take_response(&mut self) -> Option<(RpcKey, Body)> {
        (self.answer == ResponseState::Set).then(|| (self.rpc, mem::take(&mut self.body).into()))
    }

    #[inline]
    fn sent(&mut self, length: usize) {
        self.answered(length);
    }

    #[cold]
    fn refused(&mut self, body: Body, error: &ReplyError) {
        self.body = body.into_bytes();
        self.trace.reply_failed(error);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if *self.watched.get_mut() {
            self.end_watch();
        }
        if self.answer == ResponseState::Given {
            return;
        }
        let failed = self.answer == ResponseState::Failed || thread::panicking();
        self.trace.give_up(failed);
        let Ok(mut engine) = self.socket.shared.enter() else { return };
        let now = clock::now();
        self.note_service_time(&mut engine, now);
        let given_up = if failed {
            engine.endpoint.reject(self.rpc, UnknownReason::HandlerPanicked)
        } else {
            engine.endpoint.abort(self.rpc)
        };
        if given_up {
            engine.transmit(now);
            engine.transmit_due(now);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("from", &format_args!("{}", self.from))
            .field("length", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The node did not accept a response. Dropping this error drops the request with it, and gives it up.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ReplyFailed {
    request: Box<Request>,
    error: ReplyError,
}

impl ReplyFailed {
    /// Why the node did not accept the response.
    #[must_use]
    pub fn error(&self) -> ReplyError {
        self.error
    }

    /// The request, which is not answered. Its [`body`](Request::body) is as before the reply.
    #[must_use]
    pub fn into_request(self) -> Request {
        *self.request
    }
}
