//! Socket options that calls need without a system call each: whether calls block, the low-water mark of reads, and whether
//! `recvmsg` reports the number of unread bytes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, socklen_t};

use crate::carry::kernel;
use crate::originals::own;

/// The known values of `O_NONBLOCK`, `SO_RCVLOWAT` and `TCP_INQ` of a connection.
pub(crate) struct Blocking {
    /// Counts the calls that may change the options, at their begin and at their end.
    changes: AtomicU64,
    /// The value of `changes` when the kernel was asked, and the kernel's answer.
    known: AtomicU64,
}

/// Flag below the count: calls return instead of blocking.
const IS_OFF: u64 = 1 << 31;
/// Flag below the count: `recvmsg` reports the number of unread bytes.
const REPORTS_REST: u64 = 1 << 30;
/// Mask of the low-water mark, below the flags.
const LEAST: u64 = (1 << 30) - 1;

/// The kernel was not asked.
const UNKNOWN: u64 = u64::MAX;

impl Blocking {
    pub(crate) const fn new() -> Self {
        Self { changes: AtomicU64::new(0), known: AtomicU64::new(UNKNOWN) }
    }

    /// The options may change now, or have changed.
    pub(crate) fn changes(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether calls return instead of blocking.
    #[inline]
    pub(super) fn is_off(&self, fd: c_int, others: u64) -> bool {
        self.known(fd, others) & IS_OFF != 0
    }

    /// Whether `recvmsg` reports the number of unread bytes.
    #[inline]
    pub(super) fn reports_rest(&self, fd: c_int, others: u64) -> bool {
        self.known(fd, others) & REPORTS_REST != 0
    }

    /// The low-water mark: the number of bytes that makes the socket readable and that a read waits for. At least 1.
    #[inline]
    pub(super) fn least(&self, fd: c_int, others: u64) -> u64 {
        self.known(fd, others) & LEAST
    }

    /// `others` is the change count of all processes that have the connection, which share the options.
    #[inline]
    fn known(&self, fd: c_int, others: u64) -> u64 {
        let changes = self.changes.load(Ordering::SeqCst).wrapping_add(others);
        let known = self.known.load(Ordering::Relaxed);
        if known >> 32 == changes & 0xffff_ffff { known } else { self.ask(fd, changes) }
    }

    /// Asks the kernel. A change between the count and the answer makes the stored answer stale at once.
    #[cold]
    fn ask(&self, fd: c_int, changes: u64) -> u64 {
        let is_off = if kernel::is_nonblocking(fd) { IS_OFF } else { 0 };
        let rest = option(fd, libc::IPPROTO_TCP, libc::TCP_INQ).is_some_and(|on| on != 0);
        let rest = if rest { REPORTS_REST } else { 0 };
        let least = option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
        let least = u64::try_from(least).unwrap_or(1).clamp(1, LEAST);
        let known = changes << 32 | is_off | rest | least;
        self.known.store(known, Ordering::Relaxed);
        known
    }
}

fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut bytes): (c_int, _) = (0, size_of::<c_int>() as socklen_t);
    let place: *mut c_void = (&raw mut value).cast();
    // SAFETY: the value has room for `bytes` bytes.
    let result = unsafe { own::getsockopt(fd, level, name, place, &raw mut bytes) };
    (result == 0).then_some(value)
}
