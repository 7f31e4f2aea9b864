//! The envelope: what stands before the body in each message of a service. For adapters and tools; channels and servers use it
//! for all others.
//!
//! [docs/rpc-wire.md](https://github.com/apus-rpc/apus/blob/main/docs/rpc-wire.md) has the rules of the format. Decoding is pure, reads
//! at most the limit of a head, and fails with an [`EnvelopeError`] whatever the bytes are.
//!
//! | file | contents |
//! |---|---|
//! | `request.rs`, `response.rs` | the two kinds of heads |
//! | `pairs.rs` | metadata as bytes |
//! | `head_reader.rs`, `head_writer.rs` | integers and lengths |
//! | `error.rs` | the reasons of a refusal |
//! | `limits.rs` | limits of a receiver |
//! | `refusals.rs` | a counter for each reason |

mod error;
mod head_reader;
mod head_writer;
mod limits;
mod pairs;
mod path;
mod refusals;
mod request;
mod response;

pub use error::EnvelopeError;
pub(crate) use head_writer::put_varint;
pub use limits::EnvelopeLimits;
pub use path::MethodPath;
pub use refusals::Refusals;
pub use request::{Opening, RequestHead};
pub(crate) use request::{PlainOpen, encode_open};
pub(crate) use response::PLAIN_OK;
pub use response::ResponseHead;

pub use crate::header_name::STATIC_NAMES;

/// Byte 0 of an envelope: the mark and version 1.
//= docs/rpc-wire.md#E1
pub const FIRST_BYTE: u8 = 0xA1;
