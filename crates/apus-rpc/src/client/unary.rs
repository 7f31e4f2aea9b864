//! A call with one request and one response.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use apus::{Bytes, TraceContext};

use crate::client::call_head::{CallHead, call_setters};
use crate::client::calls::Calls;
use crate::code::Code;
use crate::envelope::{EnvelopeError, ResponseHead};
use crate::metadata::Metadata;
use crate::response::Response;
use crate::status::Status;
use crate::transport::{Outgoing, OutgoingOptions};

/// A call that is not sent yet. From [`Channel::unary`](crate::Channel::unary). It is sent when it is awaited for the first time, or when a thread
/// [waits](Self::wait) for it.
///
/// A call that is made in a handler has no more time than the handler's request and the same trace context, see
/// [`Context`](crate::Context). A dropped call is given up, and the server is notified.
#[must_use = "a call is sent when it is awaited or waited for"]
pub struct UnaryCall<'c> {
    head: CallHead<'c>,
    body: Bytes,
}

impl<'c> UnaryCall<'c> {
    pub(crate) fn new(calls: &'c Arc<Calls>, path: impl Into<Bytes>, body: Bytes) -> Self {
        Self { head: CallHead::new(calls, path), body }
    }

    call_setters!();

    /// Sends the request and blocks the thread until the response is there.
    ///
    /// # Errors
    ///
    /// The [`Status`] of the call: from the server, or from the transport with [`Status::call_error`].
    pub fn wait(mut self) -> Result<Response, Status> {
        let (message, options) = self.prepare()?;
        let calls = self.head.calls;
        finish(calls, calls.caller.call(calls.to, message, options).wait())
    }

    /// The message and the options of the call.
    //= docs/rpc-wire.md#E11
    fn prepare(&mut self) -> Result<(Bytes, OutgoingOptions), Status> {
        let options = self.head.prepare()?;
        let body = mem::take(&mut self.body);
        let mut message = self.head.open(self.head.calls.next_id(), true, body.len())?;
        message.extend_from_slice(&body);
        Ok((message.into(), options))
    }
}

/// The response of a call, or its status.
fn finish(calls: &Calls, result: Result<Bytes, Status>) -> Result<Response, Status> {
    let message = result?;
    //= docs/rpc-wire.md#E16
    let refused = |error: EnvelopeError| {
        calls.refusals.count(&error);
        error.of_response()
    };
    let (head, body) = ResponseHead::decode(&message, &calls.limits).map_err(refused)?;
    let metadata = head.metadata.unwrap_or_default();
    let Some(mut end) = head.end else {
        let text = "the method streams its response, and the call expects one message";
        return Err(Status::new(Code::Internal, text));
    };
    if end.code() == Code::Ok {
        calls.limits.check_frame(body.len()).map_err(refused)?;
        return Ok(Response::new(body, metadata, end.take_metadata()));
    }
    if !metadata.is_empty() {
        let trailers = mem::replace(end.metadata_mut(), metadata);
        end.metadata_mut().extend(trailers);
    }
    Err(end)
}

impl<'c> IntoFuture for UnaryCall<'c> {
    type Output = Result<Response, Status>;
    type IntoFuture = UnaryFuture<'c>;

    fn into_future(self) -> UnaryFuture<'c> {
        UnaryFuture { stage: Stage::New(self) }
    }
}

/// A [`UnaryCall`] as a future, for any executor. The request is sent when it is first polled.
#[must_use = "a future does nothing unless it is polled"]
pub struct UnaryFuture<'c> {
    stage: Stage<'c>,
}

enum Stage<'c> {
    New(UnaryCall<'c>),
    Sent(&'c Calls, Outgoing<'c>),
    Over,
}

impl Future for UnaryFuture<'_> {
    type Output = Result<Response, Status>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Self::Output> {
        if let Stage::New(_) = self.stage {
            let Stage::New(mut call) = mem::replace(&mut self.stage, Stage::Over) else {
                unreachable!("the stage is New")
            };
            let (message, options) = match call.prepare() {
                Ok(prepared) => prepared,
                Err(status) => return Poll::Ready(Err(status)),
            };
            let calls: &Calls = call.head.calls;
            let call = calls.caller.call(calls.to, message, options).into_future();
            self.stage = Stage::Sent(calls, call);
        }
        let Stage::Sent(calls, call) = &mut self.stage else {
            panic!("a call has one result");
        };
        let result = match Pin::new(call).poll(task) {
            Poll::Ready(result) => finish(calls, result),
            Poll::Pending => return Poll::Pending,
        };
        self.stage = Stage::Over;
        Poll::Ready(result)
    }
}

impl fmt::Debug for UnaryCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnaryCall")
            .field("path", self.head.path())
            .field("length", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for UnaryFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnaryFuture").finish_non_exhaustive()
    }
}
