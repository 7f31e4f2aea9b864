//! A request in the hands of its handler.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

use apus::Bytes;
use pin_project_lite::pin_project;

use crate::cancellation::WaitCancelled;
use crate::code::Code;
use crate::context::Context;
use crate::server::admission::Permit;
use crate::server::answer;
use crate::server::counters::count;
use crate::server::in_service::{InService, WaitingEntry};
use crate::status::Status;

/// A request that a handler was chosen for. It is answered when it is dropped, if not before.
pub(crate) struct Accepted {
    context: Context,
    in_service: Arc<InService>,
    /// From the moment at which the handler has to wait.
    entry: Option<WaitingEntry>,
    /// The handler has ended. The last chunks of a stream may wait.
    has_ended: bool,
    _permit: Permit,
}

impl Accepted {
    pub(crate) fn new(context: Context, in_service: &Arc<InService>, permit: Permit) -> Self {
        count(&in_service.counters.begun);
        Self {
            context,
            in_service: Arc::clone(in_service),
            entry: None,
            has_ended: false,
            _permit: permit,
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
    pub(crate) fn answer(&mut self, result: Result<Bytes, Status>) {
        self.has_ended = true;
        self.context.note_end(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
        let Some(request) = self.context.take_request() else { return };
        let (metadata, trailers) = (self.context.take_metadata(), self.context.take_trailers());
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
        if self.has_ended {
            return;
        }
        count(&self.in_service.counters.given_up);
        self.context.cancel();
        let is_late = self.context.remaining().is_some_and(|remaining| remaining.is_zero());
        self.context.note_end(if is_late { Code::DeadlineExceeded } else { Code::Cancelled });
        // That of a stream is answered before.
        let Some(request) = self.context.take_request() else { return };
        let status = Status::new(Code::Cancelled, "the handler was dropped before its end");
        let (metadata, trailers) = Default::default();
        answer::fail(request, metadata, trailers, &status, &self.in_service.limits);
    }
}

pin_project! {
    /// The future of a handler, polled in its context. It ends early when the request is given up.
    pub(crate) struct Handling<F> {
        // Fields are dropped in this order: the handler ends before its request is answered for it.
        #[pin]
        future: F,
        cancelled: Option<WaitCancelled<Context>>,
        accepted: Accepted,
    }
}

impl<F> Handling<F> {
    pub(crate) fn new(accepted: Accepted, future: F) -> Self {
        Self { future, cancelled: None, accepted }
    }
}

impl<F, B> Future for Handling<F>
where
    F: Future<Output = Result<B, Status>>,
    B: Into<Bytes>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<()> {
        let this = self.project();
        let (future, accepted) = (this.future, this.accepted);
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            accepted.context.enter(|| future.poll(task).map(|result| result.map(Into::into)))
        }));
        match polled {
            //= docs/rpc-wire.md#E14
            Ok(Poll::Ready(result)) => accepted.answer(result.map_err(Status::of_handler)),
            Err(_) => accepted.panicked(),
            // The poll of the thread that has received the request: the task that follows is polled as well.
            Ok(Poll::Pending) if task.waker().will_wake(Waker::noop()) => return Poll::Pending,
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
