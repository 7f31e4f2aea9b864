//! Anonymous memory. Code that may run in a signal handler maps it, because it must not allocate.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::originals::own;

/// Maps memory of zeros, aligned to a page. `None` if memory is exhausted.
pub(super) fn map(bytes: usize) -> Option<*mut u8> {
    map_as(libc::MAP_PRIVATE, bytes)
}

fn map_as(flags: i32, bytes: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the call makes a new mapping.
    let memory =
        unsafe { own::mmap(ptr::null_mut(), bytes, access, flags | libc::MAP_ANONYMOUS, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

/// The memory at `place`, which children of this process share with it. The first caller maps it; pages that nobody touches take
/// no memory. It stays mapped. `None` if memory is exhausted.
pub(super) fn map_once<T>(place: &AtomicPtr<T>, bytes: usize) -> Option<*mut T> {
    let known = place.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    let memory = map_as(libc::MAP_SHARED | libc::MAP_NORESERVE, bytes)?;
    let (mine, none) = (memory.cast(), ptr::null_mut());
    match place.compare_exchange(none, mine, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(mine),
        Err(other) => {
            unmap(memory, bytes);
            Some(other)
        }
    }
}

/// The same for a caller that cannot continue without the memory: aborts if memory is exhausted.
pub(super) fn map_or_abort(bytes: usize) -> *mut u8 {
    map(bytes).unwrap_or_else(|| std::process::abort())
}

/// Unmaps memory that came from [`map`] and is unused from now on.
pub(super) fn unmap(memory: *mut u8, bytes: usize) {
    // SAFETY: the callers own the memory, and use it no more.
    let _ = unsafe { own::munmap(memory.cast(), bytes) };
}
