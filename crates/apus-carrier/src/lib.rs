//! The carrier: a process that carries TCP connections of unmodified programs to other hosts, over streams of Apus.
//!
//! Within a host, each end of a carried connection has a segment of shared memory that only it writes and the other end reads
//! (`crates/apus-preload`). Between hosts, each host's carrier shows its program a segment with the contents of the segment of the
//! program at the other end. Carriers inform each other of changes, over one [`apus::Stream`] for each connection. So a byte that
//! the receiver has not read is still in the sender's ring, READ advances when the receiver has read, and a connection returns to
//! TCP as within a host.
//!
//! | part | |
//! |---|---|
//! | [`Carrier`], [`Settings`] | the process |
//! | [`ask`], [`Status`] | its status and its switch |
//! | `mirror`, `words`, `frame`, `carried` | a connection: the segments and frames of its program |
//! | `programs`, `program`, `diagnosis`, `guests`, `bells` | programs of this host, their introductions, and limits |
//! | `streams`, `pairing`, `joining` | carriers of other hosts, and the pairing of a connection's ends |
//! | `tasks`, `reactor` | execution of tasks, and their descriptors and timers |
//!
//! # Trust
//!
//! A carrier belongs to a user and a network namespace, and serves only processes of that user. It asks the kernel whether an
//! introduced connection has the socket that the process names, and whether that user created it. The carrier of the other host is
//! trusted if its address, confirmed by the first contact of Apus, has the IP address of the TCP peer and the UDP port of the
//! carriers. So any user that may bind that port on a host speaks for that host: as for `rsh`, a port below 1024 needs a privilege.
//!
//! A lying carrier harms only its own connections: programs check a peer's words as within a host, and frames are bounded.

#![forbid(unsafe_code)]

mod bells;
mod carried;
mod carrier;
mod control;
mod diagnosis;
mod frame;
mod guests;
mod joining;
mod mirror;
mod pairing;
mod program;
mod programs;
mod reactor;
mod settings;
mod shared;
mod status;
mod streams;
mod tasks;
mod words;

pub use carrier::{Carrier, is_running};
pub use control::{Request, ask};
pub use settings::{Hosts, Settings, StartError};
pub use status::{CarriedConnection, Refused, Status};
pub use tasks::is_in_task;
