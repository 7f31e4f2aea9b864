//! Futures on threads that wait.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};

/// Polls a future on the calling thread, which sleeps while the future waits.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark {
        thread: Thread,
        /// Code inside the future may park the thread, and take the token of a wake-up.
        is_due: AtomicBool,
    }
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.is_due.store(true, Ordering::SeqCst);
            self.thread.unpark();
        }
    }
    let unpark = Arc::new(Unpark { thread: thread::current(), is_due: AtomicBool::new(false) });
    let waker = Arc::clone(&unpark).into();
    let (mut task, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut task) {
            return output;
        }
        while !unpark.is_due.swap(false, Ordering::SeqCst) {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_wake_up_is_kept_although_code_inside_a_poll_parks_the_thread() {
        let mut polls = 0;
        let polled = poll_fn(|task| {
            polls += 1;
            if polls == 2 {
                return Poll::Ready(polls);
            }
            task.waker().wake_by_ref();
            // Takes the token of the wake-up.
            thread::park();
            Poll::Pending
        });
        assert_eq!(block_on(polled), 2);
    }
}
