//! Calls of typed methods with streams.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use apus::TraceContext;
use bytes::Bytes;

use crate::client::{Channel, StreamCall};
use crate::code::Code;
use crate::codec::{CodecError, Decode, Encode};
use crate::metadata::Metadata;
use crate::response::Response;
use crate::scratch::EncodeBuffer;
use crate::status::{Execution, Status};
use crate::streaming::{StreamSender, Streaming};
use crate::typed::method::TypedMethod;

/// The setters of a call with a field `call`.
macro_rules! stream_setters {
    () => {
        /// Ends the call with [`Code::DeadlineExceeded`](crate::Code::DeadlineExceeded) if it has not ended this long after it was sent.
        /// Default: no deadline, except that of the request in whose handler the call is made, which always holds.
        pub fn deadline(mut self, deadline: Duration) -> Self {
            self.call = self.call.deadline(deadline);
            self
        }

        /// Adds a pair to the metadata of the request, as [`StreamCall::metadata`].
        pub fn metadata(mut self, name: &str, value: impl Into<String>) -> Self {
            self.call = self.call.metadata(name, value);
            self
        }

        /// Adds a pair of bytes to the metadata of the request. The name ends in `-bin`.
        pub fn metadata_bin(mut self, name: &str, value: impl Into<Bytes>) -> Self {
            self.call = self.call.metadata_bin(name, value);
            self
        }

        /// Adds many pairs to the metadata of the request.
        pub fn all_metadata(mut self, metadata: Metadata) -> Self {
            self.call = self.call.all_metadata(metadata);
            self
        }

        /// Sends the call's place in a distributed trace.
        pub fn trace(mut self, context: TraceContext) -> Self {
            self.call = self.call.trace(context);
            self
        }

        /// Makes the call independent of the request in whose handler it is made: it has neither its deadline nor its trace context.
        pub fn detached(mut self) -> Self {
            self.call = self.call.detached();
            self
        }
    };
}

/// A call of a typed method with one request and a stream of responses. It is sent when it is awaited, or by [`start`](Self::start).
/// It is not repeated when it fails, as [`StreamCall`] says.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "postcard"))]
/// # mod example {
/// # use apus_rpc::{Context, Status, Stream};
/// # #[apus_rpc::service(name = "shop.Prices")]
/// # pub trait Prices {
/// #     async fn watch(&self, cx: &Context, symbol: String) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
/// # }
/// # pub async fn example(prices: PricesClient) -> Result<(), Status> {
/// let mut watched = prices.watch("ABC").await?;
/// while let Some(price) = watched.next().await {
///     println!("{}", price?);
/// }
/// # Ok(())
/// # }
/// # }
/// ```
#[must_use = "a call is sent when it is awaited, or by `start`"]
pub struct ResponseStreamCall<'c, C, T> {
    call: StreamCall<'c>,
    method: TypedMethod,
    body: Bytes,
    fault: Option<Status>,
    types: PhantomData<fn() -> (C, T)>,
}

impl<'c, C, T> ResponseStreamCall<'c, C, T> {
    pub(crate) fn new(
        channel: &'c Channel,
        method: TypedMethod,
        body: Bytes,
        fault: Option<Status>,
    ) -> Self {
        Self { call: channel.stream(method.path), method, body, fault, types: PhantomData }
    }

    stream_setters!();

    /// Sends the request, and returns the responses without waiting for the server. The error of a method that refuses the request
    /// is the first item then.
    ///
    /// # Errors
    ///
    /// As [`StreamCall::request`], and [`Code::InvalidArgument`] for an argument that has no form in the codec.
    pub fn start(self) -> Result<Streaming<T>, Status>
    where
        C: Decode<T>,
    {
        match self.fault {
            Some(status) => Err(status),
            None => Ok(responses::<C, T>(self.call.request(self.body)?, self.method)),
        }
    }
}

impl<'c, C, T> IntoFuture for ResponseStreamCall<'c, C, T>
where
    C: Decode<T>,
    T: 'c,
{
    type Output = Result<Streaming<T>, Status>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Sends the request, and waits until the method has begun its responses, or has refused the request.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut responses = self.start()?;
            poll_fn(|task| responses.poll_answered(task)).await?;
            Ok(responses)
        })
    }
}

