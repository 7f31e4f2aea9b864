//! One side of a connection: it sends and receives without waiting. [`transfer`](super::transfer) waits.

use std::os::fd::AsRawFd;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use apus_shm::{Memory, PeerSegment, bell};
use apus_sockets::direction::{Lie, Receiver, ReceiverState, ReceiverWords, Sender, SenderState};
use libc::{c_int, iovec};

use super::inner::{Inner, InnerChannel};
use super::spin::{SLEEPERS, Spin};
use super::token::Token;
use super::words::{self, Own};
use super::{kernel, layout, sleep};
use crate::{errno, originals};

const CAPACITY: u64 = layout::CAPACITY as u64;

/// One side of a carried connection. Threads and signal handlers of a process share it; so do processes that inherit it.
pub(crate) struct Side {
    own: Memory,
    peer: PeerSegment,
    /// Readable when this side was woken, for each [`Bell`].
    bells: [Inner; 2],
    /// Writing to them wakes the peer.
    peer_bells: [Inner; 2],
    /// Messages for the thread of the peer that answers, and from it. Its end is the death of the peer.
    pub(crate) channel: InnerChannel,
    pub(crate) peer_is_dead: AtomicBool,
    /// The peer's words at the last wake-ups.
    woken: [AtomicU64; 2],
    /// How many of this process sleep.
    sleepers: [AtomicU32; 2],
    /// A write found the ring full.
    was_full: AtomicBool,
    /// What is known of waiting here.
    pub(crate) spin: Spin,
}

/// What a side waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bell {
    Bytes = 0,
    Room = 1,
}

/// Why a call has no result yet, or never will.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotNow {
    /// There are no bytes, or there is no room; the kernel's socket or the bell tells when to look again.
    Wait,
    /// The error number for the program.
    Error(c_int),
}

impl From<Lie> for NotNow {
    fn from(_: Lie) -> Self {
        Self::Error(libc::ECONNRESET)
    }
}

/// A message over the channel: the peer is to answer or to recall, although its program computes.
pub(crate) const ANSWER: u8 = b'A';

impl Side {
    pub(crate) fn new(
        own: Memory,
        peer: PeerSegment,
        bells: [Inner; 2],
        peer_bells: [Inner; 2],
        channel: InnerChannel,
    ) -> Self {
        Self {
            own,
            peer,
            bells,
            peer_bells,
            channel,
            peer_is_dead: AtomicBool::new(false),
            woken: Default::default(),
            sleepers: Default::default(),
            was_full: AtomicBool::new(false),
            spin: Spin::new(),
        }
    }

    /// Readable when this side was woken.
    pub(crate) fn bell(&self, what: Bell) -> c_int {
        self.bells[what as usize].as_raw_fd()
    }

    fn receiver(&self) -> Receiver {
        // A peer that has left answers nothing, as if it were dead. All that it wrote is in TCP.
        let sender_lives = !self.peer_is_gone() && !self.peer_left();
        Receiver::new(Own(&self.own).receiver(), CAPACITY, sender_lives)
    }

    fn sender(&self) -> Sender {
        Sender::new(Own(&self.own).sender(), CAPACITY)
    }

