//! The direction in which this side receives.

pub(super) mod known;

use std::sync::atomic::{Ordering, fence};

use apus_sockets::direction::{Receiver, ReceiverState};
use apus_sockets::layout;
use libc::{c_int, iovec};

use super::{Bell, NotNow, Side};
use crate::carry::connection::words::{self, Own};
use crate::carry::kernel;
use crate::carry::token::Token;

impl Side {
    pub(super) fn receiver(&self) -> Receiver {
        // A peer that has left answers nothing, like a dead one. All its bytes are in TCP.
        let sender_is_alive = !self.peer_is_gone() && !self.peer_left();
        Receiver::new(Own(&self.own).receiver(), self.places().capacity() as u64, sender_is_alive)
    }

    /// Makes a read of a stream wait briefly, so that it takes more bytes. `room` is the number of bytes that it can take.
    #[inline]
    pub(crate) fn gather(&self, room: usize) {
        if !self.inbound.gathering.waits() {
            return;
        }
        let enough = self.places().piece().min(room) as u64;
        self.inbound.gathering.wait(enough, || {
            let written = self.peer.load(layout::WRITTEN, Ordering::Acquire);
            written.wrapping_sub(self.own.word(layout::READ).load(Ordering::Relaxed))
        });
    }

    /// Receives available bytes into `parts`, which have room for `room` bytes. If the ring is empty and `asks_kernel` is set,
    /// asks the kernel about the end.
    ///
    /// # Safety
    ///
    /// The parts are writable.
    pub(crate) unsafe fn receive(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        room: usize,
        flags: c_int,
        asks_kernel: bool,
    ) -> Result<usize, NotNow> {
        self.inbound.last_fd.store(fd, Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        let mut received = unsafe { self.receive_once(fd, parts, room, flags, asks_kernel) };
        while received == Err(NotNow::Again) {
            // SAFETY: as above.
            received = unsafe { self.receive_once(fd, parts, room, flags, asks_kernel) };
        }
        if self.is_between_hosts && received == Err(NotNow::Error(libc::ECONNRESET)) {
            self.ending.meet_reset();
            received = Err(NotNow::Wait);
            if self.sees_end() {
                // SAFETY: guaranteed by the caller.
                received = unsafe { self.receive_once(fd, parts, room, flags, asks_kernel) };
            }
        }
        if received == Err(NotNow::Empty) && self.reads_nothing() && self.has_finished_shut() {
            // The kernel knows of the shutdown, and may have the error of a reset before it.
            // SAFETY: guaranteed by the caller.
            received = unsafe { self.receive_once(fd, parts, room, flags, true) };
        }
        if matches!(received, Err(NotNow::Wait | NotNow::Empty)) && self.reads_nothing() {
            return Ok(0); // The kernel may not know yet.
        }
        if received == Err(NotNow::Error(libc::ENOTCONN)) && self.is_lost() {
            let is_first = self.ending.report_loss();
            return if is_first { Err(NotNow::Error(libc::ECONNRESET)) } else { Ok(0) };
        }
        if received == Ok(0) && room > 0 && self.ending.take_reset() {
            return Err(NotNow::Error(libc::ECONNRESET));
        }
        received
    }

    unsafe fn receive_once(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        room: usize,
        flags: c_int,
        asks_kernel: bool,
    ) -> Result<usize, NotNow> {
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) else {
            return Err(NotNow::Error(libc::EAGAIN));
        };
        let theirs = words::sender_of(&self.peer);
        let mut receiver = self.receiver();
        let own = &mut Own(&self.own);
        receiver.look(&theirs, || self.consumed(fd).unwrap_or(0), own)?;
        if self.is_between_hosts && self.has_to_recall() {
            receiver.recall(&theirs, own);
            self.ask_peer();
        }
        match receiver.state(&theirs) {
            ReceiverState::Recalled if self.notices_death() => Err(NotNow::Again),
            ReceiverState::Recalled => Err(NotNow::Wait),
            ReceiverState::Ring => {
                let bytes = receiver.readable(&theirs)?.min(room as u64);
                if bytes == 0 {
                    return match (room, asks_kernel) {
                        (0, _) => Ok(0),
                        (_, false) => Err(NotNow::Empty),
                        (_, true) => self.end_of_ring(fd),
                    };
                }
                let takes = flags & libc::MSG_PEEK == 0;
                // SAFETY: guaranteed by the caller.
                unsafe {
                    self.copy_out(receiver.read(), bytes as usize, parts, flags, |bytes| {
                        if takes {
                            receiver.took(bytes as u64, &mut Own(&self.own));
                            self.ring(Bell::Room);
                        }
                    });
                }
                if takes && !self.has_bytes() {
                    if self.reads_nothing() {
                        receiver.recall(&theirs, &mut Own(&self.own));
                    }
                    if self.has_input_ended() {
                        self.ask_peer(); // The peer's TCP ends now, or continues.
                    }
                }
                Ok(bytes as usize)
            }
            ReceiverState::Switching => {
                let left = theirs.offset - self.consumed(fd).unwrap_or(theirs.offset);
                // SAFETY: guaranteed by the caller.
                let received = unsafe { receive_at_most(fd, parts, left as usize, flags) };
                // Without this look, the next call that waits would not learn that the ring comes next.
                receiver.look(&theirs, || self.consumed(fd).unwrap_or(0), own)?;
                match received {
                    Ok(bytes) if flags & libc::MSG_PEEK != 0 && bytes as u64 == left => {
                        let more = receiver.unread(&theirs)?.min((room - bytes) as u64);
                        let parts = skip(parts, bytes);
                        // SAFETY: guaranteed by the caller.
                        unsafe {
                            self.copy_out(receiver.read(), more as usize, parts, flags, |_| {});
                        }
                        Ok(bytes + more as usize)
                    }
                    received => received,
                }
            }
            ReceiverState::Offered if !self.is_between_hosts => {
                // SAFETY: guaranteed by the caller.
                unsafe { self.receive_before_epoch(fd, parts, room, flags, &mut receiver) }
            }
            ReceiverState::Tcp | ReceiverState::Offered => {
                // SAFETY: guaranteed by the caller.
                match unsafe { receive_at_most(fd, parts, room, flags) } {
                    Ok(0) if room > 0 => {
                        // SAFETY: guaranteed by the caller.
                        unsafe { self.receive_rest(fd, parts, room, flags, &mut receiver) }
                    }
                    received => received,
                }
            }
        }
    }

