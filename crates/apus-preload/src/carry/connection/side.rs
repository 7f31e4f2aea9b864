//! One side of a connection: it sends and receives without waiting. [`transfer`](crate::carry::bytes::transfer) waits.

mod between_hosts;
mod ending;
mod waking;

pub(crate) use self::waking::HEARD_AT_ONCE;

use std::os::fd::AsRawFd;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use apus_shm::{Memory, PeerSegment};
use apus_sockets::direction::{Lie, Receiver, ReceiverState, ReceiverWords, Sender, SenderState};
use apus_sockets::layout;
use libc::{c_int, iovec};

use crate::carry::connection::aside::Aside;
use crate::carry::connection::copying::{self, Copying};
use crate::carry::connection::holders::Holders;
use crate::carry::connection::last_words::Ending;
use crate::carry::connection::words::{self, Own};
use crate::carry::inner;
use crate::carry::inner::{Inner, InnerChannel};
use crate::carry::kernel;
use crate::carry::spin::Spin;
use crate::carry::token::Token;

/// The peer is told after each of so many parts of the ring, while the rest is copied. Both ends copy at the same time then.
const PIECES: usize = 4;

/// Looks of the thread that answers at a ring that stays full, until it is stuck.
const LOOKS_MAX: u32 = 4;

/// One side of a carried connection. Threads and signal handlers of a process share it; so do processes that inherit it.
pub(crate) struct Side {
    own: Memory,
    peer: PeerSegment,
    /// Bytes of it wake this side, and the peer. It is a socket of this process, as the channel is.
    bell: InnerChannel,
    bell_has_ended: AtomicBool,
    /// It returns for good once it can: the program may need its descriptors, or the carrier was switched off.
    gives_way: AtomicBool,
    /// Bytes of it that epoll sets have told of, and that may be there still.
    unheard: AtomicU32,
    /// Wakes threads of this side, also those of other processes that have the connection.
    nudge: Inner,
    /// The processes that have the connection.
    holders: Holders,
    /// A descriptor of the connection, as the last call that received or followed had it; -1 before. It may be closed.
    last_fd: AtomicI32,
    /// Messages for the thread of the peer that answers, and from it. Its end is the death of the peer.
    pub(crate) channel: InnerChannel,
    pub(crate) peer_is_dead: AtomicBool,
    /// The peer's words at the last wake-ups.
    woken: [AtomicU64; 2],
    /// The number of its slot, by which calls are known that sleep here.
    number: AtomicUsize,
    /// How many members of sets sleep.
    sleepers: [AtomicU32; 2],
    /// What a signal handler has written while it interrupted a write.
    aside: Aside,
    copying: Copying,
    /// A write found the ring full.
    was_full: AtomicBool,
    /// The thread that answers looks whether the peer reads, and what the peer had read at the last look.
    is_stuck: AtomicBool,
    read_when_stuck: AtomicU64,
    /// Looks since then.
    looks: AtomicU32,
    /// The epoch that this process was the last to end because the ring was stuck.
    spilled_at: AtomicU64,
    /// What is known of waiting here.
    pub(crate) spin: Spin,
    /// The peer is at another host. A carrier shows its words as they were a moment ago, so the kernel's socket may be ahead of them.
    pub(crate) is_between_hosts: bool,
    ending: Ending,
    /// This end accepted the connection.
    accepted: bool,
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
    /// The peer has changed the direction meanwhile, so the next look finds something else.
    Again,
    /// The ring has no room.
    Full,
    /// The ring is empty, and the kernel was not asked whether the stream has ended.
    Empty,
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
            unheard: AtomicU32::new(0),
            nudge,
            holders,
            last_fd: AtomicI32::new(-1),
            channel,
            peer_is_dead: AtomicBool::new(false),
            woken: Default::default(),
            sleepers: Default::default(),
            number: AtomicUsize::new(0),
            aside: Aside::new(),
            copying: Copying::new(),
            was_full: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            read_when_stuck: AtomicU64::new(u64::MAX),
            looks: AtomicU32::new(0),
            spilled_at: AtomicU64::new(0),
            spin: Spin::new(),
            is_between_hosts: false,
            ending: Ending::default(),
            accepted,
        }
    }

    /// Whether another process has the connection as well.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.holders.are_several()
    }

    /// In a child of fork: threads of the parent that sleep are not the child's.
    pub(crate) fn begin_in_child(&self) {
        self.sleepers.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// The side is that of this slot from now on.
    pub(super) fn set_number(&self, number: usize) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Bytes of each of the two rings.
    #[inline]
    fn capacity(&self) -> usize {
        if self.is_between_hosts { layout::FAR_CAPACITY } else { layout::CAPACITY }
    }

    /// Where a position lies in a ring.
    #[inline]
    fn place(&self, position: u64) -> usize {
        // Divisions by numbers that the compiler knows are multiplications.
        let at = if self.is_between_hosts {
            position % layout::FAR_CAPACITY as u64
        } else {
            position % layout::CAPACITY as u64
        };
        at as usize
    }

    fn receiver(&self) -> Receiver {
        // A peer that has left answers nothing, as if it were dead. All that it wrote is in TCP.
        let sender_lives = !self.peer_is_gone() && !self.peer_left();
        Receiver::new(Own(&self.own).receiver(), self.capacity() as u64, sender_lives)
    }

    fn sender(&self) -> Sender {
        Sender::new(Own(&self.own).sender(), self.capacity() as u64)
    }

    /// Receives what is there, into `parts`, which have room for `room` bytes. Asks the kernel about the end if the ring is empty and
    /// `asks_kernel`.
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
        asks_kernel: bool,
    ) -> Result<usize, NotNow> {
        self.last_fd.store(fd, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let mut received = unsafe { self.receive_once(fd, parts, room, flags, asks_kernel) };
        while received == Err(NotNow::Again) {
            // SAFETY: as above.
            received = unsafe { self.receive_once(fd, parts, room, flags, asks_kernel) };
        }
        if self.is_between_hosts && received == Err(NotNow::Error(libc::ECONNRESET)) {
            self.ending.meet_reset();
            received = Err(NotNow::Wait);
            if self.sees_end() {
                // SAFETY: the caller's promise.
                received = unsafe { self.receive_once(fd, parts, room, flags, asks_kernel) };
            }
        }
        if matches!(received, Err(NotNow::Wait | NotNow::Empty)) && self.reads_nothing() {
            return Ok(0); // The kernel may not know so far.
        }
        if received == Err(NotNow::Error(libc::ENOTCONN)) && self.is_lost() {
            let is_first = self.ending.tell_loss();
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
                // SAFETY: the caller's promise.
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
                        self.ask_peer(); // Its TCP ends now, or goes on.
                    }
                }
                Ok(bytes as usize)
            }
            ReceiverState::Switching => {
                let left = theirs.offset - self.consumed(fd).unwrap_or(theirs.offset);
                // SAFETY: the caller's promise.
                let received = unsafe { receive_at_most(fd, parts, left as usize, flags) };
                // Nothing else tells the next call that waits that the ring comes now.
                receiver.look(&theirs, || self.consumed(fd).unwrap_or(0), own)?;
                match received {
                    Ok(bytes) if flags & libc::MSG_PEEK != 0 && bytes as u64 == left => {
                        let more = receiver.unread(&theirs)?.min((room - bytes) as u64);
                        let parts = skip(parts, bytes);
                        // SAFETY: the caller's promise.
                        unsafe {
                            self.copy_out(receiver.read(), more as usize, parts, flags, |_| {});
                        }
                        Ok(bytes + more as usize)
                    }
                    received => received,
                }
            }
            ReceiverState::Offered if !self.is_between_hosts => {
                // SAFETY: the caller's promise.
                unsafe { self.receive_before_epoch(fd, parts, room, flags, &mut receiver) }
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

    /// Receives by TCP while the sender may begin an epoch, and spill: bytes behind the ring may come by TCP at any moment. Those that
    /// are there before the epoch is seen not to have begun come before the ring.
    ///
    /// # Safety
    ///
    /// The parts can be written.
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
            // SAFETY: the caller's promise.
            return unsafe { receive_at_most(fd, parts, most, flags) };
        }
        let mut byte = 0_u8;
        let mut part = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        // SAFETY: the part is a variable of this function.
        match unsafe { kernel::receive(fd, &mut part, libc::MSG_PEEK) } {
            // SAFETY: the caller's promise.
            Ok(0) => unsafe { self.receive_rest(fd, parts, room, flags, receiver) },
            Ok(_) => Err(NotNow::Again),
            Err(libc::EAGAIN) => Err(NotNow::Wait),
            Err(error) => Err(NotNow::Error(error)),
        }
    }

    /// Whether [`receive`](Self::receive) would ask the kernel and take an error of the socket, which the next call is to get.
    pub(crate) fn is_next_error(&self, fd: c_int, asks_kernel: bool) -> bool {
        let asks = asks_kernel || self.receiver_state() != ReceiverState::Ring;
        asks && !self.is_between_hosts && self.has_error_alone(fd)
    }

    #[cold]
    fn has_error_alone(&self, fd: c_int) -> bool {
        kernel::has_error(fd) && self.unread() == 0 && kernel::unread(fd) == Some(0)
    }

    /// The ring is empty. Whether more will come, only the kernel knows.
    #[cold]
    fn end_of_ring(&self, fd: c_int) -> Result<usize, NotNow> {
        let mut byte = 0_u8;
        let mut part = [iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        // SAFETY: the part is a variable of this function.
        let ended = unsafe { kernel::receive(fd, &mut part, libc::MSG_PEEK) };
        if ended == Ok(0) && !self.sees_end() {
            return Err(NotNow::Wait);
        }
        let theirs = words::sender_of(&self.peer);
        let mut receiver = self.receiver();
        if receiver.readable(&theirs)? > 0 || receiver.state(&theirs) != ReceiverState::Ring {
            return Err(NotNow::Again); // The peer has written, or has spilled, since the last look.
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
        // SAFETY: the caller's promise.
        unsafe { self.copy_out(rest.start, bytes as usize, parts, flags, |_| {}) };
        if flags & libc::MSG_PEEK == 0 && bytes > 0 {
            receiver.took(rest.start + bytes - receiver.read(), &mut Own(&self.own));
        }
        Ok(bytes as usize)
    }

    /// Copies from the ring, unless the flags say that the bytes are dropped. `took` is told of each piece, so that the peer writes while
    /// the next one is copied.
    unsafe fn copy_out(
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
        let (mut position, mut left) = (position, bytes);
        let (mut piece, full) = (0, self.capacity() / PIECES);
        for part in parts {
            let (mut to, mut room) = (part.iov_base.cast::<u8>(), part.iov_len.min(left));
            left -= room;
            while room > 0 {
                let at = self.place(position);
                let step = room.min(self.capacity() - at).min(full - piece);
                let start = layout::RING + at;
                // SAFETY: the caller vouches for the part, of which `room` bytes are left.
                unsafe {
                    self.peer.copy_to(start..start + step, to);
                    to = to.add(step);
                }
                position += step as u64;
                room -= step;
                piece += step;
                if piece == full {
                    took(std::mem::take(&mut piece));
                }
            }
        }
        if piece > 0 {
            took(piece);
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
        may_switch: impl Fn() -> bool,
    ) -> Result<usize, NotNow> {
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[1]) else {
            // SAFETY: the caller's promise.
            let aside = unsafe { self.aside.put(parts) };
            return if aside > 0 { Ok(aside) } else { Err(NotNow::Error(libc::EAGAIN)) };
        };
        if self.has_aside() {
            self.send_aside(fd)?;
        }
        if self.has_shut() {
            return Err(NotNow::Error(kernel::take_error(fd).unwrap_or(libc::EPIPE)));
        }
        // SAFETY: the caller's promise.
        unsafe { self.send_with_token(fd, parts, bytes, flags, may_switch) }
    }

    /// Sends what a signal handler has put aside. Only for the holder of the write token.
    #[cold]
    fn send_aside(&self, fd: c_int) -> Result<(), NotNow> {
        let sent = self.aside.follow(|parts, bytes| {
            // SAFETY: the parts are memory of this side.
            unsafe { self.send_with_token(fd, parts, bytes, 0, || false) }
        });
        if let Err(NotNow::Error(_)) = sent {
            self.aside.clear(); // As bytes are lost that the kernel cannot send any more.
        }
        sent
    }

    /// Whether a signal handler has put bytes aside.
    #[inline]
    pub(crate) fn has_aside(&self) -> bool {
        !self.aside.is_empty()
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
            && !self.peer_reads_nothing() // Its TCP is to refuse the bytes.
            && may_switch()
            && !kernel::has_shut(fd) // It may have been shut down before it was carried.
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
                // SAFETY: the caller's promise.
                unsafe {
                    self.copy_in(sender.written(), room, parts, |bytes| {
                        sender.wrote(bytes as u64, own);
                        self.ring(Bell::Bytes);
                    });
                }
                // The bell has a fence. A receiver that has recalled, and found the ring empty, does not come back for these bytes.
                if self.peer.load(layout::RECALLED, Ordering::Acquire) > sender.ended() {
                    self.take_back(fd, &mut sender);
                }
                Ok(room)
            }
            SenderState::Refill => Err(NotNow::Wait),
            _ if self.is_lost() && self.ending.tell_loss() => Err(NotNow::Error(libc::ECONNRESET)),
            // SAFETY: the caller's promise.
            _ => match unsafe { kernel::send(fd, parts, flags) } {
                Ok(sent) => Ok(sent),
                Err(libc::EAGAIN) => Err(NotNow::Wait),
                Err(error) => Err(NotNow::Error(error)),
            },
        }
    }

    /// After a write into the ring that a recall has met.
    #[cold]
    fn take_back(&self, fd: c_int, sender: &mut Sender) {
        let theirs = words::receiver_of(&self.peer);
        let answered = self.answer(sender, &theirs);
        if answered.and_then(|()| self.refill(fd, sender, &theirs)).is_err() {
            kernel::reset(fd); // The peer lies, or TCP has ended: the bytes do not arrive.
        }
    }

    /// Leaves what is in the ring there, and goes on by TCP, which has room although the peer does not read. True if the direction is in
    /// TCP then.
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
        self.spilled_at.store(sender.ended(), Ordering::Relaxed);
        self.wake_peer(); // A receiver that sleeps may not have asked the kernel.
        self.nudge();
        sender.state() == SenderState::Tcp
    }

    /// Whether this side may leave what is in the ring there.
    pub(crate) fn may_spill(&self) -> bool {
        !self.is_between_hosts
    }

    /// Whether the ring was stuck when it was full last, and the peer has not read it to the end since.
    pub(crate) fn is_slow(&self) -> bool {
        self.spilled_at.load(Ordering::Relaxed) == self.sender().ended()
    }

    /// The ring has no room for much. The thread that answers spills if that lasts, unless the caller does. True if the thread is to be
    /// woken for that.
    #[inline]
    pub(crate) fn note_full(&self) -> bool {
        self.was_full.store(true, Ordering::Relaxed);
        !self.is_between_hosts && !self.is_stuck.swap(true, Ordering::Relaxed)
    }

    /// For the thread that answers, now and then while rings are full: spills if the peer has not read since the last look. True while
    /// the ring is to be looked at again.
    pub(crate) fn follow_room(&self) -> bool {
        if !self.is_stuck.load(Ordering::Relaxed) {
            return false;
        }
        let read = self.peer.load(layout::READ, Ordering::Relaxed);
        let is_full = self.is_writable() == Some(false);
        let has_read = self.read_when_stuck.swap(read, Ordering::Relaxed) != read;
        let looks = if has_read { 0 } else { self.looks.load(Ordering::Relaxed) + 1 };
        self.looks.store(looks, Ordering::Relaxed);
        // The peer may wait for this program to read, for others, or hardly run.
        if is_full && looks < if self.has_bytes() { 1 } else { LOOKS_MAX } {
            return true;
        }
        self.is_stuck.store(false, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
        if is_full {
            self.spill();
        }
        false
    }

    /// Answers a recall of the peer, which waits for that.
    fn answer(&self, sender: &mut Sender, theirs: &ReceiverWords) -> Result<(), NotNow> {
        let before = sender.ended();
        sender.look(theirs, &mut Own(&self.own))?;
        if sender.ended() != before {
            self.wake_peer();
            // Another thread may wait for room in the ring, and has to ask the kernel now.
            fence(Ordering::SeqCst);
            if self.others_sleep(Bell::Room) {
                self.nudge();
            }
        }
        Ok(())
    }

    /// Copies into the ring. `wrote` is told of each piece, so that the peer reads while the next one is copied.
    unsafe fn copy_in(
        &self,
        position: u64,
        bytes: usize,
        parts: &[iovec],
        mut wrote: impl FnMut(usize),
    ) {
        let (mut position, mut left) = (position, bytes);
        let (mut piece, full) = (0, self.capacity() / PIECES);
        let is_past_caches = self.copying.is_past_caches(bytes);
        for part in parts {
            let (mut from, mut length) = (part.iov_base.cast::<u8>(), part.iov_len.min(left));
            left -= length;
            while length > 0 {
                let at = self.place(position);
                let step = length.min(self.capacity() - at).min(full - piece);
                // SAFETY: the write token is held, so nobody else writes into the ring, and the peer does not read there before
                // it is told. The caller vouches for the part, of which `length` bytes are left.
                unsafe {
                    copying::copy(&self.own, layout::RING + at, from, step, is_past_caches);
                    from = from.add(step);
                }
                position += step as u64;
                length -= step;
                piece += step;
                if piece == full {
                    wrote(std::mem::take(&mut piece));
                }
            }
        }
        if piece > 0 {
            wrote(piece);
        }
    }

    /// Puts bytes that were taken back from the ring into TCP, as many as it takes.
    #[cold]
    fn refill(&self, fd: c_int, sender: &mut Sender, theirs: &ReceiverWords) -> Result<(), NotNow> {
        while sender.state() == SenderState::Refill {
            let total = self.written_by_tcp(fd).ok_or(NotNow::Error(libc::ECONNRESET))?;
            let left = sender.refill(theirs, total, &mut Own(&self.own))?;
            if left.is_empty() {
                continue;
            }
            let at = self.place(left.start);
            let length = ((left.end - left.start) as usize).min(self.capacity() - at);
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
        if self.own.word(layout::LEFT).load(Ordering::Relaxed) != 0 || self.reads_nothing() {
            return; // It has begun to return since the caller asked, or reads nothing more.
        }
        let theirs = words::sender_of(&self.peer);
        self.receiver().offer(&theirs, &mut Own(&self.own));
        if self.is_between_hosts {
            self.ask_peer(); // The carrier passes it on.
        }
    }

    /// Ends the epoch of what comes in, if there is one.
    #[cold]
    pub(crate) fn recall(&self) {
        if let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) {
            self.receiver().recall(&words::sender_of(&self.peer), &mut Own(&self.own));
        }
        self.ask_peer();
    }

    /// Follows the peer, although the program does not call: answers a recall, and recalls if the peer leaves.
    /// True if bytes are left that TCP has no room for.
    pub(crate) fn follow(&self, fd: c_int) -> bool {
        if self.is_closed() {
            return false;
        }
        self.last_fd.store(fd, Ordering::Relaxed);
        if let Ok(_token) = Token::take(&self.own, layout::TOKENS[0]) {
            let theirs = words::sender_of(&self.peer);
            let (mut receiver, own) = (self.receiver(), &mut Own(&self.own));
            let _ = receiver.look(&theirs, || self.consumed(fd).unwrap_or(0), own);
            if self.has_to_recall() {
                receiver.recall(&theirs, own);
                self.ask_peer(); // It is to answer the recall.
            }
            if self.is_between_hosts && self.is_readable() {
                self.nudge(); // Before this look, nothing was to be read.
            }
        }
        if self.is_between_hosts && !self.has_shut() && kernel::has_shut(fd) {
            self.own.word(layout::SHUT).store(layout::HAS_ENDED, Ordering::Release);
            self.wake_peer();
        }
        let Ok(_token) = Token::take(&self.own, layout::TOKENS[1]) else { return true };
        let theirs = words::receiver_of(&self.peer);
        let mut sender = self.sender();
        let answered = self.answer(&mut sender, &theirs);
        let followed = answered
            .and_then(|()| self.refill(fd, &mut sender, &theirs))
            .and_then(|()| self.send_aside(fd));
        match followed {
            Ok(()) => sender.state() == SenderState::Refill,
            Err(_) => self.has_aside(),
        }
    }

    /// Has both directions return to TCP. True once they have: then the kernel has all bytes.
    pub(crate) fn step_back(&self, fd: c_int) -> bool {
        let received = match Token::take(&self.own, layout::TOKENS[0]) {
            Ok(_) if self.refuses_rest() => false,
            Ok(_token) => {
                let theirs = words::sender_of(&self.peer);
                let mut receiver = self.receiver();
                let own = &mut Own(&self.own);
                receiver.recall(&theirs, own);
                fence(Ordering::SeqCst); // A sender that does not see the recall has written before.
                let theirs = words::sender_of(&self.peer);
                let looked = receiver.look(&theirs, || self.consumed(fd).unwrap_or(0), own);
                let is_answered = receiver.state(&theirs) == ReceiverState::Tcp;
                // A peer at another host may have written before it sees the recall, so it has to answer.
                let may = is_answered || !self.is_between_hosts;
                looked.is_ok() && may && receiver.may_leave(&theirs)
            }
            Err(_) => false,
        };
        let sent = match Token::take(&self.own, layout::TOKENS[1]) {
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
                refilled.is_ok() && is_back && self.send_aside(fd).is_ok()
            }
            Err(_) => false,
        };
        received && sent
    }

    /// Whether the peer has spilled bytes that this side has not read: they stay in the ring.
    pub(crate) fn is_spilled(&self) -> bool {
        let theirs = words::sender_of(&self.peer);
        self.receiver().has_spilled(&theirs)
    }

    /// Bytes that the peer has not read from the ring.
    pub(crate) fn unsent(&self) -> u64 {
        let theirs = words::receiver_of(&self.peer);
        self.sender().unread(&theirs).unwrap_or(0)
    }

    /// This side has closed the socket.
    fn is_closed(&self) -> bool {
        self.own.word(layout::CLOSED).load(Ordering::Relaxed) != 0
    }

    /// Bytes that can be read from the ring.
    pub(crate) fn readable(&self) -> u64 {
        self.receiver().readable(&words::sender_of(&self.peer)).unwrap_or(0)
    }

    /// Bytes in the ring that were not read, also those that come after bytes of TCP.
    pub(crate) fn unread(&self) -> u64 {
        self.receiver().unread(&words::sender_of(&self.peer)).unwrap_or(0)
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
        // What TCP has before the ring may still be on its way.
        let is_next = |state| match state {
            ReceiverState::Switching => !self.is_between_hosts && self.may_read_ring(),
            state => state == ReceiverState::Ring,
        };
        self.has_bytes() && is_next(state())
            || self.peer_has_shut() && state() == ReceiverState::Ring
            || self.knows_end()
            || self.reads_nothing()
    }

    /// While the direction switches: whether all that comes before the ring was read from TCP.
    #[cold]
    fn may_read_ring(&self) -> bool {
        let fd = self.last_fd.load(Ordering::Relaxed);
        let offset = self.peer.load(layout::OFFSET, Ordering::Acquire);
        self.consumed(fd).is_none_or(|consumed| consumed == offset)
    }

    /// Whether the peer leaves, and what it has written is to be in TCP: it may be needed there if this side leaves as well.
    fn has_to_recall(&self) -> bool {
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

    /// Whether the kernel has nothing to tell of the socket that is not in memory, unless the peer has died: both directions go through
    /// their rings, and neither end has begun to leave or to end.
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

    /// Where bytes come from.
    pub(crate) fn receiver_state(&self) -> ReceiverState {
        self.receiver().state(&words::sender_of(&self.peer))
    }

    /// Whether bytes come from elsewhere now: those that follow the ones of `before` may be there at once.
    #[inline]
    pub(crate) fn goes_on_behind(&self, before: ReceiverState) -> bool {
        // A ring that is read on is left only after its epoch has ended.
        let may = before != ReceiverState::Ring || {
            let ended = self.peer.load(layout::ENDED, Ordering::Acquire) >> 1;
            ended >= self.own.word(layout::OFFERED).load(Ordering::Relaxed)
        };
        may && self.receiver_state() != before
    }

    /// Whether a write would take bytes now; `None` if only the kernel knows.
    pub(crate) fn is_writable(&self) -> Option<bool> {
        let sender = self.sender();
        match sender.state() {
            SenderState::Ring if !self.peer_is_gone() => {
                let capacity = self.capacity() as u64;
                let room = sender.room(&words::receiver_of(&self.peer)).unwrap_or(capacity);
                Some(room >= capacity / 3) // As the kernel does: not for a few bytes.
            }
            // What is to be put back first waits for room in TCP.
            SenderState::Tcp | SenderState::Ring | SenderState::Refill => None,
        }
    }

    /// Whether a call that waits for this has to look again although nothing is there: the peer has done something else.
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

    /// Whether bytes wait for room that no call of the program is to send: they were taken back from the ring, or put aside.
    pub(crate) fn has_left_bytes(&self) -> bool {
        self.sender().state() == SenderState::Refill || self.has_aside()
    }

    /// Whether the bell alone tells when to look again: nothing comes by TCP while the sender has not answered, and a ring's room is not
    /// that of TCP.
    pub(crate) fn only_bell_tells(&self, what: Bell) -> bool {
        match what {
            Bell::Bytes => self.receiver_state() == ReceiverState::Recalled || self.awaits_end(),
            Bell::Room => self.is_writable().is_some(),
        }
    }

    /// What changes when there is something more to read: bytes that the peer has written into its ring, or the end.
    #[inline]
    pub(crate) fn arrived(&self) -> u64 {
        self.peer.load(layout::WRITTEN, Ordering::Acquire) | u64::from(self.knows_end()) << 63
    }

    /// Whether a write found the ring full.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full.load(Ordering::Relaxed)
    }

    /// The program learns that there is room again.
    pub(crate) fn forget_was_full(&self) {
        self.was_full.store(false, Ordering::Relaxed);
    }
}

/// The parts behind the first `bytes` bytes.
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
    // SAFETY: the caller's promise.
    let received = unsafe { kernel::receive_at_most(fd, parts, most, flags) };
    received
        .map_err(|error| if error == libc::EAGAIN { NotNow::Wait } else { NotNow::Error(error) })
}
