//! A call with one request and one response.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::mem;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::{Duration, Instant};

use apus::{Bytes, CallError, CallFuture, CallOptions, TraceContext};

use crate::client::calls::Calls;
use crate::code::Code;
use crate::context::Context;
use crate::envelope::{self, EnvelopeError, MethodPath, ResponseHead};
use crate::metadata::{Metadata, MetadataError};
use crate::response::Response;
use crate::status::Status;

/// A call that is not sent yet. From [`Channel::unary`](crate::Channel::unary). It is sent when it is awaited for the first time, or when a thread
/// [waits](Self::wait) for it.
///
/// A call that is made in a handler has no more time than the handler's request and the same trace context, see
/// [`Context`](crate::Context). A dropped call is given up, and the server is notified.
#[must_use = "a call is sent when it is awaited or waited for"]
pub struct UnaryCall<'c> {
    calls: &'c Calls,
    path: MethodPath,
    metadata: Metadata,
    body: Bytes,
    /// By which the call ends.
    until: Option<Instant>,
    own_deadline: Option<Duration>,
    trace: Option<TraceContext>,
    fault: Option<Status>,
}

impl<'c> UnaryCall<'c> {
    pub(crate) fn new(
        calls: &'c Calls,
        path: Result<MethodPath, EnvelopeError>,
        body: Bytes,
    ) -> Self {
        let inherited = Context::current();
        let until = inherited.as_ref().and_then(Context::deadline);
        let trace = inherited.as_ref().and_then(Context::trace);
        let mut call = Self {
            calls,
            path: MethodPath::unknown(),
            metadata: Metadata::new(),
            body,
            until,
            own_deadline: None,
            trace,
            fault: None,
        };
        match path {
            Ok(path) => call.path = path,
            Err(error) => call.refuse(Code::InvalidArgument, error.to_string()),
        }
        call
    }

    /// The first misuse is the status of the call.
    #[cold]
    fn refuse(&mut self, code: Code, text: String) {
        self.fault.get_or_insert_with(|| Status::new(code, text).not_executed());
    }

    fn note(&mut self, result: Result<(), MetadataError>) {
        if let Err(error) = result {
            self.refuse(Code::InvalidArgument, error.to_string());
        }
    }

    /// Adds a pair to the metadata of the request. A pair that [`Metadata::append`] refuses ends the call with
    /// [`Code::InvalidArgument`], and nothing is sent.
    pub fn metadata(mut self, name: &str, value: impl Into<String>) -> Self {
        let result = self.metadata.append(name, value);
        self.note(result);
        self
    }

    /// Adds a pair of bytes to the metadata of the request. The name ends in `-bin`.
    pub fn metadata_bin(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        let result = self.metadata.append_bin(name, value);
        self.note(result);
        self
    }

    /// Adds many pairs to the metadata of the request.
    pub fn all_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata.extend(metadata);
        self
    }

    /// Ends the call with [`Code::DeadlineExceeded`] if it has no response this long after it was sent. Default: no deadline, except
    /// that of the request in whose handler the call is made, which always holds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.own_deadline = Some(deadline);
        self
    }

    /// Sends the call's place in a distributed trace.
    pub fn trace(mut self, context: TraceContext) -> Self {
        self.trace = Some(context);
        self
    }

    /// Makes the call independent of the request in whose handler it is made: it has neither its deadline nor its trace context.
    pub fn detached(mut self) -> Self {
        (self.until, self.trace) = (None, None);
        self
    }

    /// Sends the request and blocks the thread until the response is there.
    ///
    /// # Errors
    ///
    /// The [`Status`] of the call: from the server, or from the transport with [`Status::call_error`].
    pub fn wait(mut self) -> Result<Response, Status> {
        let (message, options) = self.prepare()?;
        let calls = self.calls;
        finish(calls, calls.client.call(calls.to, message).options(options).wait())
    }

    /// The message and the options of the call.
    fn prepare(&mut self) -> Result<(Bytes, CallOptions), Status> {
        if let Some(status) = self.fault.take() {
            return Err(status);
        }
        self.calls.intercept(&self.path, &mut self.metadata).map_err(Status::not_executed)?;
        let remaining = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let deadline = [remaining, self.own_deadline].into_iter().flatten().min();
        if deadline.is_some_and(|deadline| deadline.is_zero()) {
            let text = "the deadline had passed before the call began";
            return Err(Status::new(Code::DeadlineExceeded, text).not_executed());
        }
        //= docs/rpc-wire.md#E12
        let mut options = CallOptions::new();
        if let Some(deadline) = deadline {
            options = options.deadline(deadline);
        }
        if let Some(trace) = self.trace {
            options = options.trace_context(trace);
        }
        let body = mem::take(&mut self.body);
        //= docs/rpc-wire.md#E11
        let id = self.calls.next_id();
        let mut message = envelope::encode_open(id, true, &self.path, &self.metadata, body.len());
        let limit = self.calls.limits.head;
        if message.len() > limit {
            let error = EnvelopeError::HeadTooLong { limit };
            return Err(Status::new(error.code(), error.to_string()).not_executed());
        }
        message.extend_from_slice(&body);
        Ok((message.into(), options))
    }
}

/// The response of a call, or its status.
fn finish(calls: &Calls, result: Result<Bytes, CallError>) -> Result<Response, Status> {
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
    Sent(&'c Calls, CallFuture<'c>),
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
            let calls = call.calls;
            let call = calls.client.call(calls.to, message).options(options).into_future();
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
            .field("path", &self.path)
            .field("metadata", &self.metadata)
            .field("length", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for UnaryFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnaryFuture").finish_non_exhaustive()
    }
}
