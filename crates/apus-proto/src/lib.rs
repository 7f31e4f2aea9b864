//! The Homa protocol as pure state.
//!
//! This crate is the whole protocol of a node and nothing else: no clock, no socket, no thread, no
//! `unsafe`, nothing that depends on the order of a hash table. Time and randomness are arguments.
//! The same code runs in production, in tests on a virtual clock, and in the simulator; lints keep
//! it that way (`clippy.toml` beside this crate's manifest). The rules it follows are numbered in
//! docs/protocol.md and cited where they are kept.
//!
//! # Map
//!
//! | module | contents |
//! |---|---|
//! | `endpoint` | one node's end of the protocol, with a list of its files |
//! | `rpcs`, `peers`, `sockets` | tables, by handle and by the names that packets carry |
//! | `contact`, `secrets` | the exchange of tokens; numbers that other hosts cannot guess |
//! | `rpc`, `id` | one RPC and its life; unique ids of calls |
//! | `incoming`, `grant` | an incoming message; the choice of the sender that may continue |
//! | `outgoing`, `pacer` | an outgoing message; the choice of the next one, and its time |
//! | `cutoffs` | priorities by message length |
//! | `peer`, `delay`, `history` | one peer; its measured path; the record of its taken requests |
//! | `incarnations` | the same for clients of native links, which have no tokens |
//! | `flight` | unscheduled bytes on their way to a peer, and the messages deferred for them |
//! | `prober` | the times of probes about calls that merely wait |
//! | `downlink` | received bytes per level, and the load of the link |
//! | `usage`, `budget` | bytes charged to a peer, a socket and the node; the remaining room |
//! | `host` | the load that the endpoints of one host report to each other |
//! | `rights` | rights of peers to call this node, and of this node to call them |
//! | `timer`, `slab`, `lookup` | deadlines; handles; hash tables |
//!
//! # Order of calls
//!
//! ```
//! use apus_proto::{CallOptions, Config, Endpoint, Event, Inbox, Remote, Time};
//! use apus_wire::{PacketSink, PathId, Transmit};
//!
//! /// A network of one wire, which keeps the packets.
//! #[derive(Default)]
//! struct Wire(Vec<Vec<u8>>);
//!
//! impl PacketSink for Wire {
//!     fn send(&mut self, packet: Transmit<'_>) {
//!         self.0.push([packet.header, packet.payload()].concat());
//!     }
//!     fn max_packet(&self, _path: PathId) -> usize {
//!         1472
//!     }
//! }
//!
//! // The paths to the client and to the server.
//! let (a, b) = (PathId::new(0, 1), PathId::new(1, 2));
//! let mut client = Endpoint::new(Config::default(), 1);
//! let mut server = Endpoint::new(Config::default(), 2);
//! let socket = client.open(None)?;
//! server.open(Some(4000))?;
//!
//! let now = Time::ZERO;
//! let to = Remote::new(b, 4000);
//! let rpc = client.call(now, socket, to, "hello", CallOptions::default())?;
//! // A first contact takes one round trip more: OPEN and TOKEN, then CONFIRM and the request.
//! for _ in 0..2 {
//!     let mut wire = Wire::default();
//!     client.poll_transmit(now, &mut wire);
//!     wire.0.drain(..).for_each(|packet| server.handle_packet(now, a, &packet));
//!     server.poll_transmit(now, &mut wire);
//!     wire.0.drain(..).for_each(|packet| client.handle_packet(now, b, &packet));
//! }
//! let Some(Event::Request { body, .. }) = server.poll_event() else { panic!("no request") };
//! assert_eq!(body, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Numbers of less than 64 bits come close to their ends: an 8-bit probe counter did. The line that reads a packet's field bounds
// it, or saturates. Sums of 64 bits count nanoseconds, bytes and packets that a process has seen (`clippy.toml`).
#![deny(clippy::arithmetic_side_effects)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails"))]
#![forbid(unsafe_code)]

mod ack_ranges;
mod body;
mod budget;
mod config;
mod contact;
mod control;
mod cookie;
mod counters;
mod cutoffs;
mod delay;
mod downlink;
mod endpoint;
mod error;
mod flight;
mod grant;
mod history;
mod host;
mod hosts;
mod id;
mod incarnations;
mod incoming;
mod link;
mod local;
mod lookup;
mod outgoing;
mod pacer;
mod peer;
mod peers;
mod pieces;
mod prober;
mod receive_buffer;
mod remote;
mod rights;
mod rpc;
mod rpcs;
mod secrets;
mod short_bodies;
pub mod slab;
mod sockets;
mod time;
mod timer;
mod trace;
mod usage;
mod within_host;

pub use body::Body;
#[doc(hidden)]
pub use config::Number;
pub use config::{Config, Setting, SettingError, Unit};
pub use cookie::Cookie;
pub use counters::Counters;
pub use endpoint::{
    Arrivals, ArrivedRequest, CallOptions, Departures, Endpoint, Event, Greeting, Inbox, Moved,
    ShortMessages, SpentBodies, UnsentCalls,
};
pub use error::{Awaited, CallError, CallFailed, CallStory, OpenError, ReplyError};
pub use host::HostLoad;
pub use local::{MessageKind, MessageSink, Words};
pub use remote::Remote;
pub use rights::{PathKind, Rights};
pub use slab::{RpcKey, SocketKey};
pub use sockets::{FIRST_CLIENT_PORT, RequestLimits};
pub use time::{Time, sooner};
pub use trace::{FAILURE_CAUSES, TraceChoice, TraceEvent, TraceMark, TraceSink};