    /// Receives what is there, into `parts`, which have room for `room` bytes.
    ///
    /// # Safety
    ///
    /// The parts can be written.
    pub(crate) unsafe fn receive(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        room: usize,
        flags: c_int,
    ) -> Result<usize, NotNow> {
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) else {
            return Err(NotNow::Error(libc::EAGAIN));
        };
        let theirs = words::sender_of(&self.peer);
        let mut receiver = self.receiver();
        receiver.look(&theirs, || kernel::consumed(fd).unwrap_or(0), &mut Own(&self.own))?;
        match receiver.state(&theirs) {
            ReceiverState::Recalled => Err(NotNow::Wait),
            ReceiverState::Ring => {
                let bytes = receiver.readable(&theirs)?.min(room as u64);
                if bytes == 0 {
                    return self.end_of_ring(fd, room);
                }
                // SAFETY: the caller's promise.
                unsafe { self.copy_out(receiver.read(), bytes as usize, parts) };
                if flags & libc::MSG_PEEK == 0 {
                    receiver.took(bytes, &mut Own(&self.own));
                    self.ring(Bell::Room);
                    if self.peer_has_shut() && !self.has_bytes() {
                        self.ask_peer(); // Its TCP ends now.
                    }
                }
                Ok(bytes as usize)
            }
            ReceiverState::Switching => {
                let left = theirs.offset - kernel::consumed(fd).unwrap_or(theirs.offset);
                // SAFETY: the caller's promise.
                unsafe { receive_at_most(fd, parts, left as usize, flags) }
            }
            ReceiverState::Tcp | ReceiverState::Offered => {
                // SAFETY: the caller's promise.
                match unsafe { receive_at_most(fd, parts, room, flags) } {
                    Ok(0) if room > 0 => {
                        // SAFETY: the caller's promise.
                        unsafe { self.receive_rest(fd, parts, room, flags, &mut receiver) }
                    }
                    received => received,
                }
            }
        }
    }

    /// The ring is empty. Whether more will come, only the kernel knows.
    #[cold]
    fn end_of_ring(&self, fd: c_int, room: usize) -> Result<usize, NotNow> {
        if room == 0 {
            return Ok(0);
        }
        let mut byte = 0_u8;
        let mut part = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        // SAFETY: the part is a variable of this function.
        let ended = unsafe { kernel::receive(fd, &mut part, libc::MSG_PEEK) };
        let theirs = words::sender_of(&self.peer);
        let mut receiver = self.receiver();
        if receiver.readable(&theirs)? > 0 {
            return Err(NotNow::Wait); // It came before the end; the next look finds it.
        }
        match ended {
            Ok(0) if self.has_died() && self.sender().loses(&words::receiver_of(&self.peer)) => {
                Err(NotNow::Error(libc::ECONNRESET))
            }
            Ok(0) => Ok(0),
            Ok(_) => {
                // Somebody writes to the socket without this library.
                receiver.recall(&theirs, &mut Own(&self.own));
                self.ask_peer();
                Err(NotNow::Wait)
            }
            Err(libc::EAGAIN) if self.peer_has_shut() && !self.has_bytes() => Ok(0),
            Err(libc::EAGAIN) => Err(NotNow::Wait),
            Err(error) => Err(NotNow::Error(error)),
        }
    }

    /// After the end of TCP: what the peer had taken back from the ring, and did not put into TCP because it died.
    #[cold]
    unsafe fn receive_rest(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        room: usize,
        flags: c_int,
        receiver: &mut Receiver,
    ) -> Result<usize, NotNow> {
        let theirs = words::sender_of(&self.peer);
        let total = kernel::consumed(fd).unwrap_or(u64::MAX);
        let rest = receiver.rest(&theirs, total)?;
        let bytes = (rest.end - rest.start).min(room as u64);
        // SAFETY: the caller's promise.
        unsafe { self.copy_out(rest.start, bytes as usize, parts) };
        if flags & libc::MSG_PEEK == 0 && bytes > 0 {
            receiver.took(rest.start + bytes - receiver.read(), &mut Own(&self.own));
        }
        Ok(bytes as usize)
    }

    unsafe fn copy_out(&self, position: u64, bytes: usize, parts: &mut [iovec]) {
        let (mut position, mut left) = (position, bytes);
        for part in parts {
            let (mut to, mut room) = (part.iov_base.cast::<u8>(), part.iov_len.min(left));
            left -= room;
            while room > 0 {
                let at = (position % CAPACITY) as usize;
                let step = room.min(layout::CAPACITY - at);
                let start = layout::RING + at;
                // SAFETY: the caller vouches for the part, of which `room` bytes are left.
                unsafe {
                    self.peer.copy_to(start..start + step, to);
                    to = to.add(step);
                }
                position += step as u64;
                room -= step;
            }
        }
    }

    /// Sends as much as there is room for.
    ///
    /// # Safety
    ///
    /// The parts can be read.
    pub(crate) unsafe fn send(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        bytes: usize,
        flags: c_int,
        may_switch: impl FnOnce() -> bool,
    ) -> Result<usize, NotNow> {
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[1]) else {
            return Err(NotNow::Error(libc::EAGAIN));
        };
        if self.has_shut() {
            return Err(NotNow::Error(libc::EPIPE));
        }
        let theirs = words::receiver_of(&self.peer);
        let mut sender = self.sender();
        let own = &mut Own(&self.own);
        self.answer(&mut sender, &theirs)?;
        if sender.state() == SenderState::Tcp
            && sender.may_switch(&theirs)
            && !self.peer_is_gone()
            && may_switch()
            && let Some(offset) = kernel::written(fd)
        {
            sender.switch(&theirs, || offset, own);
            self.ring(Bell::Bytes);
        }
        if sender.state() == SenderState::Refill {
            self.refill(fd, &mut sender, &theirs)?;
        }
        match sender.state() {
            SenderState::Ring if !self.peer_is_gone() => {
                let room = sender.room(&theirs)?.min(bytes as u64) as usize;
                if room == 0 && bytes > 0 {
                    self.was_full.store(true, Ordering::Relaxed);
                    return Err(NotNow::Wait);
                }
                // SAFETY: the caller's promise.
                unsafe { self.copy_in(sender.written(), room, parts) };
                sender.wrote(room as u64, own);
                self.ring(Bell::Bytes);
                Ok(room)
            }
            SenderState::Refill => Err(NotNow::Wait),
            // SAFETY: the caller's promise.
            _ => match unsafe { kernel::send(fd, parts, flags) } {
                Ok(sent) => Ok(sent),
                Err(libc::EAGAIN) => Err(NotNow::Wait),
                Err(error) => Err(NotNow::Error(error)),
            },
        }
    }

    /// Answers a recall of the peer, which waits for that.
    fn answer(&self, sender: &mut Sender, theirs: &ReceiverWords) -> Result<(), NotNow> {
        let before = sender.ended();
        sender.look(theirs, &mut Own(&self.own))?;
        if sender.ended() != before {
            self.wake_peer();
            // Another thread may wait for room in the ring, and has to ask the kernel now.
            fence(Ordering::SeqCst);
            if self.sleepers[Bell::Room as usize].load(Ordering::SeqCst) > 0 {
                self.wake_self(Bell::Room);
            }
        }
        Ok(())
    }

    unsafe fn copy_in(&self, position: u64, bytes: usize, parts: &[iovec]) {
        let (mut position, mut left) = (position, bytes);
        for part in parts {
            let (mut from, mut length) = (part.iov_base.cast::<u8>(), part.iov_len.min(left));
            left -= length;
            while length > 0 {
                let at = (position % CAPACITY) as usize;
                let step = length.min(layout::CAPACITY - at);
                // SAFETY: the write token is held, so nobody else writes into the ring, and the peer does not read there before
                // it is told. The caller vouches for the part, of which `length` bytes are left.
                unsafe {
                    self.own.copy_in_shared(layout::RING + at, from, step);
                    from = from.add(step);
                }
                position += step as u64;
                length -= step;
            }
        }
    }

    /// Puts bytes that were taken back from the ring into TCP, as many as it takes.
    #[cold]
    fn refill(&self, fd: c_int, sender: &mut Sender, theirs: &ReceiverWords) -> Result<(), NotNow> {
        while sender.state() == SenderState::Refill {
            let total = kernel::written(fd).ok_or(NotNow::Error(libc::ECONNRESET))?;
            let left = sender.refill(theirs, total, &mut Own(&self.own))?;
            if left.is_empty() {
                continue;
            }
            let at = (left.start % CAPACITY) as usize;
            let length = ((left.end - left.start) as usize).min(layout::CAPACITY - at);
            let from = self.own.address(layout::RING + at, length);
            let mut part = [iovec { iov_base: from.cast_mut().cast(), iov_len: length }];
            // SAFETY: the part is memory of this side.
            match unsafe { kernel::send(fd, &mut part, 0) } {
                Ok(_) => {}
                Err(libc::EAGAIN) => return Ok(()),
                Err(error) => return Err(NotNow::Error(error)),
            }
        }
        Ok(())
    }

    /// Agrees that bytes come through the ring from now on, if they came by TCP.
    pub(crate) fn offer(&self) {
        if self.peer.load(layout::LEFT, Ordering::Acquire) != 0 {
            return;
        }
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) else { return };
        let theirs = words::sender_of(&self.peer);
        self.receiver().offer(&theirs, &mut Own(&self.own));
    }

    /// Ends the epoch of what comes in, if there is one.
    #[cold]
    pub(crate) fn recall(&self) {
        if let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) {
            self.receiver().recall(&words::sender_of(&self.peer), &mut Own(&self.own));
        }
        self.ask_peer();
    }

    /// Asks the peer to end the epoch of what goes out.
    #[cold]
    pub(crate) fn wish(&self) {
        if let Ok(_token) = Token::take(&self.own, layout::TOKENS[1]) {
            self.sender().wish(&words::receiver_of(&self.peer), &mut Own(&self.own));
        }
        self.ask_peer();
    }

    /// Follows the peer, although the program does not call: answers a recall, and recalls if the peer wishes it. True if bytes are
    /// left that TCP has no room for.
    pub(crate) fn follow(&self, fd: c_int) -> bool {
        if self.is_closed() {
            return false;
        }
        if let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) {
            let theirs = words::sender_of(&self.peer);
            let own = &mut Own(&self.own);
            let _ = self.receiver().look(&theirs, || kernel::consumed(fd).unwrap_or(0), own);
            if theirs.wished > theirs.ended {
                self.ask_peer(); // It is to answer the recall.
            }
        }
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[1]) else { return true };
        let theirs = words::receiver_of(&self.peer);
        let mut sender = self.sender();
        let answered = self.answer(&mut sender, &theirs);
        let followed = answered.and_then(|()| self.refill(fd, &mut sender, &theirs));
        followed.is_ok() && sender.state() == SenderState::Refill
    }

    /// Has both directions return to TCP. True once they have: then the kernel has all bytes.
    pub(crate) fn step_back(&self, fd: c_int) -> bool {
        let received = match Token::take(&self.own, layout::TOKENS[0]) {
            Ok(_token) => {
                let theirs = words::sender_of(&self.peer);
                let mut receiver = self.receiver();
                let own = &mut Own(&self.own);
                receiver.recall(&theirs, own);
                let looked = receiver.look(&theirs, || kernel::consumed(fd).unwrap_or(0), own);
                looked.is_ok() && receiver.state(&theirs) == ReceiverState::Tcp
            }
            Err(_) => false,
        };
        let sent = match Token::take(&self.own, layout::TOKENS[1]) {
            Ok(_token) => {
                let theirs = words::receiver_of(&self.peer);
                let mut sender = self.sender();
                sender.wish(&theirs, &mut Own(&self.own));
                let answered = self.answer(&mut sender, &theirs);
                let refilled = answered.and_then(|()| self.refill(fd, &mut sender, &theirs));
                let is_back = sender.state() == SenderState::Tcp && !sender.may_switch(&theirs);
                refilled.is_ok() && is_back
            }
            Err(_) => false,
        };
        received && sent
    }

    /// Whether the peer has closed the connection or has died.
    pub(crate) fn peer_is_gone(&self) -> bool {
        self.peer_is_dead.load(Ordering::Acquire)
            || self.peer.load(layout::CLOSED, Ordering::Acquire) != 0
    }

    /// Whether the peer has died without closing the connection, if nobody has noticed so far. A peer that closes it has the kernel
    /// say whether it had read everything.
    fn has_died(&self) -> bool {
        if self.peer.load(layout::CLOSED, Ordering::Acquire) != 0 {
            return false;
        }
        let mut byte = 0_u8;
        let fd = self.channel.descriptor().as_raw_fd();
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: there is room for a byte.
        let mut ended = || unsafe { originals::recv(fd, (&raw mut byte).cast(), 1, flags) } == 0;
        self.peer_is_dead.load(Ordering::Acquire) || ended()
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

    /// Whether the peer has left, and all bytes are in TCP.
    pub(crate) fn peer_has_left(&self, fd: c_int) -> bool {
        self.peer_left() && self.step_back(fd) && !self.has_rest(fd)
    }

    fn peer_left(&self) -> bool {
        self.peer.load(layout::LEFT, Ordering::Acquire) == layout::HAS_LEFT
    }

    /// This side begins to return for good: the peer is to offer nothing more.
    pub(crate) fn begin_to_leave(&self) {
        self.own.word(layout::LEFT).store(layout::LEAVES, Ordering::Release);
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
            self.own.word(layout::SHUT).store(layout::ENDS, Ordering::Release);
            self.wake_peer();
        }
    }

    /// Ends this direction of TCP, if the program has ended it and the peer has read the ring, or all of it is in TCP: whoever reads TCP
    /// only is to find all bytes before the end. What the kernel's `shutdown` returned; `None` if it was not called now.
    pub(crate) fn finish_shut(&self, fd: c_int) -> Option<c_int> {
        let is_to_end = || self.own.word(layout::SHUT).load(Ordering::Acquire) == layout::ENDS;
        if !is_to_end() {
            return None;
        }
        let _token = Token::take(&self.own, layout::TOKENS[1]).ok().filter(|_| is_to_end())?;
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

    fn has_shut(&self) -> bool {
        self.own.word(layout::SHUT).load(Ordering::Relaxed) != 0
    }

    fn peer_has_shut(&self) -> bool {
        self.peer.load(layout::SHUT, Ordering::Acquire) != 0
    }

    /// Bytes that the peer has not read from the ring.
    pub(crate) fn unsent(&self) -> u64 {
        let theirs = words::receiver_of(&self.peer);
        match self.sender().state() {
            SenderState::Ring => CAPACITY - self.sender().room(&theirs).unwrap_or(CAPACITY),
            SenderState::Tcp | SenderState::Refill => 0,
        }
    }

    /// This side has closed the socket.
    fn is_closed(&self) -> bool {
        self.own.word(layout::CLOSED).load(Ordering::Relaxed) != 0
    }

    /// Bytes that can be read from the ring.
    pub(crate) fn readable(&self) -> u64 {
        self.receiver().readable(&words::sender_of(&self.peer)).unwrap_or(0)
    }

    /// Whether [`receive`](Self::receive) takes bytes from the ring, and there are some: three loads.
    #[inline]
    pub(crate) fn has_bytes(&self) -> bool {
        let written = self.peer.load(layout::WRITTEN, Ordering::Acquire);
        written != self.own.word(layout::READ).load(Ordering::Relaxed)
    }

    /// Whether it is worth to read: there are bytes in the ring, or their end, and the receiver has not returned. The receiver may have
    /// to see first that TCP has no more.
    pub(crate) fn is_readable(&self) -> bool {
        let state = || self.receiver_state();
        self.has_bytes() && matches!(state(), ReceiverState::Switching | ReceiverState::Ring)
            || self.peer_has_shut() && state() == ReceiverState::Ring
    }

    /// Where bytes come from.
    pub(crate) fn receiver_state(&self) -> ReceiverState {
        self.receiver().state(&words::sender_of(&self.peer))
    }

    /// Whether a write would take bytes now; `None` if only the kernel knows.
    pub(crate) fn is_writable(&self) -> Option<bool> {
        let sender = self.sender();
        match sender.state() {
            SenderState::Ring if !self.peer_is_gone() => {
                let room = sender.room(&words::receiver_of(&self.peer)).unwrap_or(CAPACITY);
                Some(room >= CAPACITY / 3) // As the kernel does: not for a few bytes.
            }
            // What is to be put back first waits for room in TCP.
            SenderState::Tcp | SenderState::Ring | SenderState::Refill => None,
        }
    }

    /// Whether a call that waits for this has to look again although nothing is there: the peer has done something else.
    pub(crate) fn changed(&self, what: Bell) -> bool {
        match what {
            Bell::Bytes => {
                let theirs = words::sender_of(&self.peer);
                let is_recalled = self.receiver().state(&theirs) == ReceiverState::Recalled;
                theirs.wished > theirs.ended && !is_recalled
            }
            Bell::Room => {
                let theirs = words::receiver_of(&self.peer);
                let ended = Own(&self.own).sender().ended;
                theirs.recalled > ended && self.sender().state() == SenderState::Ring
            }
        }
    }

    /// Whether bytes that were taken back from the ring wait for room in TCP.
    pub(crate) fn refills(&self) -> bool {
        self.sender().state() == SenderState::Refill
    }

    /// Events of `poll` that the kernel does not know of.
    pub(crate) fn not_by_kernel(&self) -> libc::c_short {
        let mut events = 0;
        if self.receiver_state() == ReceiverState::Recalled {
            events |= libc::POLLIN | libc::POLLRDNORM;
        }
        if self.is_writable().is_some() {
            events |= libc::POLLOUT | libc::POLLWRNORM;
        }
        events
    }

    /// Bytes that the peer has written into its ring, ever.
    #[inline]
    pub(crate) fn arrived(&self) -> u64 {
        self.peer.load(layout::WRITTEN, Ordering::Acquire)
    }

    /// Whether a write found the ring full.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    /// The program learns that there is room again.
    pub(crate) fn forget_was_full(&self) {
        self.was_full.store(false, Ordering::Relaxed);
    }

    /// One more of this process sleeps until there is something. The caller [asks](Self::ask) before each sleep.
    pub(crate) fn add_sleeper(&self, what: Bell) {
        self.sleepers[what as usize].fetch_add(1, Ordering::SeqCst);
        SLEEPERS.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks to be woken for this; the caller looks once more before it sleeps.
    pub(crate) fn ask(&self, what: Bell) {
        sleep::ask(self.own.word(layout::BELLS[what as usize]));
    }

    /// One that slept has got up.
    pub(crate) fn get_up(&self, what: Bell) {
        SLEEPERS.fetch_sub(1, Ordering::Relaxed);
        let sleepers = &self.sleepers[what as usize];
        sleepers.fetch_sub(1, Ordering::SeqCst);
        let others = sleep::withdraw(self.own.word(layout::BELLS[what as usize]), sleepers);
        let is_there = || match what {
            Bell::Bytes => self.has_bytes(),
            Bell::Room => self.is_writable() == Some(true),
        };
        if others && is_there() {
            self.wake_self(what); // The bell may have been heard by this one only.
        }
    }

    /// Empties the bell.
    pub(crate) fn hear(&self, what: Bell) {
        let mut count = 0_u64;
        // SAFETY: there is room for the count. If nothing is there, another thread has heard it.
        let _ = unsafe { originals::read(self.bell(what), (&raw mut count).cast(), 8) };
    }

    /// Wakes the peer if it sleeps for this.
    #[inline]
    fn ring(&self, what: Bell) {
        let word = layout::BELLS[what as usize];
        let asked = bell::asked::<AtomicU64>(|| self.peer.load(word, Ordering::Relaxed));
        if let Some(count) = asked
            && self.woken[what as usize].swap(count, Ordering::Relaxed) != count
        {
            wake(&self.peer_bells[what as usize]);
        }
    }

    /// Wakes the peer, whatever it waits for.
    #[cold]
    pub(crate) fn wake_peer(&self) {
        self.peer_bells.iter().for_each(wake);
    }

    /// Wakes whoever of this process waits.
    pub(crate) fn wake_self(&self, what: Bell) {
        wake(&self.bells[what as usize]);
    }

    /// Says on which processor this side waits; true if the peer was on the same one when it waited last, so that looking at memory
    /// would only keep it from running.
    #[inline]
    pub(crate) fn shares_processor(&self) -> bool {
        // SAFETY: the call has no arguments.
        let here = unsafe { libc::sched_getcpu() } as u64 + 1;
        let word = self.own.word(layout::PROCESSOR);
        if word.load(Ordering::Relaxed) != here {
            word.store(here, Ordering::Relaxed);
        }
        self.peer.load(layout::PROCESSOR, Ordering::Relaxed) == here
    }

    /// Has the thread of the peer follow.
    #[cold]
    pub(crate) fn ask_peer(&self) {
        self.wake_peer();
        let fd = self.channel.descriptor().as_raw_fd();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message is a byte. A channel that is full has messages enough.
        errno::kept(|| unsafe { originals::send(fd, [ANSWER].as_ptr().cast(), 1, flags) });
    }
}

fn wake(bell: &Inner) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the count has 8 bytes. A bell that is full rings.
    errno::kept(|| unsafe { originals::write(bell.as_raw_fd(), one.as_ptr().cast(), one.len()) });
}

