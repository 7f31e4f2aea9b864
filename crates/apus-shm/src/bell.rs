//! Wake-ups between two processes.
//!
//! A process that is about to sleep makes a word of its own odd, then checks once more for input. A process that has written
//! something for its peer reads the peer's word afterwards, and writes to the peer's event if the word is odd. The two fences order
//! each write before the following read in both processes. So either the sleeper sees the written data, or the writer sees that its
//! peer sleeps, or both.
//!
//! The word counts, so one sleep gets one wake-up, however many writes follow.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The operations on a bell's word. The model in the tests implements others.
pub trait Word {
    /// Returns the value.
    fn load(&self, ordering: Ordering) -> u64;
    /// Sets the value.
    fn store(&self, value: u64, ordering: Ordering);
    /// Executes a sequentially consistent fence.
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

/// Arms the bell of a `word` of this process. The caller checks for input once more before it sleeps.
pub fn ask<W: Word>(word: &W) {
    let count = word.load(Ordering::Relaxed);
    word.store(count | 1, Ordering::Relaxed);
    W::full_fence();
}

/// Disarms the bell.
pub fn withdraw<W: Word>(word: &W) {
    let count = word.load(Ordering::Relaxed);
    if count % 2 == 1 {
        word.store(count.wrapping_add(1), Ordering::Release);
    }
}

/// Returns the peer's count after a write, if the peer must be woken. Each count needs only one wake-up. `read` reads the peer's
/// word.
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

    /// Performs one sleep of the reader. Returns whether it slept.
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
            assert!(rang || !slept, "the reader sleeps, a frame is there, and no bell has rung");
        });
    }

    #[test]
    fn each_sleep_has_a_count_of_its_own() {
        let bell = AtomicU64::new(0);
        let asked = || asked::<AtomicU64>(|| bell.load(Ordering::Relaxed));
        assert_eq!(asked(), None, "no thread sleeps");
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
