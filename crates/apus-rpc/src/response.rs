//! Responses.

use apus::Bytes;

use crate::metadata::Metadata;

/// The response of a call: a message with the metadata before it and the trailers after it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Response<T = Bytes> {
    body: T,
    metadata: Metadata,
    trailers: Metadata,
}

impl<T> Response<T> {
    pub(crate) fn new(body: T, metadata: Metadata, trailers: Metadata) -> Self {
        Self { body, metadata, trailers }
    }

    /// The message, the metadata before it and the trailers after it.
    #[must_use]
    pub fn into_parts(self) -> (T, Metadata, Metadata) {
        (self.body, self.metadata, self.trailers)
    }

    /// The metadata and the trailers, to be changed by a layer.
    #[must_use]
    pub fn metadata_mut(&mut self) -> (&mut Metadata, &mut Metadata) {
        (&mut self.metadata, &mut self.trailers)
    }

    /// The message.
    #[must_use]
    pub fn body(&self) -> &T {
        &self.body
    }

    /// The message, without metadata.
    #[must_use]
    pub fn into_body(self) -> T {
        self.body
    }

    /// The metadata before the message.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The metadata after the message.
    #[must_use]
    pub fn trailers(&self) -> &Metadata {
        &self.trailers
    }

    /// The response with the value of its message.
    pub(crate) fn decode<U, E>(
        self,
        decode: impl FnOnce(T) -> Result<U, E>,
    ) -> Result<Response<U>, E> {
        let Self { body, metadata, trailers } = self;
        Ok(Response { body: decode(body)?, metadata, trailers })
    }

    /// The response with another message.
    #[must_use]
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Response<U> {
        let Self { body, metadata, trailers } = self;
        Response { body: change(body), metadata, trailers }
    }
}
