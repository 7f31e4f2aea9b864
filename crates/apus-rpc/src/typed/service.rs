//! The methods of a typed service at a server.

use std::future::Future;

use bytes::Bytes;

use crate::codec::Encode;
use crate::context::Context;
use crate::scratch::EncodeBuffer;
use crate::server::ServerBuilder;
use crate::status::Status;
use crate::typed::method::TypedMethod;

/// A typed service with an implementation, such as a generated `CalcServer`.
pub trait Service {
    /// Adds the methods to a server.
    fn add_to(self, server: ServerBuilder<'_>) -> ServerBuilder<'_>;
}

impl ServerBuilder<'_> {
    /// Serves a typed service. Each method is a [`route`](Self::route).
    #[allow(clippy::should_implement_trait, reason = "it adds a service, not a number")]
    pub fn add(self, service: impl Service) -> Self {
        service.add_to(self)
    }
}

/// Adds a method of a typed service.
pub fn add_method<'n, F>(
    server: ServerBuilder<'n>,
    method: TypedMethod,
    handler: impl Fn(Context, Bytes) -> F + Send + Sync + 'static,
) -> ServerBuilder<'n>
where
    F: Future<Output = Result<EncodedResponse, Status>> + Send + 'static,
{
    server.unary(method.path, handler, |EncodedResponse(encoded)| encoded.into())
}

/// The body of a response in a buffer of the thread.
#[derive(Debug)]
pub struct EncodedResponse(pub(crate) EncodeBuffer);

/// The body of a response.
///
/// # Errors
///
/// [`Code::Internal`](crate::Code::Internal): the value has no form in the codec.
pub fn respond<C: Encode<T>, T>(method: TypedMethod, value: &T) -> Result<EncodedResponse, Status> {
    let mut body = EncodeBuffer::new();
    C::encode(value, body.buffer()).map_err(|error| method.unencodable(&error))?;
    Ok(EncodedResponse(body))
}
