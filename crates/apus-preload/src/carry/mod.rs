//! Carrying: the bytes of a TCP connection go through shared memory, to another process of this host or to the carrier, which
//! takes them to another host.
//!
//! | folder or file | |
//! |---|---|
//! | [`connection`] | one connection: its ends in shared memory, and its local state |
//! | [`peers`] | how two ends find each other, and prove that they are the ends of one connection |
//! | [`bytes`] | calls that move bytes, and wait |
//! | [`waits`] | `poll` and `select` |
//! | [`sets`] | epoll sets |
//! | [`leaving`] | the return to TCP; children of `fork` that become programs |
//! | [`inner`], [`process`] | descriptors of this library; the number of this process |
//! | [`kernel`], [`sleep`], [`spin`] | the kernel's state of a connection; sleeps, and spinning before them |
//! | [`sync`] | atomics, which a model test replaces |
//! | [`thread`], [`token`] | threads by number; exclusive use by one thread |
//! | [`mapping`], [`scratch`] | memory without an allocation; memory for long lists |
//! | [`holds`], [`snapshots`] | the holds of each thread's calls, until they end or a jump leaves them; memory for calls that a fork interrupts |
//!
//! `leaving` builds on `sets`, and `sets` on `connection`. Calls of the program enter here, or in `bytes`, `waits` and `sets`.

pub(crate) mod bytes;
mod connection;
pub(crate) mod holds;
pub(crate) mod inner;
mod kernel;
pub(crate) mod leaving;
mod mapping;
mod peers;
pub(crate) mod process;
mod scratch;
pub(crate) mod sets;
mod sleep;
mod snapshots;
mod spin;
mod sync;
mod thread;
mod token;
pub(crate) mod waits;

use libc::{c_int, iovec, ssize_t};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use self::bytes::parts::total;
pub(crate) use self::bytes::sendfile::sendfile;
pub(crate) use self::bytes::splice::splice;
use self::bytes::transfer;
use self::connection::holders;
use self::connection::slots::{self, Slot, Use};
use self::holds::{RECEIVES, SENDS};
pub(crate) use self::inner::Spared;
pub(crate) use self::kernel::spec;
pub(crate) use self::leaving::closing::closed;
use self::leaving::returning::{self, return_inherited};
pub(crate) use self::leaving::returning::{disconnected, give_away, return_all, return_to_kernel};
use self::leaving::{children, closing, returns};
use self::peers::meeting::{self, Addresses};
use self::peers::{answering, containers, net};
use self::sets::{attaching, early, giving_up, table};
pub(crate) use self::spin::Clock;
use crate::descriptors::{self, WATCHED};
use crate::{errno, originals};

/// Whether connections of this process may be carried.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The actions for calls that a jump or a fork interrupts.
static LEFT: holds::Left = holds::Left {
    awake: slots::awake,
    asleep: slots::asleep,
    carry_on: slots::carry_on,
    give_back: scratch::give_back,
    segments: slots::segments_with,
};

/// Whether the search for the peer begins before the first call, for tests.
static IS_EARLY: AtomicBool = AtomicBool::new(false);

/// Runs at the start of the process. `may` is false if another reason prevents carrying.
pub(crate) fn begin(may: bool) {
    process::note();
    // SAFETY: the name ends with a zero byte. No other code changes the environment before `main`.
    let value = unsafe { libc::getenv(c"APUS_SOCKETS".as_ptr()) };
    // SAFETY: a value ends with a zero byte.
    let value = (!value.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(value) });
    let value = value.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let ways = || value.split(',');
    returns::begin(ways().find_map(|way| way.strip_prefix("return:")).unwrap_or_default());
    IS_EARLY.store(ways().any(|way| way == "early"), Ordering::Relaxed);
    let is_off = cfg!(test) || !may || value == "off";
    IS_ON.store(!is_off, Ordering::Relaxed);
    if !is_off {
        holders::begin();
        holds::begin(&LEFT);
        containers::begin();
        net::begin();
    }
}

