//! Tasks that read one stream.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// The tasks that wait for a stream. The stream keeps the waker of its last poll only, so all polls have one that wakes each of them.
pub(crate) struct Readers {
    waiting: Arc<Waiting>,
    waker: Waker,
}

#[derive(Default)]
struct Waiting {
    tasks: Mutex<Vec<Waker>>,
}

impl Default for Readers {
    fn default() -> Self {
        let waiting = Arc::<Waiting>::default();
        Self { waker: Arc::clone(&waiting).into(), waiting }
    }
}

impl Readers {
    /// Polls the stream for a task, which is woken with the others if it has to wait.
    pub(crate) fn poll<T>(
        &self,
        task: &Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // Before the poll, after which a wake-up may come at once.
        self.waiting.add(task.waker());
        let polled = poll(&mut Context::from_waker(&self.waker));
        if polled.is_ready() {
            self.waiting.remove(task.waker());
        }
        polled
    }

    /// Wakes all tasks.
    pub(crate) fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

impl Waiting {
    fn add(&self, task: &Waker) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if !tasks.iter().any(|it| it.will_wake(task)) {
            tasks.push(task.clone());
        }
    }

    fn remove(&self, task: &Waker) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|it| !it.will_wake(task));
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let tasks = mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.into_iter().for_each(Waker::wake);
    }
}
