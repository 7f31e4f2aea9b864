//! Threads of the process that run the tasks of its channels.

use std::collections::VecDeque;
use std::future::Future;
use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use async_task::{FallibleTask, Runnable};

/// Keeps the lists of endpoints, and contacts endpoints that have failed. Its tasks never block.
pub(crate) static UPKEEP: TaskThreads = TaskThreads::new("apus-rpc-upkeep", 1);

/// Looks names up with the system's resolver, which blocks, for many seconds if a name server is silent.
pub(crate) static LOOKUPS: TaskThreads = TaskThreads::new("apus-rpc-lookup", 16);

/// Threads that are started with a task that finds no idle one, up to a number. The first one stays; the others end when they have
/// been idle. A forked child of the process has threads of its own.
pub(crate) struct TaskThreads {
    name: &'static str,
    threads_max: usize,
    state: Mutex<TaskQueue>,
    work: Condvar,
}

struct TaskQueue {
    /// The process whose threads run; 0 for none.
    process: u32,
    threads: usize,
    idle: usize,
    ready: VecDeque<Runnable>,
}

/// Time for which a thread beside the first one waits for a task.
const IDLE_MAX: Duration = Duration::from_secs(10);

impl TaskThreads {
    const fn new(name: &'static str, threads_max: usize) -> Self {
        let state = TaskQueue { process: 0, threads: 0, idle: 0, ready: VecDeque::new() };
        Self { name, threads_max, state: Mutex::new(state), work: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, TaskQueue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a task, which ends when the result is dropped. The output is `None` if the task has panicked, or if the system has no
    /// thread left.
    pub(crate) fn spawn<T: Send + 'static>(
        &'static self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> FallibleTask<T> {
        let (runnable, task) = async_task::spawn(task, |runnable| self.push(runnable));
        runnable.schedule();
        task.fallible()
    }

    fn push(&'static self, runnable: Runnable) {
        let mut state = self.state();
        if state.process != process::id() {
            // Tasks of the parent stay with it, and so do its threads.
            state.ready.drain(..).for_each(std::mem::forget);
            (state.process, state.threads, state.idle) = (process::id(), 0, 0);
        }
        if state.idle <= state.ready.len() && state.threads < self.threads_max {
            let thread = thread::Builder::new().name(self.name.to_owned());
            let is_first = state.threads == 0;
            if thread.spawn(move || self.run(is_first)).is_ok() {
                state.threads += 1;
            } else if is_first {
                drop(state);
                return drop(runnable);
            }
        }
        state.ready.push_back(runnable);
        drop(state);
        self.work.notify_one();
    }

    fn run(&self, is_first: bool) {
        let mut state = self.state();
        loop {
            if let Some(runnable) = state.ready.pop_front() {
                drop(state);
                // A task that panics has ended.
                let run = std::panic::AssertUnwindSafe(|| runnable.run());
                let _ = std::panic::catch_unwind(run);
                state = self.state();
                continue;
            }
            state.idle += 1;
            let is_over;
            (state, is_over) = if is_first {
                (self.work.wait(state).unwrap_or_else(PoisonError::into_inner), false)
            } else {
                let waited = self.work.wait_timeout(state, IDLE_MAX);
                let (state, time) = waited.unwrap_or_else(PoisonError::into_inner);
                (state, time.timed_out())
            };
            state.idle -= 1;
            if is_over && state.ready.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_lite::future::block_on;

    use super::*;

    static THREAD: TaskThreads = TaskThreads::new("apus-rpc-test", 1);

    static THREADS: TaskThreads = TaskThreads::new("apus-rpc-tests", 2);

    #[test]
    fn a_task_that_blocks_does_not_hold_up_another() {
        let (sender, receiver) = mpsc::channel();
        // The first task blocks until the second one has run.
        let blocks = THREADS.spawn(async move { receiver.recv_timeout(Duration::from_secs(60)) });
        let other = THREADS.spawn(async move { sender.send(7).expect("the first task waits") });
        assert_eq!(block_on(blocks), Some(Ok(7)));
        assert_eq!(block_on(other), Some(()));
    }

    #[test]
    fn a_task_runs_on_the_thread_and_a_panic_ends_only_the_task() {
        let name = || thread::current().name().map(str::to_owned);
        let task = THREAD.spawn(async move {
            futures_lite::future::yield_now().await;
            name()
        });
        assert_eq!(block_on(task), Some(Some("apus-rpc-test".to_owned())));
        let panics: FallibleTask<()> = THREAD.spawn(async { panic!("planted") });
        assert_eq!(block_on(panics), None);
        assert_eq!(block_on(THREAD.spawn(async { 7 })), Some(7));
    }
}
