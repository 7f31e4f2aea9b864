//! Anonymous memory. Code that may run in a signal handler maps it, because it must not allocate.

use std::ptr;

use crate::originals::own;

/// Maps memory of zeros, aligned to a page. `None` if memory is exhausted.
pub(super) fn map(bytes: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the call makes a new mapping.
    let memory = unsafe { own::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

/// The same for a caller that cannot go on without the memory: aborts if memory is exhausted.
pub(super) fn map_or_abort(bytes: usize) -> *mut u8 {
    map(bytes).unwrap_or_else(|| std::process::abort())
}

/// Unmaps memory that came from [`map`] and is unused from now on.
pub(super) fn unmap(memory: *mut u8, bytes: usize) {
    // SAFETY: the callers own the memory, and use it no more.
    let _ = unsafe { own::munmap(memory.cast(), bytes) };
}
