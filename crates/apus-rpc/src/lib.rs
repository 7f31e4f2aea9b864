//! Services over Apus: typed calls with deadlines, metadata and gRPC's status codes.
//!
//! A service is a trait, of which the attribute [`service`](macro@service) makes a client and a server. A [`Server`] serves it at a port
//! of a [`Node`], and a [`Channel`] leads to it. Handlers are async and return a result; calls are awaited on any executor, or a
//! thread waits for them.
//!
//! ```
//! # #[cfg(all(feature = "macros", feature = "postcard"))]
//! # mod example {
//! use std::{future, thread};
//! use std::time::Duration;
//! use apus_rpc::{Address, Channel, Code, Config, Context, Node, Server, Status};
//!
//! #[apus_rpc::service(name = "shop.Calc")]
//! trait Calc {
//!     /// Adds two numbers.
//!     async fn add(&self, cx: &Context, a: i64, b: i64) -> Result<i64, Status>;
//! }
//!
//! struct MyCalc;
//!
//! impl Calc for MyCalc {
//!     async fn add(&self, _: &Context, a: i64, b: i64) -> Result<i64, Status> {
//!         a.checked_add(b).ok_or_else(|| Status::new(Code::OutOfRange, "the sum is too large"))
//!     }
//! }
//!
//! # pub fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The server. A real one starts its node with `Config::server()`, and ends when a signal arrives.
//! let mut config = Config::new();
//! config.listen("127.0.0.1:0".parse()?);
//! let node = Node::start(&config)?;
//! let server = Server::builder(&node).add(CalcServer::new(MyCalc)).serve(4000, future::pending());
//! thread::spawn(move || server.wait());
//!
//! // The client, with the address or name of the server: "calc.example:4000". A task awaits the call instead.
//! let address = Address::new(node.local_addr(), 4000).to_string();
//! let calc = CalcClient::new(Channel::builder(&address).build()?);
//! assert_eq!(calc.add(1, 2).deadline(Duration::from_secs(5)).wait()?, 3);
//!
//! let error = calc.add(i64::MAX, 1).wait().unwrap_err();
//! assert_eq!(error.code(), Code::OutOfRange);
//! # Ok(())
//! # }
//! # }
//! # #[cfg(all(feature = "macros", feature = "postcard"))]
//! # example::main().unwrap();
//! ```
//!
//! Methods without types take and give bytes: [`ServerBuilder::route`] and [`Channel::unary`].
//!
//! Metadata and bodies go in the clear unless both nodes have certificates
//! ([encryption and identity](https://github.com/apus-rpc/apus/blob/main/docs/security.md)).
//!
//! # Tour
//!
//! | for | items |
//! |---|---|
//! | typed services | [`service`](macro@service), [`TypedCall`], [`Service`], [`codec`], [`schema`] |
//! | tests without a network | [`Channel::in_memory`], [`Server::in_memory`] |
//! | endpoints | [`Target`], [`Resolve`], [`Balance`], [`Pick`], [`Channel::endpoints`] |
//! | health of services | [`health`], [`ChannelBuilder::health`] |
//! | repetition | [`Retry`], [`RetryPolicy`], [`Hedge`], [`UnaryCall::idempotent`] |
//! | calls | [`Channel`], [`UnaryCall`], [`Response`], [`OutgoingCall`] for interceptors |
//! | streams | [`StreamCall`], [`Streaming`], [`StreamSender`], [`ServerBuilder::stream`] |
//! | streams of typed services | [`ResponseStreamCall`], [`RequestStreamCall`], [`DuplexCall`], [`TypedSender`], [`TypedResponse`] |
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
//! not, it may be repeated whatever it does. The channel repeats such a request at once at another endpoint, if it has several.
//!
//! Calls that may have been executed are repeated only if their method may be executed more than once ([`UnaryCall::idempotent`],
//! [`Retry`]); such calls may also have a second copy when they are slow ([`Hedge`]).
//!
//! # Several servers
//!
//! A [`Target`] such as `dns:calc.example:4000` has an endpoint for each address of the name. The channel looks names up again and again,
//! chooses an endpoint for each call ([`Balance`]), and leaves endpoints out that fail or drain, without a task or a hop for a call:
//!
//! * Five failures in a row eject an endpoint for 30 s, and each later time for 30 s longer, up to 300 s. These are failures of the
//!   peer: it is silent, cannot be reached, was restarted, or answers [`Code::Unavailable`]. A deadline that passes while the peer answers
//!   probes is none. At most half of the endpoints are ejected so.
//! * A server that drains is left out at once, for a second or as long as it drains.
//! * The channel then asks the endpoint (`grpc.health.v1.Health/Check`), which is back when it gives any answer but UNAVAILABLE.
//! * With [`ChannelBuilder::health`], endpoints whose service does not serve are left out.
//! * If all endpoints are left out, calls go to them nevertheless.
//!
//! # Features
//!
//! Each only adds to the API.
//!
//! * `macros` (default): the attribute `service`.
//! * `postcard` (default), `json`, `prost`: the [codecs](codec). The first two need `serde`, the types of a schema.
//! * `service-config`: reads gRPC's service config (`Retry::from_service_config`).
//! * `hickory`: looks names up by their times to live, and SRV records (`HickoryResolver`).
//! * `metrics`: histograms of calls and requests for a recorder of the crate `metrics`, and `tracing`: their spans for a subscriber of the
//!   crate `tracing`, both by OpenTelemetry's conventions.
//! * `tower`: layers of tower around methods and calls (`apus_rpc::tower`).
//! * `tokio`: a runtime of tokio turns nodes and runs handlers (`apus_rpc::tokio`).

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod blocking;
mod body;
mod cancellation;
#[doc(hidden)]
pub mod carried;
mod client;
mod code;
pub mod codec;
mod context;
pub mod envelope;
mod header_name;
pub mod health;
#[cfg(feature = "tower")]
mod layering;
mod metadata;
mod observe;
mod response;
pub mod schema;
mod scratch;
mod server;
mod shutdown;
mod spawning;
mod status;
mod streaming;
mod timer;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tower")]
pub mod tower;
mod transport;
mod typed;