/// Runs in a child of fork, which has all connections too, while the epoll sets are the parent's. `may_allocate` is false if a
/// signal handler may have forked.
pub(crate) fn begin_in_child(may_allocate: bool) {
    process::note_child(holders::unique);
    spin::SLEEPERS.store(0, Ordering::Relaxed);
    answering::forget();
    children::forget();
    holds::forks::begin_in_child();
    slots::begin_in_child();
    table::forget_all();
    scratch::forget_all();
    inner::close_all(may_allocate);
    net::register();
}

/// Ends all carrying. From now on this module makes no system calls.
pub(crate) fn finish() {
    if !IS_ON.swap(false, Ordering::SeqCst) {
        return;
    }
    return_all("seccomp");
    giving_up::give_up_all();
    answering::end();
}

/// Runs before this thread forks. No connection becomes carried until [`after_fork`].
pub(crate) fn before_fork() {
    returning::return_between_hosts();
    answering::pause();
    errno::kept(children::before_fork);
    slots::share_all();
    errno::kept(holds::forks::before_fork);
}

/// Runs in the parent after a fork, or after a failed one. Not all handlers of the C library learn of the failure.
pub(crate) fn after_fork(failed: bool) {
    if failed {
        after_failed_fork();
    }
    errno::kept(holds::forks::after_fork);
    let has_pipe = errno::kept(children::in_parent);
    if answering::go_on() || has_pipe {
        answering::wake();
    }
}

/// There is no child with the connections.
pub(crate) fn after_failed_fork() {
    slots::unshare_all();
}

/// Runs in a child of `vfork` that becomes another program. Its descriptor table is its own.
#[cold]
pub(crate) fn spare_from_exec() {
    errno::kept(inner::before_exec);
}

/// Runs before this process becomes another program.
pub(crate) fn before_exec() {
    return_inherited("exec");
    hand_over(returning::is_closed_by_exec);
    errno::kept(inner::before_exec);
}

/// This process ends or becomes a program, and loses these descriptors. Other processes keep the connections.
pub(crate) fn hand_over(closes: impl Fn(c_int) -> bool) {
    if !is_on() {
        return;
    }
    for slot in slots::all().filter(|slot| slot.is_shared()) {
        if slot.all_descriptors(&closes) {
            slot.hand_over();
        }
    }
}

/// Runs if this process has not become a program.
#[cold]
pub(crate) fn take_back() {
    slots::all().for_each(Slot::take_back);
    errno::kept(inner::after_exec_failed);
}

/// Whether new connections must be considered.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Frees descriptors, because the program has none left. Returns `true` if some were freed.
#[cold]
pub(crate) fn makes_room() -> bool {
    /// End of the last call that freed none, in nanoseconds.
    static FAILED: AtomicU64 = AtomicU64::new(0);
    errno::kept(|| {
        let (before, began) = (inner::count(), Clock::now());
        let failed = Duration::from_nanos(FAILED.load(Ordering::Relaxed));
        let has_failed = !failed.is_zero() && began.saturating_sub(failed) < ROOM_AGAIN;
        if before <= inner::OF_CONNECTION || has_failed {
            return false;
        }
        slots::give_way(usize::MAX);
        answering::wake();
        while inner::count() + inner::OF_CONNECTION > before {
            if Clock::now() > began + ROOM_WAIT {
                FAILED.store(Clock::now().as_nanos() as u64, Ordering::Relaxed);
                return false;
            }
            let _ = kernel::wait(&mut [], Some(spec(Duration::from_micros(50))));
        }
        true
    })
}

/// Upper bound on the time for connections to return.
const ROOM_WAIT: Duration = Duration::from_millis(400);
/// Pause after peers did not answer in that time.
const ROOM_AGAIN: Duration = Duration::from_secs(2);

