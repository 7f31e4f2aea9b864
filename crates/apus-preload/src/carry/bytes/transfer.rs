//! Calls that move bytes of a carried connection, and block as the kernel's calls do.

use std::time::Duration;

use apus_sockets::direction::ReceiverState;
use libc::{c_int, iovec, pollfd, ssize_t, timeval};

use crate::carry::bytes::parts::Parts;
use crate::carry::connection::side::{Bell, NotNow, SendCall, Side};
use crate::carry::connection::slots::Use;
use crate::carry::holds::{RECEIVES, SENDS};
use crate::carry::kernel;
use crate::carry::leaving::returns;
use crate::carry::peers::answering;
use crate::carry::sets::attaching;
use crate::carry::spin::{self, Clock};
use crate::{errno, originals};

/// Flags of carried receive calls. For a call with another flag, the connection returns and the kernel handles the call.
pub(crate) const RECEIVE_FLAGS: c_int = libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;
/// Flags of carried send calls.
pub(crate) const SEND_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_CONFIRM;

/// Receives as `recvmsg` does.
///
/// # Safety
///
/// The buffers are writable.
pub(crate) unsafe fn receive(
    used: &Use,
    side: &Side,
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: guaranteed by the caller.
    let mut parts = unsafe { Parts::new(list, count) };
    let wanted = parts.left();
    if wanted == 0 {
        return receive_nothing(used, side, fd, flags);
    }
    let may_wait = flags & libc::MSG_DONTWAIT == 0 && !used.slot.is_nonblocking(fd);
    let target = match flags & libc::MSG_WAITALL != 0 {
        true => wanted,
        false if may_wait => wanted.min(used.slot.least(fd) as usize),
        false => 1,
    };
    let mut limits = WaitLimits::new(flags, libc::SO_RCVTIMEO);
    let mut asks_kernel = false;
    loop {
        let before = offer(used, side);
        let done = wanted - parts.left();
        if done > 0 && side.is_next_error(fd, asks_kernel) {
            return done as ssize_t;
        }
        let kind = flags & (libc::MSG_PEEK | libc::MSG_TRUNC);
        let (received, room) = parts.next(|parts, room| {
            side.gather(room);
            // SAFETY: the parts lie in the caller's buffers.
            (unsafe { side.receive(fd, parts, room, kind, asks_kernel) }, room)
        });
        match received {
            Ok(bytes) => {
                parts.advance(bytes);
                returns::moved(side, Bell::Bytes, bytes);
                let done = done + bytes;
                let is_ring = before == ReceiverState::Ring;
                if flags & libc::MSG_PEEK != 0 && parts.left() > 0 && is_ring && side.is_spilled() {
                    // More bytes follow the ring.
                    // SAFETY: the parts lie in the caller's buffers.
                    let more = parts.next(|parts, _| unsafe { kernel::receive(fd, parts, kind) });
                    return (done + more.unwrap_or(0)) as ssize_t;
                }
                // There may be more for the remaining buffers: in the ring after bytes of TCP, or the other way round.
                let is_enough = done >= target && bytes < room && !side.goes_on_behind(before);
                if bytes == 0 || is_enough || parts.left() == 0 || flags & libc::MSG_PEEK != 0 {
                    return done as ssize_t;
                }
            }
            Err(NotNow::Empty | NotNow::Wait) if done > 0 && done >= target => {
                return done as ssize_t;
            }
            // Bytes usually arrive within the time of a system call that asks the kernel for an end.
            Err(NotNow::Empty) => asks_kernel = !limits.look(used, fd, side),
            Err(NotNow::Wait | NotNow::Again | NotNow::Full) => {
                if !limits.may_wait(used, fd) && limits.waits_for_answer(side) {
                    continue;
                }
                if let Err(error) = limits.wait(used, fd, side, Bell::Bytes) {
                    return part_or_error(wanted - parts.left(), error);
                }
                asks_kernel = false;
            }
            Err(NotNow::Error(error)) => return part_or_error(wanted - parts.left(), error),
        }
    }
}

