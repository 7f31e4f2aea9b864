//! The context of a request in its handler, and of the calls that the handler makes.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use apus::{Address, Peer, TraceContext};

use crate::cancellation::{Cancellation, WaitCancelled};
use crate::code::Code;
use crate::envelope::MethodPath;
use crate::metadata::{Metadata, MetadataError};
use crate::observe::ServerCall;
use crate::spawning::Spawn;
use crate::transport::Incoming;

/// The facts of a request that its handler needs beside the body. Clones are the same context.
///
/// Calls that a handler makes belong to its request: a call has no more time than the request
/// ([`remaining`](Self::remaining)) and the same trace context, and ends when the handler is dropped because its client has given the
/// request up. This holds for calls that are made while the handler's future is polled; a task of its own enters the context with
/// [`scope`](Self::scope) or [`spawn`](Self::spawn).
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    path: MethodPath,
    from: Address,
    deadline: Option<Instant>,
    trace: Option<TraceContext>,
    metadata: Metadata,
    cancellation: Cancellation,
    spawner: Arc<dyn Spawn>,
    observed: ServerCall,
    answer: Mutex<Unanswered>,
}

/// The request until it is answered, and what goes with its response.
struct Unanswered {
    request: Option<Incoming>,
    metadata: Metadata,
    trailers: Metadata,
}

impl Context {
    pub(crate) fn new(
        path: MethodPath,
        metadata: Metadata,
        request: Incoming,
        spawner: Arc<dyn Spawn>,
    ) -> Self {
        let deadline = request.remaining().map(|remaining| Instant::now() + remaining);
        let (from, trace) = (request.from(), request.trace_context());
        let observed = ServerCall::begin(&path, &request);
        let (before, trailers) = (Metadata::new(), Metadata::new());
        let answer = Mutex::new(Unanswered { request: Some(request), metadata: before, trailers });
        let cancellation = Cancellation::default();
        Self {
            inner: Arc::new(Inner {
                path,
                from,
                deadline,
                trace,
                metadata,
                cancellation,
                spawner,
                observed,
                answer,
            }),
        }
    }

    /// Becomes the context of another request of the same method, after [`clear`](Self::clear). Its memory is used again unless the
    /// program has a clone.
    pub(crate) fn renew(
        &mut self,
        path: &MethodPath,
        metadata: Metadata,
        request: Incoming,
        spawner: &Arc<dyn Spawn>,
    ) {
        let Some(inner) = Arc::get_mut(&mut self.inner) else {
            *self = Self::new(path.clone(), metadata, request, Arc::clone(spawner));
            return;
        };
        inner.deadline = request.remaining().map(|remaining| Instant::now() + remaining);
        (inner.from, inner.trace) = (request.from(), request.trace_context());
        inner.metadata = metadata;
        inner.observed = ServerCall::begin(&inner.path, &request);
        let answer = inner.answer.get_mut().unwrap_or_else(PoisonError::into_inner);
        answer.request = Some(request);
    }

    /// Forgets the request, which is answered. Returns false if the program has a clone.
    pub(crate) fn clear(&mut self) -> bool {
        let Some(inner) = Arc::get_mut(&mut self.inner) else { return false };
        inner.metadata = Metadata::new();
        inner.cancellation.renew();
        let answer = inner.answer.get_mut().unwrap_or_else(PoisonError::into_inner);
        *answer =
            Unanswered { request: None, metadata: Metadata::new(), trailers: Metadata::new() };
        true
    }

    fn answer(&self) -> MutexGuard<'_, Unanswered> {
        self.inner.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path of the method.
    #[must_use]
    pub fn path(&self) -> &MethodPath {
        &self.inner.path
    }

    /// The client's node and port. The address is not authenticated; [`identity`](Self::identity) is.
    #[must_use]
    pub fn peer(&self) -> Address {
        self.inner.from
    }

    /// The client as its certificate names it. `None` if the request came in plain packets, and after the response.
    #[must_use]
    pub fn identity(&self) -> Option<Peer> {
        self.answer().request.as_ref()?.peer()
    }