/// The types that a call is made for and has no value of.
type CallTypes<C, Q, T> = fn() -> (C, Q, T);

/// A call of a typed method with a stream of requests and one response. [`start`](Self::start) begins it.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "postcard"))]
/// # mod example {
/// # use apus_rpc::{Context, Status, Streaming};
/// # #[apus_rpc::service(name = "shop.Files")]
/// # pub trait Files {
/// #     async fn upload(&self, cx: &Context, parts: Streaming<String>) -> Result<u64, Status>;
/// # }
/// # pub async fn example(files: FilesClient) -> Result<(), Status> {
/// let (mut parts, length) = files.upload().start()?;
/// for part in ["a", "b"] {
///     parts.send(part.to_owned()).await?;
/// }
/// parts.close();
/// println!("{}", length.await?);
/// # Ok(())
/// # }
/// # }
/// ```
#[must_use = "a call begins with `start`"]
pub struct RequestStreamCall<'c, C, Q, T> {
    call: StreamCall<'c>,
    method: TypedMethod,
    argument: &'static str,
    types: PhantomData<CallTypes<C, Q, T>>,
}

impl<'c, C, Q, T> RequestStreamCall<'c, C, Q, T> {
    /// The call of a method with this argument. Generated code makes it.
    #[doc(hidden)]
    pub fn new(channel: &'c Channel, method: TypedMethod, argument: &'static str) -> Self {
        Self { call: channel.stream(method.path), method, argument, types: PhantomData }
    }

    stream_setters!();

    /// Begins the call. It is sent with the first request, or when the response is first awaited.
    ///
    /// # Errors
    ///
    /// As [`StreamCall::start`].
    pub fn start(self) -> Result<(TypedSender<Q>, TypedResponse<T>), Status>
    where
        C: Encode<Q> + Decode<T>,
    {
        let (sender, streaming) = self.call.start()?;
        let sender = TypedSender::new::<C>(sender, self.method, self.argument);
        let responses = responses::<C, T>(streaming, self.method);
        Ok((sender, TypedResponse { method: self.method, responses, value: None }))
    }
}

/// A call of a typed method with streams of requests and of responses. [`start`](Self::start) begins it.
///
/// ```
/// # #[cfg(all(feature = "macros", feature = "postcard"))]
/// # mod example {
/// # use apus_rpc::{Context, Status, Stream, Streaming};
/// # #[apus_rpc::service(name = "shop.Talk")]
/// # pub trait Talk {
/// #     async fn chat(&self, cx: &Context, lines: Streaming<String>) -> Result<impl Stream<Item = Result<String, Status>>, Status>;
/// # }
/// # pub async fn example(talk: TalkClient) -> Result<(), Status> {
/// let (mut lines, mut answers) = talk.chat().start()?;
/// lines.send("hello".to_owned()).await?;
/// println!("{:?}", answers.next().await.transpose()?);
/// lines.close();
/// let trailers = answers.trailers().await?;
/// # drop(trailers);
/// # Ok(())
/// # }
/// # }
/// ```
#[must_use = "a call begins with `start`"]
pub struct DuplexCall<'c, C, Q, T> {
    call: StreamCall<'c>,
    method: TypedMethod,
    argument: &'static str,
    types: PhantomData<CallTypes<C, Q, T>>,
}

impl<'c, C, Q, T> DuplexCall<'c, C, Q, T> {
    /// The call of a method with this argument. Generated code makes it.
    #[doc(hidden)]
    pub fn new(channel: &'c Channel, method: TypedMethod, argument: &'static str) -> Self {
        Self { call: channel.stream(method.path), method, argument, types: PhantomData }
    }

    stream_setters!();

    /// Begins the call. It is sent with the first request, or when the responses are first awaited.
    ///
    /// # Errors
    ///
    /// As [`StreamCall::start`].
    pub fn start(self) -> Result<(TypedSender<Q>, Streaming<T>), Status>
    where
        C: Encode<Q> + Decode<T>,
    {
        let (sender, streaming) = self.call.start()?;
        let sender = TypedSender::new::<C>(sender, self.method, self.argument);
        Ok((sender, responses::<C, T>(streaming, self.method)))
    }
}