/// Receives 0 bytes as `recvmsg` does: waits for bytes or the end.
#[cold]
fn receive_nothing(used: &Use, side: &Side, fd: c_int, flags: c_int) -> ssize_t {
    let mut byte = 0_u8;
    let part = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let flags = flags & !(libc::MSG_WAITALL | libc::MSG_TRUNC) | libc::MSG_PEEK;
    // SAFETY: the part points to a local variable.
    unsafe { receive(used, side, fd, &raw const part, 1, flags).min(0) }
}

/// Sends as `sendmsg` does.
///
/// # Safety
///
/// The buffers are readable.
pub(crate) unsafe fn send(
    used: &Use,
    side: &Side,
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: guaranteed by the caller.
    let mut parts = unsafe { Parts::new(list, count) };
    let wanted = parts.left();
    let mut limits = WaitLimits::new(flags, libc::SO_SNDTIMEO);
    let mut partial = PartialWrite { used, side, has_begun: false };
    // Bytes of a call that began before are in TCP first.
    let may_switch = || {
        let may = used.slot.may_begin() && !used.slot.is_in_kernel(SENDS);
        if may {
            attaching::ask_kernel_for_room(used.slot, false);
        }
        may
    };
    loop {
        let (left, continues) = (parts.left(), partial.has_begun);
        let call = SendCall { fd, flags: flags & !libc::MSG_DONTWAIT, left, continues };
        let sent = parts.next(|parts, bytes| {
            // SAFETY: the parts are of the caller's buffers.
            unsafe { side.send(call, parts, bytes, || partial.begin(), may_switch) }
        });
        attaching::follow_room(used.slot, side);
        match sent {
            Ok(sent) => {
                parts.advance(sent);
                returns::moved(side, Bell::Room, sent);
                if side.has_aside() {
                    answering::wake();
                }
                if parts.left() == 0 {
                    return wanted as ssize_t;
                }
            }
            Err(NotNow::Full) => {
                attaching::is_full(used.slot);
                let waits = limits.may_wait(used, fd);
                if side.note_full() && !waits {
                    answering::wake(); // The thread spills if the peer does not read.
                }
                if let Err(error) = limits.wait_for_room(used, fd, side) {
                    return part_or_error(wanted - parts.left(), error);
                }
            }
            Err(NotNow::Wait | NotNow::Empty | NotNow::Again) => {
                attaching::is_full(used.slot);
                if side.has_left_bytes() {
                    answering::wake(); // The program may not call again.
                }
                if let Err(error) = limits.wait(used, fd, side, Bell::Room) {
                    return part_or_error(wanted - parts.left(), error);
                }
            }
            Err(NotNow::Error(error)) => {
                if error == libc::EPIPE && wanted == parts.left() && flags & libc::MSG_NOSIGNAL == 0
                {
                    // SAFETY: the signal number is valid. The signal is sent to this thread, as by the kernel's call.
                    let _ = unsafe { libc::raise(libc::SIGPIPE) };
                }
                return part_or_error(wanted - parts.left(), error);
            }
        }
    }
}

/// A write that is done in part. Bytes that a signal handler writes meanwhile follow after it.
struct PartialWrite<'a> {
    used: &'a Use,
    side: &'a Side,
    has_begun: bool,
}

impl PartialWrite<'_> {
    #[cold]
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.used.begin_partial_write();
            self.side.begin_partial_write();
        }
    }
}

impl Drop for PartialWrite<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.has_begun {
            self.used.end_partial_write();
            self.side.end_partial_write();
            if self.side.has_aside() {
                answering::wake();
            }
        }
    }
}

/// A call of the kernel about a connection that may come to be carried.
pub(crate) fn by_kernel(used: &Use, direction: u64, original: impl FnOnce() -> ssize_t) -> ssize_t {
    used.enter_kernel(direction);
    let result = original();
    used.leave_kernel(direction);
    if result > 0 && used.slot.note_call() {
        answering::start(); // A child of fork has no such thread yet.
        answering::wake();
    }
    result
}

