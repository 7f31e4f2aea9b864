//! tarpc over Apus: [`dial`] and [`accept`] give transports for tarpc's generated clients and services.
//!
//! ```
//! use apus::{Address, Config, Node};
//! use futures_util::StreamExt;
//! use tarpc::server::{BaseChannel, Channel};
//! use tarpc::{client, context};
//!
//! #[tarpc::service]
//! trait Greeter {
//!     async fn hello(name: String) -> String;
//! }
//!
//! #[derive(Clone)]
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn hello(self, _: context::Context, name: String) -> String {
//!         format!("hello, {name}")
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let mut config = Config::new();
//! config.listen("127.0.0.1:0".parse()?);
//! let server = Node::start(&config)?;
//! let transport = apus_tarpc::accept(server.bind(4000)?);
//! let handlers = BaseChannel::with_defaults(transport).execute(Polite.serve());
//! tokio::spawn(handlers.for_each(async |handler| drop(tokio::spawn(handler))));
//!
//! let node = Node::start(&config)?;
//! let transport = apus_tarpc::dial(&node, Address::new(server.local_addr(), 4000))?;
//! let client = GreeterClient::new(client::Config::default(), transport).spawn();
//! assert_eq!(client.hello(context::current(), "ada".into()).await?, "hello, ada");
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! A task of the runtime turns the node if the program spawns `node.event_loop()?.drive()` (feature `tokio` of `apus`).
//! Messages then wake tarpc's tasks without a hop over the node's own thread.
//!
//! # Calls
//!
//! Each call of tarpc is one call of Apus, so there are no connections. One transport of [`accept`] has the requests of all
//! clients of a port, and a client goes on when its server has been restarted. Long messages of one call do not delay short
//! ones of another.
//!
//! | in tarpc | over Apus |
//! |---|---|
//! | arguments; result or [`ServerError`](tarpc::ServerError) | the bodies of request and response, in the format of postcard |
//! | `Context::deadline` | the deadline of the call; at the server what [`Request::remaining`](apus::Request::remaining) gives, or a year |
//! | `Context::trace_context`, unless its trace has no id | the [`TraceContext`](apus::TraceContext) of the call |
//! | a dropped response future | the call is given up, and the server drops the handler, as it does when the client has ended |
//! | a handler that panics | no response: the call ends at its deadline, as over tarpc's other transports |
//!
//! # Errors
//!
//! | | the caller gets |
//! |---|---|
//! | the node refuses the request | [`RpcError::Send`](tarpc::client::RpcError::Send): an [`io::Error`](std::io::Error) with the [`CallError`](apus::CallError) inside |
//! | the deadline passes | [`RpcError::DeadlineExceeded`](tarpc::client::RpcError::DeadlineExceeded) |
//! | the call fails otherwise | [`RpcError::Server`](tarpc::client::RpcError::Server), with the kind of [`io_error`] and the error's text |
//! | the request or the response is none of the service, or the response is too long | [`RpcError::Server`](tarpc::client::RpcError::Server) with `InvalidData` |
//! | the client's node is closed | [`RpcError::Shutdown`](tarpc::client::RpcError::Shutdown) |
//!
//! A failed call leaves the client usable.
//!
//! # Hostile messages
//!
//! A body that cannot be decoded, or has bytes behind its message, is refused. serde bounds what a decoder reserves in advance.
//! postcard does not bound nesting: a type of arguments that contains itself can be nested until the stack is full, which ends the
//! process, so a service that strangers can call must not use such types. A server that answers with the result of another method makes the client
//! that tarpc generates panic, over every transport; [`Client::expect`](apus::Client::expect) says which servers are called.

#![forbid(unsafe_code)]

mod accepted;
mod body;
mod cancelled;
mod dialed;
mod error;
mod outcome;
mod trace;

pub use accepted::{AcceptTransport, accept};
pub use dialed::{DialTransport, dial};
pub use error::io_error;
