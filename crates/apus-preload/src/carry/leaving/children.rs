//! Children of `fork` that become programs with connections of their parent. Such a connection stays with TCP. Once no program
//! has it any more, it is carried again.
//!
//! Each fork creates a pipe. The child keeps the write end, and so do the children that it forks. The pipe ends once all of these
//! have ended or have become other programs, and by then their descriptors of the connections are closed, with two exceptions.
//! Before a program starts, the write end is made to survive if a connection does ([`before_program`]). Before a connection is
//! passed to another process, a byte in the pipe says that its holders can never be known ([`passed_on`]).
//!
//! A child may close the pipe but not its connections by raw system calls. It is noticed like any program without this library:
//! unexpected TCP bytes make a direction return.

use std::cell::Cell;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use crate::carry::connection::side::Side;
use crate::carry::connection::slots::{self, Slot};
use crate::carry::inner;
use crate::descriptors::{self, LIFELINE, SHARED};
use crate::originals;

/// Upper bound on forks whose children may have connections, at a time. Connections of further forks stay with TCP.
const FORKS_MAX: usize = 64;

static FORKS: [Fork; FORKS_MAX] = [const { Fork::new() }; FORKS_MAX];

/// The number of the last fork, from 1.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The number of a fork whose children can never be known to have ended.
const NEVER: u32 = u32::MAX;

/// A fork whose children may have connections.
struct Fork {
    /// The number of the fork. 0 for a free place.
    number: AtomicU32,
    /// The read end of its pipe. -1 before the call has returned, and if the end of its children can never be known.
    pipe: AtomicI32,
}

impl Fork {
    const fn new() -> Self {
        Self { number: AtomicU32::new(0), pipe: AtomicI32::new(-1) }
    }
}

