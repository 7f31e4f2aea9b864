//! A request in the hands of its handler.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

use pin_project_lite::pin_project;

use crate::body::MessageBody;
use crate::cancellation::WaitCancelled;
use crate::code::Code;
use crate::context::Context;
use crate::envelope::MethodPath;
use crate::metadata::Metadata;
use crate::server::admission::{Admittance, Permit};
use crate::server::answer;
use crate::server::counters::count;
use crate::server::in_service::{InService, WaitingEntry};
use crate::status::Status;
use crate::transport::Incoming;

/// A request that has a method.
pub(crate) struct Arrival<'a> {
    pub(crate) path: &'a MethodPath,
    pub(crate) metadata: Metadata,
    pub(crate) request: Incoming,
    pub(crate) permit: Permit<'a>,
    pub(crate) in_service: &'a Arc<InService>,
    /// The method has no path of its own.
    pub(crate) is_fallback: bool,
}

/// A request that a handler was chosen for. It is answered when it is dropped, if not before.
pub(crate) struct Accepted {
    context: Context,
    in_service: Arc<InService>,
    /// From the moment at which the handler has to wait.
    entry: Option<WaitingEntry>,
    /// The handler has ended. The last chunks of a stream may wait.
    has_ended: bool,
    /// Given back at the end.
    place: Option<Admittance>,
}

impl Accepted {
    pub(crate) fn new(arrival: Arrival<'_>) -> Self {
        let Arrival { path, metadata, request, permit, in_service, is_fallback } = arrival;
        count(&in_service.counters.begun);
        let spawner = Arc::clone(&in_service.spawner);
        let context = Context::new(path.clone(), metadata, request, spawner);
        if is_fallback {
            context.note_fallback();
        }
        Self {
            context,
            in_service: Arc::clone(in_service),
            entry: None,
            has_ended: false,
            place: Some(permit.stay()),
        }
    }

    /// Takes another request of the method. The one before is [cleared](Self::clear).
    fn renew(&mut self, arrival: Arrival<'_>) {
        let Arrival { path, metadata, request, permit, in_service, .. } = arrival;
        count(&in_service.counters.begun);
        self.context.renew(path, metadata, request, &in_service.spawner);
        (self.has_ended, self.place) = (false, Some(permit.stay()));
    }

    /// Forgets the request, which is answered. Returns false if the program has its context.
    fn clear(&mut self) -> bool {
        self.leave();
        self.context.clear()
    }

    /// Gives the places of the request back.
    fn leave(&mut self) {
        self.entry = None;
        if let Some(place) = self.place.take() {
            self.in_service.admission.leave(place);
        }
    }

    pub(crate) fn in_service(&self) -> &InService {
        &self.in_service
    }

