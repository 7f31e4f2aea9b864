//! The client's side.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use apus::{Address, CallError, CallOptions, Client, Flush, Node, OpenError, Responses};
use futures_core::Stream;
use futures_sink::Sink;
use serde_core::de::DeserializeOwned;
use serde_core::ser::Serialize;
use tarpc::{ClientMessage, Response};

use crate::error::{io_error, server_error};
use crate::{body, outcome, trace};

/// The transport of a client of the service at `to`: for `new` of the client that tarpc generates. Nothing is sent before the
/// first call.
///
/// # Errors
///
/// [`OpenError`]: the node has no port for the client.
///
/// ```no_run
/// #[tarpc::service]
/// trait Greeter {
///     async fn hello(name: String) -> String;
/// }
///
/// # async fn example(node: apus::Node) -> Result<(), Box<dyn std::error::Error>> {
/// let transport = apus_tarpc::dial(&node, apus::resolve("server.example:4000")?)?;
/// let client = GreeterClient::new(tarpc::client::Config::default(), transport).spawn();
/// println!("{}", client.hello(tarpc::context::current(), "ada".into()).await?);
/// # Ok(())
/// # }
/// ```
pub fn dial<Req, Resp>(node: &Node, to: Address) -> Result<DialTransport<Req, Resp>, OpenError> {
    let client = node.client()?;
    let responses = client.responses();
    Ok(DialTransport { client, responses, to, is_flushed: true, types: PhantomData })
}

/// The transport of a client. From [`dial`].
pub struct DialTransport<Req, Resp> {
    client: Client,
    responses: Responses,
    to: Address,
    /// No request waits for others to leave with it.
    is_flushed: bool,
    types: PhantomData<fn(Req) -> Resp>,
}

impl<Req, Resp> DialTransport<Req, Resp> {
    /// The client whose calls these are, to [expect](Client::expect) the name of a server, for example. Calls of
    /// [`send`](Client::send) on it, and responses taken from it, mix with those of tarpc.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn flush(&mut self) {
        if !self.is_flushed {
            // A refusal is the business of the calls.
            let _ = self.client.send_many(self.to, &mut Vec::new(), Flush::Now);
            self.is_flushed = true;
        }
    }
}

impl<Req: Serialize, Resp> DialTransport<Req, Resp> {
    fn send(&mut self, request: &tarpc::Request<Req>) -> io::Result<()> {
        let body = body::encode(&request.message)?;
        let context = &request.context;
        let left = context.deadline.saturating_duration_since(Instant::now());
        let mut options = CallOptions::new().deadline(left);
        if let Some(trace) = trace::to_apus(&context.trace_context) {
            options = options.trace_context(trace);
        }
        self.is_flushed = false;
        self.client.send_with(self.to, body, request.id, Flush::Later, options).map_err(io_error)
    }
}

impl<Req: Serialize, Resp> Sink<ClientMessage<Req>> for DialTransport<Req, Resp> {
    type Error = io::Error;

    /// Always ready: requests that the node has no room for are refused.
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, message: ClientMessage<Req>) -> io::Result<()> {
        match message {
            ClientMessage::Request(request) => self.send(&request),
            ClientMessage::Cancel { request_id, .. } => {
                self.client.cancel(request_id);
                Ok(())
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flush();
        Poll::Ready(Ok(()))
    }

    /// The port stays open for outstanding calls until the transport is dropped.
    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl<Req, Resp: DeserializeOwned> Stream for DialTransport<Req, Resp> {
    type Item = io::Result<Response<Resp>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(response) = ready!(Pin::new(&mut self.responses).poll_next(context)) else {
                return Poll::Ready(None);
            };
            let message = match response.result {
                Ok(body) => {
                    outcome::decode(&body).unwrap_or_else(|error| Err(server_error(&error)))
                }
                // tarpc has ended these calls, or does it now by a timer of its own.
                Err(CallError::Cancelled | CallError::Deadline { .. }) => continue,
                Err(error) => Err(server_error(&io_error(error))),
            };
            return Poll::Ready(Some(Ok(Response { request_id: response.cookie, message })));
        }
    }
}

impl<Req, Resp> fmt::Debug for DialTransport<Req, Resp> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, to, .. } = self;
        f.debug_struct("DialTransport")
            .field("client", client)
            .field("to", to)
            .finish_non_exhaustive()
    }
}
