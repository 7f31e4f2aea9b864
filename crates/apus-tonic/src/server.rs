//! A server for the services that tonic generates.
//!
//! | file | contents |
//! |---|---|
//! | `builder.rs` | services and limits |
//! | `error.rs` | the reasons why a server does not serve |
//! | `services.rs` | from a path to its service |
//! | `serving.rs` | the port, from the beginning to the end |
//! | `tcp.rs` | the same services over TCP |

mod builder;
mod error;
mod services;
mod serving;
#[cfg(feature = "transport")]
mod tcp;

pub use builder::{Server, ServerBuilder};
pub use error::ServeError;
pub use services::{Services, ServicesFuture};
pub use serving::{ServerEnd, Serving};
