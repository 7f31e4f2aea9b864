//! The waiters of one half of a stream.

use std::mem;

use crate::delivery::parker::{Waiter, WaiterId};
use crate::mail::Mail;

/// Waiting threads, and the task that polled last. All are woken together; each checks for itself.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    threads: Vec<Waiter>,
    task: Option<Waiter>,
}

impl Waiters {
    /// Adds a waiter. A task replaces the earlier task.
    pub(crate) fn enlist(&mut self, waiter: Waiter, mail: &mut Mail) {
        mail.register(&waiter);
        if waiter.is_task() {
            mail.discard(self.task.replace(waiter));
        } else {
            self.threads.push(waiter);
        }
    }

    /// Removes a thread that is awake. Returns `true` if it had been chosen to be woken.
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

    /// Drops all waiters.
    pub(crate) fn discard(&mut self, mail: &mut Mail) {
        mail.discard(self.task.take());
    }
}
