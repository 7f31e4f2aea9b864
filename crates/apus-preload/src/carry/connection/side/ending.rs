//! The end of a direction, and of a side's or its peer's part in the connection.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use apus_sockets::direction::SenderState;
use apus_sockets::layout;
use libc::{c_int, iovec};

use super::Side;
use crate::carry::connection::words;
use crate::carry::kernel;
use crate::carry::token::Token;
use crate::originals;

/// A range of bytes in the peer's ring.
pub(crate) struct PeerBytes {
    start: u64,
    length: usize,
}

impl PeerBytes {
    pub(crate) fn len(&self) -> usize {
        self.length
    }
}

impl Side {
    /// Whether the peer has closed the connection or has died.
    pub(crate) fn peer_is_gone(&self) -> bool {
        self.peer_is_dead.load(Ordering::Acquire)
            || self.peer.load(layout::CLOSED, Ordering::Acquire) != 0
    }

    /// Whether the peer has died, unless this process knew.
    pub(super) fn notices_death(&self) -> bool {
        !self.peer_is_gone()
            && !self.is_between_hosts
            && self.has_died()
            && !self.peer_is_dead.swap(true, Ordering::AcqRel)
    }

    /// Whether the peer has closed the connection or has died, as the kernel knows now.
    pub(crate) fn finds_peer_gone(&self) -> bool {
        self.notices_death() || self.peer_is_gone()
    }

    /// Whether the peer has newly died without closing the connection. If a peer has closed it, the kernel knows whether that
    /// peer had read everything.
    pub(super) fn has_died(&self) -> bool {
        if self.peer.load(layout::CLOSED, Ordering::Acquire) != 0 {
            // Between hosts, the kernel at the peer does not know the bytes on their way.
            return self.is_between_hosts;
        }
        let mut byte = 0_u8;
        let fd = self.channel.descriptor().as_raw_fd();
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the buffer holds one byte.
        let mut ended = || unsafe { originals::recv(fd, (&raw mut byte).cast(), 1, flags) } == 0;
        let said = self.peer.load(layout::DIED, Ordering::Acquire) != 0;
        said || self.peer_is_dead.load(Ordering::Acquire) || ended()
    }

    /// This process closes the socket, and is the last one of this side. Bytes that the peer has not read stay in the ring.
    /// Returns `true` if the peer must see a reset: bytes are unread here, or bytes taken back from the ring for a peer that has
    /// left find no room in TCP.
    pub(crate) fn close(&self, fd: c_int) -> bool {
        let is_left = self.follow(fd) && self.peer_left();
        let tokens = layout::TOKENS.map(|offset| Token::take(&self.own, offset));
        let resets = is_left || self.unread() > 0;
        let is_reset = resets || kernel::resets_at_close(fd);
        if is_reset && self.has_shut() && !self.has_finished_shut() {
            self.end(layout::HAS_ENDED); // The end comes before the reset.
            // SAFETY: the call takes no pointers.
            let _ = unsafe { originals::shutdown(fd, libc::SHUT_WR) };
        }
        let how = if is_reset { layout::HAS_RESET } else { 1 };
        self.own.word(layout::CLOSED).store(how, Ordering::Release);
        drop(tokens);
        self.ask_peer();
        resets
    }

    /// Bytes of the stream that were read from the socket.
    pub(super) fn consumed(&self, fd: c_int) -> Option<u64> {
        kernel::consumed(fd, self.was_reset())
    }

    /// Whether the peer has reset TCP without ending it first.
    pub(crate) fn was_reset(&self) -> bool {
        self.peer.load(layout::CLOSED, Ordering::Acquire) == layout::HAS_RESET
            && self.peer.load(layout::SHUT, Ordering::Acquire) != layout::HAS_ENDED
    }

    /// All bytes are in TCP, and this side offers and begins no more epochs. Notifies the peer, which then leaves too.
    pub(crate) fn leave(&self) {
        self.own.word(layout::LEFT).store(layout::HAS_LEFT, Ordering::Release);
        self.ask_peer();
    }

