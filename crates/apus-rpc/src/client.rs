//! Channels: calls out, responses in.
//!
//! | file | contents |
//! |---|---|
//! | `connect.rs` | from a target to a channel |
//! | `in_memory.rs` | a channel whose server is in memory |
//! | `channel.rs` | the channel |
//! | `contact.rs` | first contact |
//! | `calls.rs` | what its calls share |
//! | `call_head.rs` | path, metadata and options of a call |
//! | `stream_call.rs`, `client_stream.rs` | a call with streams |
//! | `unary.rs` | a call with one request and one response |

mod call_head;
mod calls;
mod channel;
mod client_stream;
mod connect;
mod contact;
mod in_memory;
mod stream_call;
mod unary;

pub use calls::OutgoingCall;
pub use channel::Channel;
pub(crate) use connect::with_shared_node;
pub use connect::{ChannelBuilder, ConnectError};
pub use contact::Contact;
pub use stream_call::StreamCall;
pub use unary::{UnaryCall, UnaryFuture};