/// Receives by TCP into the first `most` bytes of the parts.
unsafe fn receive_at_most(
    fd: c_int,
    parts: &mut [iovec],
    most: usize,
    flags: c_int,
) -> Result<usize, NotNow> {
    let mut left = most;
    let mut count = 0;
    let mut cut = None;
    for part in &mut *parts {
        if left == 0 {
            break;
        }
        if part.iov_len > left {
            cut = Some((count, part.iov_len));
            part.iov_len = left;
        }
        left -= part.iov_len;
        count += 1;
    }
    // SAFETY: the caller's promise.
    let received = unsafe { kernel::receive(fd, &mut parts[..count], flags) };
    if let Some((index, length)) = cut {
        parts[index].iov_len = length;
    }
    match received {
        Ok(bytes) => Ok(bytes),
        Err(libc::EAGAIN) => Err(NotNow::Wait),
        Err(error) => Err(NotNow::Error(error)),
    }
}

/// Bytes of all parts, at most those that a call may return.
pub(crate) unsafe fn total(parts: *const iovec, count: usize) -> usize {
    if count == 0 {
        return 0; // Then the list may be null.
    }
    // SAFETY: the caller vouches for the parts.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    parts
        .iter()
        .fold(0_usize, |sum, part| sum.saturating_add(part.iov_len))
        .min(isize::MAX as usize)
}