    /// Receives by TCP while the sender may begin an epoch and spill, so bytes that follow the ring may arrive by TCP at any
    /// moment. If this side finds TCP bytes and then sees that no epoch has begun, those bytes come before the ring.
    ///
    /// # Safety
    ///
    /// The parts are writable.
    #[cold]
    unsafe fn receive_before_epoch(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        room: usize,
        flags: c_int,
        receiver: &mut Receiver,
    ) -> Result<usize, NotNow> {
        let there = kernel::unread(fd).unwrap_or(0);
        fence(Ordering::SeqCst);
        if receiver.state(&words::sender_of(&self.peer)) != ReceiverState::Offered {
            return Err(NotNow::Again);
        }
        if there > 0 || room == 0 {
            let most = usize::try_from(there).unwrap_or(usize::MAX).min(room);
            // SAFETY: guaranteed by the caller.
            return unsafe { receive_at_most(fd, parts, most, flags) };
        }
        match kernel::peek_end(fd) {
            // SAFETY: guaranteed by the caller.
            Ok(true) => unsafe { self.receive_rest(fd, parts, room, flags, receiver) },
            Ok(false) => Err(NotNow::Again),
            Err(libc::EAGAIN) => Err(NotNow::Wait),
            Err(error) => Err(NotNow::Error(error)),
        }
    }

