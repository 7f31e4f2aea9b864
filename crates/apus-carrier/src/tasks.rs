//! Tasks that run on the thread that wakes them.
//!
//! A task that waits for a stream is woken by the thread that received a packet, and runs on it at once. An executor with its own
//! thread would add a wake-up of that thread to each message. A task that is woken while its thread runs another task waits until
//! that task returns. The crate `async-task` keeps the states of a task; this module only chooses its thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};

use async_task::Runnable;

thread_local! {
    /// Tasks that wait until this thread returns from another one; `None` while it runs none.
    static WAITING: RefCell<Option<VecDeque<Runnable>>> = const { RefCell::new(None) };
}

/// Runs a task until it waits, and whenever it is woken. A task that panics ends, and its values are dropped; other tasks continue.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    let (runnable, task) = async_task::spawn(work, run_in_turn);
    task.detach();
    runnable.schedule();
}

/// Whether this thread runs a task of a carrier. A panic there ends only the task.
#[must_use]
pub fn is_in_task() -> bool {
    WAITING.with_borrow(Option::is_some)
}

fn run_in_turn(task: Runnable) {
    let first = WAITING.with_borrow_mut(|waiting| match waiting {
        Some(tasks) => {
            tasks.push_back(task);
            None
        }
        None => {
            *waiting = Some(VecDeque::new());
            Some(task)
        }
    });
    let mut next = first;
    while let Some(task) = next {
        // The panic is printed, and the task's values are dropped.
        let _ = catch_unwind(AssertUnwindSafe(|| task.run()));
        next = WAITING.with_borrow_mut(|waiting| {
            let task = waiting.as_mut().and_then(VecDeque::pop_front);
            if task.is_none() {
                *waiting = None;
            }
            task
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::{Poll, Waker};

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
                    context.waker().wake_by_ref(); // It runs again after it returns.
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
        assert_eq!(runs.load(Ordering::Relaxed), 3, "the task has ended");
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

    #[test]
    fn a_task_that_panics_disturbs_no_other_one() {
        let runs = Arc::new(AtomicUsize::new(0));
        let (before, after) = (Arc::clone(&runs), Arc::clone(&runs));
        spawn(async move {
            assert!(is_in_task());
            spawn(async move {
                before.fetch_add(1, Ordering::Relaxed);
            });
            panic!("this test wants a panic");
        });
        assert!(!is_in_task());
        spawn(async move {
            after.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }
}
