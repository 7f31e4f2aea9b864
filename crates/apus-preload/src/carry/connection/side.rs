//! One side of a connection: it sends and receives without waiting. [`transfer`](crate::carry::bytes::transfer) waits.
//!
//! | file | |
//! |---|---|
//! | [`outbound`] | the direction in which this side sends |
//! | [`inbound`] | the direction in which this side receives |
//! | [`places`] | positions in a direction's ring, and copies in pieces |
//! | [`waking`] | how threads of the side sleep, and how the peer is woken |
//! | [`ending`] | how directions end, and how a side leaves |
//! | [`between_hosts`] | differences for a peer at another host |
//!
//! The local state of a direction (`known`) is private to its file.

mod between_hosts;
mod ending;
mod inbound;
mod outbound;
mod places;
mod waking;

pub(crate) use self::outbound::SendCall;
pub(crate) use self::waking::CHECKED_AT_ONCE;

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use apus_shm::{Memory, PeerSegment};
use apus_sockets::direction::{ReceiverState, SenderState, Violation};
use apus_sockets::layout;
use libc::c_int;

use self::inbound::known::Inbound;
use self::outbound::known::Outbound;
use self::places::Places;
use crate::carry::connection::holders::Holders;
use crate::carry::connection::last_words::Ending;
use crate::carry::connection::words::{self, Own};
use crate::carry::holds;
use crate::carry::inner;
use crate::carry::inner::{Inner, InnerChannel};
use crate::carry::kernel;
use crate::carry::spin::Spin;

/// One side of a carried connection. Threads and signal handlers of a process share it; so do processes that inherit it.
pub(crate) struct Side {
    own: Memory,
    peer: PeerSegment,
    /// The bell: a socket of this process, like `channel`. Its bytes wake this side and the peer.
    bell: InnerChannel,
    bell_has_ended: AtomicBool,
    /// Whether the side returns for good once it can: the program may need its descriptors, or the carrier was switched off.
    gives_way: AtomicBool,
    /// Bytes of the bell that epoll sets have reported and that may still be unread.
    unchecked: AtomicU32,
    /// Wakes the threads of this side, including those of other processes that have the connection.
    nudge: Inner,
    /// The processes that have the connection.
    holders: Holders,
    /// Messages to and from the peer's answering thread. The channel's end is the death of the peer.
    pub(crate) channel: InnerChannel,
    pub(crate) peer_is_dead: AtomicBool,
    /// The peer's bell words at the last wake-ups.
    woken: [AtomicU64; 2],
    /// The number of the side's slot, which identifies calls that sleep here.
    number: AtomicUsize,
    /// Number of members of epoll sets that sleep.
    sleepers: [AtomicU32; 2],
    outbound: Outbound,
    inbound: Inbound,
    /// Spin statistics of this side.
    pub(crate) spin: Spin,
    /// Whether the peer is at another host. A carrier shows the peer's words with a delay, so the kernel's socket may be ahead of
    /// them.
    pub(crate) is_between_hosts: bool,
    ending: Ending,
    /// Whether this end accepted the connection.
    accepted: bool,
}

/// The event that a side waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bell {
    Bytes = 0,
    Room = 1,
}

/// The reason why a call has no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotNow {
    /// No bytes or no room. The kernel's socket or the bell wakes the call.
    Wait,
    /// The peer has changed the direction meanwhile. The call must try again.
    Again,
    /// The ring has no room.
    Full,
    /// The ring is empty, and the kernel was not asked about the end of the stream.
    Empty,
    /// The error number for the program.
    Error(c_int),
}

impl From<Violation> for NotNow {
    fn from(_: Violation) -> Self {
        // The memory of a snapshot is older than the kernel's counts.
        if holds::is_parents_call() { Self::Again } else { Self::Error(libc::ECONNRESET) }
    }
}

/// A channel message that makes the peer answer or recall while its program computes.
pub(crate) const ANSWER: u8 = b'A';