    /// Whether [`receive`](Self::receive) would ask the kernel and consume a socket error, which the next call must get.
    pub(crate) fn is_next_error(&self, fd: c_int, asks_kernel: bool) -> bool {
        let asks = asks_kernel || self.receiver_state() != ReceiverState::Ring;
        asks && !self.is_between_hosts && self.has_error_alone(fd)
    }

    #[cold]
    fn has_error_alone(&self, fd: c_int) -> bool {
        kernel::has_error(fd) && self.unread() == 0 && kernel::unread(fd) == Some(0)
    }

    /// The ring is empty. Only the kernel knows whether more bytes will come.
    #[cold]
    fn end_of_ring(&self, fd: c_int) -> Result<usize, NotNow> {
        let ended = kernel::peek_end(fd);
        if ended == Ok(true) && !self.sees_end() {
            return Err(NotNow::Wait);
        }
        let theirs = words::sender_of(&self.peer);
        let mut receiver = self.receiver();
        if receiver.readable(&theirs)? > 0 || receiver.state(&theirs) != ReceiverState::Ring {
            return Err(NotNow::Again); // The peer has written, or has spilled, since the last look.
        }
        match ended {
            Ok(true) if self.has_died() && self.sender().loses(&words::receiver_of(&self.peer)) => {
                Err(NotNow::Error(libc::ECONNRESET))
            }
            Ok(true) => Ok(0),
            Ok(false) => {
                // A process without this library writes to the socket.
                receiver.recall(&theirs, &mut Own(&self.own));
                self.ask_peer();
                Err(NotNow::Wait)
            }
            Err(libc::EAGAIN) if self.peer_has_shut() && !self.has_bytes() => Ok(0),
            Err(libc::EAGAIN) => Err(NotNow::Wait),
            Err(error) => Err(NotNow::Error(error)),
        }
    }

