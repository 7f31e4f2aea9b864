//! Channels: calls out, responses in.
//!
//! | file | contents |
//! |---|---|
//! | `connect.rs` | from a target to a channel |
//! | `channel.rs` | the channel |
//! | `calls.rs` | what its calls share |
//! | `unary.rs` | a call with one request and one response |

mod calls;
mod channel;
mod connect;
mod unary;

pub use calls::OutgoingCall;
pub use channel::Channel;
pub use connect::{ChannelBuilder, ConnectError};
pub use unary::{UnaryCall, UnaryFuture};
