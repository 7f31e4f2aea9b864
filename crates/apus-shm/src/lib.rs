//! Whole messages between two processes of one host, through shared memory.
//!
//! | part | |
//! |---|---|
//! | [`Segment`], [`PeerSegment`] | memory that one process writes and the other one reads |

mod segment;

pub use segment::{Memory, PAGE, PeerSegment, Segment, SegmentError};
