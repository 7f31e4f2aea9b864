//! gRPC over Apus: clients and servers that [tonic] generates run over Apus unchanged.
//!
//! Two lines of a program change, the client's and the server's:
//!
//! ```diff
//! - let channel = tonic::transport::Channel::from_static("http://[::1]:50051").connect().await?;
//! + let channel = apus_tonic::Channel::connect("apus://localhost:4000").await?;
//!
//! - Server::builder().add_service(GreeterServer::new(greeter)).serve(addr).await?;
//! + apus_tonic::Server::builder().add_service(GreeterServer::new(greeter)).serve(4000).await?;
//! ```
//!
//! Generated code, interceptors, layers of tower, tonic-health and tonic-reflection stay as they are. Metadata and messages go in the
//! clear unless both nodes have certificates
//! ([encryption and identity](https://github.com/apus-rpc/apus/blob/main/docs/security.md)). A node without a certificate speaks with
//! its own machine only.
//!
//! # Tour
//!
//! | for | items |
//! |---|---|
//! | clients | [`Channel`]; [`may_have_executed`] before a call is repeated |
//! | clients of Google's crate `grpc` | [`Channel`] with the feature `grpc` |
//! | servers | [`Server`], [`ServerBuilder`], [`Serving`], [`ServerEnd`] |
//! | services beside methods of `apus-rpc` | [`AddTower`] |
//! | the client of a request | [`ApusConnectInfo`] |
//!
//! # What is carried
//!
//! | gRPC | over Apus |
//! |---|---|
//! | path, metadata | the head of the request; `te` and `:authority` are not sent |
//! | message frames, compression | unchanged |
//! | `grpc-timeout` | the deadline of the call; a handler reads what is left of it |
//! | cancellation | a call that is dropped is given up, and its handler is dropped |
//! | status, message, details, trailers | the end of the response |
//! | limits on messages | tonic's, 4 MiB by default; 64 MiB of Apus beyond them |
//! | errors of the transport | gRPC's codes, with the [`CallError`](apus_rpc::CallError) as source |
//!
//! The bytes on the wire are those of [`apus_rpc`], so its clients and servers speak gRPC with these.
//!
//! # Streams
//!
//! All four forms of methods are carried. A call whose requests are there when it begins, and whose responses are there when its handler
//! is first polled, is one message in each direction. Longer streams go in chunks of 64 KiB: a reader that is slow stops its peer after
//! some hundred KiB. Requests that are not there when the call begins are sent by a task of tokio.
//!
//! # Handlers
//!
//! A handler is polled for the first time on the thread that has received the request, without a waker, if the request has at most
//! 16 KiB. If it has to wait, it goes on in a task of the runtime, which polls it again.
//!
//! # Features
//!
//! None is on by default. Each only adds to the API.
//!
//! * `grpc`: a [`Channel`] is a `grpc::client::Invoke`, for clients of the crate `grpc`, Google's gRPC for Rust.
//! * `metrics`: the histograms of `apus-rpc` for a recorder of the crate `metrics`. Methods that have answered without an error have
//!   their path in the histogram of requests, up to 1,000 methods of a server.
//! * `transport`: the same services also over TCP (`ServerBuilder::also_tcp`), and `remote_addr` of requests. Without it, neither hyper
//!   nor h2 is built.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

mod body;
mod channel;
mod connect_info;
mod handler;
mod headers;
#[cfg(feature = "grpc")]
mod invoke;
mod known_methods;
mod server;
mod status;
mod timeout;

pub use apus_rpc::ConnectError;
pub use channel::{Channel, ResponseFuture};
pub use connect_info::ApusConnectInfo;
pub use handler::AddTower;
#[cfg(feature = "grpc")]
pub use invoke::{GrpcRequests, GrpcResponses};
pub use server::{ServeError, Server, ServerBuilder, ServerEnd, Services, ServicesFuture, Serving};
pub use status::may_have_executed;

/// Handles may be used by any number of threads at once.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Channel>();
    const fn is_sent<T: Send>() {}
    is_sent::<ResponseFuture>();
    is_sent::<Serving>();
};