pub use apus::{Address, Bytes, CallError, Config, Node, Peer, TraceContext};
#[cfg(feature = "hickory")]
pub use client::HickoryResolver;
#[cfg(feature = "service-config")]
pub use client::ServiceConfigError;
pub use client::{
    Balance, BoxError, Candidates, Channel, ChannelBuilder, ChannelCounters, ConnectError, Contact,
    Endpoint, EndpointStatus, EndpointStream, Hedge, OutgoingCall, Pick, Resolve, Retry,
    RetryPolicy, StreamCall, SystemResolver, Target, UnaryCall, UnaryFuture,
};
pub use code::Code;
pub use context::Context;
pub use futures_core::Stream;
pub use metadata::{Metadata, MetadataError, MetadataValue};
pub use response::Response;
pub use server::{
    Drained, IncomingCall, ServeError, Server, ServerBuilder, ServerCounters, Serving,
};
pub use shutdown::{ShutdownSignal, shutdown_signal};
pub use spawning::{BoxTask, Spawn};
pub use status::Status;
pub use streaming::{StreamSender, Streaming};
pub use typed::{
    DuplexCall, RequestStreamCall, ResponseStreamCall, Service, TypedCall, TypedFuture,
    TypedResponse, TypedSender,
};

#[cfg(feature = "macros")]
pub use apus_rpc_macros::service;

/// The parts of generated code. No program names them.
#[doc(hidden)]
pub mod generated {
    pub use crate::schema::SchemaBuilder;
    pub use crate::typed::{
        ArgumentReader, ArgumentWriter, BlockingThreads, EncodedResponse, TypedMethod, add_method,
        add_stream_method, describe, read_arguments, respond, send_response, send_responses,
        typed_requests,
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
