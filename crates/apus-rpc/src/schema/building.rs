//! The schema of a service, from the types of its trait.

use std::marker::PhantomData;

use crate::codec::{Codec, Decode};
use crate::schema::rules::REST;
use crate::schema::text::{MethodText, Schema};
use crate::schema::types::SchemaTypes;

/// A schema that is being made. Generated code makes it; programs call `schema()` of a client.
#[derive(Debug)]
pub struct SchemaBuilder<C> {
    schema: Schema,
    types: SchemaTypes,
    codec: PhantomData<C>,
}

/// A method of a [`SchemaBuilder`].
#[derive(Debug)]
pub struct MethodBuilder<'b, C> {
    method: &'b mut MethodText,
    types: &'b mut SchemaTypes,
    codec: PhantomData<C>,
}

impl<C: Codec> SchemaBuilder<C> {
    /// The schema of a service without methods.
    #[must_use]
    pub fn new(service: &str) -> Self {
        let (service, codec) = (service.to_owned(), C::NAME.to_owned());
        let schema = Schema { service, codec, ..Schema::default() };
        Self { schema, types: SchemaTypes::default(), codec: PhantomData }
    }

    /// Adds a method.
    pub fn method(&mut self, name: &str, is_idempotent: bool) -> MethodBuilder<'_, C> {
        let method = self.schema.methods.entry(name.to_owned()).or_default();
        method.is_idempotent = is_idempotent;
        MethodBuilder { method, types: &mut self.types, codec: PhantomData }
    }

    /// The schema.
    #[must_use]
    pub fn finish(mut self) -> Schema {
        self.schema.types = self.types.into_inner();
        self.schema
    }
}

impl<C: Codec> MethodBuilder<'_, C> {
    /// Adds an argument.
    #[must_use]
    pub fn argument<T>(self, name: &str) -> Self
    where
        C: Decode<T>,
    {
        self.method.arguments.push((name.to_owned(), C::describe(self.types)));
        self
    }

    /// Adds the argument that is a stream of requests.
    #[must_use]
    pub fn requests<T>(self, name: &str) -> Self
    where
        C: Decode<T>,
    {
        let text = stream_of(&C::describe(self.types));
        self.method.arguments.push((name.to_owned(), text));
        self
    }

    /// Adds the argument that takes all bytes behind the others.
    #[must_use]
    pub fn rest(self, name: &str) -> Self {
        self.method.arguments.push((name.to_owned(), REST.to_owned()));
        self
    }

    /// Sets the type of the response.
    pub fn returns<T>(self)
    where
        C: Decode<T>,
    {
        self.method.returns = C::describe(self.types);
    }

    /// Sets the type of each response of a stream.
    pub fn returns_stream<T>(self)
    where
        C: Decode<T>,
    {
        self.method.returns = stream_of(&C::describe(self.types));
    }
}

/// The text of a stream of values.
fn stream_of(text: &str) -> String {
    format!("stream<{text}>")
}
