//! Requests for wake-ups by the threads of a side. Several threads may sleep at a time, and each sleep needs its own wake-up.
//!
//! The word is the one of [`apus_shm::bell`]: it is odd while a thread sleeps, and the peer wakes the side once for each value.
//! Here several threads change it, so a sleep that begins during another one sets a new odd value.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Requests a wake-up. The caller looks once more before it sleeps.
pub(crate) fn ask(word: &AtomicU64) {
    let next = |count: u64| Some(count.wrapping_add(if count.is_multiple_of(2) { 1 } else { 2 }));
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    fence(Ordering::SeqCst);
}

/// Runs after a sleeper has woken. Disarms the bell, unless other threads sleep. The caller then looks once more on their behalf.
pub(crate) fn withdraw(word: &AtomicU64, others_sleep: impl Fn() -> bool) {
    loop {
        let count = word.load(Ordering::Relaxed);
        if count.is_multiple_of(2) {
            return;
        }
        let next = count.wrapping_add(if others_sleep() { 2 } else { 1 });
        if word.compare_exchange(count, next, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            return fence(Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sleep_has_a_count_of_its_own() {
        let word = AtomicU64::new(0);
        let begin = || {
            ask(&word);
            word.load(Ordering::Relaxed)
        };
        let end = |others: bool| {
            withdraw(&word, || others);
            word.load(Ordering::Relaxed)
        };
        assert_eq!([begin(), begin()], [1, 3]);
        assert_eq!(end(true), 5);
        assert_eq!(end(false), 6);
        assert_eq!(begin(), 7);
    }
}
