//! The direction in which this side sends.

pub(super) mod known;

use std::sync::atomic::{Ordering, fence};

use apus_sockets::direction::{ReceiverWords, Sender, SenderState};
use apus_sockets::layout;
use libc::{c_int, iovec};

use super::{Bell, NotNow, Side};
use crate::carry::connection::copying;
use crate::carry::connection::words::{self, Own};
use crate::carry::holds;
use crate::carry::kernel;
use crate::carry::token::Token;

/// Looks of the answering thread at a full ring before the ring counts as stuck.
const LOOKS_MAX: u32 = 4;

/// A call that sends.
pub(crate) struct SendCall {
    pub(crate) fd: c_int,
    pub(crate) flags: c_int,
    /// Bytes that the call has not sent.
    pub(crate) left: usize,
    /// The call has sent a part of its bytes before, so that no other bytes may come between.
    pub(crate) continues: bool,
}

impl Side {
    pub(super) fn sender(&self) -> Sender {
        Sender::new(Own(&self.own).sender(), self.places().capacity() as u64)
    }

    /// Sends as much as there is room for. Calls `is_partial` before other calls can send, if bytes are left.
    ///
    /// # Safety
    ///
    /// The parts are readable.
    pub(crate) unsafe fn send(
        &self,
        SendCall { fd, flags, left, continues }: SendCall,
        parts: &mut [iovec],
        bytes: usize,
        is_partial: impl FnOnce(),
        may_switch: impl Fn() -> bool,
    ) -> Result<usize, NotNow> {
        self.note_write();
        let token = Token::take(&self.own, layout::TOKENS[1]).ok();
        let Some(_token) = token.filter(|_| continues || !self.interrupts_partial_write()) else {
            // SAFETY: guaranteed by the caller.
            let aside = unsafe { self.outbound.aside.put(parts) };
            return if aside > 0 { Ok(aside) } else { Err(NotNow::Error(libc::EAGAIN)) };
        };
        if self.has_aside() && !continues {
            self.send_aside(fd)?;
        }
        if self.has_shut() {
            return Err(NotNow::Error(kernel::take_error(fd).unwrap_or(libc::EPIPE)));
        }
        // SAFETY: guaranteed by the caller.
        let sent = unsafe { self.send_with_token(fd, parts, bytes, flags, may_switch) };
        if sent.is_ok_and(|sent| sent > 0 && sent < left) {
            is_partial();
        }
        sent
    }

    /// A write of this process is done in part from now on.
    pub(crate) fn begin_partial_write(&self) {
        self.outbound.partial_writes.fetch_add(1, Ordering::Relaxed);
    }