    /// The handler has to wait.
    pub(crate) fn note_waiting(&mut self) {
        let enter = || self.in_service.enter(self.context.clone());
        self.entry.get_or_insert_with(enter);
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Answers with the result of the handler.
    pub(crate) fn answer(&mut self, result: Result<MessageBody, Status>) {
        self.has_ended = true;
        self.context.note_end(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
        let Some((request, metadata, trailers)) = self.context.take_answer() else { return };
        let (counters, limits) = (&self.in_service.counters, &self.in_service.limits);
        match result {
            Ok(body) => {
                count(&counters.succeeded);
                answer::succeed(request, metadata, trailers, body, limits);
            }
            Err(status) => {
                count(&counters.failed);
                answer::fail(request, metadata, trailers, &status, limits);
            }
        }
    }

    /// Answers in place of a handler that has panicked.
    #[cold]
    pub(crate) fn panicked(&mut self) {
        let status = self.note_panic();
        self.answer(Err(status));
    }

    /// Answers in place of a handler that is dropped.
    #[cold]
    fn give_up(&mut self) {
        count(&self.in_service.counters.given_up);
        if let Some(place) = &self.place {
            self.in_service.admission.note_given_up(place);
        }
        self.context.cancel();
        let is_late = self.context.remaining().is_some_and(|remaining| remaining.is_zero());
        self.context.note_end(if is_late { Code::DeadlineExceeded } else { Code::Cancelled });
        // That of a stream is answered before.
        let Some(request) = self.context.take_request() else { return };
        let status = Status::new(Code::Cancelled, "the handler was dropped before its end");
        let (metadata, trailers) = Default::default();
        answer::fail(request, metadata, trailers, &status, &self.in_service.limits);
    }

    /// The server has ended the call of a stream, whose response is beyond a limit, and drops its handler.
    #[cold]
    pub(crate) fn end_by_limit(&mut self) {
        self.note_end(Code::ResourceExhausted);
        self.context.cancel();
    }

    /// Counts a panic, and returns the status of its call.
    #[cold]
    pub(crate) fn note_panic(&self) -> Status {
        count(&self.in_service.counters.panics);
        Status::new(Code::Internal, "the handler panicked")
    }

    /// The handler of a stream has ended.
    pub(crate) fn note_end(&mut self, code: Code) {
        let counters = &self.in_service.counters;
        count(if code == Code::Ok { &counters.succeeded } else { &counters.failed });
        self.has_ended = true;
        self.context.note_end(code);
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if !self.has_ended {
            self.give_up();
        }
        self.leave();
    }
}

pin_project! {
    /// The future of a handler, polled in its context. It ends early when the request is given up.
    pub(crate) struct Handling<F, B> {
        // Fields are dropped in this order: the handler ends before its request is answered for it.
        #[pin]
        future: Option<F>,
        cancelled: Option<WaitCancelled<Context>>,
        accepted: Accepted,
        into_body: fn(B) -> MessageBody,
    }
}

impl<F, B> Handling<F, B> {
    /// Without its future, which [`begin`](Self::begin) makes.
    pub(crate) fn new(accepted: Accepted, into_body: fn(B) -> MessageBody) -> Self {
        Self { future: None, cancelled: None, accepted, into_body }
    }

    /// Takes another request of the method, after [`clear`](Self::clear).
    pub(crate) fn renew(self: Pin<&mut Self>, arrival: Arrival<'_>) {
        self.project().accepted.renew(arrival);
    }

    /// Forgets the request, which is answered. Returns whether another request may take this memory.
    pub(crate) fn clear(self: Pin<&mut Self>) -> bool {
        let mut this = self.project();
        this.future.set(None);
        *this.cancelled = None;
        this.accepted.clear()
    }
}

impl<F, B> Handling<F, B>
where
    F: Future<Output = Result<B, Status>>,
{
    /// Calls the handler, and polls its future if `polls`. Ready if the request is answered. If not, the future is polled again, with
    /// a waker.
    pub(crate) fn begin(
        self: Pin<&mut Self>,
        handler: impl FnOnce(Context) -> F,
        polls: bool,
    ) -> Poll<()> {
        let this = self.project();
        let (mut future, accepted) = (this.future, this.accepted);
        let context = &accepted.context;
        let begin = || {
            future.set(Some(handler(context.clone())));
            match future.as_mut().as_pin_mut() {
                Some(future) if polls => future.poll(&mut task::Context::from_waker(Waker::noop())),
                _ => Poll::Pending,
            }
        };
        match panic::catch_unwind(AssertUnwindSafe(|| context.enter(begin))) {
            Ok(Poll::Pending) => return Poll::Pending,
            //= docs/rpc-wire.md#E14
            Ok(Poll::Ready(result)) => {
                accepted.answer(result.map(this.into_body).map_err(Status::of_handler));
            }
            Err(_) => accepted.panicked(),
        }
        Poll::Ready(())
    }
}

impl<F, B> Future for Handling<F, B>
where
    F: Future<Output = Result<B, Status>>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<()> {
        let this = self.project();
        let (future, accepted) = (this.future, this.accepted);
        let future = future.as_pin_mut().expect("it was begun, and ends once");
        let polled =
            panic::catch_unwind(AssertUnwindSafe(|| accepted.context.enter(|| future.poll(task))));
        match polled {
            //= docs/rpc-wire.md#E14
            Ok(Poll::Ready(result)) => {
                accepted.answer(result.map(this.into_body).map_err(Status::of_handler));
            }
            Err(_) => accepted.panicked(),
            Ok(Poll::Pending) => {
                accepted.note_waiting();
                if accepted.context.poll_given_up(task).is_ready() {
                    return Poll::Ready(());
                }
                let wait = || WaitCancelled::new(accepted.context.clone());
                let cancelled = this.cancelled.get_or_insert_with(wait);
                return Pin::new(cancelled).poll(task);
            }
        }
        Poll::Ready(())
    }
}
