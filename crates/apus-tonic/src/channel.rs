//! The client's side: calls of tonic's clients as calls over Apus.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use apus_rpc::envelope::EnvelopeLimits;
use apus_rpc::{ChannelBuilder, ConnectError};
use bytes::Bytes;
use http_body::Body as HttpBody;
use tokio::runtime::Handle;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tower::Service;

use crate::body::{Begun, BoxError, ResponseBody, SentBody, begin, no_runtime, send};
use crate::headers::{GRPC_TIMEOUT, to_message_headers, to_metadata};
use crate::status::{is_of_handler, to_tonic, to_tonic_with_source};
use crate::timeout;

/// Carries the calls of clients that tonic generates, in place of `tonic::transport::Channel`. Clones are the same channel.
///
/// ```no_run
/// # mod helloworld {
/// #     pub struct GreeterClient<T>(T);
/// #     impl<T> GreeterClient<T> {
/// #         pub fn new(channel: T) -> Self { Self(channel) }
/// #     }
/// # }
/// # use helloworld::GreeterClient;
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let channel = apus_tonic::Channel::connect("apus://localhost:4000").await?;
/// let client = GreeterClient::new(channel);
/// # Ok(())
/// # }
/// ```
///
/// * `Request::set_timeout` is the deadline of the call: the server drops the handler when it passes. A call that is made in a handler
///   inherits the deadline of the handler's request.
/// * Requests that are not there when the call begins are sent by a task of tokio.
/// * A call that is dropped is given up, and its handler is dropped.
/// * A call that no handler has answered ends with a status whose source says why, see
///   [`may_have_executed`](crate::may_have_executed).
/// * Names of metadata are lower-case letters, digits, `-`, `_` and `.`, and values are printable ASCII characters, or bytes for
///   names that end in `-bin`. Other metadata ends the call with `INVALID_ARGUMENT`.
#[derive(Clone)]
pub struct Channel {
    rpc: apus_rpc::Channel,
}

impl Channel {
    /// A channel to `apus://HOST:PORT`, on the node that the channels of the process share, after first contact with the server. The
    /// runtime of tokio that this is awaited in [turns](apus_rpc::tokio::drive_shared) that node.
    ///
    /// A channel with options is made by [`builder`](Self::builder).
    ///
    /// # Errors
    ///
    /// [`ConnectError`].
    ///
    /// # Panics
    ///
    /// In a runtime of tokio without I/O (`enable_io`).
    pub async fn connect(target: &str) -> Result<Self, ConnectError> {
        if Handle::try_current().is_ok() {
            apus_rpc::tokio::drive_shared()?;
        }
        Self::builder(target).connect().await.map(Self::from)
    }

    /// An [`apus_rpc::Channel`] to be, with a node, interceptors and other options. It has no limit on the length of messages, which is
    /// for tonic to bound (`max_decoding_message_size`, 4 MiB by default).
    ///
    /// ```no_run
    /// # async fn example(node: &apus_rpc::Node) -> Result<(), apus_rpc::ConnectError> {
    /// let channel = apus_tonic::Channel::builder("apus://localhost:4000").node(node).connect().await?;
    /// let channel = apus_tonic::Channel::from(channel);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(target: &str) -> ChannelBuilder {
        apus_rpc::Channel::builder(target).limits(EnvelopeLimits::new().frame_max(usize::MAX))
    }

    /// The channel below.
    #[must_use]
    pub fn rpc(&self) -> &apus_rpc::Channel {
        &self.rpc
    }
}

impl From<apus_rpc::Channel> for Channel {
    fn from(rpc: apus_rpc::Channel) -> Self {
        Self { rpc }
    }
}

impl<B> Service<http::Request<B>> for Channel
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = http::Response<Body>;
    type Error = tonic::Status;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), tonic::Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> ResponseFuture {
        ResponseFuture { call: Box::pin(call(self.rpc.clone(), request)) }
    }
}

/// A call on its way, from [`Channel`] as a service. It is given up when this is dropped.
#[must_use = "a call is sent when it is awaited"]
pub struct ResponseFuture {
    call: Pin<Box<dyn Future<Output = Result<http::Response<Body>, tonic::Status>> + Send>>,
}

impl Future for ResponseFuture {
    type Output = Result<http::Response<Body>, tonic::Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        self.call.as_mut().poll(task)
    }
}

/// Begins a call, and waits for the head of its response.
async fn call<B>(
    channel: apus_rpc::Channel,
    request: http::Request<B>,
) -> Result<http::Response<Body>, tonic::Status>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let deadline = match parts.headers.get(GRPC_TIMEOUT) {
        Some(value) => Some(timeout::parse(value.as_bytes()).ok_or_else(no_timeout)?),
        None => None,
    };
    let metadata = to_metadata(&MetadataMap::from_headers(parts.headers));
    let metadata = metadata.map_err(|error| tonic::Status::invalid_argument(error.to_string()))?;
    let mut body = Box::pin(body);
    let Begun { bytes, is_whole } = begin(&mut body).await?;
    let path = Bytes::copy_from_slice(parts.uri.path().as_bytes());
    let mut call = channel.stream(path).all_metadata(metadata);
    if let Some(deadline) = deadline {
        call = call.deadline(deadline);
    }
    let (sender, mut responses) = call.start_raw(bytes, is_whole).map_err(to_tonic_with_source)?;
    let sending = match (sender, Handle::try_current()) {
        (None, _) => None,
        (Some(sender), Ok(runtime)) => {
            Some(SentBody::new(runtime.spawn(send(body, sender)).abort_handle()))
        }
        (Some(_), Err(_)) => return Err(to_tonic_with_source(no_runtime())),
    };
    match responses.metadata().await {
        Ok(metadata) => {
            let headers = to_message_headers(&metadata).map_err(to_tonic_with_source)?;
            let mut response =
                http::Response::new(Body::new(ResponseBody::new(responses, sending)));
            *response.version_mut() = http::Version::HTTP_2;
            *response.headers_mut() = headers;
            Ok(response)
        }
        Err(status) if is_of_handler(&status) => Ok(to_tonic(&status).into_http()),
        Err(status) => Err(to_tonic_with_source(status)),
    }
}

#[cold]
fn no_timeout() -> tonic::Status {
    tonic::Status::invalid_argument(
        "grpc-timeout: expected one to eight digits and a unit of HMSmun",
    )
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("rpc", &self.rpc).finish()
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
