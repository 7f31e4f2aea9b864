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

    /// The task that handles a request. `None` if there is none, because the request is answered.
    fn begin(&self, accepted: Accepted, opened: OpenedCall<'_>) -> Option<BoxTask>;
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

    fn begin(&self, mut accepted: Accepted, opened: OpenedCall<'_>) -> Option<BoxTask> {
        let OpenedCall { id, ends, holds, body, streams } = opened;
        let (context, limits) = (accepted.context().clone(), accepted.in_service().limits);
        let stream = Arc::new(ServerStream::new(context.clone(), limits, body, ends, holds));
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
    B: Into<Bytes>,
{
    fn is_stream(&self) -> bool {
        false
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
