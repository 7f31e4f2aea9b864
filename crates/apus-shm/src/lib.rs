//! Whole messages between two processes of one host, through shared memory.
//!
//! | part | |
//! |---|---|
//! | [`Segment`], [`PeerSegment`] | memory that one process writes and the other one reads |
//! | `ring` | short messages, in order |

mod bell;
mod body;
mod channel;
mod layout;
mod pair;
mod pool;
mod ring;
mod segment;
mod sending;

pub use pair::{MessageReceiver, Offer, Pair, PairError, Trust};
pub use ring::{Broken, Words};
pub use segment::{Memory, PAGE, PeerSegment, Segment, SegmentError};
