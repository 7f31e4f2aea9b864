//! A sign that a stream of the node may have something, which costs no look at the node.
//!
//! tarpc polls a transport several times for a message: after each item, and after each message that it has sent. A look at the node
//! takes its lock, so the transport looks only after it was woken, or after it has found something.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The sign, and the waker that sets it.
pub(crate) struct Sign {
    state: Arc<SignState>,
    waker: Waker,
}

struct SignState {
    is_set: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for SignState {
    fn wake(self: Arc<Self>) {
        self.is_set.store(true, Ordering::SeqCst);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        task.into_iter().for_each(Waker::wake);
    }
}

impl Sign {
    /// A sign that is set.
    pub(crate) fn new() -> Self {
        let (is_set, task) = (AtomicBool::new(true), Mutex::new(None));
        let state = Arc::new(SignState { is_set, task });
        let waker = Arc::clone(&state).into();
        Self { state, waker }
    }

    /// Looks if the sign is set. Otherwise the task is woken when it is.
    pub(crate) fn poll<T>(
        &self,
        task: &Context<'_>,
        look: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        match &mut *self.state.task.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(known) => known.clone_from(task.waker()),
            none => *none = Some(task.waker().clone()),
        }
        // A wake-up before this is seen here, and a later one wakes the task.
        if !self.state.is_set.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let found = look(&mut Context::from_waker(&self.waker));
        if found.is_ready() {
            self.state.is_set.store(true, Ordering::SeqCst);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_look_follows_a_wake_up_or_a_find() {
        let sign = Sign::new();
        let (first, last) = (Arc::<Woken>::default(), Arc::<Woken>::default());
        let look = |task: &Arc<Woken>, found: Poll<()>| {
            let (waker, mut inside) = (Arc::clone(task).into(), None);
            let polled = sign.poll(&Context::from_waker(&waker), |context| {
                inside = Some(context.waker().clone());
                found
            });
            (polled, inside)
        };
        let is_looked = |it: (Poll<()>, Option<Waker>)| it.1.is_some();
        assert!(is_looked(look(&first, Poll::Ready(()))));
        let (polled, inside) = look(&first, Poll::Pending);
        assert!(polled.is_pending());
        let waker = inside.expect("it was looked again");
        assert!(!is_looked(look(&last, Poll::Ready(()))), "nobody has woken it");
        waker.wake();
        assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
        assert!(is_looked(look(&first, Poll::Pending)));
    }
}
