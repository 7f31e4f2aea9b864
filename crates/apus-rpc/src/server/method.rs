//! The kinds of methods.

use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{self, Waker};

use apus::Bytes;

use crate::body::MessageBody;
use crate::context::Context;
use crate::server::handling::{Accepted, Arrival, Handling};
use crate::server::server_stream::ServerStream;
use crate::server::stream_handling::StreamHandling;
use crate::server::stream_table::StreamTable;
use crate::spawning::BoxTask;
use crate::status::Status;
use crate::streaming::{StreamSender, Streaming};

/// Longest body whose handler is polled on the thread that has received the request, in bytes. Decoding a longer one would delay the
/// requests behind it.
const INLINE_MAX: usize = 16 << 10;

/// The code of a method.
pub(crate) trait Method: Send + Sync {
    /// Whether the requests or the responses are streams.
    fn is_stream(&self) -> bool;

    /// Whether the library itself has the method: it is outside of layers, and no limit on requests in service counts its requests.
    fn is_built_in(&self) -> bool {
        false
    }

    /// Runs the handler within the layers of a server.
    #[cfg(feature = "tower")]
    fn run(&self, context: Context, body: RequestBody) -> RunHandler;

    /// Calls the handler, and polls its future once unless the body is long. Returns the task in which it goes on. `None` if there is
    /// none, because the request is answered.
    fn begin(&self, arrival: Arrival<'_>, opened: OpenedCall<'_>) -> Option<BoxTask>;
}

/// The requests of a call, and the way of its responses if that is open already.
#[cfg(feature = "tower")]
pub(crate) enum RequestBody {
    Message(Bytes),
    Streams(Streaming, StreamSender),
}

/// A handler that runs, with its response.
#[cfg(feature = "tower")]
pub(crate) type RunHandler = Pin<Box<dyn Future<Output = Result<Bytes, Status>> + Send>>;

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
pub(crate) struct Unary<H, F, B> {
    handler: H,
    into_body: fn(B) -> MessageBody,
    /// The memory of a request that was answered at once, for the next one.
    spare: Mutex<Option<BoxHandling<F, B>>>,
}

type BoxHandling<F, B> = Pin<Box<Handling<F, B>>>;

impl<H, F, B> Unary<H, F, B> {
    /// Most bytes that are kept for the next request.
    const SPARE_MAX: usize = 4 << 10;

    pub(crate) fn new(handler: H, into_body: fn(B) -> MessageBody) -> Self {
        Self { handler, into_body, spare: Mutex::new(None) }
    }

    /// Another thread that has the lock has the spare memory, or gives some.
    fn take_spare(&self) -> Option<BoxHandling<F, B>> {
        self.spare.try_lock().ok()?.take()
    }

    fn keep_spare(&self, spare: BoxHandling<F, B>) {
        if size_of::<Handling<F, B>>() <= Self::SPARE_MAX
            && let Ok(mut kept) = self.spare.try_lock()
        {
            *kept = Some(spare);
        }
    }
}

/// A method of the library, such as that of the health.
pub(crate) struct BuiltIn<M>(pub(crate) M);

impl<M: Method> Method for BuiltIn<M> {
    fn is_stream(&self) -> bool {
        self.0.is_stream()
    }

    fn is_built_in(&self) -> bool {
        true
    }

    #[cfg(feature = "tower")]
    fn run(&self, context: Context, body: RequestBody) -> RunHandler {
        self.0.run(context, body)
    }

    fn begin(&self, arrival: Arrival<'_>, opened: OpenedCall<'_>) -> Option<BoxTask> {
        self.0.begin(arrival, opened)
    }
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

    fn begin(&self, arrival: Arrival<'_>, opened: OpenedCall<'_>) -> Option<BoxTask> {
        let OpenedCall { id, ends, holds, body, streams } = opened;
        let mut accepted = Accepted::new(arrival);
        let (context, limits) = (accepted.context().clone(), accepted.in_service().limits);
        let is_short = body.len() <= INLINE_MAX;
        let in_service = accepted.in_service();
        let buffers = &streams.buffers;
        let stream = ServerStream::new(context.clone(), in_service, buffers, body, ends, holds);
        let stream = Arc::new(stream);
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
        let Ok(future) = panic::catch_unwind(AssertUnwindSafe(begin)) else {
            accepted.panicked();
            return None;
        };
        let mut task = Box::pin(StreamHandling::new(accepted, stream, registered, future));
        let mut noop = task::Context::from_waker(Waker::noop());
        if is_short && task.as_mut().poll(&mut noop).is_ready() { None } else { Some(task) }
    }
}

impl<H, F, B> Method for Unary<H, F, B>
where
    H: Fn(Context, Bytes) -> F + Send + Sync,
    F: Future<Output = Result<B, Status>> + Send + 'static,
    B: 'static,
{
    fn is_stream(&self) -> bool {
        false
    }

    #[cfg(feature = "tower")]
    fn run(&self, context: Context, body: RequestBody) -> RunHandler {
        let RequestBody::Message(message) = body else { return other_kind() };
        let (handled, into_body) = ((self.handler)(context, message), self.into_body);
        Box::pin(async move { handled.await.map(|body| into_body(body).into_bytes()) })
    }

    fn begin(&self, arrival: Arrival<'_>, opened: OpenedCall<'_>) -> Option<BoxTask> {
        let body = opened.body;
        let is_short = body.len() <= INLINE_MAX;
        let mut handling = match self.take_spare() {
            Some(mut spare) => {
                spare.as_mut().renew(arrival);
                spare
            }
            None => Box::pin(Handling::new(Accepted::new(arrival), self.into_body)),
        };
        let begun = handling.as_mut().begin(|context| (self.handler)(context, body), is_short);
        if begun.is_pending() {
            return Some(handling);
        }
        if handling.as_mut().clear() {
            self.keep_spare(handling);
        }
        None
    }
}
