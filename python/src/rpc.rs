//! gRPC over Apus, for `apus.grpc`: calls and requests with the envelope of `apus-rpc`, whose bodies are gRPC's frames, as
//! `apus-tonic` has them.
//!
//! | file | contents |
//! |---|---|
//! | `channel.rs`, `client_call.rs` | calls |
//! | `ends.rs` | calls that one thread of the process waits for |
//! | `server.rs`, `tasks.rs`, `handled.rs`, `server_call.rs` | requests, and the tasks of their handlers |
//! | `ended_ports.rs` | ports of servers that have ended |
//! | `directions.rs` | messages that are read and sent, on both sides |
//! | `frames.rs`, `convert.rs` | messages, metadata and statuses |
//! | `readers.rs` | the tasks that read one stream |

pub(crate) mod channel;
pub(crate) mod client_call;
mod convert;
mod directions;
pub(crate) mod ended_ports;
pub(crate) mod ends;
mod frames;
mod handled;
mod readers;
pub(crate) mod server;
pub(crate) mod server_call;
mod tasks;
