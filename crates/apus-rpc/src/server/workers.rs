//! Threads of the library that run tasks.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use async_task::Runnable;

use crate::spawning::{BoxTask, Spawn};

/// A fixed number of threads, each started when a task first finds no idle one. They end when the last handle is dropped and the
/// queue is empty of tasks that are ready.
pub(crate) struct Workers {
    shared: Arc<WorkerThreads>,
    threads_max: usize,
}

struct WorkerThreads {
    queue: Mutex<TaskQueue>,
    work: Condvar,
}

#[derive(Default)]
struct TaskQueue {
    ready: VecDeque<Runnable>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Workers {
    /// With at most this many threads; at least one.
    pub(crate) fn new(threads_max: usize) -> Self {
        let shared = Arc::new(WorkerThreads { queue: Mutex::default(), work: Condvar::new() });
        Self { shared, threads_max: threads_max.max(1) }
    }
}

impl Spawn for Workers {
    fn spawn(&self, task: BoxTask) {
        let (shared, threads_max) = (Arc::downgrade(&self.shared), self.threads_max);
        let schedule = move |runnable: Runnable| match shared.upgrade() {
            Some(shared) => shared.push(runnable, threads_max),
            // The server has gone: the task ends.
            None => drop(runnable),
        };
        let (runnable, task) = async_task::spawn(task, schedule);
        task.detach();
        runnable.schedule();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.work.notify_all();
    }
}

impl WorkerThreads {
    fn queue(&self) -> MutexGuard<'_, TaskQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(self: Arc<Self>, runnable: Runnable, threads_max: usize) {
        let mut queue = self.queue();
        if queue.closed {
            drop(queue);
            return drop(runnable);
        }
        queue.ready.push_back(runnable);
        if queue.idle >= queue.ready.len() {
            drop(queue);
            return self.work.notify_one();
        }
        if queue.threads < threads_max {
            let name = format!("apus-rpc-{}", queue.threads);
            let shared = Arc::clone(&self);
            let started = thread::Builder::new().name(name).spawn(move || shared.run());
            if started.is_ok() {
                queue.threads += 1;
            } else if queue.threads == 0 {
                // The system has no thread left: the tasks end, and answer their requests so.
                let ready = std::mem::take(&mut queue.ready);
                drop(queue);
                drop(ready);
            }
        }
    }

    fn run(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(runnable) = queue.ready.pop_front() {
                drop(queue);
                // A panic ends its task, and drops what this held: the request of a handler is answered by that.
                let _ = panic::catch_unwind(AssertUnwindSafe(|| runnable.run()));
                queue = self.queue();
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn tasks_run_and_wait_on_the_threads() {
        let workers = Workers::new(2);
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            workers.spawn(Box::pin(async move {
                let mut polls = 0;
                std::future::poll_fn(|context| {
                    polls += 1;
                    context.waker().wake_by_ref();
                    if polls > 3 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                })
                .await;
                sender.send(number).expect("the test waits");
            }));
        }
        drop(sender);
        let mut numbers: Vec<i32> = receiver.iter().collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..100));
    }

    #[test]
    fn a_task_that_panics_ends_no_thread() {
        let workers = Workers::new(1);
        let (sender, receiver) = mpsc::channel();
        workers.spawn(Box::pin(async { panic!("a task") }));
        workers.spawn(Box::pin(async move { sender.send(7).expect("the test waits") }));
        assert_eq!(receiver.recv(), Ok(7));
    }

    #[test]
    fn a_task_without_workers_is_dropped() {
        struct Sign(mpsc::Sender<()>);
        impl Drop for Sign {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (sender, receiver) = mpsc::channel();
        let workers = Workers::new(1);
        let (waker, woken) = mpsc::channel();
        workers.spawn(Box::pin(async move {
            let _sign = Sign(sender);
            std::future::poll_fn::<(), _>(|context| {
                waker.send(context.waker().clone()).expect("the test waits");
                std::task::Poll::Pending
            })
            .await;
        }));
        let waker = woken.recv().expect("the task was polled");
        drop(workers);
        waker.wake();
        receiver.recv().expect("the task was dropped");
    }
}
