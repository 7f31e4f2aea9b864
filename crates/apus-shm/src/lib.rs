//! Whole messages between two processes of one host, through shared memory.
//!
//! | part | |
//! |---|---|
//! | [`Pair`], [`Offer`] | two processes and the memory between them |
//! | [`Listener`], [`Meeting`] | where processes find each other |
//! | [`SocketFile`] | the mode of a socket's file in a directory of others |
//! | [`Watch`] | when one of many pairs has to be looked at |
//! | [`PeerProcess`] | how far a peer is trusted, and when it ends |
//! | [`Segment`], [`PeerSegment`] | memory that one process writes and the other one reads |
//! | [`CounterDirectory`], [`CounterFile`] | files in which processes show their counters |
//! | [`bell`], [`Channel`] | wake-ups; the socket over which descriptors go |
//! | [`closer`] | threads that close descriptors of others |
//! | `ring`, `pool`, `sending` | short messages; long messages; which of them is next |
//! | `body`, `spare`, `layout` | bodies in place; memory of copied ones; where things lie |

pub mod bell;
mod body;
mod channel;
pub mod closer;
mod counter_file;
mod layout;
mod meeting;
mod pair;
mod pool;
mod process;
mod ring;
mod segment;
mod sending;
mod socket_file;
mod spare;
mod watch;

pub use channel::{Channel, Parcel, Received, Taken};
pub use counter_file::{CounterDirectory, CounterFile, ProcessName};
pub use meeting::{Listener, Meeting, Nonce, Place, connect_to};
pub use pair::{MessageReceiver, Offer, Pair, PairError, WHOLE_MAX, fits_limits};
pub use pool::{limit_pools, pool_bytes};
pub use process::{PeerProcess, Trust, descriptor_limit, own_user};
pub use ring::{Broken, Words};
pub use segment::{Memory, PAGE, PeerSegment, Segment, SegmentError, fits_file_limit};
pub use socket_file::SocketFile;
pub use watch::Watch;