/// Considers a connection that was made or is being made. It may become carried if both ends are on this host, or if a carrier
/// reaches the other end.
#[cold]
pub(crate) fn consider(fd: c_int, accepted: bool) {
    errno::kept(|| {
        if descriptors::word(fd) & WATCHED != 0 {
            return; // An epoll set has it, and this library does not know which.
        }
        let may_be = match Addresses::of(fd) {
            Some(addresses) => addresses.are_here() || net::may_carry(&addresses),
            // Until the peer has answered, the socket has only one address.
            None => !accepted && (meeting::is_local(fd) || net::may_begin(fd)),
        };
        let missing = inner::missing(fd);
        if missing > 0 && slots::give_way(missing.div_ceil(inner::OF_CONNECTION)) {
            answering::wake();
        }
        if may_be && missing == 0 && slots::add(fd, accepted, children::last()) {
            let slot = slots::slot_of(descriptors::word(fd));
            if let Some(slot) = slot {
                early::adopt(fd, slot);
            }
            answering::start();
            if IS_EARLY.load(Ordering::Relaxed)
                && let Some(slot) = slot
            {
                look_early(slot, accepted);
            }
        }
    });
}

/// Looks for the peer before the first call. The accepting end waits briefly, because the other end is there already. So even a
/// short test of a program is carried from its first byte.
#[cold]
fn look_early(slot: &'static Slot, accepted: bool) {
    if !slot.want() {
        return;
    }
    answering::wake();
    let until = Clock::now() + EARLY_WAIT;
    while accepted && slot.is_looked_for() && Clock::now() < until {
        let _ = kernel::wait(&mut [], Some(spec(Duration::from_micros(50))));
    }
}

const EARLY_WAIT: Duration = Duration::from_millis(20);

/// Receives on a carried descriptor or a candidate. Returns `None` if `original` should be called.
///
/// # Safety
///
/// The buffers are writable.
#[cold]
pub(crate) unsafe fn receive(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
    original: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(used) = Use::of(fd) else { return original() };
    if flags & !transfer::RECEIVE_FLAGS != 0 {
        return_to_kernel(fd, "a receive with flags");
        return original();
    }
    let peeks_at_all = flags & libc::MSG_PEEK != 0 && flags & libc::MSG_WAITALL != 0;
    // SAFETY: guaranteed by the caller.
    if peeks_at_all && !has_all(&used, fd, unsafe { total(list, count) }) {
        return_to_kernel(fd, "a receive with flags");
        // A peer that has ended meanwhile puts nothing into TCP.
        if !used.side().is_some_and(|side| side.keeps_rest(fd)) {
            return original();
        }
    }
    match used.side() {
        // SAFETY: guaranteed by the caller.
        Some(side) => errno::kept_on_success(|| unsafe {
            answering::start();
            transfer::receive(&used, side, fd, list, count, flags)
        }),
        None => transfer::by_kernel(&used, RECEIVES, original),
    }
}

/// Whether a peek at `bytes` bytes need not wait for more.
fn has_all(used: &Use, fd: c_int, bytes: usize) -> bool {
    let Some(side) = used.side() else { return false };
    side.readable() >= bytes as u64
        || used.slot.is_nonblocking(fd)
        || side.has_input_ended()
        || side.finds_peer_gone()
}

/// Sends, in the same way.
///
/// # Safety
///
/// The buffers are readable.
#[cold]
pub(crate) unsafe fn send(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
    original: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(used) = Use::of(fd) else { return original() };
    if flags & !transfer::SEND_FLAGS != 0 {
        return_to_kernel(fd, "a send with flags");
        return original();
    }
    match used.side() {
        // SAFETY: guaranteed by the caller.
        Some(side) => errno::kept_on_success(|| unsafe {
            answering::start();
            transfer::send(&used, side, fd, list, count, flags)
        }),
        None => transfer::by_kernel(&used, SENDS, original),
    }
}

