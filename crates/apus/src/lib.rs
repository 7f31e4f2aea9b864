//! Homa for user space: datacenter RPC with a low tail, on a stock kernel.
//!
//! A [`Node`] is an endpoint on the network. A [`Client`] makes calls on it, and a [`Port`] takes requests and answers them;
//! messages have 1 byte to 64 MiB. A body that the program gives is not copied before it is sent.
//!
//! ```
//! use std::thread;
//! use apus::{Address, Config, Node};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The server. A real one starts with `Config::server()`, on UDP port 20146.
//! let mut config = Config::new();
//! config.listen("127.0.0.1:0".parse()?);
//! let server = Node::start(&config)?;
//! let port = server.bind(4000)?;
//! let address = Address::new(server.local_addr(), 4000);
//! thread::spawn(move || {
//!     port.serve(|request| {
//!         let body = request.body().clone();
//!         let _ = request.reply(body); // The client may have gone.
//!     })
//! });
//!
//! // The client: `apus::resolve("host:4000")` where the address is a name.
//! let node = Node::start(&Config::new())?;
//! let client = node.client()?;
//! let response = client.call(address, "hello").wait()?; // In a task: `.await?`
//! assert_eq!(&response[..], b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! The [book](https://github.com/apus-rpc/apus/blob/main/docs/README.md) is the guide, for example on
//! [services](https://github.com/apus-rpc/apus/blob/main/docs/service.md) and
//! [calls](https://github.com/apus-rpc/apus/blob/main/docs/call.md). This page is a tour of the items.
//!
//! # Tour
//!
//! | for | items |
//! |---|---|
//! | a node, its links and its end | [`Node`], [`Config`] with a [`Setting`] for each key, [`Delivery`], [`Links`], [`Capabilities`] |
//! | names and addresses | [`resolve()`], [`Address`], [`probe()`] to find out which protocol a host speaks |
//! | calls | [`Client`], [`CallBuilder`] with deadlines, [`Call`], [`Canceller`], [`CallOptions`], [`Response`] for many at a time |
//! | requests | [`Port`], [`Request`], [`LocalCaller`] for the process that calls |
//! | bytes in order | [`Stream`], [`StreamListener`], [`StreamOptions`] |
//! | failures | [`CallError`] with its [story](CallError::story), [`StartError`], [`OpenError`], [`RecvError`], [`ReplyFailed`], [`CloseError`] |
//! | counters | [`Node::stats`]: [`Stats`], [`PortStats`], [`ProcessCounters`] |
//! | an engine that processes share | [`Config::engine`] to use one, [`SharedEngine`] to be one |
//!
//! # Properties
//!
//! * **Short messages stay fast.** The shortest message goes first on both sides. A receiver grants long messages piece by piece,
//!   and priorities let short messages pass in switches. [`apus_proto`] has the rules, which are Homa's.
//! * **At most once.** A request is executed once or not at all, through loss and duplication, restarts of either side, pauses
//!   and changes of address. This does not hold for hosts with the Linux module (`homa://` addresses). A call ends with its
//!   response or with a [`CallError`], which says whose fault the failure is.
//! * **No thread between the caller and the network.** The thread that waits turns the engine itself and finds its message
//!   without a wake-up. A background thread turns the engine while no thread waits. [`Delivery`] controls how they share the
//!   work.
//!
//! # Ways to wait
//!
//! | | blocking | future | without waiting |
//! |---|---|---|---|
//! | one call | [`CallBuilder::wait`] | `client.call(to, body).await` | |
//! | several calls | [`CallBuilder::start`], [`Call::wait`] | [`Call`] | [`Call::try_take`] |
//! | very many calls | [`Client::send`], [`Client::recv_many`] | [`Client::recv_async`] | [`Client::try_recv`] |
//! | requests | [`Port::serve`], [`Port::recv`] | [`Port::recv_async`], a stream (feature `stream`) | [`Port::try_recv`] |
//! | bytes in order | [`Stream`]: `Read` and `Write` | [`Stream::poll_read`], tokio's traits (feature `tokio`) | |
//!
//! Any number of threads and tasks may use the same client or service, with blocking and async operations mixed. Futures work
//! with every executor and need no reactor. [`CallBuilder::wait`] blocks its thread, so a task awaits the call instead.
//!
//! # Deadlines and errors
//!
//! A deadline ([`CallBuilder::deadline`]), [`Call::cancel`], or a drop of the [`Call`] gives a call up. A call that failed may be
//! repeated if [`CallError::may_have_executed`] says no:
//!
//! ```no_run
//! use std::time::Duration;
//! use apus::{Address, Bytes, CallError, CallOptions, Client};
//!
//! fn ask(client: &Client, first: Address, second: Address) -> Result<Bytes, CallError> {
//!     let options = CallOptions::new().deadline(Duration::from_millis(20));
//!     match client.call(first, "question").options(options).wait() {
//!         Err(error) if !error.may_have_executed() => client.call(second, "question").options(options).wait(),
//!         result => result,
//!     }
//! }
//! ```
//!
//! # End of a node
//!
//! [`Node::close`] waits for calls and requests to end, then stops the node. A node that is dropped runs until its last client
//! and service are dropped, and then stops at once. In a forked child of the process, its operations return errors ([`Node`]).
//!
//! # Features
//!
//! None is on by default. Each only adds to the API.
//!
//! * `stream`: `Port::requests` gives requests as a `futures_core::Stream`, and `Client::responses` responses.
//! * `tokio`: [`Stream`] has tokio's `AsyncRead` and `AsyncWrite`, and `EventLoop::drive` turns a node in a runtime of tokio.
//! * `tower`: [`Client`] is a `tower_service::Service` for calls.
//! * `tracing`: a span for each call and each request, for distributed traces (`apus::tracing`). Events for nodes that start and
//!   close, calls that fail or are given up, requests without a response, and handlers that panic; none for a packet.
//! * `custom-link`: nodes on the program's own links, which inject faults or capture packets. It exposes the crate `apus-net`
//!   as `apus::net`. Semantic versioning does not cover this feature.
//!
//! # Structure
//!
//! A node has one engine behind one lock: an [`apus_proto::Endpoint`], an [`apus_net::Link`], and the memory that the node shares
//! with processes of its host ([`apus_shm`], [`Node`](Node#within-one-host)). A turn of the engine has four steps:
//!
//! 1. receive messages from shared memory and packets from the link,
//! 2. expire timers,
//! 3. transmit packets to the link and messages to shared memory,
//! 4. deliver messages.
//!
//! While messages come from shared memory, some turns skip the link, because a look at it is a system call.
//!
//! A waiting thread that holds the *lead* turns the engine. A message is put in its place before any thread is woken. Each
//! message causes at most one wake-up, the thread that slept last is woken first, and the lock is released before the wake-up.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

