//! Threads that wait at a socket with an end in each of several shards.
//!
//! Such a thread leads in one shard, its home, and sleeps on that shard's link. This state records messages that arrive in a shard
//! without a waiting thread, and a thread that waits in another shard takes them: a polling thread sees the record, a sleeping
//! thread is woken. Both sides write first and read afterwards, so that at least one of them sees the other.

use crate::delivery::parker::{Waiter, WaiterId};
use crate::sync::{AtomicU64, Mutex, Ordering, PoisonError};

/// State that the ends of a socket share. Its lock is taken under the locks of engines, never the other way.
#[derive(Debug, Default)]
pub(crate) struct CrossShardWaiters {
    /// Bit n: shard n has messages without a waiter there.
    mail: AtomicU64,
    /// Bytes of the socket's budget that the ends hold, as last published.
    held: AtomicU64,
    /// Threads asleep in any shard; the one that slept last is at the end.
    asleep: Mutex<Vec<Waiter>>,
}

impl CrossShardWaiters {
    /// Returns whether messages without a waiter are in any shard.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.load(Ordering::SeqCst) != 0
    }

    /// Records that a message waits in `shard`. Returns the waiter to wake, the one that slept last.
    pub(crate) fn note(&self, shard: usize) -> Option<Waiter> {
        self.mail.fetch_or(1 << shard, Ordering::SeqCst);
        self.lock().pop()
    }

    /// Records that no message is left in `shard`. Called under the lock of its engine.
    pub(crate) fn taken(&self, shard: usize) {
        self.mail.fetch_and(!(1 << shard), Ordering::SeqCst);
    }

    /// Changes the published bytes of an end from `before` to `held`. Returns the bytes of the other ends.
    pub(crate) fn hold(&self, before: u64, held: u64) -> u64 {
        let all = self.held.fetch_add(held.wrapping_sub(before), Ordering::Relaxed);
        all.wrapping_sub(before)
    }

    /// Registers a thread that has prepared to sleep, so that any shard may wake it.
    pub(crate) fn enlist(&self, waiter: Waiter) {
        let id = waiter.id();
        self.lock().push(waiter);
        if self.has_mail()
            && let Some(waiter) = self.delist(id)
        {
            waiter.wake();
        }
    }

    /// Removes a thread that is awake.
    pub(crate) fn delist(&self, id: WaiterId) -> Option<Waiter> {
        let mut asleep = self.lock();
        let at = asleep.iter().rposition(|waiter| waiter.id() == id)?;
        Some(asleep.remove(at))
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Vec<Waiter>> {
        self.asleep.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::delivery::parker::Parker;

    fn thread() -> (Arc<Parker>, Waiter) {
        let parker = Arc::new(Parker::new());
        parker.prepare();
        (Arc::clone(&parker), Waiter::Thread(parker))
    }

    #[test]
    fn the_last_sleeper_comes_first() {
        let cross_shard = CrossShardWaiters::default();
        let ((first, one), (second, two)) = (thread(), thread());
        cross_shard.enlist(one);
        cross_shard.enlist(two);
        assert_eq!(cross_shard.note(3).map(|waiter| waiter.id()), Some(second.id()));
        assert_eq!(cross_shard.note(3).map(|waiter| waiter.id()), Some(first.id()));
        assert!(cross_shard.note(5).is_none() && cross_shard.has_mail());
        cross_shard.taken(3);
        assert!(cross_shard.has_mail());
        cross_shard.taken(5);
        assert!(!cross_shard.has_mail());
    }

    #[test]
    fn who_comes_to_sleep_too_late_does_not() {
        let cross_shard = CrossShardWaiters::default();
        assert!(cross_shard.note(0).is_none());
        let (parker, waiter) = thread();
        cross_shard.enlist(waiter);
        assert!(cross_shard.delist(parker.id()).is_none(), "it was called instead");
    }

    #[test]
    fn each_end_knows_what_the_others_hold() {
        let cross_shard = CrossShardWaiters::default();
        assert_eq!(cross_shard.hold(0, 10), 0);
        assert_eq!(cross_shard.hold(0, 100), 10);
        assert_eq!(cross_shard.hold(10, 1), 100);
        assert_eq!(cross_shard.hold(100, 0), 1);
        assert_eq!(cross_shard.hold(1, 0), 0);
    }
}
