//! What the program has set of a connection that calls have to know, without a system call for each of them: whether they may wait, how
//! many bytes they wait for, and whether they tell how many are left.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, socklen_t};

use crate::carry::kernel;
use crate::originals::own;

/// What is known of `O_NONBLOCK`, `SO_RCVLOWAT` and `TCP_INQ` of a connection.
pub(crate) struct Blocking {
    /// Counts calls that may change them, when they begin and when they end.
    changes: AtomicU64,
    /// The count when the kernel was asked, and what it said.
    known: AtomicU64,
}

/// Below the count: two flags, and the bytes that a read waits for.
const IS_OFF: u64 = 1 << 31;
const TELLS_REST: u64 = 1 << 30;
const LEAST: u64 = (1 << 30) - 1;

const UNKNOWN: u64 = u64::MAX;

impl Blocking {
    pub(crate) const fn new() -> Self {
        Self { changes: AtomicU64::new(0), known: AtomicU64::new(UNKNOWN) }
    }

    /// They may change now, or have.
    pub(crate) fn changes(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether calls return instead of waiting.
    #[inline]
    pub(super) fn is_off(&self, fd: c_int, others: u64) -> bool {
        self.known(fd, others) & IS_OFF != 0
    }

    /// Whether `recvmsg` tells how many bytes are left.
    #[inline]
    pub(super) fn tells_rest(&self, fd: c_int, others: u64) -> bool {
        self.known(fd, others) & TELLS_REST != 0
    }

    /// Bytes from which on the socket is readable, and for which a read waits: at least 1.
    #[inline]
    pub(super) fn least(&self, fd: c_int, others: u64) -> u64 {
        self.known(fd, others) & LEAST
    }

    /// `others`: the same count of all processes that have the connection, since they share the options.
    #[inline]
    fn known(&self, fd: c_int, others: u64) -> u64 {
        let changes = self.changes.load(Ordering::SeqCst).wrapping_add(others);
        let known = self.known.load(Ordering::Relaxed);
        if known >> 32 == changes & 0xffff_ffff { known } else { self.ask(fd, changes) }
    }

    /// A change between the count and the answer leaves what is stored here out of date at once.
    #[cold]
    fn ask(&self, fd: c_int, changes: u64) -> u64 {
        let is_off = if kernel::is_nonblocking(fd) { IS_OFF } else { 0 };
        let tells = option(fd, libc::IPPROTO_TCP, libc::TCP_INQ).is_some_and(|on| on != 0);
        let tells = if tells { TELLS_REST } else { 0 };
        let least = option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
        let least = u64::try_from(least).unwrap_or(1).clamp(1, LEAST);
        let known = changes << 32 | is_off | tells | least;
        self.known.store(known, Ordering::Relaxed);
        known
    }
}

fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut bytes): (c_int, _) = (0, size_of::<c_int>() as socklen_t);
    let place: *mut c_void = (&raw mut value).cast();
    // SAFETY: the value has room for that many bytes.
    let result = unsafe { own::getsockopt(fd, level, name, place, &raw mut bytes) };
    (result == 0).then_some(value)
}
