//! The codec of protocol buffers.

use bytes::{Buf, Bytes};

use crate::codec::{Codec, CodecError, Decode, Encode};

/// Messages of [prost](https://docs.rs/prost): protocol buffers, for services that other languages call. A method has one argument or
/// none. Their versions follow the rules of protocol buffers; a [schema](crate::schema) has only the names of messages.
#[derive(Debug)]
pub enum Prost {}

impl Codec for Prost {
    const NAME: &'static str = "prost";
}

impl<T: prost::Message> Encode<T> for Prost {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        value.encode(into).map_err(CodecError::new)
    }
}

impl<T: prost::Message + Default> Decode<T> for Prost {
    fn decode(input: &mut Bytes) -> Result<T, CodecError> {
        // A message has no end of its own: it takes all bytes.
        T::decode(&mut *input).map_err(|error| {
            input.advance(input.remaining());
            CodecError::new(error)
        })
    }
}