fn part_or_error(done: usize, error: c_int) -> ssize_t {
    if done > 0 {
        return done as ssize_t;
    }
    errno::set(error);
    -1
}

/// Lets bytes come through the ring from now on, unless a call waits in the kernel, where it would not see them. Returns the
/// source of the next bytes.
#[inline]
fn offer(used: &Use, side: &Side) -> ReceiverState {
    let state = side.receiver_state();
    if state == ReceiverState::Tcp
        && used.slot.may_begin()
        && !used.slot.is_in_kernel(RECEIVES)
        && !side.peer_is_gone()
        && !side.reads_nothing()
    {
        side.offer();
        return side.receiver_state();
    }
    state
}

/// Upper bound on the time in which a running peer answers a recall.
const ANSWER: Duration = Duration::from_millis(5);

/// Time without room after which a ring is stuck, if this program has unread bytes of the peer.
const STUCK: Duration = Duration::from_millis(1);
/// The same if it has none: the peer may wait for other processes, or hardly run.
const STUCK_BY_OTHERS: Duration = Duration::from_millis(20);

/// The limits of a call's wait.
struct WaitLimits {
    flags: c_int,
    /// The socket option with the call's timeout.
    option: c_int,
    until: Option<Option<Duration>>,
    /// Whether the call has spun and found nothing.
    has_looked: bool,
    /// Whether the call has waited for the peer's answer to a recall.
    has_waited: bool,
}

impl WaitLimits {
    fn new(flags: c_int, option: c_int) -> Self {
        Self { flags, option, until: None, has_looked: false, has_waited: false }
    }

    #[inline]
    fn may_wait(&self, used: &Use, fd: c_int) -> bool {
        self.flags & libc::MSG_DONTWAIT == 0 && !used.slot.is_nonblocking(fd)
    }

    /// Waits once for the peer to put bytes into TCP that may have been announced while they were in the ring. Returns `true` if
    /// the peer has.
    #[cold]
    fn waits_for_answer(&mut self, side: &Side) -> bool {
        let is_recalled = || side.receiver_state() == ReceiverState::Recalled;
        if !is_recalled() || std::mem::replace(&mut self.has_waited, true) {
            return false;
        }
        let until = Clock::now() + ANSWER;
        while is_recalled() && Clock::now() < until {
            side.ask_peer();
            let _ = kernel::wait(&mut [], Some(kernel::spec(ANSWER / 100)));
        }
        !is_recalled()
    }

    /// Spins on an empty ring. Returns `true` if bytes have come.
    fn look(&mut self, used: &Use, fd: c_int, side: &Side) -> bool {
        if !self.may_wait(used, fd) || side.shares_processor() {
            return false;
        }
        let is_there = || side.is_readable() || side.peer_is_gone();
        self.has_looked = !spin::until(&side.spin, is_there);
        side.has_bytes()
    }

    /// The rest of the timeout that the program has set. `None` if it has set none, `Err` if it has expired.
    fn left(&mut self, fd: c_int) -> Result<Option<Duration>, c_int> {
        let option = self.option;
        let until = *self
            .until
            .get_or_insert_with(|| time_option(fd, option).map(|time| Clock::now() + time));
        match until.map(|until| until.checked_sub(Clock::now())) {
            Some(None) => Err(libc::EAGAIN),
            left => Ok(left.flatten()),
        }
    }

    /// Waits for room in the ring. If the peer does not read for a while, spills: a direction then has TCP's capacity in addition
    /// to the ring's.
    fn wait_for_room(&mut self, used: &Use, fd: c_int, side: &Side) -> Result<(), c_int> {
        if !side.may_spill() || !self.may_wait(used, fd) {
            return self.wait(used, fd, side, Bell::Room);
        }
        let is_there = || side.is_writable() == Some(true);
        if !side.shares_processor() && spin::until(&side.spin, is_there) {
            return Ok(());
        }
        // The peer may be waiting for this program to read.
        let waits_for_us = side.has_bytes();
        if !(waits_for_us && side.is_slow()) {
            let most = if waits_for_us { STUCK } else { STUCK_BY_OTHERS };
            let left = self.left(fd)?;
            let time = left.map_or(most, |left| left.min(most));
            match sleep(used, fd, side, Bell::Room, Some(time), is_there, left.is_some()) {
                Err(libc::EAGAIN) => _ = self.left(fd)?,
                slept => return slept,
            }
        }
        side.spill();
        Ok(())
    }

