//! Codecs: values as bytes, for typed services.
//!
//! A service names its codec: `#[apus_rpc::service(name = "shop.Calc", codec = "postcard")]`. A program may bring one of its own
//! as the path of a type: `codec = MyCodec`.
//!
//! | codec | values | arguments |
//! |---|---|---|
//! | `Postcard` (feature `postcard`, default) | `Serialize` and `DeserializeOwned` of serde | one after another, in [postcard's format](https://postcard.jamesmunns.com) |
//! | `Json` (feature `json`) | the same | one after another, each on a line of its own |
//! | `Prost` (feature `prost`) | messages of prost | one message |
//!
//! # A codec of a program
//!
//! ```
//! use apus_rpc::Bytes;
//! use apus_rpc::codec::{Codec, CodecError, Decode, Encode};
//!
//! /// Text, each value on a line.
//! pub enum Lines {}
//!
//! impl Codec for Lines {
//!     const NAME: &'static str = "lines";
//! }
//!
//! impl Encode<String> for Lines {
//!     fn encode(value: &String, into: &mut Vec<u8>) -> Result<(), CodecError> {
//!         if value.contains('\n') {
//!             return Err(CodecError::new("a line has no line feed"));
//!         }
//!         into.extend_from_slice(value.as_bytes());
//!         into.push(b'\n');
//!         Ok(())
//!     }
//! }
//!
//! impl Decode<String> for Lines {
//!     fn decode(input: &mut Bytes) -> Result<String, CodecError> {
//!         let end = input.iter().position(|&byte| byte == b'\n');
//!         let line = input.split_to(end.ok_or_else(|| CodecError::new("no line"))? + 1);
//!         let text = str::from_utf8(&line[..line.len() - 1]).map_err(CodecError::new)?;
//!         Ok(text.to_owned())
//!     }
//! }
//!
//! #[apus_rpc::service(name = "text.Echo", codec = Lines)]
//! pub trait Echo {
//!     async fn echo(&self, cx: &apus_rpc::Context, line: String) -> Result<String, apus_rpc::Status>;
//! }
//! ```

use std::fmt;

use bytes::Bytes;

use crate::schema::SchemaTypes;

#[cfg(feature = "json")]
mod json;
#[cfg(feature = "postcard")]
mod postcard;
#[cfg(feature = "prost")]
mod prost;
mod schema_text;

#[cfg(feature = "json")]
pub use json::Json;
#[cfg(feature = "postcard")]
pub use postcard::Postcard;
#[cfg(feature = "prost")]
pub use prost::Prost;
pub use schema_text::SchemaText;

/// A format of values. The types that it has are those for which it implements [`Encode`] and [`Decode`].
pub trait Codec: Send + Sync + 'static {
    /// The name, as in the attribute `service` and in schemas.
    const NAME: &'static str;
}

/// Values of a type as bytes.
pub trait Encode<T: ?Sized>: Codec {
    /// Appends a value to bytes that may have other values before it.
    ///
    /// # Errors
    ///
    /// [`CodecError`]: the value has no form in this codec.
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), CodecError>;
}

/// Bytes as values of a type.
pub trait Decode<T>: Codec {
    /// Takes a value from the front of the bytes. Bytes behind it are left: they may be further values.
    ///
    /// The bytes come from another program and may be wrong in any way. An implementation neither panics nor allocates more than
    /// a small multiple of their length.
    ///
    /// At the end of the bytes a codec may return a value that stands for an absent one, as `None`: arguments that are appended to a
    /// method are absent in requests of older clients.
    ///
    /// # Errors
    ///
    /// [`CodecError`]: the bytes do not begin with a value.
    fn decode(input: &mut Bytes) -> Result<T, CodecError>;

    /// The type in a [schema](crate::schema). Default: the name of the Rust type without its modules.
    #[must_use]
    fn describe(types: &mut SchemaTypes) -> String {
        let _ = types;
        let name = std::any::type_name::<T>();
        // Modules may be renamed: only the last part counts, also in the parameters of a type.
        let parts = name.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        parts.map(|part| part.rsplit("::").next().unwrap_or(part)).collect()
    }
}

/// A value that a codec cannot encode, or bytes that it cannot decode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CodecError {
    text: String,
}

impl CodecError {
    /// An error with a text for people, which the other side of a call may see.
    pub fn new(text: impl fmt::Display) -> Self {
        Self { text: text.to_string() }
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CodecError {}
