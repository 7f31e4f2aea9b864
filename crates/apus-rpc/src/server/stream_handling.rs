//! A call with streams in the hands of its handler.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};

use pin_project_lite::pin_project;

use crate::cancellation::WaitCancelled;
use crate::code::Code;
use crate::context::Context;
use crate::server::handling::Accepted;
use crate::server::server_stream::ServerStream;
use crate::server::stream_table::Registered;
use crate::status::Status;
use crate::timer::{Sleep, sleep};

pin_project! {
    /// The future of a handler with streams, polled in its context. It goes on until the client has pulled the whole response, and ends
    /// early when the call is given up.
    pub(crate) struct StreamHandling<F> {
        // Fields are dropped in this order: the handler ends before its call is answered for it.
        #[pin]
        future: F,
        is_done: bool,
        end: EndOfStream,
        cancelled: Option<WaitCancelled<Context>>,
        unheld: Option<Pin<Box<Sleep>>>,
        _registered: Registered,
        accepted: Accepted,
    }
}

/// Ends the response of a handler that is dropped.
struct EndOfStream {
    stream: Arc<ServerStream>,
}

impl Drop for EndOfStream {
    fn drop(&mut self) {
        self.stream.abort(Status::new(Code::Cancelled, "the handler was dropped before its end"));
    }
}

impl<F> StreamHandling<F> {
    pub(crate) fn new(
        accepted: Accepted,
        stream: Arc<ServerStream>,
        registered: Registered,
        future: F,
    ) -> Self {
        Self {
            future,
            is_done: false,
            end: EndOfStream { stream },
            cancelled: None,
            unheld: None,
            _registered: registered,
            accepted,
        }
    }
}

impl<F: Future<Output = Result<(), Status>>> Future for StreamHandling<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<()> {
        let this = self.project();
        let (accepted, stream) = (this.accepted, &this.end.stream);
        if !*this.is_done {
            stream.begin_poll();
            let context = accepted.context().clone();
            let polled =
                panic::catch_unwind(AssertUnwindSafe(|| context.enter(|| this.future.poll(task))));
            let result = match polled {
                Ok(Poll::Pending) => None,
                Ok(Poll::Ready(result)) => Some(result),
                Err(_) => Some(Err(accepted.note_panic())),
            };
            if let Some(result) = result {
                *this.is_done = true;
                accepted.note_end(result.as_ref().map_or_else(Status::code, |()| Code::Ok));
                let end = result.err().map(Status::of_handler);
                stream.finish(end.unwrap_or_else(|| Status::new(Code::Ok, "")));
            }
            stream.end_poll();
        }
        // The poll of the thread that has received the request: the task that follows is polled as well.
        let is_first = task.waker().will_wake(Waker::noop());
        if stream.poll_end_sent(task).is_ready() {
            if !*this.is_done {
                accepted.end_by_limit();
            }
            return Poll::Ready(());
        }
        if is_first {
            return Poll::Pending;
        }
        accepted.note_waiting();
        if accepted.context().is_held() {
            *this.unheld = None;
            if accepted.context().poll_given_up(task).is_ready() {
                return Poll::Ready(());
            }
        } else if stream.is_opened() {
            //= docs/rpc-wire.md#E27
            let unheld = this
                .unheld
                .get_or_insert_with(|| Box::pin(sleep(accepted.in_service().hold_within)));
            if unheld.as_mut().poll(task).is_ready() {
                return Poll::Ready(());
            }
        }
        let wait = || WaitCancelled::new(accepted.context().clone());
        Pin::new(this.cancelled.get_or_insert_with(wait)).poll(task)
    }
}
