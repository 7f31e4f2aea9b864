//! Health of services: `grpc.health.v1.Health`, as gRPC's programs have it.
//!
//! A server that has a [`Health`] answers whether its services serve, and notifies watchers of changes. A channel with
//! [`ChannelBuilder::health`](crate::ChannelBuilder::health) watches a service at each of its endpoints. The messages are those of gRPC
//! with its frames, so either side may be a program with tonic-health and `apus-tonic`.
//!
//! ```
//! use apus_rpc::health::{Health, ServingStatus};
//! use apus_rpc::Server;
//!
//! # fn example(node: &apus_rpc::Node) {
//! let health = Health::new();
//! let server = Server::builder(node).add(health.clone());
//! health.set("shop.Calc", ServingStatus::Serving);
//! // Later, when the database of the service is gone:
//! health.set("shop.Calc", ServingStatus::NotServing);
//! # let _ = server;
//! # }
//! ```

mod board;
mod messages;
mod service;

pub use board::{Health, ServingStatus};
pub(crate) use messages::{CHECK, Frames, WATCH, encode_request, response_status};
