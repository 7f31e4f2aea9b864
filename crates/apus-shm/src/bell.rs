//! How one process wakes the other one.
//!
//! A process that is about to sleep makes a word of its own odd, then looks once more for what it waits for. A process that has
//! written something for the other one reads that word afterwards, and writes to the other one's event if the word is odd. The two
//! fences order each write before the read behind it in both processes. So either the sleeper sees what was written, or the
//! writer sees that the other one sleeps, or both.
//!
//! The word counts, so one sleep gets one wake-up, however much is written.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// A word and a fence. The model in the tests has others.
pub trait Word {
    /// Its value.
    fn load(&self, ordering: Ordering) -> u64;
    /// Sets it.
    fn store(&self, value: u64, ordering: Ordering);
    /// A sequentially consistent fence.
    fn full_fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u64 {
        Self::load(self, ordering)
    }

    #[inline]
    fn store(&self, value: u64, ordering: Ordering) {
        Self::store(self, value, ordering);
    }

    #[inline]
    fn full_fence() {
        fence(Ordering::SeqCst);
    }
}

/// Asks to be woken, by a `word` of this process. The caller looks once more before it sleeps.
pub fn ask<W: Word>(word: &W) {
    let count = word.load(Ordering::Relaxed);
    word.store(count | 1, Ordering::Relaxed);
    W::full_fence();
}

/// Asks no longer.
pub fn withdraw<W: Word>(word: &W) {
    let count = word.load(Ordering::Relaxed);
    if count % 2 == 1 {
        word.store(count.wrapping_add(1), Ordering::Release);
    }
}

/// After something was written for the peer: its count if it is to be woken and was not woken for the same count before. `read`
/// reads the peer's word.
#[inline]
pub fn asked<W: Word>(read: impl FnOnce() -> u64) -> Option<u64> {
    W::full_fence();
    Some(read()).filter(|count| count % 2 == 1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use loom::sync::atomic::AtomicU64 as Modelled;

    use super::*;

    impl Word for Modelled {
        fn load(&self, ordering: Ordering) -> u64 {
            Self::load(self, ordering)
        }

        fn store(&self, value: u64, ordering: Ordering) {
            Self::store(self, value, ordering);
        }

        fn full_fence() {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    #[derive(Default)]
    struct Shared {
        frame: Modelled,
        bell: Modelled,
    }

    /// One sleep of the reader; whether it slept.
    fn sleeps(shared: &Shared) -> bool {
        ask(&shared.bell);
        if shared.frame.load(Ordering::Acquire) == 0 {
            return true;
        }
        withdraw(&shared.bell);
        false
    }

    #[test]
    fn nobody_sleeps_over_a_frame() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let writer = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    shared.frame.store(1, Ordering::Release);
                    asked::<Modelled>(|| shared.bell.load(Ordering::Relaxed)).is_some()
                })
            };
            let slept = sleeps(&shared);
            let rang = writer.join().unwrap();
            assert!(rang || !slept, "the reader sleeps, a frame is there, and nobody has rung");
        });
    }

    #[test]
    fn each_sleep_has_a_count_of_its_own() {
        let bell = AtomicU64::new(0);
        let asked = || asked::<AtomicU64>(|| bell.load(Ordering::Relaxed));
        assert_eq!(asked(), None, "nobody sleeps");
        ask(&bell);
        ask(&bell);
        let first = asked();
        assert!(first.is_some());
        withdraw(&bell);
        withdraw(&bell);
        assert_eq!(asked(), None);
        ask(&bell);
        assert!(asked().is_some() && asked() != first);
    }
}