    /// The metadata of the request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.inner.metadata
    }

    /// The time at which the client gives the request up, if its call has a deadline. The handler is dropped then.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.inner.deadline
    }

    /// The time until the [deadline](Self::deadline); zero when it has passed.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The place of the request in a distributed trace, if the client has sent one. Any client can name any trace.
    #[must_use]
    pub fn trace(&self) -> Option<TraceContext> {
        self.inner.trace
    }

    /// Says that the method exists, in the handler of [`fallback`](crate::ServerBuilder::fallback): the histogram of requests has its
    /// path as a label then, in place of `_OTHER`. Clients can send any path, so this is for a bounded number of them.
    pub fn note_known_method(&self) {
        self.inner.observed.set_named(true);
    }

    /// The method is that of a fallback, which may have it or not.
    pub(crate) fn note_fallback(&self) {
        self.inner.observed.set_named(false);
    }

    /// Whether the request was given up: by its client, at its deadline, or because the server stops. The handler's future is dropped
    /// then, so this is for tasks and threads beside it.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancellation.is_cancelled()
    }

    /// Waits until the request is given up, see [`is_cancelled`](Self::is_cancelled). Waits without end if it is answered.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        WaitCancelled::new(self.clone())
    }

    /// Runs a future in this context: calls that it makes belong to the request.
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        let (context, mut future) = (self.clone(), Box::pin(future));
        std::future::poll_fn(move |task| context.enter(|| future.as_mut().poll(task)))
    }

    /// Runs a task beside the handler, on the threads of the server and in this context. It ends when the request is given up, and
    /// goes on when the request is answered.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let (mut cancelled, mut future) = (self.cancelled(), Box::pin(future));
        let context = self.clone();
        self.inner.spawner.spawn(Box::pin(std::future::poll_fn(move |task| {
            if Pin::new(&mut cancelled).poll(task).is_ready() {
                return Poll::Ready(());
            }
            context.enter(|| future.as_mut().poll(task))
        })));
    }

    /// Adds a pair to the metadata before the response's body.
    ///
    /// # Errors
    ///
    /// As [`Metadata::append`] and [`Metadata::append_bin`].
    pub fn set_metadata(&self, name: &str, value: impl Into<String>) -> Result<(), MetadataError> {
        self.answer().metadata.append(name, value)
    }

    /// Adds a pair to the trailers: metadata after the response's body, or beside the status of an error.
    ///
    /// # Errors
    ///
    /// As [`Metadata::append`].
    pub fn set_trailer(&self, name: &str, value: impl Into<String>) -> Result<(), MetadataError> {
        self.answer().trailers.append(name, value)
    }

    /// The metadata before the response's body, to be changed.
    pub fn with_response_metadata<T>(&self, change: impl FnOnce(&mut Metadata) -> T) -> T {
        change(&mut self.answer().metadata)
    }

    /// The trailers, to be changed.
    pub fn with_trailers<T>(&self, change: impl FnOnce(&mut Metadata) -> T) -> T {
        change(&mut self.answer().trailers)
    }

    /// Gives the request up: tasks that wait for [`cancelled`](Self::cancelled) are woken.
    pub(crate) fn cancel(&self) {
        self.inner.cancellation.cancel();
    }

    /// Ready if the client has given the request up, or its deadline has passed. Otherwise the task is woken when that happens.
    pub(crate) fn poll_given_up(&self, task: &std::task::Context<'_>) -> Poll<()> {
        let answer = self.answer();
        answer.request.as_ref().map_or(Poll::Pending, |request| request.poll_cancelled(task))
    }

    /// The request that stands for the call.
    pub(crate) fn take_request(&self) -> Option<Incoming> {
        self.answer().request.take()
    }

    /// The request with the metadata and the trailers of its response.
    pub(crate) fn take_answer(&self) -> Option<(Incoming, Metadata, Metadata)> {
        let mut answer = self.answer();
        let request = answer.request.take()?;
        Some((request, mem::take(&mut answer.metadata), mem::take(&mut answer.trailers)))
    }

    /// Gives the call another request that stands for it. Returns the request if it has one.
    pub(crate) fn hold(&self, request: Incoming) -> Result<(), Box<Incoming>> {
        let mut answer = self.answer();
        if answer.request.is_some() {
            return Err(Box::new(request));
        }
        answer.request = Some(request);
        Ok(())
    }

    /// The call has ended for the server.
    pub(crate) fn note_end(&self, code: Code) {
        self.inner.observed.end(code);
    }

    /// Whether a request stands for the call.
    pub(crate) fn is_held(&self) -> bool {
        self.answer().request.is_some()
    }

    /// The metadata before the response's body.
    pub(crate) fn take_metadata(&self) -> Metadata {
        mem::take(&mut self.answer().metadata)
    }

    pub(crate) fn take_trailers(&self) -> Metadata {
        mem::take(&mut self.answer().trailers)
    }

    /// Runs a function in this context.
    pub(crate) fn enter<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = CURRENT.with(|current| current.replace(Some(self.clone())));
        let _restore = Restore { before };
        self.inner.observed.enter(run)
    }

    /// The context of the request whose handler the calling thread runs.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// Restores the context of a thread, also when a handler panics.
struct Restore {
    before: Option<Context>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        let inner = CURRENT.with(|current| current.replace(self.before.take()));
        drop(inner);
    }
}

impl AsRef<Cancellation> for Context {
    fn as_ref(&self) -> &Cancellation {
        &self.inner.cancellation
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("path", self.path())
            .field("peer", &format_args!("{}", self.peer()))
            .field("deadline", &self.deadline())
            .field("metadata", self.metadata())
            .finish_non_exhaustive()
    }
}
