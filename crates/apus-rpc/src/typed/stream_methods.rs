//! Typed methods with streams, at a server.

use std::future::{Future, poll_fn};
use std::pin::pin;

use futures_core::Stream;

use crate::code::Code;
use crate::codec::{Decode, Encode};
use crate::context::Context;
use crate::server::ServerBuilder;
use crate::status::{Execution, Status};
use crate::streaming::{StreamSender, Streaming};
use crate::typed::arguments::ArgumentReader;
use crate::typed::method::TypedMethod;
use crate::typed::service::respond;

/// Adds a method of a typed service with streams.
pub fn add_stream_method<'n, F>(
    server: ServerBuilder<'n>,
    method: TypedMethod,
    handler: impl Fn(Context, Streaming, StreamSender) -> F + Send + Sync + 'static,
) -> ServerBuilder<'n>
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    server.stream(method.path, handler)
}

/// The arguments of a method whose responses alone are a stream.
///
/// # Errors
///
/// The status of a call that ends without a request.
pub async fn read_arguments<C>(
    method: TypedMethod,
    mut requests: Streaming,
) -> Result<ArgumentReader<C>, Status> {
    let missing = || {
        let text = format!("{}: the request has no message", method.path);
        Status::new(Code::InvalidArgument, text)
    };
    let body = requests.next().await.ok_or_else(missing)??;
    Ok(ArgumentReader::new(method, body))
}

/// The requests of a call as values.
pub fn typed_requests<C: Decode<T>, T>(
    method: TypedMethod,
    requests: Streaming,
    argument: &'static str,
) -> Streaming<T> {
    requests.typed(move |message| {
        // The handler has begun.
        let refused =
            |error| method.undecodable(argument, &error).with_execution(Execution::Possible);
        C::decode(&mut message?).map_err(refused)
    })
}

/// Sends the only response of a method whose requests are a stream.
///
/// # Errors
///
/// As [`respond`] and [`StreamSender::send`].
pub async fn send_response<C: Encode<T>, T>(
    method: TypedMethod,
    value: &T,
    mut responses: StreamSender,
) -> Result<(), Status> {
    responses.send_encoded(respond::<C, T>(method, value)?.0).await
}

/// Sends the responses of a method as they come. The client knows from the beginning that there will be some.
///
/// # Errors
///
/// The first error of the responses, which is the status of the call, and as [`send_response`].
pub async fn send_responses<C: Encode<T>, T>(
    method: TypedMethod,
    values: impl Stream<Item = Result<T, Status>>,
    mut responses: StreamSender,
) -> Result<(), Status> {
    // It goes with the first response if that is there already.
    responses.send_head();
    let mut values = pin!(values);
    while let Some(value) = poll_fn(|task| values.as_mut().poll_next(task)).await {
        responses.send_encoded(respond::<C, T>(method, &value?)?.0).await?;
    }
    Ok(())
}
