//! An event that happens at most once, and the tasks that wait for it.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Whether a call was given up. Waiting costs an entry for each waiting future.
#[derive(Default, Debug)]
pub(crate) struct Cancellation {
    state: Mutex<CancellationState>,
}

#[derive(Default, Debug)]
struct CancellationState {
    happened: bool,
    next: u64,
    waiting: Vec<(u64, Waker)>,
}

impl Cancellation {
    fn state(&self) -> MutexGuard<'_, CancellationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has not happened, as a new one.
    pub(crate) fn renew(&mut self) {
        *self.state.get_mut().unwrap_or_else(PoisonError::into_inner) =
            CancellationState::default();
    }

    /// Lets the event happen, and wakes the tasks that wait for it.
    pub(crate) fn cancel(&self) {
        let waiting = {
            let mut state = self.state();
            state.happened = true;
            mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.state().happened
    }

    /// Ready if the event has happened. Otherwise the task is woken when it happens; `place` is the entry of the waiting future.
    fn poll(&self, place: &mut Option<u64>, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.happened {
            return Poll::Ready(());
        }
        let known = place.and_then(|place| state.waiting.iter_mut().find(|it| it.0 == place));
        if let Some((_, waker)) = known {
            waker.clone_from(context.waker());
            return Poll::Pending;
        }
        let number = state.next;
        state.next += 1;
        *place = Some(number);
        state.waiting.push((number, context.waker().clone()));
        Poll::Pending
    }

    fn forget(&self, place: u64) {
        self.state().waiting.retain(|it| it.0 != place);
    }
}

/// Waits for a [`Cancellation`], which `S` leads to.
pub(crate) struct WaitCancelled<S: AsRef<Cancellation>> {
    source: S,
    place: Option<u64>,
}

impl<S: AsRef<Cancellation>> WaitCancelled<S> {
    pub(crate) fn new(source: S) -> Self {
        Self { source, place: None }
    }
}

impl<S: AsRef<Cancellation> + Unpin> Future for WaitCancelled<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        this.source.as_ref().poll(&mut this.place, context)
    }
}

impl<S: AsRef<Cancellation>> Drop for WaitCancelled<S> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.source.as_ref().forget(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use super::*;

    struct SharedCancellation(Arc<Cancellation>);

    impl AsRef<Cancellation> for SharedCancellation {
        fn as_ref(&self) -> &Cancellation {
            &self.0
        }
    }

    #[test]
    fn a_waiting_future_has_one_entry_and_leaves_none() {
        let cancellation = Arc::new(Cancellation::default());
        let mut context = Context::from_waker(Waker::noop());
        let mut first = WaitCancelled::new(SharedCancellation(Arc::clone(&cancellation)));
        for _ in 0..2 {
            assert!(Pin::new(&mut first).poll(&mut context).is_pending());
            assert_eq!(cancellation.state().waiting.len(), 1);
        }
        let mut second = WaitCancelled::new(SharedCancellation(Arc::clone(&cancellation)));
        assert!(Pin::new(&mut second).poll(&mut context).is_pending());
        drop(first);
        assert_eq!(cancellation.state().waiting.len(), 1);
        cancellation.cancel();
        assert!(Pin::new(&mut second).poll(&mut context).is_ready());
        assert!(cancellation.state().waiting.is_empty());
    }
}
