//! Whether calls about a connection may wait, without a system call for each of them.

use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;

use super::kernel;

/// What is known of `O_NONBLOCK` of a connection.
pub(crate) struct Blocking {
    /// Counts calls that may change the flag, when they begin and when they end.
    changes: AtomicU64,
    /// Twice the count when the kernel was asked, and 1 more if the flag was set.
    known: AtomicU64,
}

const UNKNOWN: u64 = u64::MAX;

impl Blocking {
    pub(crate) const fn new() -> Self {
        Self { changes: AtomicU64::new(0), known: AtomicU64::new(UNKNOWN) }
    }

    /// The flag may change now, or has.
    pub(crate) fn changes(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether calls return instead of waiting.
    #[inline]
    pub(crate) fn is_off(&self, fd: c_int) -> bool {
        let changes = self.changes.load(Ordering::SeqCst);
        let known = self.known.load(Ordering::Relaxed);
        if known >> 1 == changes { known & 1 == 1 } else { self.ask(fd, changes) }
    }

    /// A change between the count and the answer leaves what is stored here out of date at once.
    #[cold]
    fn ask(&self, fd: c_int, changes: u64) -> bool {
        let is_off = kernel::is_nonblocking(fd);
        self.known.store(changes << 1 | u64::from(is_off), Ordering::Relaxed);
        is_off
    }
}
