//! Servers: requests in, responses out.
//!
//! | file | contents |
//! |---|---|
//! | `builder.rs` | methods and limits |
//! | `serving.rs` | the port: threads and tasks that receive |
//! | `intake.rs` | from a message to the handler of its method |
//! | `methods.rs`, `method.rs` | the methods by path; their kinds |
//! | `layers.rs` | layers of tower around methods |
//! | `handling.rs` | a request in the hands of its handler |
//! | `server_stream.rs`, `stream_handling.rs`, `stream_table.rs` | calls with streams |
//! | `stream_buffers.rs` | limits on the bytes of streams |
//! | `answer.rs` | responses |
//! | `admission.rs`, `in_service.rs` | limits on requests in service; the handlers that go on |
//! | `draining.rs` | the orderly end |
//! | `workers.rs` | threads for handlers that wait |
//! | `counters.rs` | counters |

mod admission;
mod answer;
mod builder;
mod counters;
mod draining;
mod handling;
mod in_service;
mod intake;
#[cfg(feature = "tower")]
mod layers;
mod method;
mod methods;
mod server_stream;
mod serving;
mod stream_buffers;
mod stream_handling;
mod stream_table;
mod workers;

pub use builder::{Server, ServerBuilder};
pub use counters::ServerCounters;
pub use intake::IncomingCall;
#[cfg(feature = "tower")]
pub use layers::IncomingRequest;
pub use serving::{Drained, ServeError, Serving};
pub(crate) use workers::Workers;
