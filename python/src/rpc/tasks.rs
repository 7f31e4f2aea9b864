//! The tasks of handlers.
//!
//! A task waits for its handler in Python, so it has little to do: it is polled by the thread of the handler at the beginning and at the
//! end, which saves a wake-up for the response, and in between by one thread of the process.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use apus_rpc::{BoxTask, Spawn};
use pyo3::prelude::*;

use crate::reactor::Reactor;
use crate::rpc::handled::{ServerCall, beginning};

/// A task that several threads poll, one at a time.
pub(crate) struct SharedTask {
    task: Mutex<Option<BoxTask>>,
    is_due: AtomicBool,
}

impl SharedTask {
    /// Polls the task.
    pub(crate) fn run(self: &Arc<Self>) {
        let mut place = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_due.store(false, Ordering::SeqCst);
        let Some(task) = &mut *place else { return };
        let waker = Waker::from(Arc::clone(self));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            *place = None;
        }
    }
}

impl Wake for SharedTask {
    fn wake(self: Arc<Self>) {
        if !self.is_due.swap(true, Ordering::SeqCst) {
            poll_later(self);
        }
    }
}

/// Has the thread of the process poll a task.
fn poll_later(task: Arc<SharedTask>) {
    type Thread = Mutex<Option<(u32, Sender<Arc<SharedTask>>)>>;
    static THREAD: OnceLock<Thread> = OnceLock::new();
    let mut place =
        THREAD.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    // A forked child of the process has a thread of its own.
    let process = std::process::id();
    if place.as_ref().is_none_or(|(of, _)| *of != process) {
        let (sender, tasks): (_, Receiver<Arc<SharedTask>>) = channel();
        let run = move || tasks.into_iter().for_each(|task| task.run());
        let started = thread::Builder::new().name("apus-grpc-tasks".to_owned()).spawn(run);
        if started.is_err() {
            drop(place);
            return task.run();
        }
        *place = Some((process, sender));
    }
    if let Some((_, sender)) = &*place {
        let _ = sender.send(task);
    }
}

/// The task of a handler, where it runs.
pub(crate) enum Task {
    /// On threads.
    Shared(Arc<SharedTask>),
    /// In an event loop.
    InLoop(Py<Reactor>, u64),
}

impl Task {
    /// Polls the task.
    pub(crate) fn run(&self, py: Python<'_>) {
        match self {
            Self::Shared(task) => py.detach(|| task.run()),
            Self::InLoop(reactor, number) => reactor.get().poll_task(py, *number),
        }
    }
}

/// Tasks that wait for a thread with a handler in Python.
#[derive(Default)]
pub(crate) struct TaskQueue {
    state: Mutex<Waiting>,
    changed: Condvar,
    closed: Condvar,
}

#[derive(Default)]
struct Waiting {
    tasks: VecDeque<Arc<SharedTask>>,
    is_closed: bool,
}

impl TaskQueue {
    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next call; `None` when the queue is closed.
    pub(crate) fn next(&self) -> Option<(Arc<ServerCall>, Arc<SharedTask>)> {
        loop {
            let task = {
                let mut state = self.state();
                loop {
                    if let Some(task) = state.tasks.pop_front() {
                        break task;
                    }
                    if state.is_closed {
                        return None;
                    }
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            // A task that ends before its handler is of a request that nobody waits for.
            if let Some(call) = beginning(|| task.run()) {
                return Some((call, task));
            }
        }
    }

    /// Threads that wait return.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
        self.closed.notify_all();
    }

    /// Waits until the queue is closed, for at most this time. Returns whether it is.
    pub(crate) fn wait_closed(&self, at_most: Duration) -> bool {
        let until = Instant::now().checked_add(at_most);
        let mut state = self.state();
        while !state.is_closed {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            let waited = self.closed.wait_timeout(state, left.unwrap_or(at_most));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Puts the tasks of a server into a queue.
pub(crate) struct QueueTasks(pub(crate) Arc<TaskQueue>);

impl Spawn for QueueTasks {
    fn spawn(&self, task: BoxTask) {
        let task = SharedTask { task: Mutex::new(Some(task)), is_due: AtomicBool::new(true) };
        self.0.state().tasks.push_back(Arc::new(task));
        self.0.changed.notify_one();
    }
}

/// Tasks for an event loop.
#[derive(Default)]
pub(crate) struct LoopTasks {
    state: Mutex<(VecDeque<BoxTask>, Option<Waker>)>,
}

impl LoopTasks {
    /// Takes a task. The waker is called when there is another one.
    pub(crate) fn take(&self, waker: &Waker) -> Option<BoxTask> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let task = state.0.pop_front();
        if task.is_none() {
            state.1 = Some(waker.clone());
        }
        task
    }
}

/// Gives the tasks of a server to an event loop.
pub(crate) struct GiveTasks(pub(crate) Arc<LoopTasks>);

impl Spawn for GiveTasks {
    fn spawn(&self, task: BoxTask) {
        let waker = {
            let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0.push_back(task);
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
