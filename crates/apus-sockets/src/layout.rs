//! Layout of the segment of one side of a connection. Only this side writes it.
//!
//! Words that change together, and words that the peer polls, have cache lines of their own.

/// Identifies a segment and the version of its layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"apustcp4");

/// Offset of the magic word.
pub const START: usize = 0;

/// The last epoch that began. This and the next four are the words of the sender that seldom change
/// ([`SenderWords`](crate::direction::SenderWords)).
pub const EPOCH: usize = 64;
/// The offset of that epoch.
pub const OFFSET: usize = 72;
/// Twice the last epoch that ended, plus 1 if this side spilled.
pub const ENDED: usize = 88;
/// Position of the ring's end in that epoch.
pub const END: usize = 96;
/// The last epoch that has no byte left in the ring.
pub const REFILLED: usize = 104;
/// Number of bytes written into the ring.
pub const WRITTEN: usize = 128;

/// The epoch that this side has offered. This and the next two are the words of the receiver that seldom change
/// ([`ReceiverWords`](crate::direction::ReceiverWords)).
pub const OFFERED: usize = 192;
/// The epoch that this side has recalled.
pub const RECALLED: usize = 200;
/// The last epoch before which all of TCP was read.
pub const DRAINED: usize = 208;
/// Nonzero if this side has closed the socket, and reads nothing more.
pub const CLOSED: usize = 216;
/// In `CLOSED`: its TCP was reset by that, so its end counts as no byte unless the direction had ended before.
pub const HAS_RESET: u64 = 2;
/// Whether this side has ended its direction: not yet in TCP, or there as well.
pub const SHUT: usize = 224;
/// Value of `SHUT`: bytes written by a signal handler come first. The peer does not read it.
pub const WILL_END: u64 = 3;
/// Value of `SHUT`: TCP ends when the ring is empty.
pub const ENDS: u64 = 1;
/// Value of `SHUT`: TCP has ended.
pub const HAS_ENDED: u64 = 2;
/// Whether this side returns to the kernel for good, or has returned.
pub const LEFT: usize = 232;
/// Value of `LEFT`: this side returns.
pub const LEAVES: u64 = 1;
/// Value of `LEFT`: this side has returned. All bytes are in TCP.
pub const HAS_LEFT: u64 = 2;
/// Value of `LEFT`: this side returns, or has returned, until no program that a child of fork has become has the connection.
pub const SHARES: u64 = 3;
/// The last fork whose child has become such a program: the forking process in the upper half, and the number of its fork. Only
/// processes of this side read this word.
pub const FORK: usize = 248;
/// Nonzero if the process of this side has ended. Only a carrier writes this word, into the segment in which it shows a program the
/// words of a peer at another host.
pub const DIED: usize = 240;
/// Number of bytes read from the peer's ring.
pub const READ: usize = 256;
/// Not 0: the program of this side has shut down its inbound direction, so its TCP refuses bytes.
pub const REFUSES: usize = 264;

/// Odd while a thread of this side sleeps until there are bytes, or until there is room.
pub const BELLS: [usize; 2] = [320, 328];

/// The processor on which this side waited last, counted from 1.
pub const PROCESSOR: usize = 336;

/// The tokens of the writer and of the reader of this side. Only this side's processes read them.
pub const TOKENS: [usize; 2] = [384, 448];

/// Counts how often a process of this side has begun or ended to change an option of the socket on which calls depend. Only this side's
/// processes read this word and the next one.
pub const OPTIONS: usize = 392;
/// Number of children of fork that have become programs with the connection, and were not seen to end.
pub const PROGRAMS: usize = 400;

/// Offset of the ring, which follows the words.
pub const RING: usize = 512;

/// Size of the segment in bytes, whole pages. The limit of 64 MiB for 1,000 idle connections bounds the two segments of each, and
/// several writes must fit in the ring at a time.
pub const SIZE: usize = 28 << 10;

/// Size of the ring in bytes.
pub const CAPACITY: usize = SIZE - RING;

/// Size of the segment of a connection between hosts, in bytes.
pub const FAR_SIZE: usize = 128 << 10;

/// Size of the ring of a connection between hosts, in bytes. It bounds the bytes on their way, because a byte stays in its sender's
/// ring until it was read.
pub const FAR_CAPACITY: usize = FAR_SIZE - RING;