    /// Receives, after the end of TCP, the bytes that the peer had taken back from the ring but did not put into TCP before it
    /// died.
    #[cold]
    unsafe fn receive_rest(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        room: usize,
        flags: c_int,
        receiver: &mut Receiver,
    ) -> Result<usize, NotNow> {
        if !self.sees_end() {
            return Err(NotNow::Wait);
        }
        let theirs = words::sender_of(&self.peer);
        if !matches!(receiver.state(&theirs), ReceiverState::Tcp | ReceiverState::Offered) {
            return Err(NotNow::Wait); // The epoch began before the end.
        }
        let total = self.consumed(fd).unwrap_or(u64::MAX);
        let rest = receiver.rest(&theirs, total)?;
        let bytes = (rest.end - rest.start).min(room as u64);
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_out(rest.start, bytes as usize, parts, flags, |_| {}) };
        if flags & libc::MSG_PEEK == 0 && bytes > 0 {
            receiver.took(rest.start + bytes - receiver.read(), &mut Own(&self.own));
        }
        Ok(bytes as usize)
    }

    /// Copies from the ring, unless the flags discard the bytes. Calls `took` after each piece, so that the peer can write while
    /// the next one is copied.
    pub(super) unsafe fn copy_out(
        &self,
        position: u64,
        bytes: usize,
        parts: &mut [iovec],
        flags: c_int,
        mut took: impl FnMut(usize),
    ) {
        if flags & libc::MSG_TRUNC != 0 {
            return took(bytes);
        }
        let copy = |at, to, length| {
            // SAFETY: the caller guarantees that the parts are valid.
            unsafe { self.peer.copy_to(at..at + length, to) };
        };
        self.places().copy(position, bytes, parts, copy, took);
    }

    /// Agrees to receive through the ring, if bytes came by TCP.
    pub(crate) fn offer(&self) {
        if self.peer.load(layout::LEFT, Ordering::Acquire) != 0 {
            return;
        }
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) else { return };
        if self.own.word(layout::LEFT).load(Ordering::Relaxed) != 0 || self.reads_nothing() {
            return; // This side has begun to return meanwhile, or no longer reads.
        }
        let theirs = words::sender_of(&self.peer);
        self.receiver().offer(&theirs, &mut Own(&self.own));
        if self.is_between_hosts {
            self.ask_peer(); // The carrier passes the offer on.
        }
    }

    /// Ends the inbound epoch, if there is one.
    #[cold]
    pub(crate) fn recall(&self) {
        if let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) {
            self.receiver().recall(&words::sender_of(&self.peer), &mut Own(&self.own));
        }
        self.ask_peer();
    }

    /// This side writes, so its reads do not gather.
    #[inline]
    pub(super) fn note_write(&self) {
        self.inbound.gathering.note_write();
    }

    /// The program has shut down the inbound direction. From now on the peer writes into TCP, where the kernel refuses its bytes.
    /// The program may still read bytes in the ring.
    pub(crate) fn stop_reading(&self) {
        self.own.word(layout::REFUSES).store(1, Ordering::Release);
        if !self.has_bytes() {
            self.recall();
        }
    }

    /// Whether the ring has bytes that TCP would refuse.
    pub(crate) fn refuses_rest(&self) -> bool {
        self.reads_nothing() && self.has_bytes()
    }

    pub(crate) fn reads_nothing(&self) -> bool {
        self.own.word(layout::REFUSES).load(Ordering::Acquire) != 0
    }

    /// Follows the sender while the program makes no call.
    pub(super) fn follow_inbound(&self, fd: c_int) {
        self.inbound.last_fd.store(fd, Ordering::Relaxed);
        if let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) {
            let theirs = words::sender_of(&self.peer);
            let (mut receiver, own) = (self.receiver(), &mut Own(&self.own));
            let _ = receiver.look(&theirs, || self.consumed(fd).unwrap_or(0), own);
            if self.has_to_recall() {
                receiver.recall(&theirs, own);
                self.ask_peer(); // The peer must answer the recall.
            }
            if self.is_between_hosts && self.is_readable() {
                self.nudge(); // There were no bytes to read before this look.
            }
        }
    }

    /// Makes the direction return to TCP. Returns `true` once this side needs no more bytes of the ring.
    pub(super) fn return_inbound(&self, fd: c_int) -> bool {
        match Token::take(&self.own, layout::TOKENS[0]) {
            Ok(_) if self.refuses_rest() => false,
            Ok(_token) => {
                let theirs = words::sender_of(&self.peer);
                let mut receiver = self.receiver();
                let own = &mut Own(&self.own);
                receiver.recall(&theirs, own);
                fence(Ordering::SeqCst); // A sender that does not see the recall has written earlier.
                let theirs = words::sender_of(&self.peer);
                let looked = receiver.look(&theirs, || self.consumed(fd).unwrap_or(0), own);
                let is_answered = receiver.state(&theirs) == ReceiverState::Tcp;
                // A peer at another host may write before it sees the recall, so it has to answer.
                let may = is_answered || !self.is_between_hosts;
                looked.is_ok() && may && receiver.may_leave(&theirs)
            }
            Err(_) => false,
        }
    }

    /// Whether the peer has spilled bytes that this side has not read. They stay in the ring.
    pub(crate) fn is_spilled(&self) -> bool {
        let theirs = words::sender_of(&self.peer);
        self.receiver().has_spilled(&theirs)
    }

    /// Bytes that can be read from the ring.
    pub(crate) fn readable(&self) -> u64 {
        self.receiver().readable(&words::sender_of(&self.peer)).unwrap_or(0)
    }

    /// Unread bytes in the ring, including those that follow bytes of TCP.
    pub(crate) fn unread(&self) -> u64 {
        self.receiver().unread(&words::sender_of(&self.peer)).unwrap_or(0)
    }

    /// Whether [`receive`](Self::receive) finds bytes in the ring. Costs three loads.
    #[inline]
    pub(crate) fn has_bytes(&self) -> bool {
        let written = self.peer.load(layout::WRITTEN, Ordering::Acquire);
        written != self.own.word(layout::READ).load(Ordering::Relaxed)
    }

    /// Whether a read may succeed: the ring has bytes or their end, and the receiver has not returned. The receiver may first
    /// have to see that TCP is empty.
    pub(crate) fn is_readable(&self) -> bool {
        let state = || self.receiver_state();
        // TCP bytes that precede the ring may still be on their way.
        let is_next = |state| match state {
            ReceiverState::Switching => !self.is_between_hosts && self.may_read_ring(),
            state => state == ReceiverState::Ring,
        };
        self.has_bytes() && is_next(state())
            || self.peer_has_shut() && state() == ReceiverState::Ring
            || self.knows_end()
            || self.reads_nothing()
    }

    /// While the direction switches: whether all TCP bytes that precede the ring were read.
    #[cold]
    fn may_read_ring(&self) -> bool {
        let fd = self.inbound.last_fd.load(Ordering::Relaxed);
        let offset = self.peer.load(layout::OFFSET, Ordering::Acquire);
        self.consumed(fd).is_none_or(|consumed| consumed == offset)
    }

    /// Whether the peer leaves and its bytes have to go into TCP, where they may be needed if this side leaves too.
    pub(super) fn has_to_recall(&self) -> bool {
        let is_open = |state| {
            use ReceiverState::{Offered, Ring, Switching};
            matches!(state, Offered | Switching | Ring)
        };
        let left = self.peer.load(layout::LEFT, Ordering::Acquire);
        !self.refuses_rest()
            && (left == layout::LEAVES
                || left == layout::SHARES
                || left != 0 && self.is_between_hosts)
            && is_open(self.receiver_state())
    }

    /// The source of the next bytes.
    pub(crate) fn receiver_state(&self) -> ReceiverState {
        self.receiver().state(&words::sender_of(&self.peer))
    }

    /// Whether bytes come from another source now, so that those that follow the ones of `before` may be there at once.
    #[inline]
    pub(crate) fn goes_on_behind(&self, before: ReceiverState) -> bool {
        // The receiver leaves a ring only after its epoch has ended.
        let may = before != ReceiverState::Ring || {
            let ended = self.peer.load(layout::ENDED, Ordering::Acquire) >> 1;
            ended >= self.own.word(layout::OFFERED).load(Ordering::Relaxed)
        };
        may && self.receiver_state() != before
    }

    /// A value that changes when more can be read: bytes that the peer has written into its ring, or the end.
    #[inline]
    pub(crate) fn arrived(&self) -> u64 {
        self.peer.load(layout::WRITTEN, Ordering::Acquire) | u64::from(self.knows_end()) << 63
    }
}

/// The parts after the first `bytes` bytes.
fn skip(mut parts: &mut [iovec], mut bytes: usize) -> &mut [iovec] {
    while let Some(length) = parts.first().map(|part| part.iov_len).filter(|it| *it <= bytes) {
        bytes -= length;
        parts = &mut parts[1..];
    }
    if let Some(part) = parts.first_mut() {
        part.iov_base = part.iov_base.wrapping_byte_add(bytes);
        part.iov_len -= bytes;
    }
    parts
}

/// Receives by TCP into the first `most` bytes of the parts.
unsafe fn receive_at_most(
    fd: c_int,
    parts: &mut [iovec],
    most: usize,
    flags: c_int,
) -> Result<usize, NotNow> {
    // SAFETY: guaranteed by the caller.
    let received = unsafe { kernel::receive_at_most(fd, parts, most, flags) };
    received
        .map_err(|error| if error == libc::EAGAIN { NotNow::Wait } else { NotNow::Error(error) })
}
