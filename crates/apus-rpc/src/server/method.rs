//! Methods of a server.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use apus::Bytes;

use crate::context::Context;
use crate::server::handling::{Accepted, Handling};
use crate::server::server_stream::ServerStream;
use crate::server::stream_handling::StreamHandling;
use crate::server::stream_table::StreamTable;
use crate::spawning::BoxTask;
use crate::status::Status;
use crate::streaming::{StreamSender, Streaming};

/// The code of a method.
pub(crate) trait Method: Send + Sync {
    /// Whether the requests or the responses are streams.
    fn is_stream(&self) -> bool;

    /// Runs the handler within the layers of a server.
    #[cfg(feature = "tower")]
    fn run(&self, context: Context, body: RequestBody) -> RunHandler;

    /// The task that handles a request. `None` if there is none, because the request is answered.
    fn begin(&self, accepted: Accepted, opened: OpenedCall<'_>) -> Option<BoxTask>;
}

/// The requests of a call, and the way of its responses if that is open already.
#[cfg(feature = "tower")]
pub(crate) enum RequestBody {
    Message(Bytes),
    Streams(Streaming, StreamSender),
}

/// A handler that runs, with its response.
#[cfg(feature = "tower")]
pub(crate) type RunHandler = std::pin::Pin<Box<dyn Future<Output = Result<Bytes, Status>> + Send>>;

/// The layers keep the kind of a method.
#[cfg(feature = "tower")]
#[cold]
fn other_kind() -> RunHandler {
    let text = "the request is not of the kind of its method";
    Box::pin(std::future::ready(Err(Status::new(crate::code::Code::Internal, text))))
}

/// The parts of an OPEN that its handler takes.
pub(crate) struct OpenedCall<'a> {
    pub(crate) id: u64,
    pub(crate) ends: bool,
    pub(crate) holds: bool,
    pub(crate) body: Bytes,
    pub(crate) streams: &'a Arc<StreamTable>,
}

/// A method with one request and one response.
pub(crate) struct Unary<H> {
    pub(crate) handler: H,
}

/// A method with streams.
pub(crate) struct WithStreams<H> {
    pub(crate) handler: H,
}

impl<H, F> Method for WithStreams<H>
where
    H: Fn(Context, Streaming, StreamSender) -> F + Send + Sync,
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    fn is_stream(&self) -> bool {
        true
    }

    #[cfg(feature = "tower")]
    fn run(&self, context: Context, body: RequestBody) -> RunHandler {
        let RequestBody::Streams(requests, responses) = body else { return other_kind() };
        let handled = (self.handler)(context, requests, responses);
        Box::pin(async move { handled.await.map(|()| Bytes::new()) })
    }

    fn begin(&self, mut accepted: Accepted, opened: OpenedCall<'_>) -> Option<BoxTask> {
        let OpenedCall { id, ends, holds, body, streams } = opened;
        let (context, limits) = (accepted.context().clone(), accepted.in_service().limits);
        let in_service = accepted.in_service();
        let stream = Arc::new(ServerStream::new(context.clone(), in_service, body, ends, holds));
        let registered = match streams.register(context.peer(), id, &stream) {
            Ok(registered) => registered,
            Err(status) => {
                streams.note_over(context.peer(), id);
                accepted.answer(Err(status));
                return None;
            }
        };
        let requests = Streaming::new(Arc::clone(&stream) as Arc<_>, limits.frame);
        let responses = StreamSender::new(Arc::clone(&stream) as Arc<_>, limits);
        let begin = || context.enter(|| (self.handler)(context.clone(), requests, responses));
        match panic::catch_unwind(AssertUnwindSafe(begin)) {
            Ok(future) => Some(Box::pin(StreamHandling::new(accepted, stream, registered, future))),
            Err(_) => {
                accepted.panicked();
                None
            }
        }
    }
}

impl<H, F, B> Method for Unary<H>
where
    H: Fn(Context, Bytes) -> F + Send + Sync,
    F: Future<Output = Result<B, Status>> + Send + 'static,
    B: Into<Bytes> + 'static,
{
    fn is_stream(&self) -> bool {
        false
    }

    #[cfg(feature = "tower")]
    fn run(&self, context: Context, body: RequestBody) -> RunHandler {
        let RequestBody::Message(message) = body else { return other_kind() };
        let handled = (self.handler)(context, message);
        Box::pin(async move { handled.await.map(Into::into) })
    }

    fn begin(&self, mut accepted: Accepted, opened: OpenedCall<'_>) -> Option<BoxTask> {
        let body = opened.body;
        let context = accepted.context().clone();
        let begin = || context.enter(|| (self.handler)(context.clone(), body));
        match panic::catch_unwind(AssertUnwindSafe(begin)) {
            Ok(future) => Some(Box::pin(Handling::new(accepted, future))),
            Err(_) => {
                accepted.panicked();
                None
            }
        }
    }
}
