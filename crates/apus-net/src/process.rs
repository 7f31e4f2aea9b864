//! The identity of this process. After a `fork`, the child has all of its parent's memory and descriptors, but is another process.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process that created a value, to distinguish it from a child with a copy of the value.
///
/// Created by [`OwningProcess::current`]. Cloning is free.
#[derive(Clone, Copy, Debug)]
pub struct OwningProcess {
    /// Word on a page that the kernel zeroes in the child of a `fork`.
    marker: &'static AtomicU64,
    generation: u64,
    /// PID on kernels that do not wipe pages; otherwise 0.
    pid: u32,
}

impl OwningProcess {
    /// Returns the calling process. The first call in a process maps a page.
    ///
    /// # Errors
    ///
    /// If the system has no memory for that page.
    pub fn current() -> io::Result<Self> {
        /// Number of earlier generations of processes, in memory that a child inherits: every process of a line of descent takes
        /// another number.
        static GENERATION: AtomicU64 = AtomicU64::new(0);
        let Marker { word: marker, wiped } = *marker()?;
        let mut generation = marker.load(Ordering::Relaxed);
        if generation == WIPED {
            let next = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
            let first = marker.compare_exchange(WIPED, next, Ordering::Relaxed, Ordering::Relaxed);
            generation = first.map_or_else(|another| another, |_| next);
        }
        Ok(Self { marker, generation, pid: if wiped { 0 } else { process::id() } })
    }

    /// Returns `false` in a child of the process that created `self`, whatever code called `fork` or `clone`. Costs three loads and
    /// two comparisons, about a nanosecond; a system call on kernels before 4.14.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.marker.load(Ordering::Relaxed) == self.generation
            && (self.pid == 0 || self.pid == process::id())
    }
}

/// Value of the marker in a process that has not called [`OwningProcess::current`] yet.
const WIPED: u64 = 0;

/// The word that a `fork` wipes, if the kernel supports that (Linux 4.14).
struct Marker {
    word: &'static AtomicU64,
    wiped: bool,
}

fn marker() -> io::Result<&'static Marker> {
    static MARKER: OnceLock<Marker> = OnceLock::new();
    if let Some(marker) = MARKER.get() {
        return Ok(marker);
    }
    let marker = Marker::map()?;
    // A thread that loses the race has mapped an unused page.
    Ok(MARKER.get_or_init(|| marker))
}

impl Marker {
    fn map() -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: requests a new page at an address of the kernel's choice.
        let page = unsafe { libc::mmap(ptr::null_mut(), size_of::<u64>(), access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is page-aligned, zeroed (a valid atomic), writable and never unmapped.
        let word = unsafe { &*page.cast::<AtomicU64>() };
        // SAFETY: the range is the mapping created above.
        let result = unsafe { libc::madvise(page, size_of::<u64>(), libc::MADV_WIPEONFORK) };
        Ok(Self { word, wiped: result == 0 })
    }
}

/// Runs `work` in a forked child of this process. Returns true if `work` returned true there, false if it returned false, panicked,
/// or did not end within 30 s. For tests: a child has the calling thread only, and waiting for another thread never ends.
pub fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the C library keeps its own locks usable in the child; `work` is responsible for other locks.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes an integer. Its signal ends the child.
        unsafe { libc::alarm(30) };
        let done = panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: ends the process without its parent's exit handlers.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    assert!(child > 0, "no process for a child: {}", io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the pointer is to a live integer.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {}
    status == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process_than_its_parents() {
        let parent = OwningProcess::current().unwrap();
        assert!(parent.is_current() && OwningProcess::current().unwrap().is_current());
        let by_number = OwningProcess { pid: process::id(), ..parent };
        assert!(by_number.is_current());
        let distinguished = in_child(|| {
            let Ok(child) = OwningProcess::current() else { return false };
            let grandchild = in_child(|| {
                let Ok(grandchild) = OwningProcess::current() else { return false };
                grandchild.is_current() && !child.is_current() && !parent.is_current()
            });
            child.is_current() && !parent.is_current() && grandchild
        });
        assert!(distinguished && parent.is_current());
        let another = OwningProcess {
            marker: Box::leak(Box::new(AtomicU64::new(1))),
            generation: 1,
            ..by_number
        };
        assert!(
            another.is_current() && in_child(|| !another.is_current()),
            "where nothing is wiped"
        );
    }
}
