//! How bytes are copied into a ring.
//!
//! The C library copies 2,112 bytes and more by one instruction (`rep movsb`) where the processor says that it is fast. It takes 100 ns
//! more here than a loop if the lines to be written are in the cache of another processor, as those of a ring are. So copies are made
//! in steps, after the lines were fetched. Copies out of a ring are not: they gain nothing, and lose a tenth where the processors share no cache.
//!
//! Long writes are copied into the ring through the caches, or past them.
//! The ring's cache lines are in the cache of the processor that has read them. Where both processors share a cache, a copy through it
//! is more than twice as fast as one past it. Where they do not, each line that is written is first taken away from the other
//! processor, and a copy past the caches is faster by half. Which it is changes: threads move, and so do the processors of a virtual
//! machine. So both ways are tried now and then, and the one that has been faster is used.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use apus_shm::Memory;

use crate::carry::spin::Clock;

/// Shorter pieces go through the caches, since the peer is likely to wait for them.
const LEAST: usize = 2 << 10;
/// Bytes after which the time is looked at.
const WINDOW: u64 = 512 << 10;
/// Windows of which one is a try of the other way.
const TRY_EVERY: u32 = 16;

/// Bytes that the C library copies in one go.
const STEP: usize = 2 << 10;

/// Lines of this many bytes and more are fetched before they are written.
const LEAST_FETCHED: usize = 1 << 10;
const LINE: usize = 64;

/// The ways of a direction, for the holder of its write token.
pub(crate) struct Copying {
    /// Bytes of this window, and when it began, in nanoseconds.
    bytes: AtomicU64,
    began: AtomicU64,
    windows: AtomicU32,
    /// How long the last window took through the caches, and past them, in nanoseconds.
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

    /// Whether the next `bytes` go past the caches.
    #[inline]
    pub(crate) fn is_past_caches(&self, bytes: usize) -> bool {
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

    /// The way of a window.
    fn way(&self, windows: u32) -> bool {
        let [through, past] = [0, 1].map(|way| self.took[way].load(Ordering::Relaxed));
        (past < through) != windows.is_multiple_of(TRY_EVERY)
    }
}

/// What is known of a way whose last window took so long. A window in which another thread had the processor says little.
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
/// As for [`Memory::copy_in_shared`].
#[inline]
pub(crate) unsafe fn copy(
    memory: &Memory,
    at: usize,
    from: *const u8,
    length: usize,
    is_past_caches: bool,
) {
    #[cfg(target_arch = "x86_64")]
    if is_past_caches {
        // SAFETY: guaranteed by the caller.
        return unsafe { memory.copy_in_past_caches(at, from, length) };
    }
    let _ = is_past_caches;
    if length >= LEAST_FETCHED {
        fetch(memory, at, length);
    }
    for done in (0..length).step_by(STEP) {
        // SAFETY: as above, for a part of the bytes.
        unsafe { memory.copy_in_shared(at + done, from.add(done), STEP.min(length - done)) };
    }
}

/// Has the processor take the lines away from the other one. It takes more of them at a time for that than for stores.
#[inline]
fn fetch(memory: &Memory, at: usize, length: usize) {
    let first = memory.address(at, length);
    for line in (0..length).step_by(LINE) {
        let line = first.wrapping_add(line);
        // SAFETY: the instruction changes nothing. Processors that do not know it have another one there, which does nothing.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags));
        }
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_way_is_used_and_the_other_one_tried() {
        let copying = Copying::new();
        assert!(!copying.is_past_caches(100), "short writes go through the caches");
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
