//! The carrier: a process that carries TCP connections of unmodified programs to other hosts, over streams of Apus.
//!
//! Within a host, each end of a carried connection has a segment of shared memory that only it writes and the other end reads
//! (`crates/apus-preload`). Between hosts, the carrier of each host shows its program a segment with what the program at the other end
//! has written into its own. Carriers tell each other what has changed, over one [`apus::Stream`] for each connection. So a byte that
//! the receiver has not read is still in the sender's ring, READ advances when the receiver has read, and a connection returns to TCP as
//! within a host.
//!
//! | part | |
//! |---|---|
//! | [`Carrier`], [`Settings`] | the process |
//! | [`ask`], [`Status`] | what it tells of itself, and its switch |
//! | `mirror`, `words`, `frame`, `carried` | a connection: what its program sees and tells |
//! | `programs`, `program`, `diagnosis`, `guests`, `bells` | programs of this host, what they hand over, and how many there may be |
//! | `streams`, `pairing`, `joining` | carriers of other hosts, and how the two ends find each other |
//! | `tasks`, `reactor` | where tasks run, and what they wait for |
//!
//! # Trust
//!
//! A carrier belongs to a user and a network namespace, and serves processes of that user only. It asks the kernel whether a connection
//! that a process introduces has the socket that the process says, and whether that user made it. The carrier of the other host is
//! believed if its address, which the first contact of Apus has confirmed, has the IP address of the TCP peer and the UDP port of the
//! carriers. So whoever may use that port at a host speaks for that host: as for `rsh`, a port below 1024 needs a privilege.
//!
//! A carrier that lies ends its own connections only: programs check words of a peer as within a host, and frames are bounded.

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
pub use status::{Connection, Refused, Status};
pub use tasks::is_in_task;
