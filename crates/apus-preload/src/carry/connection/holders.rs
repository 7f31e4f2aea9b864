//! The number of processes that have a connection: the one that made or accepted it, and children of `fork`.
//!
//! The counts lie in memory that a process shares with its children. A killed process stays counted, so a count is an upper bound
//! on the processes that have the connection. The same memory has the [places](place) of spinning threads, and the sleepers of
//! each connection ([`Holders::add_sleeper`]).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::carry::{mapping, thread};
use crate::errno;

/// Upper bound on connections that are counted at a time, for a process and its relatives.
const COUNTS_MAX: usize = 1 << 16;

const SLEEPERS_AT: usize = COUNTS_MAX * size_of::<AtomicU32>() + PLACES * PLACE;

/// Offset of the last of the [numbers](unique) of processes in other namespaces.
const LAST_AT: usize = SLEEPERS_AT + COUNTS_MAX * 2 * SLEEPERS * size_of::<AtomicU64>();

static COUNTS: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// Number of per-processor words. They follow the counts, each on a cache line of its own.
pub(crate) const PLACES: usize = 64;
/// Bytes per word: a cache line.
const PLACE: usize = 64;

/// The word of a processor: 0, or the thread that spins there.
pub(crate) fn place(processor: usize) -> Option<&'static AtomicU64> {
    let first = COUNTS.load(Ordering::Acquire).cast::<u8>();
    let at = COUNTS_MAX * size_of::<AtomicU32>() + processor % PLACES * PLACE;
    // SAFETY: there are `PLACES` words, which stay mapped; each lies at a multiple of 64.
    (!first.is_null()).then(|| unsafe { &*first.add(at).cast::<AtomicU64>() })
}

/// Number of words for the sleepers of a connection that wait for bytes, and the same number for room. They follow the places.
const SLEEPERS: usize = 8;
/// The last of them. It is set if more sleepers came than fit.
const MANY: usize = SLEEPERS - 1;

/// A number that no relative of this process has.
pub(crate) fn unique() -> u32 {
    let first = COUNTS.load(Ordering::Acquire).cast::<u8>();
    // SAFETY: the word is in the mapping, which stays mapped.
    let last = (!first.is_null()).then(|| unsafe { &*first.add(LAST_AT).cast::<AtomicU32>() });
    last.map_or(0, |last| last.fetch_add(1, Ordering::Relaxed)) & (u32::MAX >> 1)
}

/// The next count to try.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Upper bound on counts that are tried.
const LOOKS: u32 = 1 << 12;

/// The count of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holders(u32);

/// Maps the memory, unless it is mapped. Runs at the start of the process, before it forks.
pub(crate) fn begin() {
    let _ = mapping::map_once(&COUNTS, LAST_AT + size_of::<AtomicU32>());
}

impl Holders {
    /// Takes a count for a new connection of one process. Returns `None` without memory, or if all counts are taken.
    pub(crate) fn one() -> Option<Self> {
        for _ in 0..LOOKS {
            let index = NEXT.fetch_add(1, Ordering::Relaxed) % COUNTS_MAX as u32;
            let count = Self(index).count()?;
            if count.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                let one = Self(index);
                let words = [0, 1].into_iter().filter_map(|what| one.sleepers(what)).flatten();
                words.for_each(|word| word.store(0, Ordering::Relaxed));
                return Some(one);
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
        // SAFETY: there are `COUNTS_MAX` counts, and they stay mapped.
        (!first.is_null()).then(|| unsafe { &*first.add(index) })
    }

    fn sleepers(self, what: usize) -> Option<&'static [AtomicU64; SLEEPERS]> {
        let first = COUNTS.load(Ordering::Acquire).cast::<u8>();
        let index = self.0 as usize % COUNTS_MAX * 2 + what % 2;
        let at = SLEEPERS_AT + index * SLEEPERS * size_of::<AtomicU64>();
        // SAFETY: there are enough words, which stay mapped, at multiples of 64.
        (!first.is_null()).then(|| unsafe { &*first.add(at).cast() })
    }

    /// A thread, or all threads of a process that wait by epoll sets, begin to sleep until there are bytes or room. Visible to
    /// other processes.
    pub(crate) fn add_sleeper(self, what: usize, who: u64) {
        let Some(words) = self.sleepers(what) else { return };
        let take = |word: &AtomicU64| {
            let (taken, relaxed) = (Ordering::SeqCst, Ordering::Relaxed);
            word.compare_exchange(0, who, taken, relaxed).is_ok()
        };
        if !words[..MANY].iter().any(take) {
            words[MANY].store(1, Ordering::SeqCst);
        }
    }

    /// A sleeper is awake.
    pub(crate) fn remove_sleeper(self, what: usize, who: u64) {
        let Some(words) = self.sleepers(what) else { return };
        let free = |word: &AtomicU64| {
            let (freed, relaxed) = (Ordering::SeqCst, Ordering::Relaxed);
            word.load(Ordering::Relaxed) == who
                && word.compare_exchange(who, 0, freed, relaxed).is_ok()
        };
        let _ = words[..MANY].iter().any(free);
    }

    /// Whether a thread other than this one may sleep. Killed sleepers do not count.
    pub(crate) fn have_sleepers(self, what: usize, me: u64) -> bool {
        let Some(words) = self.sleepers(what) else { return true };
        let sleeps = |word: &AtomicU64| {
            let who = word.load(Ordering::SeqCst);
            if who == 0 || who == me {
                return false;
            }
            let is_dead = who >> 32 != me >> 32 && errno::kept(|| thread::is_dead(who));
            if is_dead {
                let _ = word.compare_exchange(who, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
            !is_dead
        };
        words[..MANY].iter().any(sleeps)
            || words[MANY].load(Ordering::SeqCst) != 0 && self.are_several()
    }

    /// Whether another process has the connection too.
    #[inline]
    pub(crate) fn are_several(self) -> bool {
        self.count().is_some_and(|count| count.load(Ordering::SeqCst) > 1)
    }

    /// Counts one more process.
    pub(crate) fn add(self) {
        if let Some(count) = self.count() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Counts one process less. Returns `true` if no process has the connection.
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
    fn the_last_process_that_leaves_is_reported() {
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

    #[test]
    fn sleepers_are_seen_by_others_until_they_wake_or_die() {
        begin();
        let (it, me) = (Holders::one().unwrap(), thread::thread());
        assert!(!it.have_sleepers(0, me));
        it.add_sleeper(0, me);
        assert!(!it.have_sleepers(0, me) && it.have_sleepers(0, me + 1) && !it.have_sleepers(1, 0));
        it.add_sleeper(0, 1 << 62 | 1); // No process has that number.
        it.remove_sleeper(0, me);
        assert!(!it.have_sleepers(0, me));
        (1..=9).for_each(|other| it.add_sleeper(1, me + other));
        (1..=9).for_each(|other| it.remove_sleeper(1, me + other));
        assert!(!it.have_sleepers(1, me), "one process has it");
        it.add();
        assert!(it.have_sleepers(1, me), "somebody is not known");
    }
}
