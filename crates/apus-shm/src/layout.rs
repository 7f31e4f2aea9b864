//! Layout of the segment that each process of a pair provides for the other.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | [`MAGIC`] |
//! | 64 | number of slots of the peer's ring that this process has read |
//! | 128 | odd while this process sleeps and waits for a frame ([`crate::bell`]) |
//! | 192 | odd while this process sleeps and waits for room |
//! | 256 | the same as at 64 for the longer ring |
//! | 2048..4096 | for each chunk of the peer's pool, generation of the last released run that began there |
//! | 4096.. | the ring |
//!
//! A longer ring, in a segment of its own, takes the place of the ring once that is full. The sender passes the segment through the
//! channel, and a frame of the kind [`LONGER`](crate::ring::LONGER) is the last one of the old ring.
//!
//! Words that are written at different times are 64 bytes apart, so that polling one does not take the cache line of another.

use crate::pool::{CHUNKS, SEGMENTS_MAX};
use crate::segment::PAGE;

/// Name and version of this layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"apusshm3");

pub(crate) const READ: usize = 64;
pub(crate) const BELLS: [usize; 2] = [128, 192];
pub(crate) const READ_LONGER: usize = 256;
pub(crate) const RELEASED: usize = 2048;
pub(crate) const RING: usize = PAGE;

/// Size of the ring in bytes: 256 slots.
pub(crate) const RING_SIZE: usize = 4 * PAGE;

/// Size of the longer ring and of its segment in bytes: 1,024 slots, for 512 messages of 100 bytes.
pub(crate) const LONGER_SIZE: usize = 16 * PAGE;

/// Upper bound on the payload of a frame in bytes.
pub(crate) const PAYLOAD_MAX: usize = RING_SIZE / 4 - 24;

/// Size of the segment in bytes.
pub(crate) const SIZE: usize = RING + RING_SIZE;

/// Returns the offset of a chunk's word.
pub(crate) const fn released(segment: usize, chunk: usize) -> usize {
    RELEASED + 4 * (segment * CHUNKS + chunk)
}

const _: () = assert!(released(SEGMENTS_MAX, 0) == RING);
