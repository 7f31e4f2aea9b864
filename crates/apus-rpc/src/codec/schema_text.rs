//! Schemas as responses.

use bytes::Bytes;

use crate::codec::{Codec, CodecError, Decode};
use crate::schema::Schema;

/// The text of a schema: the response of the method `__describe`, which every typed service has.
#[derive(Debug)]
pub enum SchemaText {}

impl Codec for SchemaText {
    const NAME: &'static str = "schema";
}

impl Decode<Schema> for SchemaText {
    fn decode(input: &mut Bytes) -> Result<Schema, CodecError> {
        let text = input.split_off(0);
        str::from_utf8(&text).map_err(CodecError::new)?.parse().map_err(CodecError::new)
    }
}
