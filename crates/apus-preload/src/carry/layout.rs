//! Where things lie in the segment of one side of a connection. Only this side writes it.
//!
//! Words that change together, and words that the peer polls, have cache lines of their own.

/// Says that the segment is one of these, and which layout it has.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"apustcp2");

/// The magic word.
pub(crate) const START: usize = 0;

/// Words of the sender ([`apus_sockets::direction::SenderWords`]) that seldom change.
pub(crate) const EPOCH: usize = 64;
pub(crate) const OFFSET: usize = 72;
pub(crate) const WISHED: usize = 80;
pub(crate) const ENDED: usize = 88;
pub(crate) const END: usize = 96;
pub(crate) const REFILLED: usize = 104;
/// Bytes written into the ring.
pub(crate) const WRITTEN: usize = 128;

/// Words of the receiver ([`apus_sockets::direction::ReceiverWords`]) that seldom change.
pub(crate) const OFFERED: usize = 192;
pub(crate) const RECALLED: usize = 200;
pub(crate) const DRAINED: usize = 208;
/// Not 0: this side has closed the socket, and reads nothing more.
pub(crate) const CLOSED: usize = 216;
/// Whether this side has ended its direction: not yet in TCP, or there as well.
pub(crate) const SHUT: usize = 224;
/// In `SHUT`: TCP ends when the ring is empty.
pub(crate) const ENDS: u64 = 1;
/// In `SHUT`: TCP has ended.
pub(crate) const HAS_ENDED: u64 = 2;
/// Whether this side returns to the kernel for good, or has.
pub(crate) const LEFT: usize = 232;
/// In `LEFT`: this side returns.
pub(crate) const LEAVES: u64 = 1;
/// In `LEFT`: it has. All bytes are in TCP.
pub(crate) const HAS_LEFT: u64 = 2;
/// Bytes read from the peer's ring.
pub(crate) const READ: usize = 256;

/// Odd: somebody of this side sleeps until there are bytes, or until there is room.
pub(crate) const BELLS: [usize; 2] = [320, 328];

/// The processor on which this side waited last, counted from 1.
pub(crate) const PROCESSOR: usize = 336;

/// Who writes, and who reads, for this side: only this side's processes look at these.
pub(crate) const TOKENS: [usize; 2] = [384, 448];

/// The ring.
pub(crate) const RING: usize = 4096;

/// Bytes of the ring: what 1,000 connections may hold (64 MiB) is a limit of the two segments of each, and several writes must fit
/// beside each other.
pub(crate) const CAPACITY: usize = 28 << 10;

/// Bytes of the segment.
pub(crate) const SIZE: usize = RING + CAPACITY;