// The API.
mod address;
mod call;
mod call_builder;
mod call_options;
mod client;
mod config;
mod error;
mod event_loop;
mod flush;
mod identity_source;
mod local_caller;
mod node;
mod port;
mod probe;
mod request;
#[cfg(feature = "stream")]
mod requests;
mod resolve;
mod response;
#[cfg(feature = "stream")]
mod responses;
mod socket;
mod stream;
#[cfg(feature = "tower")]
mod tower;
#[cfg(feature = "tracing")]
pub mod tracing;

// The parts below the API, a folder for each subject.
mod delivery;
mod engine;
mod host;
mod mail;
mod observe;
mod secure;
mod shared_engine;
mod sync;

pub use address::{Address, AddressError, Scheme};
#[cfg(feature = "custom-link")]
pub use apus_net as net;
pub use apus_net::{Capabilities, LinkCounters, Networks, NetworksError};
pub use apus_proto::{Awaited, Body, CallStory, Counters, FIRST_CLIENT_PORT};
pub use apus_wire::{ParseTraceContextError, PathError, TraceContext};
pub use bytes::Bytes;
pub use call::{Call, Canceller};
pub use call_builder::{CallBuilder, CallFuture, Connect, ConnectFuture};
pub use call_options::CallOptions;
pub use client::Client;
pub use config::{
    Config, ConfigError, DeniedPeers, EngineAt, EngineAtError, Links, LinksError, MetricsAt,
    MetricsAtError, MisspeltVariable, PatternError, PeerRule, Plain, PlainError, QuantityError,
    Setting, Suite, SuiteError, parse_duration, parse_size,
};
pub use delivery::{Delivery, DeliveryError};
pub use error::{
    CallError, CloseError, EventLoopError, IdentityError, OpenError, RecvError, ReplyError,
    RuleError, StartError, WrongPeer,
};
pub use event_loop::EventLoop;
pub use flush::Flush;
pub use identity_source::{IdentityPem, IdentitySource};
pub use local_caller::LocalCaller;
pub use node::{Node, Route};
pub use observe::missing_files::missing_files;
pub use observe::stats::{
    DeliveryCounters, HandshakeCounters, IdentityGauges, MemoryCounters, PortStats,
    ProcessCounters, Stats, StreamCounters,
};
pub use port::Port;
pub use probe::{Presence, probe, probe_with};
pub use request::{ReplyFailed, Request};
#[cfg(feature = "stream")]
pub use requests::Requests;
pub use resolve::{ResolveError, resolve, resolve_all, resolve_all_async, resolve_async};
pub use response::Response;
#[cfg(feature = "stream")]
pub use responses::Responses;
pub use secure::peer::Peer;
pub use shared_engine::{AttachedProcess, EngineAccess, SharedEngine};
pub use stream::{Stream, StreamListener, StreamOptions};

/// Handles may be used by any number of threads at once.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Node>();
    is_shared::<Client>();
    is_shared::<Port>();
    is_shared::<Call>();
    is_shared::<Canceller>();
    is_shared::<EventLoop>();
    is_shared::<Request>();
    is_shared::<Response>();
    is_shared::<ReplyFailed>();
    is_shared::<Config>();
    is_shared::<Stream>();
    is_shared::<StreamListener>();
};
