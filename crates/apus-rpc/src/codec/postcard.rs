//! The codec postcard.

use bytes::{Buf, Bytes};
use postcard::{Deserializer, de_flavors, ser_flavors};
use serde_core::de::{DeserializeOwned, Visitor, value};
use serde_core::{Serialize, forward_to_deserialize_any};

use crate::codec::{Codec, CodecError, Decode, Encode};
use crate::schema::{SchemaTypes, trace};

/// [postcard](https://postcard.jamesmunns.com): compact bytes of every type that implements serde's traits. The default.
///
/// Integers are varints and structs have no names in them, so both sides must have the same types
/// ([rules of versions](crate::schema#rules)). Values that are nested by many hundred levels are refused.
#[derive(Debug)]
pub enum Postcard {}

impl Codec for Postcard {
    const NAME: &'static str = "postcard";
}

/// Appends to a vector.
struct Append<'a>(&'a mut Vec<u8>);

impl ser_flavors::Flavor for Append<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError> {
        postcard::serialize_with_flavor(value, Append(into)).map_err(CodecError::new)
    }
}

/// Most bytes of the stack that a value takes while it is decoded. A recursive type would otherwise take as much as a peer wants.
const STACK_MAX: usize = 256 << 10;

/// A slice that is read while the stack is short enough.
struct Bounded<'de> {
    bytes: &'de [u8],
    /// The stack where decoding began.
    begin: usize,
}

/// The present end of the stack.
#[inline(always)]
fn stack_end() -> usize {
    let here = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}

impl<'de> de_flavors::Flavor<'de> for Bounded<'de> {
    type Remainder = &'de [u8];
    type Source = &'de [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        if stack_end().abs_diff(self.begin) > STACK_MAX {
            // An error that decoding has no other use for.
            return Err(postcard::Error::SerializeBufferFull);
        }
        let (first, rest) =
            self.bytes.split_first().ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.bytes.len())
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'de [u8]> {
        let taken = self.bytes.split_at_checked(count);
        let (taken, rest) = taken.ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn finalize(self) -> postcard::Result<&'de [u8]> {
        Ok(self.bytes)
    }
}

impl<T: DeserializeOwned> Decode<T> for Postcard {
    fn decode(input: &mut Bytes) -> Result<T, CodecError> {
        let bounded = Bounded { bytes: input, begin: stack_end() };
        let mut deserializer = Deserializer::from_flavor(bounded);
        let decoded = T::deserialize(&mut deserializer);
        let rest = deserializer.finalize().map_or(0, <[u8]>::len);
        match decoded {
            Ok(value) => {
                input.advance(input.len() - rest);
                Ok(value)
            }
            Err(postcard::Error::SerializeBufferFull) => {
                Err(CodecError::new(format_args!("nested too deeply: {STACK_MAX} bytes of stack")))
            }
            Err(_) if input.is_empty() => {
                T::deserialize(Absent).map_err(|_| CodecError::new("no bytes left"))
            }
            Err(error) => Err(CodecError::new(error)),
        }
    }

    fn describe(types: &mut SchemaTypes) -> String {
        trace::<T>(types, false)
    }
}

/// A value that is not there: `None`, and an error for all other types.
struct Absent;

impl<'de> serde_core::Deserializer<'de> for Absent {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
        Err(serde_core::de::Error::custom("absent"))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, value::Error> {
        visitor.visit_none()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}
