//! The server's side.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use apus::{Flush, Port, ReplyError, Request, Requests};
use futures_core::Stream;
use futures_sink::Sink;
use serde_core::de::DeserializeOwned;
use serde_core::ser::Serialize;
use tarpc::{ClientMessage, Response, ServerError, context};

use crate::cancelled::Doubtful;
use crate::error::server_error;
use crate::{body, outcome, trace};

/// The deadline of a request that has none, or a later one. tarpc's timers end after two years.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Requests that are refused before the task gives others a turn.
const REFUSED_MAX: usize = 64;

/// The transport of a server that has the requests of all clients of the port: for one
/// [`BaseChannel`](tarpc::server::BaseChannel). It ends when the port is closed.
///
/// Several transports may take requests of clones of one port.
///
/// ```no_run
/// use futures_util::StreamExt;
/// use tarpc::server::{BaseChannel, Channel};
///
/// # #[tarpc::service]
/// # trait Greeter {
/// #     async fn hello(name: String) -> String;
/// # }
/// # #[derive(Clone)]
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn hello(self, _: tarpc::context::Context, name: String) -> String {
/// #         name
/// #     }
/// # }
/// # async fn example(node: apus::Node) -> Result<(), Box<dyn std::error::Error>> {
/// let transport = apus_tarpc::accept(node.bind(4000)?);
/// let handlers = BaseChannel::with_defaults(transport).execute(Polite.serve());
/// handlers.for_each(async |handler| drop(tokio::spawn(handler))).await;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn accept<Req, Resp>(port: Port) -> AcceptTransport<Req, Resp> {
    AcceptTransport {
        requests: port.requests(),
        outstanding: BTreeMap::new(),
        next: 0,
        doubtful: Arc::default(),
        to_check: Vec::new(),
        unflushed: None,
        context: context::current(),
        types: PhantomData,
    }
}

/// The transport of a server. From [`accept`].
pub struct AcceptTransport<Req, Resp> {
    requests: Requests,
    /// By numbers of this side: those of clients are not unique.
    outstanding: BTreeMap<u64, Outstanding>,
    next: u64,
    doubtful: Arc<Doubtful>,
    /// Numbers of requests whose clients may have gone, or that are not watched yet.
    to_check: Vec<u64>,
    /// The last response, which the next one or a flush sends.
    unflushed: Option<(Request, Vec<u8>)>,
    /// From which the contexts of requests are made: tarpc has no other way.
    context: context::Context,
    types: PhantomData<fn(Req) -> Resp>,
}

struct Outstanding {
    request: Request,
    waker: Waker,
}

impl<Req, Resp> AcceptTransport<Req, Resp> {
    /// The number of a request whose client no longer waits, which is forgotten.
    fn take_cancelled(&mut self, task: &Waker) -> Option<u64> {
        self.to_check.append(&mut self.doubtful.take(task));
        while let Some(number) = self.to_check.pop() {
            let Some(Outstanding { request, waker }) = self.outstanding.get(&number) else {
                continue; // It was answered.
            };
            if request.poll_cancelled(&Context::from_waker(waker)).is_ready() {
                self.outstanding.remove(&number);
                return Some(number);
            }
        }
        None
    }

    fn flush(&mut self) {
        if let Some((request, body)) = self.unflushed.take() {
            answer(request, body, Flush::Now);
        }
    }
}

impl<Req: DeserializeOwned, Resp> AcceptTransport<Req, Resp> {
    /// `None` if the request is refused.
    fn begin(&mut self, mut request: Request) -> Option<tarpc::Request<Req>> {
        let message = match body::decode(&request.take_body()) {
            Ok(message) => message,
            Err(error) => {
                answer(request, refusal(server_error(&error)), Flush::Now);
                return None;
            }
        };
        let id = self.next;
        self.next += 1;
        let mut context = self.context;
        let left = request.remaining().unwrap_or(LONGEST);
        context.deadline = Instant::now() + left.min(LONGEST);
        context.trace_context = request.trace_context().map(trace::from_apus).unwrap_or_default();
        let waker = self.doubtful.waker(id);
        self.outstanding.insert(id, Outstanding { request, waker });
        self.to_check.push(id);
        Some(tarpc::Request { context, id, message })
    }
}

impl<Req: DeserializeOwned, Resp> Stream for AcceptTransport<Req, Resp> {
    type Item = io::Result<ClientMessage<Req>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(request_id) = self.take_cancelled(context.waker()) {
            let trace_context = tarpc::trace::Context::default();
            return Poll::Ready(Some(Ok(ClientMessage::Cancel { trace_context, request_id })));
        }
        for _ in 0..REFUSED_MAX {
            let Some(request) = ready!(Pin::new(&mut self.requests).poll_next(context)) else {
                return Poll::Ready(None);
            };
            if let Some(request) = self.begin(request) {
                return Poll::Ready(Some(Ok(ClientMessage::Request(request))));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<Req, Resp: Serialize> Sink<Response<Resp>> for AcceptTransport<Req, Resp> {
    type Error = io::Error;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, response: Response<Resp>) -> io::Result<()> {
        let Some(Outstanding { request, .. }) = self.outstanding.remove(&response.request_id)
        else {
            return Ok(()); // Its client no longer waits.
        };
        let body = outcome::encode(&response.message).unwrap_or_else(|error| {
            // Not `InvalidInput`, which says that the request was not executed.
            refusal(ServerError::new(io::ErrorKind::InvalidData, error.to_string()))
        });
        if let Some((request, body)) = self.unflushed.replace((request, body)) {
            answer(request, body, Flush::Later);
        }
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flush();
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl<Req, Resp> fmt::Debug for AcceptTransport<Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptTransport")
            .field("requests", &self.requests)
            .field("outstanding", &self.outstanding.len())
            .finish_non_exhaustive()
    }
}

/// Answers with an error if the node does not accept the response.
fn answer(request: Request, body: Vec<u8>, flush: Flush) {
    if let Err(failed) = request.reply_with(body, flush) {
        let kind = match failed.error() {
            ReplyError::MessageTooLarge { .. } | ReplyError::TooLargeForLinux { .. } => {
                io::ErrorKind::InvalidData
            }
            // Not `WouldBlock`, which says that the request was not executed.
            _ => io::ErrorKind::Other,
        };
        let error = ServerError::new(kind, failed.error().to_string());
        let _ = failed.into_request().reply(refusal(error)); // The client may have gone.
    }
}

/// The body of a response with an error.
fn refusal(error: ServerError) -> Vec<u8> {
    outcome::encode::<()>(&Err(error)).unwrap_or_default()
}
