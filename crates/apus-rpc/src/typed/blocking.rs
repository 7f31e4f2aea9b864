//! Threads for methods that block.

use std::future::poll_fn;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

use crate::context::Context;
use crate::server::Workers;
use crate::spawning::Spawn;

/// Most threads of a service whose methods block. Further requests wait for one of them.
const THREADS_MAX: usize = 64;

/// The threads of a service for its methods `#[blocking]`, each started when a request finds no idle one.
#[derive(Clone)]
pub struct BlockingThreads {
    workers: Arc<Workers>,
}

impl std::fmt::Debug for BlockingThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockingThreads").finish_non_exhaustive()
    }
}

impl Default for BlockingThreads {
    fn default() -> Self {
        Self { workers: Arc::new(Workers::new(THREADS_MAX)) }
    }
}

/// The result of a function on another thread, and the task that waits for it.
struct Pending<T> {
    result: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

/// Stores a result when it is dropped, so that the task is woken also if the function never ran.
struct Completion<T> {
    pending: Arc<Mutex<Pending<T>>>,
    result: Option<thread::Result<T>>,
}

impl<T> Completion<T> {
    fn finish(mut self, result: thread::Result<T>) {
        self.result = Some(result);
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        let gone = || Err(Box::new("no thread ran the method") as _);
        let result = self.result.take().unwrap_or_else(gone);
        let waker = {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.result = Some(result);
            pending.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl BlockingThreads {
    /// Runs a method on one of the threads, in the context of its request. A panic is that of the calling task. A method that has begun
    /// goes on if the request is given up, and may ask [`Context::is_cancelled`]; one that waits for a thread does not begin then.
    pub async fn run<T: Send + 'static>(
        &self,
        context: Context,
        method: impl FnOnce(&Context) -> T + Send + 'static,
    ) -> T {
        let pending = Arc::new(Mutex::new(Pending { result: None, waker: None }));
        let completion = Completion { pending: Arc::clone(&pending), result: None };
        self.workers.spawn(Box::pin(async move {
            if context.is_cancelled() {
                return;
            }
            let run = || context.enter(|| method(&context));
            completion.finish(panic::catch_unwind(AssertUnwindSafe(run)));
        }));
        let result = poll_fn(|task| {
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(result) = pending.result.take() {
                return Poll::Ready(result);
            }
            pending.waker = Some(task.waker().clone());
            Poll::Pending
        })
        .await;
        result.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}