/// The responses of a call as values.
fn responses<C: Decode<T>, T>(streaming: Streaming, method: TypedMethod) -> Streaming<T> {
    streaming.typed(move |message| {
        let mut message = message.map_err(|status| method.explained(status))?;
        C::decode(&mut message).map_err(|error| method.strange(&error, None))
    })
}

/// Takes the requests of a call of a typed method with a stream of requests.
///
/// It is [closed](Self::close) after the last one. If it is dropped before, the call is given up.
pub struct TypedSender<T> {
    sender: StreamSender,
    method: TypedMethod,
    encode: Box<EncodeRequest<T>>,
}

/// From a request to its bytes.
type EncodeRequest<T> = dyn Fn(&T) -> Result<EncodeBuffer, Status> + Send + Sync;

impl<T> TypedSender<T> {
    fn new<C: Encode<T>>(
        sender: StreamSender,
        method: TypedMethod,
        argument: &'static str,
    ) -> Self {
        let encode = move |value: &T| {
            let mut message = EncodeBuffer::new();
            let refused = |error: CodecError| {
                Status::new(Code::InvalidArgument, format!("the argument {argument}: {error}"))
                    // A handler may have seen the messages before this one.
                    .with_execution(Execution::Possible)
            };
            C::encode(value, message.buffer()).map_err(refused)?;
            Ok(message)
        };
        Self { sender, method, encode: Box::new(encode) }
    }

    /// Sends a request as soon as the server has room for it. Requests that wait for room share packets.
    ///
    /// # Errors
    ///
    /// As [`StreamSender::send`], and [`Code::InvalidArgument`] for a request that has no form in the codec; the stream goes on then.
    pub async fn send(&mut self, request: T) -> Result<(), Status> {
        let message = (self.encode)(&request)?;
        let sent = self.sender.send_encoded(message).await;
        sent.map_err(|status| self.method.explained(status))
    }

    /// Ends the requests. They are sent while the response is awaited.
    pub fn close(self) {
        self.sender.close();
    }
}

/// The response of a call of a typed method with a stream of requests. It is awaited, also while requests are sent; a call whose
/// response is dropped is given up.
#[must_use = "a call whose response is dropped is given up"]
pub struct TypedResponse<T> {
    method: TypedMethod,
    responses: Streaming<T>,
    value: Option<T>,
}

impl<T> TypedResponse<T> {
    /// The response with the metadata and the trailers of the server.
    ///
    /// # Errors
    ///
    /// The status of the call.
    pub async fn response(mut self) -> Result<Response<T>, Status> {
        let metadata = self.responses.metadata().await?;
        let value = poll_fn(|task| self.poll_value(task)).await?;
        Ok(Response::new(value, metadata, self.responses.take_trailers()))
    }

    fn poll_value(&mut self, task: &Context<'_>) -> Poll<Result<T, Status>> {
        loop {
            match self.responses.poll_message(task) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(status))) => return Poll::Ready(Err(status)),
                Poll::Ready(Some(Ok(_))) if self.value.is_some() => {
                    let status = self.method.not_one_response("more than one");
                    self.responses.fail(&status);
                    return Poll::Ready(Err(status));
                }
                Poll::Ready(Some(Ok(value))) => self.value = Some(value),
                Poll::Ready(None) => {
                    let missing = || self.method.not_one_response("none");
                    return Poll::Ready(self.value.take().ok_or_else(missing));
                }
            }
        }
    }
}

// Values are never pinned.
impl<T> Unpin for TypedResponse<T> {}

impl<T> Future for TypedResponse<T> {
    type Output = Result<T, Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_value(task)
    }
}

impl<C, T> fmt::Debug for ResponseStreamCall<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.call, f)
    }
}

impl<C, Q, T> fmt::Debug for RequestStreamCall<'_, C, Q, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.call, f)
    }
}

impl<C, Q, T> fmt::Debug for DuplexCall<'_, C, Q, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.call, f)
    }
}

impl<T> fmt::Debug for TypedSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedSender").field("path", &self.method.path).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for TypedResponse<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedResponse").field("path", &self.method.path).finish_non_exhaustive()
    }
}