    /// Waits until another look is worthwhile. `Err` has the error number for the program.
    fn wait(&mut self, used: &Use, fd: c_int, side: &Side, what: Bell) -> Result<(), c_int> {
        if !self.may_wait(used, fd) {
            return Err(libc::EAGAIN);
        }
        let left = self.left(fd)?;
        let is_recalled = what == Bell::Bytes && side.receiver_state() == ReceiverState::Recalled;
        if is_recalled {
            side.ask_peer(); // A relative may have recalled and ended before it asked the peer.
        }
        let is_there = || match what {
            Bell::Bytes if is_recalled => side.receiver_state() != ReceiverState::Recalled,
            Bell::Bytes => side.is_readable(),
            Bell::Room => side.is_writable() == Some(true),
        };
        let has_looked = std::mem::take(&mut self.has_looked);
        if !has_looked && !side.shares_processor() && spin::until(&side.spin, is_there) {
            return Ok(());
        }
        let left = if left.is_some() { self.left(fd)? } else { None };
        sleep(used, fd, side, what, left, is_there, left.is_some())
    }
}

/// Sleeps until the bell rings or the kernel's socket has events.
fn sleep(
    used: &Use,
    fd: c_int,
    side: &Side,
    what: Bell,
    timeout: Option<Duration>,
    is_there: impl Fn() -> bool,
    has_time: bool,
) -> Result<(), c_int> {
    used.begin_sleep(what);
    side.ask(what);
    let relies = used.relies_on_bell(side, what);
    let waits_for = if what == Bell::Bytes { libc::POLLIN } else { libc::POLLOUT };
    // An end that the kernel reports repeatedly is no news.
    let socket = if what == Bell::Bytes && side.awaits_end() { -1 } else { fd };
    let [by_peer, by_side] =
        side.polled_bells().map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
    let events = if relies { 0 } else { waits_for };
    let mut members = [by_peer, by_side, pollfd { fd: socket, events, revents: 0 }];
    let is_over = relies && !side.only_bell_ends_wait(what);
    let woken = if is_there() || side.changed(what) || is_over {
        Ok(1)
    } else {
        spin::note_sleep(true);
        let woken = kernel::wait(&mut members, timeout.map(kernel::spec));
        spin::note_sleep(false);
        woken
    };
    if members[0].revents | members[1].revents != 0 {
        side.check();
    }
    used.end_sleep(side, what);
    match woken {
        Ok(0) => Err(libc::EAGAIN),
        Ok(_) => Ok(()),
        Err(libc::EINTR) if !has_time && signals_restart() => Ok(()),
        Err(error) => Err(error),
    }
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO`. `None` if the program has set none.
fn time_option(fd: c_int, option: c_int) -> Option<Duration> {
    let mut time = timeval { tv_sec: 0, tv_usec: 0 };
    let mut size = size_of::<timeval>() as libc::socklen_t;
    // SAFETY: the value of the option is a time.
    let result = unsafe {
        originals::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut time).cast(), &raw mut size)
    };
    let micros = time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (result == 0 && micros > 0).then(|| Duration::from_micros(micros))
}

/// Whether the kernel would restart a call after any signal, because all handlers have `SA_RESTART`. Which of them ran cannot be
/// known.
#[cold]
fn signals_restart() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: all zeros are a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: without a new action, the call only returns the current one.
        let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        let has_handler = result == 0
            && action.sa_sigaction != libc::SIG_DFL
            && action.sa_sigaction != libc::SIG_IGN;
        !has_handler || action.sa_flags & libc::SA_RESTART != 0
    })
}
