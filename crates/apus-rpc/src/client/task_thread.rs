//! Threads of the process that run the tasks of its channels.

use std::collections::VecDeque;
use std::future::Future;
use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use async_task::{FallibleTask, Runnable};

/// Keeps the lists of endpoints, and contacts endpoints that have failed. Its tasks never block.
pub(crate) static UPKEEP: TaskThread = TaskThread::new("apus-rpc-upkeep");

/// Looks names up with the system's resolver, which blocks.
pub(crate) static LOOKUPS: TaskThread = TaskThread::new("apus-rpc-lookup");

/// A thread that is started with its first task. A forked child of the process has a thread of its own.
pub(crate) struct TaskThread {
    name: &'static str,
    state: Mutex<TaskQueue>,
    work: Condvar,
}

struct TaskQueue {
    /// The process whose thread runs; 0 for none.
    process: u32,
    ready: VecDeque<Runnable>,
}

impl TaskThread {
    const fn new(name: &'static str) -> Self {
        let state = TaskQueue { process: 0, ready: VecDeque::new() };
        Self { name, state: Mutex::new(state), work: Condvar::new() }
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
            let thread = thread::Builder::new().name(self.name.to_owned());
            if thread.spawn(|| self.run()).is_err() {
                drop(state);
                return drop(runnable);
            }
            state.process = process::id();
            // Tasks of the parent stay with it.
            state.ready.drain(..).for_each(std::mem::forget);
        }
        state.ready.push_back(runnable);
        drop(state);
        self.work.notify_one();
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            state = match state.ready.pop_front() {
                Some(runnable) => {
                    drop(state);
                    // A task that panics has ended.
                    let run = std::panic::AssertUnwindSafe(|| runnable.run());
                    let _ = std::panic::catch_unwind(run);
                    self.state()
                }
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;

    static THREAD: TaskThread = TaskThread::new("apus-rpc-test");

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
