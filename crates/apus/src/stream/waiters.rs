//! Who waits for one half of a stream.

use std::mem;

use crate::delivery::parker::{Waiter, WaiterId};
use crate::mail::Mail;

/// Threads, and the task that asked last. All are woken together: each looks for itself what has changed.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    threads: Vec<Waiter>,
    task: Option<Waiter>,
}

impl Waiters {
    /// `waiter` shall be woken. A task takes the place of the one before.
    pub(crate) fn enlist(&mut self, waiter: Waiter, mail: &mut Mail) {
        mail.register(&waiter);
        if waiter.is_task() {
            mail.discard(self.task.replace(waiter));
        } else {
            self.threads.push(waiter);
        }
    }

    /// A thread is up. True if it had been chosen to be woken.
    pub(crate) fn delist(&mut self, id: WaiterId) -> bool {
        let before = self.threads.len();
        self.threads.retain(|waiter| waiter.id() != id);
        self.threads.len() == before
    }

    pub(crate) fn wake(&mut self, mail: &mut Mail) {
        for waiter in mem::take(&mut self.threads).into_iter().chain(self.task.take()) {
            mail.wake_registered(waiter);
        }
    }

    /// Nobody waits any more.
    pub(crate) fn discard(&mut self, mail: &mut Mail) {
        mail.discard(self.task.take());
    }
}
