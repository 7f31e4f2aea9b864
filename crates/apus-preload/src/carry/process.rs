//! The number of this process, without a system call.

use std::sync::atomic::{AtomicU32, Ordering};

static ID: AtomicU32 = AtomicU32::new(0);

/// The number of the process that called [`note`] last: after a fork, the child does.
#[inline]
pub(crate) fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Notes the number of this process.
pub(crate) fn note() {
    ID.store(std::process::id(), Ordering::Relaxed);
}
