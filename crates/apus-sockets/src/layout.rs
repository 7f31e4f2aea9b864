//! Where things lie in the segment of one side of a connection. Only this side writes it.
//!
//! Words that change together, and words that the peer polls, have cache lines of their own.

/// Says that the segment is one of these, and which layout it has.
pub const MAGIC: u64 = u64::from_le_bytes(*b"apustcp4");

/// The magic word.
pub const START: usize = 0;

/// The epoch that began last. This and the next four are the words of the sender that seldom change
/// ([`SenderWords`](crate::direction::SenderWords)).
pub const EPOCH: usize = 64;
/// The offset of that epoch.
pub const OFFSET: usize = 72;
/// Twice the epoch that ended last, and 1 more if this side spilled.
pub const ENDED: usize = 88;
/// Where the ring ended in that epoch.
pub const END: usize = 96;
/// The epoch of which nothing is left in the ring.
pub const REFILLED: usize = 104;
/// Bytes written into the ring.
pub const WRITTEN: usize = 128;

/// The epoch that this side has offered. This and the next two are the words of the receiver that seldom change
/// ([`ReceiverWords`](crate::direction::ReceiverWords)).
pub const OFFERED: usize = 192;
/// The epoch that this side has recalled.
pub const RECALLED: usize = 200;
/// The epoch before which all of TCP was read.
pub const DRAINED: usize = 208;
/// Not 0: this side has closed the socket, and reads nothing more.
pub const CLOSED: usize = 216;
/// In `CLOSED`: its TCP was reset by that, so its end counts as no byte unless the direction had ended before.
pub const HAS_RESET: u64 = 2;
/// Whether this side has ended its direction: not yet in TCP, or there as well.
pub const SHUT: usize = 224;
/// In `SHUT`: bytes that a signal handler has written come first. The peer does not look at this.
pub const WILL_END: u64 = 3;
/// In `SHUT`: TCP ends when the ring is empty.
pub const ENDS: u64 = 1;
/// In `SHUT`: TCP has ended.
pub const HAS_ENDED: u64 = 2;
/// Whether this side returns to the kernel for good, or has.
pub const LEFT: usize = 232;
/// In `LEFT`: this side returns.
pub const LEAVES: u64 = 1;
/// In `LEFT`: it has. All bytes are in TCP.
pub const HAS_LEFT: u64 = 2;
/// In `LEFT`: it returns, or has, until no program has the connection any more that a child of fork has become.
pub const SHARES: u64 = 3;
/// The last fork whose child has become such a program: the process that forked in the upper half, and which of its forks it was. Only
/// processes of this side read this.
pub const FORK: usize = 248;
/// Not 0: the process of this side has ended. Only a carrier writes this, into the segment in which it shows a program the words of a
/// peer at another host.
pub const DIED: usize = 240;
/// Bytes read from the peer's ring.
pub const READ: usize = 256;
/// Not 0: the program of this side has shut down what comes in, so its TCP refuses bytes.
pub const REFUSES: usize = 264;

/// Odd: somebody of this side sleeps until there are bytes, or until there is room.
pub const BELLS: [usize; 2] = [320, 328];

/// The processor on which this side waited last, counted from 1.
pub const PROCESSOR: usize = 336;

/// Who writes, and who reads, for this side: only this side's processes look at these.
pub const TOKENS: [usize; 2] = [384, 448];

/// How often a process of this side has begun or ended to change an option of the socket that calls depend on. Only this side's processes
/// look at this word and the next one.
pub const OPTIONS: usize = 392;
/// How many children of fork have become programs that have the connection, and were not seen to have ended.
pub const PROGRAMS: usize = 400;

/// The ring. It follows the words.
pub const RING: usize = 512;

/// Bytes of the segment, whole pages: what 1,000 idle connections may hold (64 MiB) is a limit of the two segments of each, and several
/// writes must fit beside each other.
pub const SIZE: usize = 28 << 10;

/// Bytes of the ring.
pub const CAPACITY: usize = SIZE - RING;

/// Bytes of the segment of a connection between hosts.
pub const FAR_SIZE: usize = 128 << 10;

/// Bytes of the ring of a connection between hosts: what it may have on its way, as a byte stays in the ring of its sender until it was
/// read.
pub const FAR_CAPACITY: usize = FAR_SIZE - RING;
