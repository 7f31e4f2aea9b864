//! The sets that a child of fork uses too: bytes that all children share.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::originals::own;

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
    if BYTES.load(Ordering::Acquire).is_null() {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: the call makes a new mapping.
        let memory = unsafe { own::mmap(ptr::null_mut(), SETS_MAX, access, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return;
        }
        let none = ptr::null_mut();
        let first = memory.cast();
        if BYTES.compare_exchange(none, first, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: the mapping is not published.
            let _ = unsafe { own::munmap(memory, SETS_MAX) };
        }
    }
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
