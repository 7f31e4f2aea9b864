//! Services over Apus: calls with a path, metadata, deadlines and gRPC's status codes.
//!
//! A [`Server`] serves methods at a port of a [`Node`], and a [`Channel`] calls them. Handlers are async and return a result; calls
//! are awaited on any executor, or a thread waits for them.
//!
//! ```
//! use std::future;
//! use std::thread;
//! use std::time::Duration;
//! use apus::{Address, Config, Node};
//! use apus_rpc::{Bytes, Channel, Code, Context, Server, Status};
//!
//! /// Adds two numbers.
//! async fn add(_: Context, body: Bytes) -> Result<String, Status> {
//!     let text = str::from_utf8(&body).map_err(|_| Status::new(Code::InvalidArgument, "no text"))?;
//!     let numbers = text.split(' ').map(|number| number.parse::<i64>());
//!     let numbers = numbers.collect::<Result<Vec<i64>, _>>();
//!     let numbers = numbers.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
//!     Ok(numbers.iter().sum::<i64>().to_string())
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The server. A real one starts its node with `Config::server()`, and ends when a signal arrives.
//! let mut config = Config::new();
//! config.listen("127.0.0.1:0".parse()?);
//! let node = Node::start(&config)?;
//! let server = Server::builder(&node).route("/shop.Calc/Add", add).serve(4000, future::pending());
//! thread::spawn(move || server.wait());
//!
//! // The client, with the address or name of the server: "calc.example:4000". A task awaits the call instead.
//! let address = Address::new(node.local_addr(), 4000).to_string();
//! let channel = Channel::builder(&address).build()?;
//! let call = channel.unary("/shop.Calc/Add", "1 2").deadline(Duration::from_secs(5));
//! assert_eq!(call.wait()?.body(), "3");
//!
//! let error = channel.unary("/shop.Calc/Add", "1 x").wait().unwrap_err();
//! assert_eq!(error.code(), Code::InvalidArgument);
//! # Ok(())
//! # }
//! ```
//!
//! Metadata and bodies go in the clear unless both nodes have certificates
//! ([encryption and identity](https://github.com/apus-rpc/apus/blob/main/docs/security.md)).
//!
//! # Tour
//!
//! | for | items |
//! |---|---|
//! | calls | [`Channel`], [`UnaryCall`], [`Response`], [`OutgoingCall`] for interceptors |
//! | streams | [`StreamCall`], [`Streaming`], [`StreamSender`], [`ServerBuilder::stream`] |
//! | methods | [`Server`], [`ServerBuilder`], [`Context`], [`IncomingCall`] for interceptors |
//! | the end of a server | [`shutdown_signal`], [`Serving::drain`], [`Drained`] |
//! | results | [`Status`], [`Code`], [`Metadata`] |
//! | tasks | [`Spawn`] |
//! | bytes on the wire | [`envelope`] |
//!
//! # Deadlines, cancellation and nested calls
//!
//! A deadline of a call travels with it. The server drops the handler when the deadline passes or the client gives the call up,
//! and calls that a handler makes inherit deadline and trace context ([`Context`]). A dropped handler drops its calls, so a call that is
//! given up ends the work that it has caused on other servers.
//!
//! # Failures
//!
//! A call ends with a response or a [`Status`]. [`Status::may_have_executed`] says whether a handler may have seen the request; if
//! not, it may be repeated whatever it does.
//!
//! # Features
//!
//! `macros` and `postcard` are on by default. Each only adds to the API.
//!
//! * `macros`: the attribute `service` of typed services.
//! * `postcard`, `json`, `prost`: their [codecs](codec).
//! * `tokio`: a runtime of tokio turns nodes and runs handlers (`apus_rpc::tokio`).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod cancellation;
mod client;
mod code;
pub mod codec;
mod context;
pub mod envelope;
mod header_name;
mod metadata;
mod response;
pub mod schema;
mod server;
mod shutdown;
mod spawning;
mod status;
mod streaming;
mod timer;
#[cfg(feature = "tokio")]
pub mod tokio;
mod typed;

pub use apus::{Address, Bytes, CallError, Node, Peer, TraceContext};
pub use client::{
    Channel, ChannelBuilder, ConnectError, OutgoingCall, StreamCall, UnaryCall, UnaryFuture,
};
pub use code::Code;
pub use context::Context;
pub use metadata::{Metadata, MetadataError, MetadataValue};
pub use response::Response;
pub use server::{
    Drained, IncomingCall, ServeError, Server, ServerBuilder, ServerCounters, Serving,
};
pub use shutdown::{ShutdownSignal, shutdown_signal};
pub use spawning::{BoxTask, Spawn};
pub use status::Status;
pub use streaming::{StreamSender, Streaming};
pub use typed::{Service, TypedCall, TypedFuture};

#[cfg(feature = "macros")]
pub use apus_rpc_macros::service;

/// The parts of generated code. No program names them.
#[doc(hidden)]
pub mod generated {
    pub use crate::schema::SchemaBuilder;
    pub use crate::typed::{
        ArgumentReader, ArgumentWriter, BlockingThreads, TypedMethod, add_method, describe, respond,
    };
}

/// Handles may be used by any number of threads at once.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Channel>();
    is_shared::<Context>();
    is_shared::<Status>();
    is_shared::<Metadata>();
    is_shared::<ServerCounters>();
    const fn is_sent<T: Send>() {}
    is_sent::<UnaryFuture<'_>>();
    is_sent::<Serving>();
};
