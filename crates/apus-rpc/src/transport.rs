//! The way of messages between channels and servers: over the network, or within memory for tests.
//!
//! | file | contents |
//! |---|---|
//! | `outgoing.rs` | a message and its answer, in the client |
//! | `incoming.rs` | a message to be answered, in the server |
//! | `memory.rs` | both within memory |

mod incoming;
mod memory;
mod outgoing;

pub(crate) use incoming::Incoming;
pub(crate) use memory::{Deliver, MemoryCall, MemoryRequest};
pub(crate) use outgoing::{Caller, Outgoing, OutgoingOptions, OutgoingParts, Started};
