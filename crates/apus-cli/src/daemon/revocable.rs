//! A value that several threads use and one thread ends.

use std::sync::{Arc, PoisonError, RwLock};

/// A value that threads use until [`end`](Self::end), which drops it in the thread that calls.
///
/// With an [`Arc`] alone, the last thread that uses the value would drop it: not before the program ends, if that thread is no longer
/// scheduled, and the files that the value removes would stay.
#[derive(Debug)]
pub(super) struct Revocable<T>(Arc<RwLock<Option<T>>>);

impl<T> Clone for Revocable<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Revocable<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Arc::new(RwLock::new(Some(value))))
    }

    /// Uses the value, beside other threads; nothing when it has ended.
    pub(super) fn with<R>(&self, use_it: impl FnOnce(&T) -> R) -> Option<R> {
        // A thread that panicked while it used the value has not changed it.
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(use_it)
    }

    /// Waits until no thread uses the value, and drops it.
    pub(super) fn end(self) {
        drop(self.0.write().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Counted<'c>(&'c Cell<u32>);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn the_value_is_dropped_at_the_end_although_others_have_it() {
        let drops = Cell::new(0);
        let revocable = Revocable::new(Counted(&drops));
        let other = revocable.clone();
        assert_eq!(other.with(|counted| counted.0.get()), Some(0));
        revocable.end();
        assert_eq!((drops.get(), other.with(|_| ())), (1, None));
    }
}