/// The error of a connection that is not carried, or whose peer is gone, if any. It is reported once.
pub(crate) fn error_of(fd: c_int) -> Option<c_int> {
    let used = Use::of(fd)?;
    if used.side().is_some_and(|side| !side.peer_is_gone() && !side.peer_has_shut()) {
        return None;
    }
    errno::kept(|| kernel::take_error(fd))
}

/// Runs before a descriptor of a connection is closed.
#[cold]
pub(crate) fn close(fd: c_int) {
    // The kernel keeps reporting the connection for its other descriptors, and knows nothing of the ring.
    if Use::of(fd).is_some_and(|used| used.slot.has_other_descriptors()) && attaching::have(fd) {
        return_to_kernel(fd, "close of a descriptor in an epoll set while a duplicate is open");
    }
    closing::close(fd);
}

/// A descriptor was duplicated, and its word copied.
pub(crate) fn duplicated(new: c_int) {
    slots::duplicated(new);
    table::duplicated(new);
}

/// Shuts down one direction or both. TCP may end later, once the ring is empty. Returns `None` if the kernel should handle the
/// call.
#[cold]
pub(crate) fn shut(fd: c_int, how: c_int) -> Option<c_int> {
    if how == libc::SHUT_RD {
        return_to_kernel(fd, "shutdown(SHUT_RD)");
    }
    if !matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        return None;
    }
    let used = Use::of(fd)?;
    let side = used.side()?;
    let is_for_both = how == libc::SHUT_RDWR;
    let has_finished = side.has_finished_shut();
    side.shut();
    if is_for_both {
        side.stop_reading(); // A thread that sees this store sees both.
    }
    if has_finished {
        return None;
    }
    if is_for_both {
        side.spill(); // TCP ends now, and refuses the peer's bytes from then on.
    }
    let ended = side.finish_shut(fd);
    if ended.is_none() {
        answering::wake(); // Some bytes may have to go back into TCP.
        side.nudge(); // Waits learn of the end before the kernel does.
        if is_for_both && !side.has_finished_shut() {
            // SAFETY: the call takes no pointers.
            let _ = unsafe { originals::shutdown(fd, libc::SHUT_RD) };
        }
    }
    Some(ended.unwrap_or(0))
}

/// Runs `change`, which may change the blocking mode of a connection or an option that [`blocking`](connection::blocking) caches.
#[cold]
pub(crate) fn changes_options(fd: c_int, change: impl FnOnce() -> c_int) -> c_int {
    let Some(used) = Use::of(fd) else { return change() };
    used.slot.changes_options();
    let result = change();
    used.slot.changes_options();
    result
}

/// Makes waits look again. They may wait for more bytes than they now need.
#[cold]
pub(crate) fn wake_waits(fd: c_int) {
    if let Some(used) = Use::of(fd)
        && let Some(side) = used.side()
    {
        attaching::renew(used.slot);
        side.nudge();
    }
}

/// The number of unread bytes after a receive call, if the program has set `TCP_INQ`. The end of the stream counts as a byte.
pub(crate) fn rest(fd: c_int) -> Option<c_int> {
    let used = Use::of(fd)?;
    let side = used.side().filter(|_| used.slot.reports_rest(fd))?;
    let has_ended = side.peer_has_shut() || kernel::has_ended(fd) && !side.was_reset();
    let bytes = side.unread() + kernel::unread(fd).unwrap_or(0) + u64::from(has_ended);
    Some(c_int::try_from(bytes).unwrap_or(c_int::MAX))
}

/// Bytes in a ring: those that this side can read, or those that the peer has not read.
#[cold]
pub(crate) fn in_ring(fd: c_int, to_be_read: bool) -> c_int {
    let Some(used) = Use::of(fd) else { return 0 };
    let bytes =
        used.side().map_or(0, |side| if to_be_read { side.unread() } else { side.unsent() });
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}
