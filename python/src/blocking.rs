//! Futures on threads that wait, without the GIL.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use pyo3::prelude::*;

use crate::waiting;

struct Unpark {
    thread: Thread,
    /// Code inside the future may park the thread, and take the token of a wake-up.
    is_due: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_due.swap(true, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

/// Waits for a future. Handlers of signals run meanwhile in the main thread.
///
/// # Errors
///
/// The exception of such a handler.
pub(crate) fn block_on<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send + Unpin,
    F::Output: Send,
{
    let mut future = future;
    let unpark = Arc::new(Unpark { thread: thread::current(), is_due: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&unpark));
    let result = waiting::wait(py, None, |slice| {
        let until = slice.and_then(|slice| Instant::now().checked_add(slice));
        let mut task = Context::from_waker(&waker);
        loop {
            if unpark.is_due.swap(false, Ordering::SeqCst)
                && let Poll::Ready(output) = Pin::new(&mut future).poll(&mut task)
            {
                return Some(output);
            }
            if unpark.is_due.load(Ordering::SeqCst) {
                continue;
            }
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(left) if left.is_zero() => return None,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    })?;
    Ok(result.expect("a wait without end has a result"))
}
