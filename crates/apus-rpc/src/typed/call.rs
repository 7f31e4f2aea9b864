//! A call with a typed response.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use apus::TraceContext;
use bytes::Bytes;

use crate::body::MessageBody;
use crate::client::{Channel, UnaryCall, UnaryFuture};
use crate::codec::{CodecError, Decode};
use crate::metadata::Metadata;
use crate::response::Response;
use crate::schema::Schema;
use crate::status::Status;
use crate::typed::method::TypedMethod;

/// A call of a typed method that is not sent yet. A method of a generated client makes it. It is sent when it is awaited for the first
/// time, or when a thread [waits](Self::wait) for it.
///
/// A call that is made in a handler has no more time than the handler's request and the same trace context. A dropped call is given up,
/// and the server is notified.
#[must_use = "a call is sent when it is awaited or waited for"]
pub struct TypedCall<'c, C, T> {
    call: UnaryCall<'c>,
    facts: Facts<'c>,
    fault: Option<Status>,
    response: PhantomData<fn() -> (C, T)>,
}

/// The channel and the method of a call, for its end.
#[derive(Clone, Copy)]
struct Facts<'c> {
    channel: &'c Channel,
    method: TypedMethod,
}

impl<'c, C, T> TypedCall<'c, C, T> {
    pub(crate) fn new(
        channel: &'c Channel,
        path: impl Into<Bytes>,
        method: TypedMethod,
        body: MessageBody,
        fault: Option<Status>,
    ) -> Self {
        let mut call = UnaryCall::new(&channel.calls, path, body);
        if method.is_idempotent {
            call = call.idempotent();
        }
        Self { call, facts: Facts { channel, method }, fault, response: PhantomData }
    }

    fn change(mut self, change: impl FnOnce(UnaryCall<'c>) -> UnaryCall<'c>) -> Self {
        self.call = change(self.call);
        self
    }

    /// Ends the call with [`Code::DeadlineExceeded`](crate::Code::DeadlineExceeded) if it has no response this long after it was
    /// sent. Default: no deadline, except that of the request in whose handler the call is made, which always holds.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.change(|call| call.deadline(deadline))
    }

    /// Adds a pair to the metadata of the request, as [`UnaryCall::metadata`].
    pub fn metadata(self, name: &str, value: impl Into<String>) -> Self {
        self.change(|call| call.metadata(name, value))
    }

    /// Adds a pair of bytes to the metadata of the request. The name ends in `-bin`.
    pub fn metadata_bin(self, name: &str, value: impl Into<Bytes>) -> Self {
        self.change(|call| call.metadata_bin(name, value))
    }

    /// Adds many pairs to the metadata of the request.
    pub fn all_metadata(self, metadata: Metadata) -> Self {
        self.change(|call| call.all_metadata(metadata))
    }

    /// Sends the call's place in a distributed trace.
    pub fn trace(self, context: TraceContext) -> Self {
        self.change(|call| call.trace(context))
    }

    /// Says that the method may be executed more than once, as [`UnaryCall::idempotent`]. Default: as the attribute `#[idempotent]` of the
    /// method says.
    pub fn idempotent(self) -> Self {
        self.change(UnaryCall::idempotent)
    }

    /// Whether the call waits until an endpoint takes it, as [`UnaryCall::wait_for_ready`].
    pub fn wait_for_ready(self, waits: bool) -> Self {
        self.change(|call| call.wait_for_ready(waits))
    }

    /// Makes the call independent of the request in whose handler it is made: it has neither its deadline nor its trace context.
    pub fn detached(self) -> Self {
        self.change(UnaryCall::detached)
    }

    /// The call with its metadata, awaited: [`Response`] has the metadata and trailers of the server beside the value.
    ///
    /// # Errors
    ///
    /// As the call itself.
    pub async fn response(self) -> Result<Response<T>, Status>
    where
        C: Decode<T>,
    {
        let mut future = self.into_future();
        std::future::poll_fn(move |task| future.poll_response(task)).await
    }

    /// Sends the request and blocks the thread until the response is there.
    ///
    /// # Errors
    ///
    /// The [`Status`] of the call: from the server, or from the transport with [`Status::call_error`], or with
    /// [`Code::FailedPrecondition`](crate::Code::FailedPrecondition) if the two sides have different types.
    pub fn wait(self) -> Result<T, Status>
    where
        C: Decode<T>,
    {
        self.wait_response().map(Response::into_body)
    }

