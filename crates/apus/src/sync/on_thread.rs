//! Work that blocks, as a future for any executor.

use std::any::Any;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

type Work<T> = Box<dyn FnOnce() -> T + Send>;

/// Work on a thread of its own. Dropping the future does not end the work.
pub(crate) struct OnThread<T>(Arc<Mutex<Job<T>>>);

enum Job<T> {
    /// The thread has not begun.
    Waits(Work<T>, Option<Waker>),
    Runs(Option<Waker>),
    Done(Result<T, Box<dyn Any + Send>>),
    /// The result was handed out.
    Taken,
}

fn lock<T>(state: &Mutex<Job<T>>) -> MutexGuard<'_, Job<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the work unless it was begun, and wakes the task that waits for it.
fn run<T>(state: &Mutex<Job<T>>) {
    let work = {
        let mut state = lock(state);
        match std::mem::replace(&mut *state, Job::Taken) {
            Job::Waits(work, waker) => {
                *state = Job::Runs(waker);
                work
            }
            other => {
                *state = other;
                return;
            }
        }
    };
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    let before = std::mem::replace(&mut *lock(state), Job::Done(done));
    if let Job::Runs(Some(waker)) = before {
        waker.wake();
    }
}

impl<T: Send + 'static> OnThread<T> {
    /// Begins the work. If the system has no thread left, it is done here and now.
    pub(crate) fn begin(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let state = Arc::new(Mutex::new(Job::Waits(Box::new(work) as Work<T>, None)));
        let of_thread = Arc::clone(&state);
        let builder = thread::Builder::new().name("apus-work".to_owned());
        if builder.spawn(move || run(&of_thread)).is_err() {
            run(&state);
        }
        Self(state)
    }
}

impl<T> Future for OnThread<T> {
    type Output = T;

    /// # Panics
    ///
    /// If the work has panicked, or if it is polled after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0);
        if let Job::Waits(_, waker) | Job::Runs(waker) = &mut *state {
            *waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, Job::Taken) {
            Job::Done(Ok(output)) => Poll::Ready(output),
            Job::Done(Err(panic)) => {
                drop(state);
                panic::resume_unwind(panic)
            }
            _ => panic!("a future is not polled after it was ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct Unpark(thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut future = std::pin::pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    #[test]
    fn work_goes_on_elsewhere_and_its_result_comes() {
        let (go, may_go) = mpsc::channel();
        let mut work = OnThread::begin(move || {
            may_go.recv().unwrap();
            (thread::current().id(), 7)
        });
        let polled = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        go.send(()).unwrap();
        let (thread, number) = block_on(work);
        assert_eq!((thread == thread::current().id(), number), (false, 7));
    }

    #[test]
    fn a_panic_of_the_work_is_one_of_the_task() {
        let work = OnThread::begin(|| -> u8 { panic!("on purpose") });
        let panic = panic::catch_unwind(AssertUnwindSafe(|| block_on(work))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    }
}