    /// The write is complete, or ends without its remaining bytes.
    pub(crate) fn end_partial_write(&self) {
        self.outbound.partial_writes.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the calling thread is in a signal handler that interrupts a write which is done in part.
    #[inline]
    fn interrupts_partial_write(&self) -> bool {
        self.outbound.partial_writes.load(Ordering::Relaxed) != 0
            && holds::this_thread_has(self.number.load(Ordering::Relaxed), holds::PARTIAL_WRITE)
    }

    /// Whether a write of any thread is done in part: bytes that are aside have to wait for its end.
    fn has_partial_write(&self) -> bool {
        self.outbound.partial_writes.load(Ordering::Relaxed) != 0
            && holds::have(self.number.load(Ordering::Relaxed), holds::PARTIAL_WRITE)
    }

    /// Sends the bytes that a signal handler has put aside. Only for the holder of the write token.
    #[cold]
    fn send_aside(&self, fd: c_int) -> Result<(), NotNow> {
        let sent = self.outbound.aside.follow(|parts, bytes| {
            // SAFETY: the bytes are memory of this side.
            unsafe { self.send_with_token(fd, parts, bytes, 0, || false) }
        });
        if let Err(NotNow::Error(_)) = sent {
            self.outbound.aside.clear(); // Lost, like bytes that the kernel can no longer send.
        }
        sent
    }

    /// Forgets the bytes that signal handlers have put aside, which another process sends.
    pub(super) fn forget_aside(&self) {
        self.outbound.aside.clear();
    }

    /// Whether a signal handler has put bytes aside.
    #[inline]
    pub(crate) fn has_aside(&self) -> bool {
        !self.outbound.aside.is_empty()
    }

    #[inline]
    unsafe fn send_with_token(
        &self,
        fd: c_int,
        parts: &mut [iovec],
        bytes: usize,
        flags: c_int,
        may_switch: impl Fn() -> bool,
    ) -> Result<usize, NotNow> {
        let theirs = words::receiver_of(&self.peer);
        let mut sender = self.sender();
        let own = &mut Own(&self.own);
        self.answer(&mut sender, &theirs)?;
        if sender.state() == SenderState::Tcp
            && sender.may_switch(&theirs)
            && self.own.word(layout::LEFT).load(Ordering::Relaxed) == 0
            && !self.peer_is_gone()
            && !self.peer_reads_nothing() // Its TCP must refuse the bytes.
            && may_switch()
            && !kernel::has_shut(fd) // The shutdown may precede the carrying.
            && let Some(offset) = self.written_by_tcp(fd)
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
                    return Err(NotNow::Full);
                }
                // SAFETY: guaranteed by the caller.
                unsafe {
                    self.copy_in(sender.written(), room, parts, |bytes| {
                        sender.wrote(bytes as u64, own);
                        self.ring(Bell::Bytes);
                    });
                }
                // The bell has a fence. A receiver that has recalled and found the ring empty does not come back for these bytes.
                if self.peer.load(layout::RECALLED, Ordering::Acquire) > sender.ended() {
                    self.take_back(fd, &mut sender);
                }
                Ok(room)
            }
            SenderState::Refill => Err(NotNow::Wait),
            _ if self.is_lost() && self.ending.report_loss() => {
                Err(NotNow::Error(libc::ECONNRESET))
            }
            // SAFETY: guaranteed by the caller.
            _ => match unsafe { kernel::send(fd, parts, flags) } {
                Ok(sent) => Ok(sent),
                Err(libc::EAGAIN) => Err(NotNow::Wait),
                Err(error) => Err(NotNow::Error(error)),
            },
        }
    }

    /// Takes bytes back after a write into the ring that crossed a recall.
    #[cold]
    fn take_back(&self, fd: c_int, sender: &mut Sender) {
        let theirs = words::receiver_of(&self.peer);
        let answered = self.answer(sender, &theirs);
        let failed = answered.and_then(|()| self.refill(fd, sender, &theirs)).is_err();
        if failed && !holds::is_parents_call() {
            kernel::reset(fd); // A violation, or TCP has ended: the bytes cannot arrive.
        }
    }

    /// Leaves the bytes in the ring and continues by TCP, which has room although the peer does not read. Returns `true` if the
    /// direction is in TCP then.
    #[cold]
    pub(crate) fn spill(&self) -> bool {
        if self.is_between_hosts || self.peer_is_gone() {
            return false;
        }
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[1]) else { return false };
        let mut sender = self.sender();
        if self.answer(&mut sender, &words::receiver_of(&self.peer)).is_err() {
            return false;
        }
        sender.spill(&mut Own(&self.own));
        self.outbound.spilled_at.store(sender.ended(), Ordering::Relaxed);
        self.wake_peer(); // A sleeping receiver may not have asked the kernel.
        self.nudge();
        sender.state() == SenderState::Tcp
    }

    /// Whether this side may spill.
    pub(crate) fn may_spill(&self) -> bool {
        !self.is_between_hosts
    }

    /// Whether the ring was stuck when it was last full, and the peer has not emptied it since.
    pub(crate) fn is_slow(&self) -> bool {
        self.outbound.spilled_at.load(Ordering::Relaxed) == self.sender().ended()
    }

    /// The ring is nearly full. If that lasts, the answering thread spills, unless the caller does. Returns `true` if the thread
    /// must be woken for that.
    #[inline]
    pub(crate) fn note_full(&self) -> bool {
        self.outbound.was_full.store(true, Ordering::Relaxed);
        !self.is_between_hosts && !self.outbound.is_stuck.swap(true, Ordering::Relaxed)
    }

    /// For the answering thread, at intervals while rings are full: spills if the peer has not read since the last look. Returns
    /// `true` while the ring must be looked at again.
    pub(crate) fn follow_room(&self) -> bool {
        if !self.outbound.is_stuck.load(Ordering::Relaxed) {
            return false;
        }
        let read = self.peer.load(layout::READ, Ordering::Relaxed);
        let is_full = self.is_writable() == Some(false);
        let has_read = self.outbound.read_when_stuck.swap(read, Ordering::Relaxed) != read;
        let looks = if has_read { 0 } else { self.outbound.looks.load(Ordering::Relaxed) + 1 };
        self.outbound.looks.store(looks, Ordering::Relaxed);
        // The peer may wait for this program to read, may wait for other processes, or may hardly run.
        if is_full && looks < if self.has_bytes() { 1 } else { LOOKS_MAX } {
            return true;
        }
        self.outbound.is_stuck.store(false, Ordering::Relaxed);
        self.outbound.looks.store(0, Ordering::Relaxed);
        if is_full {
            self.spill();
        }
        false
    }

    /// Answers a recall, which the peer waits for.
    pub(super) fn answer(&self, sender: &mut Sender, theirs: &ReceiverWords) -> Result<(), NotNow> {
        let before = sender.ended();
        sender.look(theirs, &mut Own(&self.own))?;
        if sender.ended() != before {
            self.wake_peer();
            // Another thread may wait for room in the ring, and must now ask the kernel.
            fence(Ordering::SeqCst);
            if self.others_sleep(Bell::Room) {
                self.nudge();
            }
        }
        Ok(())
    }

    /// Copies into the ring. Calls `wrote` after each piece, so that the peer can read while the next one is copied.
    unsafe fn copy_in(
        &self,
        position: u64,
        bytes: usize,
        parts: &[iovec],
        wrote: impl FnMut(usize),
    ) {
        let is_non_temporal = self.outbound.copying.is_non_temporal(bytes);
        let copy = |at, from: *mut u8, length| {
            // SAFETY: the write token is held, so no other thread writes into the ring, and the peer does not read there before
            // it is notified. The caller guarantees that the parts are valid.
            unsafe { copying::copy(&self.own, at, from, length, is_non_temporal) };
        };
        self.places().copy(position, bytes, parts, copy, wrote);
    }

    /// Puts bytes that were taken back from the ring into TCP, as many as fit.
    #[cold]
    pub(super) fn refill(
        &self,
        fd: c_int,
        sender: &mut Sender,
        theirs: &ReceiverWords,
    ) -> Result<(), NotNow> {
        while sender.state() == SenderState::Refill {
            let total = self.written_by_tcp(fd).ok_or(NotNow::Error(libc::ECONNRESET))?;
            let left = sender.refill(theirs, total, &mut Own(&self.own))?;
            if left.is_empty() {
                continue;
            }
            let places = self.places();
            let length = ((left.end - left.start) as usize).min(places.in_one_go(left.start));
            let from = self.own.address(places.at(left.start), length);
            let mut part = [iovec { iov_base: from.cast_mut().cast(), iov_len: length }];
            // SAFETY: the bytes are memory of this side.
            match unsafe { kernel::send(fd, &mut part, 0) } {
                Ok(_) => {}
                Err(libc::EAGAIN) => return Ok(()),
                Err(error) => return Err(NotNow::Error(error)),
            }
        }
        Ok(())
    }

    /// Follows the receiver while the program makes no call. Returns `true` if TCP has no room for some bytes.
    pub(super) fn follow_outbound(&self, fd: c_int) -> bool {
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[1]) else { return true };
        let theirs = words::receiver_of(&self.peer);
        let mut sender = self.sender();
        let answered = self.answer(&mut sender, &theirs);
        let followed = answered
            .and_then(|()| self.refill(fd, &mut sender, &theirs))
            .and_then(|()| if self.has_partial_write() { Ok(()) } else { self.send_aside(fd) });
        match followed {
            Ok(()) => sender.state() == SenderState::Refill,
            Err(_) => self.has_aside(),
        }
    }

    /// Makes the direction return to TCP. Returns `true` once the kernel has all bytes.
    pub(super) fn return_outbound(&self, fd: c_int) -> bool {
        match Token::take(&self.own, layout::TOKENS[1]) {
            Ok(_token) => {
                let theirs = words::receiver_of(&self.peer);
                let mut sender = self.sender();
                let answered = self.answer(&mut sender, &theirs);
                let may_spill = || sender.unread(&theirs) == Ok(0) || self.peer_reads_nothing();
                if answered.is_ok() && !self.is_between_hosts && may_spill() {
                    sender.spill(&mut Own(&self.own));
                }
                let refilled = answered.and_then(|()| self.refill(fd, &mut sender, &theirs));
                let is_back = sender.state() == SenderState::Tcp;
                refilled.is_ok()
                    && is_back
                    && !self.has_partial_write()
                    && self.send_aside(fd).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Bytes in the ring that the peer has not read.
    pub(crate) fn unsent(&self) -> u64 {
        let theirs = words::receiver_of(&self.peer);
        self.sender().unread(&theirs).unwrap_or(0)
    }

    /// Whether only the kernel knows if a write would succeed now.
    #[inline]
    pub(crate) fn kernel_knows_room(&self) -> bool {
        self.sender().state() != SenderState::Ring || self.peer_is_gone()
    }

    /// Whether a write would succeed now. `None` if only the kernel knows.
    pub(crate) fn is_writable(&self) -> Option<bool> {
        let sender = self.sender();
        match sender.state() {
            SenderState::Ring if !self.peer_is_gone() => {
                let capacity = self.places().capacity() as u64;
                let room = sender.room(&words::receiver_of(&self.peer)).unwrap_or(capacity);
                Some(room >= capacity / 3) // Like the kernel, not for a few bytes.
            }
            // The bytes taken back must go first, and wait for room in TCP.
            SenderState::Tcp | SenderState::Ring | SenderState::Refill => None,
        }
    }

    /// Whether a write found the ring full.
    pub(crate) fn was_full(&self) -> bool {
        self.outbound.was_full.load(Ordering::Relaxed)
    }

    /// The program learns that there is room again.
    pub(crate) fn forget_was_full(&self) {
        self.outbound.was_full.store(false, Ordering::Relaxed);
    }
}
