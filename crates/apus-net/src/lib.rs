//! Links, which carry Homa packets from one node to another.
//!
//! A [`Link`] takes packets ([`apus_wire::PacketSink::send`]), passes them to the network in batches ([`Link::flush`]) and delivers
//! received packets one by one, in place ([`Link::recv`]). It knows nothing of messages, grants or time-outs: packets may be lost,
//! duplicated and reordered, and its user must cope with that. It never blocks, never starts a thread and never calls anything
//! except the given receiver.
//!
//! The order of calls in one turn of an engine:
//!
//! 1. [`Link::recv`] until it returns 0, or as often as the engine likes;
//! 2. [`Link::poll_error`] until it returns `None`: peers that the kernel reports as unreachable;
//! 3. [`apus_wire::PacketSink::send`] for each packet that may go;
//! 4. [`Link::flush`], once;
//! 5. nothing to do: [`Sleeper::sleep`] on [`Link::descriptors`], no longer than [`Link::due_in`].
//!
//! | part | |
//! |---|---|
//! | [`Link`], [`Path`], [`Capabilities`], [`LinkCounters`] | the interface of every link |
//! | [`PathTable`], [`Examination`] | the paths that a link assigns to addresses; its queries to the kernel about them |
//! | [`SealedPaths`], [`PathKeys`], [`SealEvent`] | the paths whose packets are encrypted |
//! | [`UdpLink`] | the default: unprivileged UDP, with the kernel's offloads |
//! | [`RawLink`] | IP protocol 146, as the Linux module speaks it; needs `CAP_NET_RAW` |
//! | [`XdpLink`] | UDP whose short datagrams go past the network stack; needs `CAP_NET_RAW` |
//! | [`MixedLink`] | UDP to Apus nodes and raw to Linux ones, on one node |
//! | [`FaultLink`] | a link around a link that loses, doubles, reorders, corrupts and delays packets |
//! | [`CaptureLink`] | a link around a link that writes its packets as pcapng |
//! | [`packet_file`] | pcap and pcapng files, and sealed datagrams in them |
//! | [`private_file`] | files that only their owner can read |
//! | [`Sleeper`] | sleeping until a link has input, or a thread calls |
//! | [`EventSource`] | a descriptor that an event loop watches in place of a sleeping thread |
//! | [`cpu`] | processors: the current one, the allowed ones, CPU time |
//! | [`tcp`] | the kernel's data about a TCP connection |
//! | [`clock`] | the time, suspend included |
//! | [`epoll`] | features of this kernel's epoll sets |
//! | [`OwningProcess`] | the identity of a process across `fork` |
//! | [`interface_addresses`] | the addresses by which other machines reach this one |
//! | [`conformance`] | the tests that every link passes |
//!
//! Of the library, only this crate has `unsafe` code, all of it in `sys.rs`, `sleeper.rs`, `event_source.rs`, `cpu.rs`, `clock.rs`, `epoll.rs`,
//! `process.rs`, `tcp.rs`, and `program.rs`, `ready.rs`, `region.rs`, `ring.rs`, `socket.rs` and `umem.rs` in `xdp`: small wrappers of system
//! calls, and memory that is shared with the kernel.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod capture;
pub mod clock;
pub mod conformance;
pub mod cpu;
pub mod epoll;
mod errors;
mod event_source;
mod fault;
mod interfaces;
mod link;
mod mixed;
mod options;
pub mod packet_file;
mod path;
mod path_table;
mod paths;
mod plain_peers;
pub mod private_file;
mod process;
mod raw;
mod recent;
#[cfg(test)]
mod recorder;
mod sealed;
mod search;
#[cfg(test)]
#[path = "../tests/skipped/mod.rs"]
mod skipped;
mod sleeper;
mod sys;
pub mod tcp;
mod udp;
mod xdp;

pub use capture::CaptureLink;
pub use event_source::EventSource;
pub use fault::{FaultLink, Faults, FaultsError};
pub use interfaces::interface_addresses;
pub use link::{Capabilities, Link, LinkCounters};
pub use mixed::MixedLink;
pub use path::Path;
pub use path_table::PathTable;
pub use paths::{Examination, Examined};
pub use plain_peers::{Networks, NetworksError, PlainPeers};
pub use process::OwningProcess;
pub use raw::{MAX_NATIVE, RawConfig, RawLink};
pub use sealed::{PathKeys, SealEvent, SealedKey, SealedPaths};
pub use sleeper::{Descriptors, Sleeper, Woken, only};
pub use udp::{LinkError, MAX_DATAGRAM, SHARDS_MAX, UdpConfig, UdpLink, shard_of};
pub use xdp::XdpLink;
