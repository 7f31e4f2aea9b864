//! The sets that a child of fork uses too: bytes that all children share.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::carry::mapping;

/// Upper bound on sets of a process whose members may be carried.
pub(super) const SETS_MAX: usize = 256;

static BYTES: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());

fn byte(index: usize) -> Option<&'static AtomicU8> {
    let first = BYTES.load(Ordering::Acquire);
    // SAFETY: `index` is below `SETS_MAX`, the number of bytes, which stay mapped.
    (index < SETS_MAX && !first.is_null()).then(|| unsafe { &*first.add(index) })
}

/// Clears the byte of a set. Maps the memory if it is missing.
pub(super) fn clear(index: usize) {
    let _ = mapping::map_once(&BYTES, SETS_MAX);
    if let Some(byte) = byte(index) {
        byte.store(0, Ordering::SeqCst);
    }
}

pub(crate) fn mark(index: usize) {
    if let Some(byte) = byte(index) {
        byte.store(1, Ordering::SeqCst);
    }
}

#[inline]
pub(crate) fn is_marked(index: usize) -> bool {
    byte(index).is_none_or(|byte| byte.load(Ordering::Relaxed) != 0)
}
