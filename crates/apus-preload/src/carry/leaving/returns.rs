//! Returns to TCP at random offsets, for tests. With `APUS_SOCKETS=return:BYTES`, each direction returns after that many bytes on
//! average, and goes through the ring again once both sides agree to.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::carry::connection::side::{Bell, Side};

/// Mean number of bytes between two returns. 0 for no returns.
static MEAN: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicI64 = AtomicI64::new(0);

/// Reads the number from the environment.
pub(crate) fn begin(text: &str) {
    MEAN.store(text.parse().unwrap_or(0), Ordering::Relaxed);
}

/// Notes that bytes were moved.
#[inline]
pub(crate) fn moved(side: &Side, what: Bell, bytes: usize) {
    if MEAN.load(Ordering::Relaxed) > 0 {
        count(side, what, bytes);
    }
}

#[cold]
fn count(side: &Side, what: Bell, bytes: usize) {
    if LEFT.fetch_sub(bytes as i64, Ordering::Relaxed) >= 0 {
        return;
    }
    let mut random = [0; 8];
    // SAFETY: the buffer has room for the bytes.
    let _ = unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), 0) };
    let next = u64::from_ne_bytes(random) % (2 * MEAN.load(Ordering::Relaxed));
    LEFT.store(next as i64, Ordering::Relaxed);
    match what {
        Bell::Bytes => side.recall(),
        Bell::Room => _ = side.spill(),
    }
}
