//! How many processes have a connection: that which made or accepted it, and children of `fork`.
//!
//! The counts lie in memory that a process shares with its children. A process that is killed stays counted; so a count is at least the
//! number of processes that have the connection. In the same memory are the [places](place) of threads that look at memory.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Connections that are counted at a time, of a process and its relatives.
const COUNTS_MAX: usize = 1 << 16;

static COUNTS: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Words for processors, behind the counts, each on a cache line of its own.
pub(crate) const PLACES: usize = 64;
const PLACE: usize = 64;

/// The word of a processor: 0, or the thread that looks at memory there.
pub(crate) fn place(processor: usize) -> Option<&'static AtomicU64> {
    let first = COUNTS.load(Ordering::Acquire).cast::<u8>();
    let at = COUNTS_MAX * size_of::<AtomicU32>() + processor % PLACES * PLACE;
    // SAFETY: there are that many words, which stay mapped; the place of each is a multiple of 64.
    (!first.is_null()).then(|| unsafe { &*first.add(at).cast::<AtomicU64>() })
}

/// Where to look for a free count first.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Counts that are looked at for a free one.
const LOOKS: u32 = 1 << 12;

/// The count of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holders(u32);

/// At the start of the process, before it forks.
pub(crate) fn begin() {
    let size = COUNTS_MAX * size_of::<AtomicU32>() + PLACES * PLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the call makes memory of its own.
    let memory = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if memory != libc::MAP_FAILED {
        COUNTS.store(memory.cast(), Ordering::Release);
    }
}

impl Holders {
    /// The count of a new connection, which one process has. `None` without memory, or if all counts are taken.
    pub(crate) fn one() -> Option<Self> {
        for _ in 0..LOOKS {
            let index = NEXT.fetch_add(1, Ordering::Relaxed) % COUNTS_MAX as u32;
            let count = Self(index).count()?;
            if count.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return Some(Self(index));
            }
        }
        None
    }

    /// The count with this number.
    pub(crate) fn numbered(number: u32) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }

    fn count(self) -> Option<&'static AtomicU32> {
        let first = COUNTS.load(Ordering::Acquire);
        let index = self.0 as usize % COUNTS_MAX;
        // SAFETY: there are that many counts, and they stay mapped.
        (!first.is_null()).then(|| unsafe { &*first.add(index) })
    }

    /// Whether another process has the connection as well.
    #[inline]
    pub(crate) fn are_several(self) -> bool {
        self.count().is_some_and(|count| count.load(Ordering::SeqCst) > 1)
    }

    /// One more process has the connection.
    pub(crate) fn add(self) {
        if let Some(count) = self.count() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A process does not have the connection any more. True if none has.
    pub(crate) fn remove(self) -> bool {
        let Some(count) = self.count() else { return true };
        let less = |count: u32| count.checked_sub(1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok_and(|before| before == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_process_that_leaves_is_told() {
        begin();
        let (one, other) = (Holders::one().unwrap(), Holders::one().unwrap());
        assert_ne!(one, other);
        assert!(!one.are_several());
        one.add();
        assert!(one.are_several() && !other.are_several());
        assert!(!one.remove());
        assert!(one.remove());
        assert!(other.remove());
    }
}
