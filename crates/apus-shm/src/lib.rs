//! Whole messages between two processes of one host, through shared memory.
//!
//! | part | |
//! |---|---|
//! | [`Pair`], [`Offer`] | two processes and the memory between them |
//! | [`Listener`], [`meet`] | where processes find each other |
//! | [`PeerProcess`] | how far a peer is trusted, and when it ends |
//! | [`Segment`], [`PeerSegment`] | memory that one process writes and the other one reads |
//! | `ring`, `pool`, `sending` | short messages; long messages; which of them is next |
//! | `bell`, `channel`, `body`, `layout` | wake-ups; descriptors; bodies in place; where things lie |

mod bell;
mod body;
mod channel;
mod layout;
mod meeting;
mod pair;
mod pool;
mod process;
mod ring;
mod segment;
mod sending;

pub use meeting::{Listener, Place, meet};
pub use pair::{MessageReceiver, Offer, Pair, PairError};
pub use process::{PeerProcess, Trust};
pub use ring::{Broken, Words};
pub use segment::{Memory, PAGE, PeerSegment, Segment, SegmentError};