    /// As [`wait`](Self::wait), with the metadata of the server.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_response(self) -> Result<Response<T>, Status>
    where
        C: Decode<T>,
    {
        if let Some(status) = self.fault {
            return Err(status);
        }
        let method = self.facts.method;
        decoded::<C, T>(method, self.call.wait())?.map_err(|error| {
            let theirs = self.facts.describe().and_then(|call| parsed(call.wait()));
            method.strange(&error, theirs.as_ref())
        })
    }
}

impl<'c> Facts<'c> {
    /// A call for the schema of the server, when the response of another call is strange. `None` if that call is one itself.
    fn describe(&self) -> Option<UnaryCall<'c>> {
        let (service, method) = self.method.path.rsplit_once('/')?;
        let path = format!("{service}/{DESCRIBE}");
        let call = self.channel.unary(path, Bytes::new()).deadline(DESCRIBE_MAX);
        (method != DESCRIBE).then_some(call)
    }
}

/// The method of every typed service that gives its schema.
pub(crate) const DESCRIBE: &str = "__describe";

/// Longest time for which a client asks for the server's schema after a strange response.
const DESCRIBE_MAX: Duration = Duration::from_millis(200);

/// The value of a response. The inner error asks for an explanation.
type Decoded<T> = Result<Result<Response<T>, CodecError>, Status>;

fn decoded<C: Decode<T>, T>(method: TypedMethod, result: Result<Response, Status>) -> Decoded<T> {
    let response = result.map_err(|status| method.explained(status))?;
    Ok(response.decode(|mut body| C::decode(&mut body)))
}

/// The schema in a response of the method `__describe`.
fn parsed(result: Result<Response, Status>) -> Option<Schema> {
    str::from_utf8(result.ok()?.body()).ok()?.parse().ok()
}

impl<'c, C: Decode<T>, T> IntoFuture for TypedCall<'c, C, T> {
    type Output = Result<T, Status>;
    type IntoFuture = TypedFuture<'c, C, T>;

    fn into_future(self) -> TypedFuture<'c, C, T> {
        let facts = self.facts;
        let stage = match self.fault {
            Some(status) => CallStage::Refused(status),
            None => CallStage::Call(self.call.into_future()),
        };
        TypedFuture { facts, stage, response: PhantomData }
    }
}

/// A [`TypedCall`] as a future, for any executor. The request is sent when it is first polled.
#[must_use = "a future does nothing unless it is polled"]
pub struct TypedFuture<'c, C, T> {
    facts: Facts<'c>,
    stage: CallStage<'c>,
    response: PhantomData<fn() -> (C, T)>,
}

enum CallStage<'c> {
    /// Nothing is sent.
    Refused(Status),
    Call(UnaryFuture<'c>),
    /// The response was strange, and the client asks for the server's schema.
    Describe(CodecError, UnaryFuture<'c>),
    Over,
}

impl<C: Decode<T>, T> TypedFuture<'_, C, T> {
    fn poll_response(&mut self, task: &mut Context<'_>) -> Poll<Result<Response<T>, Status>> {
        let method = self.facts.method;
        let result = loop {
            match &mut self.stage {
                CallStage::Call(call) => {
                    let Poll::Ready(result) = Pin::new(call).poll(task) else {
                        return Poll::Pending;
                    };
                    let error = match decoded::<C, T>(method, result) {
                        Ok(Ok(response)) => break Ok(response),
                        Err(status) => break Err(status),
                        Ok(Err(error)) => error,
                    };
                    let Some(call) = self.facts.describe() else {
                        break Err(method.strange(&error, None));
                    };
                    self.stage = CallStage::Describe(error, call.into_future());
                }
                CallStage::Describe(error, call) => {
                    let Poll::Ready(result) = Pin::new(call).poll(task) else {
                        return Poll::Pending;
                    };
                    break Err(method.strange(error, parsed(result).as_ref()));
                }
                CallStage::Refused(_) => {
                    let CallStage::Refused(status) = mem::replace(&mut self.stage, CallStage::Over)
                    else {
                        unreachable!("the stage is Refused")
                    };
                    break Err(status);
                }
                CallStage::Over => panic!("a call has one result"),
            }
        };
        self.stage = CallStage::Over;
        Poll::Ready(result)
    }
}

impl<C: Decode<T>, T> Future for TypedFuture<'_, C, T> {
    type Output = Result<T, Status>;

    /// # Panics
    ///
    /// If it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_response(task).map(|result| result.map(Response::into_body))
    }
}

impl<C, T> fmt::Debug for TypedCall<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.call, f)
    }
}

impl<C, T> fmt::Debug for TypedFuture<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedFuture").field("path", &self.facts.method.path).finish_non_exhaustive()
    }
}
