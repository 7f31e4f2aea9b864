//! One word for each descriptor of the process, in a flat table.
//!
//! A word is zero unless this library handles the descriptor, so a call on any other descriptor costs a load and a branch. The
//! table consists of untouched zero pages, which take no memory until a word is set. Any thread and any signal handler may use
//! it.
//!
//! A child of `vfork` runs in the memory of its parent. Descriptors that it closes stay open in the parent, so it must change no
//! word ([`belongs_to_this_process`]).

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use libc::c_int;

/// Size of the table. Descriptors from this number on are never carried.
pub(crate) const LIMIT: usize = 1 << 16;

/// The bytes of this descriptor do not travel in the kernel's stream.
pub(crate) const CARRIED: u64 = 1;

/// The descriptor may become carried.
pub(crate) const CANDIDATE: u64 = 4;

/// The descriptor belongs to this library.
pub(crate) const INNER: u64 = 8;

/// The descriptor is an epoll set whose members may be carried.
pub(crate) const SET: u64 = 16;

/// The descriptor is an epoll set of the parent.
pub(crate) const INHERITED: u64 = 32;

/// The descriptor was a member of an epoll set before it could become carried.
pub(crate) const WATCHED: u64 = 64;

/// The descriptor belongs to a connection that the parent has too.
pub(crate) const SHARED: u64 = 128;

/// The descriptor belongs to this library, and shows a parent that this process has not ended.
pub(crate) const LIFELINE: u64 = INNER | SHARED;

/// The descriptor belongs to this library and to a carried connection. Children of fork keep it.
pub(crate) const OF_SIDE: u64 = INNER | INHERITED;
/// The descriptor was a member of known epoll sets before it was connected.
pub(crate) const EARLY: u64 = 1 << 24;

/// The report has a connection of this descriptor. The upper half of the word is its index there.
pub(crate) const REPORTED: u64 = 2;

static WORDS: [AtomicU64; LIMIT] = [const { AtomicU64::new(0) }; LIMIT];

/// Number of words that are not zero.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Words from this one on were never set.
static END: AtomicUsize = AtomicUsize::new(0);

/// The process whose descriptors the table describes.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Whether the bytes of a descriptor travel outside the kernel's stream. Every call checks this first.
#[inline(always)]
pub(crate) fn is_carried(fd: c_int) -> bool {
    word(fd) & CARRIED != 0
}

/// The word of a descriptor. 0 if this library does not handle it.
#[inline(always)]
pub(crate) fn word(fd: c_int) -> u64 {
    slot(fd).map_or(0, |slot| slot.load(Ordering::Acquire))
}

/// Whether this library must look at a call that moves bytes: the descriptor is carried or a candidate.
#[inline(always)]
pub(crate) fn is_ours(fd: c_int) -> bool {
    word(fd) & (CARRIED | CANDIDATE) != 0
}

/// Sets and clears bits of the word of a descriptor.
pub(crate) fn set(fd: c_int, ones: u64, zeros: u64) {
    set_if(fd, |_| true, ones, zeros);
}

/// The same if `is_one` accepts the current word.
pub(crate) fn set_if(fd: c_int, is_one: impl Fn(u64) -> bool, ones: u64, zeros: u64) {
    let Some(slot) = slot(fd) else { return };
    let change = |word| is_one(word).then_some(word & !zeros | ones);
    if let Ok(before) = slot.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
        count(fd, before != 0, before & !zeros | ones != 0);
    }
}

/// Whether any word is set. Calls on many descriptors check this before they look at each.
#[inline(always)]
pub(crate) fn any_used() -> bool {
    USED.load(Ordering::Acquire) != 0
}

/// Sets the word of a descriptor, and returns the old one. The word of a descriptor beyond the table stays 0.
pub(crate) fn replace(fd: c_int, word: u64) -> u64 {
    let Some(slot) = slot(fd) else { return 0 };
    let before = slot.swap(word, Ordering::AcqRel);
    count(fd, before != 0, word != 0);
    before
}

fn count(fd: c_int, before: bool, now: bool) {
    match (before, now) {
        (false, true) => {
            END.fetch_max(fd as usize + 1, Ordering::AcqRel);
            USED.fetch_add(1, Ordering::AcqRel);
        }
        (true, false) => _ = USED.fetch_sub(1, Ordering::AcqRel),
        _ => {}
    }
}

/// The descriptors of a range whose words are set.
pub(crate) fn used_in(range: RangeInclusive<u32>) -> impl Iterator<Item = c_int> {
    let end = (*range.end() as usize).saturating_add(1).min(END.load(Ordering::Acquire));
    let start = if any_used() { (*range.start() as usize).min(end) } else { end };
    (start..end).filter(|at| WORDS[*at].load(Ordering::Relaxed) != 0).map(|at| at as c_int)
}

/// Marks the table as this process's own. Runs at the start of the library, and in a child of `fork`.
pub(crate) fn take_over() {
    PROCESS.store(process_id(), Ordering::Relaxed);
}

/// Clears all words, so that this library handles no descriptor any more.
pub(crate) fn forget_all() {
    used_in(0..=u32::MAX).for_each(|fd| _ = replace(fd, 0));
    PROCESS.store(0, Ordering::Relaxed); // Not a PID. The comparison then needs no system call.
}

/// Whether the table describes the calling process. It does not in a child of `vfork` or of a bare `clone`.
pub(crate) fn belongs_to_this_process() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process == process_id()
}

fn process_id() -> c_int {
    // SAFETY: the call takes no arguments and cannot fail. This library does not replace `getpid`.
    unsafe { libc::getpid() }
}

#[inline(always)]
fn slot(fd: c_int) -> Option<&'static AtomicU64> {
    // A negative number is beyond the table too.
    WORDS.get(fd as u32 as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The table belongs to the whole process, so there is only one test.
    #[test]
    fn words_are_counted_and_bounded() {
        // Other tests use this process's low descriptors concurrently.
        assert!(used_in(60_000..=u32::MAX).next().is_none());
        assert_eq!(replace(60_000, CARRIED), 0);
        assert_eq!(replace(60_002, REPORTED | 7 << 32), 0);
        assert!(any_used());
        assert!(is_carried(60_000) && !is_carried(60_001) && !is_carried(60_002));
        assert_eq!(used_in(60_000..=u32::MAX).collect::<Vec<_>>(), [60_000, 60_002]);
        assert_eq!(used_in(60_001..=60_001).count(), 0);
        assert_eq!(used_in(60_001..=60_002).collect::<Vec<_>>(), [60_002]);
        assert_eq!(replace(60_002, REPORTED), REPORTED | 7 << 32);
        assert_eq!(replace(60_000, 0), CARRIED);
        set(60_001, CANDIDATE | 7 << 8, 0);
        assert!(is_ours(60_001) && !is_carried(60_001));
        set(60_001, CARRIED, CANDIDATE);
        assert_eq!(replace(60_001, 0), CARRIED | 7 << 8);
        assert_eq!((replace(60_002, 0), replace(60_002, 0)), (REPORTED, 0));

        for fd in [-1, c_int::MIN, LIMIT as c_int, c_int::MAX] {
            assert_eq!(replace(fd, CARRIED), 0);
            assert_eq!(word(fd), 0);
        }
        assert!(used_in(60_000..=u32::MAX).next().is_none());
    }
}
