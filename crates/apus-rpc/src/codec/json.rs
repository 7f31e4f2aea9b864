//! The codec JSON.

use bytes::{Buf, Bytes};
use serde_core::Serialize;
use serde_core::de::DeserializeOwned;

use crate::codec::{Codec, CodecError, Decode, Encode};
use crate::schema::{SchemaTypes, trace};

/// JSON: text that people and other languages read. A request has a line for each argument, so the request of a method with one
/// argument is one JSON text, and so is every response.
///
/// Fields of structs have names in it: a struct may gain fields that are `Option`s.
#[derive(Debug)]
pub enum Json {}

impl Codec for Json {
    const NAME: &'static str = "json";
}

impl<T: Serialize + ?Sized> Encode<T> for Json {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        if !into.is_empty() {
            into.push(b'\n');
        }
        serde_json::to_writer(into, value).map_err(CodecError::new)
    }
}

impl<T: DeserializeOwned> Decode<T> for Json {
    fn decode(input: &mut Bytes) -> Result<T, CodecError> {
        let mut values = serde_json::Deserializer::from_slice(input).into_iter::<T>();
        match values.next() {
            Some(Ok(value)) => {
                let length = values.byte_offset();
                input.advance(length);
                Ok(value)
            }
            Some(Err(error)) => Err(CodecError::new(error)),
            // `null` is `None`.
            None => serde_json::from_slice(b"null").map_err(|_| CodecError::new("no bytes left")),
        }
    }

    fn describe(types: &mut SchemaTypes) -> String {
        trace::<T>(types, true)
    }
}