thread_local! {
    /// The fork that this thread is making: its place, and both ends of its pipe.
    static CURRENT: Cell<Option<(&'static Fork, [RawFd; 2])>> = const { Cell::new(None) };
    /// The same fork as its child knows it. 0 if there are no connections.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
}

/// The fork that created this process: the parent in the upper half, the number of the fork in the lower. 0 if unknown.
static OWN: AtomicU64 = AtomicU64::new(0);

/// The fork that created this process, if the process has connections of its parent. Only the parent knows the meaning of the
/// number.
pub(super) fn own_fork() -> Option<u64> {
    Some(OWN.load(Ordering::Relaxed)).filter(|fork| *fork != 0)
}

/// Runs before this thread forks. Notes the fork if the child will have connections.
pub(crate) fn before_fork() {
    if slots::all().next().is_some() {
        let number = begin_fork();
        BEGUN.set(u64::from(crate::carry::process::id()) << 32 | u64::from(number));
    }
}

fn begin_fork() -> u32 {
    let number = LAST.fetch_add(1, Ordering::AcqRel) + 1;
    let free = |fork: &&Fork| {
        fork.number.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let Some(fork) = FORKS.iter().find(free) else { return NEVER };
    fork.pipe.store(-1, Ordering::Release);
    let Some(ends) = pipe() else { return number };
    descriptors::set(ends[1], LIFELINE, 0);
    CURRENT.set(Some((fork, ends)));
    number
}

/// Runs in the parent after the call, even a failed one. Returns whether there is a new pipe to read.
pub(crate) fn in_parent() -> bool {
    BEGUN.set(0);
    if let Some((fork, [read, write])) = CURRENT.take() {
        close(write);
        fork.pipe.store(read, Ordering::Release);
        return true;
    }
    false
}

/// Runs in the child. Forgets the forks of the parent.
pub(crate) fn forget() {
    CURRENT.set(None);
    OWN.store(BEGUN.take(), Ordering::Relaxed);
    IS_LOOKED_AT.store(false, Ordering::Relaxed);
    for fork in &FORKS {
        fork.number.store(0, Ordering::Relaxed);
        fork.pipe.store(-1, Ordering::Relaxed);
    }
}

/// For the answering thread: descriptors that become readable when the state of a fork changes.
pub(crate) fn pipes() -> impl Iterator<Item = c_int> {
    FORKS.iter().map(|fork| fork.pipe.load(Ordering::Acquire)).filter(|pipe| *pipe >= 0)
}

/// Whether a thread is checking which forks have no children left.
static IS_LOOKED_AT: AtomicBool = AtomicBool::new(false);

/// Checks which forks have no children left, unless another thread is doing so.
pub(crate) fn look() {
    if !IS_LOOKED_AT.swap(true, Ordering::Acquire) {
        look_alone();
        IS_LOOKED_AT.store(false, Ordering::Release);
    }
}

fn look_alone() {
    for fork in &FORKS {
        let pipe = fork.pipe.load(Ordering::Acquire);
        if pipe < 0 {
            continue;
        }
        let mut byte = 0_u8;
        // SAFETY: the buffer has room for the byte.
        let read = unsafe { originals::read(pipe, (&raw mut byte).cast(), 1) };
        if read < 0 {
            continue; // A child still has the write end.
        }
        fork.pipe.store(-1, Ordering::Release);
        close(pipe);
        if read == 0 {
            fork.number.store(0, Ordering::Release);
        }
    }
}

/// Whether all programs with a connection have ended. The connection's slot was filled after fork `since`, so children of earlier
/// forks do not have it; the child of `fork` was the last to share it. Only the process that made the fork knows.
fn are_gone(since: u32, fork: u64) -> bool {
    let (process, number) = ((fork >> 32) as u32, fork as u32);
    if process != crate::carry::process::id() {
        return false;
    }
    let mut outstanding = FORKS.iter().map(|fork| fork.number.load(Ordering::Acquire));
    number != NEVER && !outstanding.any(|other| other > since && other <= number)
}

/// Ends the sharing of a connection with children that became programs, once no program has it any more.
pub(crate) fn follow(slot: &Slot, side: &Side) {
    let fork = side.shared_since();
    if fork != 0 && are_gone(slot.since(), fork) {
        side.stop_sharing();
    }
}

/// The number of the last fork. 0 before the first.
pub(crate) fn last() -> u32 {
    LAST.load(Ordering::Acquire)
}

/// Runs before this process starts a program or becomes one. If it is a child and the program may have a connection of the
/// parent, makes the parent learn of the program's end.
pub(crate) fn before_program() {
    let survives = |fd: c_int| {
        // SAFETY: the command takes no argument.
        let flags = unsafe { originals::fcntl(fd, libc::F_GETFD, 0) };
        descriptors::word(fd) & LIFELINE == SHARED && flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    if descriptors::used_in(0..=u32::MAX).any(survives) {
        for fd in lifelines() {
            // SAFETY: the argument is an integer.
            let _ = unsafe { originals::fcntl(fd, libc::F_SETFD, 0) };
        }
    }
}

/// A descriptor is passed to another process. The parent of an inherited connection can then never know its holders.
pub(crate) fn passed_on(fd: c_int) {
    if descriptors::word(fd) & LIFELINE == SHARED {
        for fd in lifelines() {
            // SAFETY: the buffer is one byte.
            let _ = unsafe { originals::write(fd, b"?".as_ptr().cast(), 1) };
        }
    }
}

fn lifelines() -> impl Iterator<Item = c_int> {
    descriptors::used_in(0..=u32::MAX).filter(|fd| descriptors::word(*fd) & LIFELINE == LIFELINE)
}

/// Both ends of a pipe, as descriptors of this library.
fn pipe() -> Option<[RawFd; 2]> {
    let (read, write) = std::io::pipe().ok()?;
    let (read, write) = (inner::keep(read.into()).ok()?, inner::keep(write.into()).ok()?);
    // SAFETY: the argument is an integer.
    let _ = unsafe {
        originals::fcntl(read.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK as libc::c_ulong)
    };
    let ends = [read.as_raw_fd(), write.as_raw_fd()];
    mem::forget((read, write)); // Closed by `close`.
    Some(ends)
}

fn close(fd: RawFd) {
    descriptors::set(fd, 0, LIFELINE);
    inner::close(fd);
}
