//! How a direction ends, and how a side leaves the connection or finds that its peer has.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use apus_sockets::direction::SenderState;
use apus_sockets::layout;
use libc::c_int;
use nix::sys::socket::{getsockopt, sockopt};

use super::{CAPACITY, Side};
use crate::carry::token::Token;
use crate::carry::{kernel, words};
use crate::originals;

impl Side {
    /// Whether the peer has closed the connection or has died.
    pub(crate) fn peer_is_gone(&self) -> bool {
        self.peer_is_dead.load(Ordering::Acquire)
            || self.peer.load(layout::CLOSED, Ordering::Acquire) != 0
    }

    /// Whether the peer has died without closing the connection, if nobody has noticed so far. A peer that closes it has the kernel
    /// say whether it had read everything.
    pub(super) fn has_died(&self) -> bool {
        if self.peer.load(layout::CLOSED, Ordering::Acquire) != 0 {
            // Between hosts the kernel there does not know what was on its way.
            return self.is_between_hosts;
        }
        let mut byte = 0_u8;
        let fd = self.channel.descriptor().as_raw_fd();
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: there is room for a byte.
        let mut ended = || unsafe { originals::recv(fd, (&raw mut byte).cast(), 1, flags) } == 0;
        let said = self.peer.load(layout::DIED, Ordering::Acquire) != 0;
        said || self.peer_is_dead.load(Ordering::Acquire) || ended()
    }

    /// Before the socket is closed: whether bytes are left that are to be in TCP first, because only this side can put them there. They
    /// are in the ring, and the peer is asked to give them back if it does not read them, or they were taken back from it.
    pub(crate) fn has_to_stay(&self, fd: c_int) -> bool {
        let is_left = self.follow(fd);
        if self.is_between_hosts || self.peer_is_gone() || self.unsent() == 0 {
            return is_left;
        }
        if self.readable() > 0 || kernel::resets_at_close(fd) {
            return is_left; // A reset follows, which would overtake bytes of TCP, and does not overtake the ring.
        }
        self.wish();
        true
    }

    /// This side closes the socket, after what was taken back from the ring is in TCP. True if it leaves bytes unread: its peer is to
    /// see a reset.
    pub(crate) fn close(&self) -> bool {
        let tokens = layout::TOKENS.map(|offset| Token::take(&self.own, offset));
        self.own.word(layout::CLOSED).store(1, Ordering::Release);
        drop(tokens);
        self.wake_peer();
        self.readable() > 0
    }

    /// All bytes are in TCP, and this side offers and begins nothing more. The peer is told, so that it lets go as well.
    pub(crate) fn leave(&self) {
        self.own.word(layout::LEFT).store(layout::HAS_LEFT, Ordering::Release);
        self.ask_peer();
    }

    /// Whether this side has left: it needs the peer no more.
    pub(crate) fn has_left(&self) -> bool {
        self.own.word(layout::LEFT).load(Ordering::Acquire) == layout::HAS_LEFT
    }

    /// Whether the peer has left, and all bytes are in TCP.
    pub(crate) fn peer_has_left(&self, fd: c_int) -> bool {
        self.peer_left() && self.step_back(fd) && !self.has_rest(fd)
    }

    pub(super) fn peer_left(&self) -> bool {
        match self.peer.load(layout::LEFT, Ordering::Acquire) {
            layout::HAS_LEFT => true,
            // Its children may use the connection without it.
            layout::SHARES => self.peer_is_dead.load(Ordering::Acquire),
            _ => false,
        }
    }

    /// This side begins to return for good: the peer is to offer nothing more.
    pub(crate) fn begin_to_leave(&self) {
        self.own.word(layout::LEFT).store(layout::LEAVES, Ordering::Release);
    }

    /// This side begins to return until [`stop_sharing`](Self::stop_sharing): a child of fork gets the connection.
    pub(crate) fn begin_to_share(&self) {
        self.own.word(layout::LEFT).store(layout::SHARES, Ordering::Release);
    }

    /// No child has the connection any more: both sides may offer again, unless this one leaves.
    pub(crate) fn stop_sharing(&self) {
        let left = self.own.word(layout::LEFT);
        let _ = left.compare_exchange(layout::SHARES, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether a signal or a debugger has stopped the process of the peer, so that nobody answers. A process that is not seen, as
    /// from another pid namespace, counts as stopped.
    pub(crate) fn peer_is_stopped(&self) -> bool {
        let credentials = getsockopt(&self.channel.descriptor(), sockopt::PeerCredentials);
        let state = credentials.ok().and_then(|peer| kernel::state_of(peer.pid()));
        state.is_none_or(|state| matches!(state, b'T' | b't'))
    }

    /// Whether bytes are in the ring that the peer cannot put into TCP, because it is gone.
    pub(crate) fn has_rest(&self, fd: c_int) -> bool {
        let theirs = words::sender_of(&self.peer);
        let total = || kernel::consumed(fd).unwrap_or(0) + kernel::unread(fd).unwrap_or(0);
        let rest = || self.receiver().rest(&theirs, total());
        self.peer_is_gone() && rest().is_ok_and(|rest| !rest.is_empty())
    }

    /// This side sends nothing more. TCP ends by [`finish_shut`](Self::finish_shut).
    pub(crate) fn shut(&self) {
        let _token = Token::take(&self.own, layout::TOKENS[1]);
        if !self.has_shut() {
            self.end(if self.has_aside() { layout::WILL_END } else { layout::ENDS });
        }
    }

    fn end(&self, how: u64) {
        self.own.word(layout::SHUT).store(how, Ordering::Release);
        self.wake_peer();
    }

    /// Ends this direction of TCP, if the program has ended it and the peer has read the ring, or all of it is in TCP: whoever reads TCP
    /// only is to find all bytes before the end. What the kernel's `shutdown` returned; `None` if it was not called now.
    pub(crate) fn finish_shut(&self, fd: c_int) -> Option<c_int> {
        let is_to_end = || {
            let how = self.own.word(layout::SHUT).load(Ordering::Acquire);
            how == layout::ENDS || how == layout::WILL_END && !self.has_aside()
        };
        if !is_to_end() {
            return None;
        }
        let _token = Token::take(&self.own, layout::TOKENS[1]).ok().filter(|_| is_to_end())?;
        if self.own.word(layout::SHUT).load(Ordering::Relaxed) == layout::WILL_END {
            self.end(layout::ENDS);
        }
        let theirs = words::receiver_of(&self.peer);
        let is_empty = match self.sender().state() {
            SenderState::Tcp => true,
            SenderState::Ring => self.peer_is_gone() || self.sender().room(&theirs) == Ok(CAPACITY),
            SenderState::Refill => false,
        };
        is_empty.then(|| {
            self.own.word(layout::SHUT).store(layout::HAS_ENDED, Ordering::Release);
            // SAFETY: the call has no pointers.
            unsafe { originals::shutdown(fd, libc::SHUT_WR) }
        })
    }

    pub(super) fn has_shut(&self) -> bool {
        self.own.word(layout::SHUT).load(Ordering::Relaxed) != 0
    }

    pub(super) fn peer_has_shut(&self) -> bool {
        matches!(self.peer.load(layout::SHUT, Ordering::Acquire), layout::ENDS | layout::HAS_ENDED)
    }
}
