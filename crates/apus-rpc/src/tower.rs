//! Layers of [tower](https://docs.rs/tower) around the methods of a server and the calls of a channel (feature `tower`).
//!
//! A layer is around a service, a function from requests to responses, and is one itself: a limit, a time, a log.
//! [`ServerBuilder::layer`] has the methods of a server within it, and [`ChannelBuilder::layer`] the calls of a channel. The first layer
//! is the outermost one.
//!
//! | | server | channel |
//! |---|---|---|
//! | request | [`IncomingRequest`] | [`OutgoingRequest`] |
//! | around | all methods, also those with streams, until the handler ends | calls with one request and one response, with all their attempts |
//! | inside | interceptors have admitted the request | interceptors have seen it, and its deadline is known |
//!
//! A status that a layer returns as its error is that of the call. [`Elapsed`](tower::timeout::error::Elapsed) is
//! [`Code::DeadlineExceeded`], [`Overloaded`](tower::load_shed::error::Overloaded) is [`Code::ResourceExhausted`], and other errors are
//! [`Code::Unknown`]. The client knows that a request which has not passed all layers was not executed.
//!
//! Layers with times, such as [`Timeout`](tower::timeout::Timeout), need a runtime of tokio: a server with them is awaited in it and
//! has the [spawner](ServerBuilder::spawner) `apus_rpc::tokio::current()`.
//!
//! ```
//! use std::time::Duration;
//! use apus_rpc::{Context, Server, Status};
//! use tower::limit::ConcurrencyLimitLayer;
//! use tower::load_shed::LoadShedLayer;
//!
//! # fn example(node: &apus_rpc::Node) {
//! let server = Server::builder(node)
//!     .layer(LoadShedLayer::new())
//!     .layer(ConcurrencyLimitLayer::new(100)); // the 101st request at a time is refused
//! # let _ = server;
//! # }
//! ```
//!
//! [`ServerBuilder::layer`]: crate::ServerBuilder::layer
//! [`ServerBuilder`]: crate::ServerBuilder
//! [`ChannelBuilder::layer`]: crate::ChannelBuilder::layer
//! [`Code::DeadlineExceeded`]: crate::Code::DeadlineExceeded
//! [`Code::ResourceExhausted`]: crate::Code::ResourceExhausted
//! [`Code::Unknown`]: crate::Code::Unknown

use crate::layering::Layered;

pub use crate::client::OutgoingRequest;
pub use crate::layering::LayerError;
pub use crate::server::IncomingRequest;

/// The methods of a server, or those within a layer.
pub type IncomingService = Layered<IncomingRequest>;

/// The calls of a channel, or those within a layer.
pub type OutgoingService = Layered<OutgoingRequest>;
