//! Copies into a ring.
//!
//! The C library copies 2,112 bytes and more by `rep movsb` on processors that execute it fast. If another processor's cache has
//! the destination lines, as is usual for a ring, that takes 100 ns longer than a loop. So a copy is made in steps, after its
//! lines were prefetched. Copies out of a ring are not: they gain nothing, and lose a tenth where the processors share no cache.
//!
//! Long writes are copied into the ring either through the caches or past them. The reader's processor has the ring's lines in
//! its cache. Where both processors share a cache, a copy through it is more than twice as fast. Where they do not, each written
//! line must first be taken from the other processor, and a copy past the caches is 1.5 times as fast. Threads move between
//! processors, and so do the processors of a virtual machine. So the slower way is tried now and then, and the faster one is
//! used.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use apus_shm::Memory;

use crate::carry::spin::Clock;

/// Shorter pieces go through the caches, because the peer probably waits for them.
const LEAST: usize = 2 << 10;
/// Bytes of a window, after which the time is measured.
const WINDOW: u64 = 512 << 10;
/// One window of this many tries the other way.
const TRY_EVERY: u32 = 16;

/// Bytes of one step: the C library copies them without `rep movsb`.
const STEP: usize = 2 << 10;

/// Pieces of at least this many bytes are prefetched before they are written.
const LEAST_FETCHED: usize = 1 << 10;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Measurements of both ways for one direction. Only for the holder of its write token.
pub(crate) struct Copying {
    /// Bytes copied in this window.
    bytes: AtomicU64,
    /// Start of the window, in nanoseconds.
    began: AtomicU64,
    windows: AtomicU32,
    /// Duration of the last window through the caches and past them, in nanoseconds.
    took: [AtomicU64; 2],
}

impl Copying {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            began: AtomicU64::new(0),
            windows: AtomicU32::new(0),
            took: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Whether the next `bytes` are copied past the caches.
    #[inline]
    pub(crate) fn is_non_temporal(&self, bytes: usize) -> bool {
        cfg!(target_arch = "x86_64") && bytes >= LEAST && self.count(bytes)
    }

    fn count(&self, bytes: usize) -> bool {
        let before = self.bytes.load(Ordering::Relaxed);
        let (all, windows) = (before + bytes as u64, self.windows.load(Ordering::Relaxed));
        let is_past = self.way(windows);
        if all < WINDOW {
            self.bytes.store(all, Ordering::Relaxed);
            return is_past;
        }
        let now = Clock::now().as_nanos() as u64;
        let began = self.began.swap(now, Ordering::Relaxed);
        let known = &self.took[usize::from(is_past)];
        let before = known.load(Ordering::Relaxed);
        known.store(settled(before, now.saturating_sub(began)), Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.windows.store(windows.wrapping_add(1), Ordering::Relaxed);
        self.way(windows.wrapping_add(1))
    }

    /// The way that the window uses.
    fn way(&self, windows: u32) -> bool {
        let [through, past] = [0, 1].map(|way| self.took[way].load(Ordering::Relaxed));
        (past < through) != windows.is_multiple_of(TRY_EVERY)
    }
}

/// The new estimate for a way whose last window took `took`. A window in which the thread was preempted counts for little.
fn settled(before: u64, took: u64) -> u64 {
    match before {
        0 => took,
        _ => took.min(before + before / 4),
    }
}

/// Copies into shared memory.
///
/// # Safety
///
/// The conditions of [`Memory::copy_in_shared`].
#[inline]
pub(crate) unsafe fn copy(
    memory: &Memory,
    at: usize,
    from: *const u8,
    length: usize,
    is_non_temporal: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if is_non_temporal {
        // SAFETY: guaranteed by the caller.
        return unsafe { memory.copy_in_non_temporal(at, from, length) };
    }
    let _ = is_non_temporal;
    if length >= LEAST_FETCHED {
        // The lines come from the other processor by prefetch, which has more of them in flight than stores have.
        (0..length).step_by(LINE).for_each(|line| memory.fetch_to_write(at + line));
    }
    for done in (0..length).step_by(STEP) {
        // SAFETY: as above, for a part of the bytes.
        unsafe { memory.copy_in_shared(at + done, from.add(done), STEP.min(length - done)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_used_and_the_other_one_tried() {
        let copying = Copying::new();
        assert!(!copying.is_non_temporal(100), "short writes go through the caches");
        let set = |took: [u64; 2]| {
            copying
                .took
                .iter()
                .zip(took)
                .for_each(|(word, took)| word.store(took, Ordering::Relaxed));
        };
        for (took, most) in [([100, 200], false), ([200, 100], true)] {
            set(took);
            let ways: Vec<bool> = (0..TRY_EVERY).map(|windows| copying.way(windows)).collect();
            assert_eq!(ways.iter().filter(|way| **way == most).count(), TRY_EVERY as usize - 1);
        }
        assert_eq!([settled(0, 100), settled(100, 50), settled(100, 9_000)], [100, 50, 125]);
        set([0, 0]);
        let windows = || copying.windows.load(Ordering::Relaxed);
        while windows() < 3 {
            copying.count(64 << 10);
        }
        assert!(copying.took[0].load(Ordering::Relaxed) > 0);
    }
}
