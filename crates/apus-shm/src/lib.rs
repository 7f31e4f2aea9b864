//! Whole messages between two processes of one host, through shared memory.
//!
//! | part | |
//! |---|---|
//! | [`Pair`], [`PendingPair`] | two processes and the memory between them |
//! | [`Listener`], [`Meeting`] | how processes find each other |
//! | [`SocketFile`] | the mode of a socket's file in a directory that other users can change |
//! | [`Watch`] | wake-ups for many pairs |
//! | [`PeerProcess`] | trust in a peer, and the detection of its end |
//! | [`Segment`], [`PeerSegment`] | memory that one process writes and the other reads |
//! | [`CounterDirectory`], [`CounterFile`] | files in which processes publish their counters |
//! | [`bell`], [`Channel`] | wake-ups; the socket that carries descriptors |
//! | [`closer`] | threads that close received descriptors |
//! | `ring`, `pool`, `sending` | short messages; long messages; the choice of the next one |
//! | `body`, `spare`, `layout` | bodies in place; memory for copied ones; the layout of a segment |

pub mod bell;
mod body;
mod channel;
pub mod closer;
mod counter_file;
mod layout;
#[cfg(test)]
mod lines;
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

pub use channel::{Channel, Parcel, ReceivedDescriptor, Taken};
pub use counter_file::{CounterDirectory, CounterFile, ProcessName};
pub use meeting::{Listener, Meeting, Nonce, Place, connect_to};
pub use pair::{MessageReceiver, Pair, PairError, PendingPair, WHOLE_MAX, fits_limits};
pub use pool::{limit_pools, pool_bytes};
pub use process::{PeerProcess, Trust, descriptor_limit, own_user};
pub use ring::{Broken, Words};
pub use segment::{Memory, PAGE, PeerSegment, Segment, SegmentError, fits_file_limit};
pub use socket_file::SocketFile;
pub use watch::Watch;
