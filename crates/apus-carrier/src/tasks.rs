//! Tasks that run in whichever thread wakes them.
//!
//! A task that waits for a stream is woken by the thread that has received a packet. It runs there at once, which saves a handoff to
//! another thread for each message. A task that is woken while its thread runs another one waits until that one has returned.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    state: AtomicU8,
    /// `None` when it is done.
    work: Mutex<Option<Work>>,
}

const IDLE: u8 = 0;
/// It runs, or is about to.
const RUNS: u8 = 1;
/// It was woken meanwhile.
const AGAIN: u8 = 2;

thread_local! {
    /// Tasks that wait until this thread has returned from another one; `None` while it runs none.
    static WAITING: RefCell<Option<VecDeque<Arc<Task>>>> = const { RefCell::new(None) };
}

/// Runs a task until it waits, and whenever it is woken.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    let work = Mutex::new(Some(Box::pin(work) as Work));
    Waker::from(Arc::new(Task { state: AtomicU8::new(IDLE), work })).wake();
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            Some(if state == IDLE { RUNS } else { AGAIN })
        });
        if before == Ok(IDLE) {
            run_in_turn(self);
        }
    }
}

fn run_in_turn(task: Arc<Task>) {
    let waits = WAITING.with_borrow_mut(|waiting| match waiting {
        Some(tasks) => {
            tasks.push_back(Arc::clone(&task));
            true
        }
        None => {
            *waiting = Some(VecDeque::new());
            false
        }
    });
    if waits {
        return;
    }
    let mut next = Some(task);
    while let Some(task) = next {
        task.run();
        next = WAITING.with_borrow_mut(|waiting| {
            let task = waiting.as_mut().and_then(VecDeque::pop_front);
            if task.is_none() {
                *waiting = None;
            }
            task
        });
    }
}

impl Task {
    fn run(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        loop {
            self.state.store(RUNS, Ordering::Release);
            {
                let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(future) = work.as_mut() else { return };
                if future.as_mut().poll(&mut context) == Poll::Ready(()) {
                    *work = None;
                    return; // It stays in `RUNS`, so that no wake-up runs it.
                }
            }
            let rests =
                self.state.compare_exchange(RUNS, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if rests.is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_task_runs_once_for_each_wake_up() {
        let (runs, slot) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        let (counted, kept) = (Arc::clone(&runs), Arc::clone(&slot));
        spawn(poll_fn(move |context| {
            *kept.lock().unwrap() = Some(context.waker().clone());
            match counted.fetch_add(1, Ordering::Relaxed) {
                0 => Poll::Pending,
                1 => {
                    context.waker().wake_by_ref(); // It runs again after it has returned.
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        }));
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        let waker: Waker = slot.lock().unwrap().take().unwrap();
        waker.wake_by_ref();
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        waker.wake();
        assert_eq!(runs.load(Ordering::Relaxed), 3, "it is done");
    }

    #[test]
    fn a_task_that_another_one_wakes_runs_after_it() {
        let order = Arc::new(Mutex::new(Vec::new()));
        let (outer, inner) = (Arc::clone(&order), Arc::clone(&order));
        spawn(async move {
            spawn(async move { inner.lock().unwrap().push("inner") });
            outer.lock().unwrap().push("outer");
        });
        assert_eq!(*order.lock().unwrap(), ["outer", "inner"]);
    }
}