impl Side {
    pub(crate) fn new(
        own: Memory,
        peer: PeerSegment,
        holders: Holders,
        nudge: Inner,
        bell: InnerChannel,
        channel: InnerChannel,
        accepted: bool,
    ) -> Self {
        for fd in [nudge.as_raw_fd(), bell.as_raw_fd(), channel.as_raw_fd()] {
            inner::is_of_side(fd);
        }
        Self {
            own,
            peer,
            bell,
            bell_has_ended: AtomicBool::new(false),
            gives_way: AtomicBool::new(false),
            unchecked: AtomicU32::new(0),
            nudge,
            holders,
            channel,
            peer_is_dead: AtomicBool::new(false),
            woken: Default::default(),
            sleepers: Default::default(),
            number: AtomicUsize::new(0),
            outbound: Outbound::new(),
            inbound: Inbound::new(),
            spin: Spin::new(),
            is_between_hosts: false,
            ending: Ending::default(),
            accepted,
        }
    }

    /// Whether another process has the connection too.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.holders.are_several()
    }

    /// Runs in a child of fork, where no thread sleeps. The parent sends the bytes that its handlers have put aside.
    pub(crate) fn begin_in_child(&self) {
        self.sleepers.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.forget_aside();
    }

    /// The addresses and sizes of both segments, first the own one.
    pub(super) fn segments(&self) -> [(usize, usize); 2] {
        let (own, peer) = (self.own.address(0, self.own.size()), self.peer.address());
        [(own.expose_provenance(), self.own.size()), (peer.expose_provenance(), self.peer.size())]
    }

    /// Sets the number of the side's slot.
    pub(super) fn set_number(&self, number: usize) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// The layout of both rings.
    #[inline]
    fn places(&self) -> Places {
        Places { are_far: self.is_between_hosts }
    }

    /// Follows the peer while the program makes no call: answers a recall, and recalls if the peer leaves. Returns `true` if TCP
    /// has no room for some bytes.
    pub(crate) fn follow(&self, fd: c_int) -> bool {
        if self.is_closed() {
            return false;
        }
        self.follow_inbound(fd);
        if self.is_between_hosts && !self.has_shut() && kernel::has_shut(fd) {
            self.own.word(layout::SHUT).store(layout::HAS_ENDED, Ordering::Release);
            self.wake_peer();
        }
        self.follow_outbound(fd)
    }

    /// Makes both directions return to TCP. Returns `true` once they have; the kernel has all bytes then.
    pub(crate) fn step_back(&self, fd: c_int) -> bool {
        let received = self.return_inbound(fd);
        let sent = self.return_outbound(fd);
        received && sent
    }

    /// This side has closed the socket.
    fn is_closed(&self) -> bool {
        self.own.word(layout::CLOSED).load(Ordering::Relaxed) != 0
    }

    /// Whether memory has all that the kernel knows of the socket, except the peer's death: both directions go through their
    /// rings, and neither end has begun to leave or to end.
    pub(crate) fn kernel_has_nothing(&self) -> bool {
        let has_left = self.own.word(layout::LEFT).load(Ordering::Relaxed)
            | self.peer.load(layout::LEFT, Ordering::Acquire);
        let is_open = has_left == 0 && !self.has_shut() && !self.peer_has_shut();
        is_open
            && !self.is_between_hosts
            && !self.peer_is_gone()
            && self.receiver_state() == ReceiverState::Ring
            && self.sender().state() == SenderState::Ring
    }

    /// Whether a waiting call must look again although no event of this kind is there, because the peer changed the direction.
    pub(crate) fn changed(&self, what: Bell) -> bool {
        match what {
            Bell::Bytes => self.is_between_hosts && self.has_to_recall(),
            Bell::Room => {
                let theirs = words::receiver_of(&self.peer);
                let ended = Own(&self.own).sender().ended;
                theirs.recalled > ended && self.sender().state() == SenderState::Ring
            }
        }
    }

    /// Whether some bytes wait for room that no call of the program will send: they were taken back from the ring, or put aside.
    pub(crate) fn has_left_bytes(&self) -> bool {
        self.sender().state() == SenderState::Refill || self.has_aside()
    }

    /// Whether the bell alone can end the wait: no bytes come by TCP until the sender has answered, and the room of a ring is not
    /// that in TCP.
    pub(crate) fn only_bell_ends_wait(&self, what: Bell) -> bool {
        match what {
            Bell::Bytes => self.receiver_state() == ReceiverState::Recalled || self.awaits_end(),
            Bell::Room => self.is_writable().is_some(),
        }
    }
}
