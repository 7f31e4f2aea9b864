//! Streams of messages: the parts that both sides of a call have.
//!
//! | file | contents |
//! |---|---|
//! | `sender.rs`, `reader.rs` | the ends that programs hold |
//! | `chunks.rs`, `frames.rs` | from messages to chunks, and back |
//! | `in_order.rs` | chunks in the order of their numbers |

pub(crate) mod chunks;
pub(crate) mod frames;
pub(crate) mod in_order;
pub(crate) mod reader;
pub(crate) mod sender;

pub use reader::Streaming;
pub use sender::StreamSender;