    /// Whether the peer has left and all bytes are in TCP.
    pub(crate) fn peer_has_left(&self, fd: c_int) -> bool {
        self.peer_left() && self.step_back(fd) && !self.has_rest(fd)
    }

    pub(super) fn peer_left(&self) -> bool {
        match self.peer.load(layout::LEFT, Ordering::Acquire) {
            layout::HAS_LEFT => true,
            // The peer's children may use the connection without it.
            layout::SHARES => self.peer_is_dead.load(Ordering::Acquire),
            _ => false,
        }
    }

    /// This side begins to return for good. The peer must offer no more epochs.
    pub(crate) fn begin_to_leave(&self) {
        self.own.word(layout::LEFT).store(layout::LEAVES, Ordering::Release);
    }

    /// This side begins to return until [`stop_sharing`](Self::stop_sharing): a child of `fork`, forked by process `fork >> 32`,
    /// becomes a program with the connection.
    pub(crate) fn begin_to_share(&self, fork: u64) {
        self.own.word(layout::FORK).fetch_max(fork, Ordering::Release);
        let left = self.own.word(layout::LEFT);
        let _ = left.compare_exchange(0, layout::SHARES, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The last fork whose child has become such a program. 0 if this side does not share the connection.
    pub(crate) fn shared_since(&self) -> u64 {
        match self.own.word(layout::LEFT).load(Ordering::Acquire) {
            layout::SHARES => self.own.word(layout::FORK).load(Ordering::Acquire),
            _ => 0,
        }
    }

    /// No program has the connection any more. Both sides may offer again, unless this one leaves.
    pub(crate) fn stop_sharing(&self) {
        let left = self.own.word(layout::LEFT);
        let _ = left.compare_exchange(layout::SHARES, 0, Ordering::AcqRel, Ordering::Relaxed);
        // Those programs have ended, and were counted as children.
        for _ in 0..self.own.word(layout::PROGRAMS).swap(0, Ordering::AcqRel) {
            let _ = self.holders.remove();
        }
    }

    /// This process, a child of fork, becomes a program with the connection.
    pub(crate) fn add_program(&self) {
        self.own.word(layout::PROGRAMS).fetch_add(1, Ordering::AcqRel);
    }

    /// This process has not become a program.
    pub(crate) fn remove_program(&self) {
        let less = |count: u64| count.checked_sub(1);
        let programs = self.own.word(layout::PROGRAMS);
        let _ = programs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    }

    /// A process of this side begins or ends a change of a socket option.
    pub(crate) fn note_option(&self) {
        self.own.word(layout::OPTIONS).fetch_add(1, Ordering::SeqCst);
    }

    /// Number of begins and ends of option changes.
    #[inline]
    pub(crate) fn option_changes(&self) -> u64 {
        self.own.word(layout::OPTIONS).load(Ordering::SeqCst)
    }

    /// Makes this side return for good once it can.
    pub(crate) fn give_way(&self) {
        self.gives_way.store(true, Ordering::Relaxed);
        self.begin_to_leave();
    }

    pub(crate) fn gives_way(&self) -> bool {
        self.gives_way.load(Ordering::Relaxed)
    }

    /// Whether this side has left, through this process or another one that has the connection.
    pub(crate) fn has_left(&self) -> bool {
        self.own.word(layout::LEFT).load(Ordering::Acquire) == layout::HAS_LEFT
    }

    /// Whether the ring has bytes that the peer cannot put into TCP because it is gone.
    pub(crate) fn has_rest(&self, fd: c_int) -> bool {
        let theirs = words::sender_of(&self.peer);
        let total = || self.consumed(fd).unwrap_or(0) + kernel::unread(fd).unwrap_or(0);
        let rest = || self.receiver().rest(&theirs, total());
        self.peer_is_gone() && rest().is_ok_and(|rest| !rest.is_empty())
    }

    /// The bytes that the peer had taken back from the ring but, being gone, did not put into TCP.
    pub(crate) fn rest(&self, fd: c_int) -> PeerBytes {
        let theirs = words::sender_of(&self.peer);
        let total = self.consumed(fd).unwrap_or(0) + kernel::unread(fd).unwrap_or(0);
        let rest = self.receiver().rest(&theirs, total).unwrap_or(0..0);
        PeerBytes { start: rest.start, length: (rest.end - rest.start) as usize }
    }

    /// Copies such bytes and leaves them in the ring.
    ///
    /// # Safety
    ///
    /// The buffer has room for all of them.
    pub(crate) unsafe fn copy_rest(&self, rest: &PeerBytes, to: *mut u8) {
        let mut part = [iovec { iov_base: to.cast(), iov_len: rest.len() }];
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_out(rest.start, rest.len(), &mut part, 0, |_| {}) };
    }

    /// Whether bytes are in the ring, or will follow there, that never go into TCP: the peer is gone, or has continued by TCP
    /// after them.
    pub(crate) fn keeps_rest(&self, fd: c_int) -> bool {
        self.is_spilled() || self.peer_is_gone() && (self.unread() > 0 || self.has_rest(fd))
    }

    /// This side sends no more bytes. [`finish_shut`](Self::finish_shut) ends TCP.
    pub(crate) fn shut(&self) {
        let _token = Token::take(&self.own, layout::TOKENS[1]);
        if !self.has_shut() {
            self.end(if self.has_aside() { layout::WILL_END } else { layout::ENDS });
        }
    }

    /// Whether both directions have ended, possibly unknown to the kernel.
    pub(crate) fn has_hung_up(&self) -> bool {
        self.has_shut() && self.has_input_ended()
    }

    /// Whether no more bytes will arrive: the peer has ended its direction, or the program has.
    pub(crate) fn has_input_ended(&self) -> bool {
        self.peer_has_shut() || self.reads_nothing()
    }

    /// Whether the peer's program has shut down its inbound direction. The peer then recalls no bytes that its TCP would refuse.
    pub(super) fn peer_reads_nothing(&self) -> bool {
        self.peer.load(layout::REFUSES, Ordering::Acquire) != 0
    }

    fn end(&self, how: u64) {
        self.own.word(layout::SHUT).store(how, Ordering::Release);
        self.wake_peer();
    }

    /// Ends this direction of TCP if the program has ended it and either the peer has read the ring or all of its bytes are in
    /// TCP. A process that reads only TCP must find all bytes before the end. Returns the result of `shutdown`, or `None` if it
    /// was not called.
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
            SenderState::Tcp => true, // The peer reads spilled bytes in the ring before the end.
            SenderState::Ring => {
                self.peer_is_gone()
                    || self.sender().room(&theirs) == Ok(self.places().capacity() as u64)
            }
            SenderState::Refill => false,
        };
        is_empty.then(|| {
            self.own.word(layout::SHUT).store(layout::HAS_ENDED, Ordering::Release);
            // One call ends both directions: after the second end the kernel no longer knows the connection.
            let how = if self.reads_nothing() { libc::SHUT_RDWR } else { libc::SHUT_WR };
            // SAFETY: the call takes no pointers.
            unsafe { originals::shutdown(fd, how) }
        })
    }

    pub(crate) fn has_shut(&self) -> bool {
        self.own.word(layout::SHUT).load(Ordering::Relaxed) != 0
    }

    /// Whether this direction has ended in TCP too.
    pub(crate) fn has_finished_shut(&self) -> bool {
        self.own.word(layout::SHUT).load(Ordering::Acquire) == layout::HAS_ENDED
    }

    pub(crate) fn peer_has_shut(&self) -> bool {
        matches!(self.peer.load(layout::SHUT, Ordering::Acquire), layout::ENDS | layout::HAS_ENDED)
    }
}
