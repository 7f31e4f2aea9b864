//! Work that must not be done under the engine's lock.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use apus_net::Examination;
use apus_proto::{Body, SpentBodies};
use apus_wire::PathError;

use super::{Engine, Handler};
use crate::delivery::parker::Waiter;

/// Work of an engine that must not run under its lock, beside the drop of [bodies](Engine::take_spent).
pub(crate) struct AfterUnlock {
    /// Waiters to wake.
    pub(crate) wakes: Vec<Waiter>,
    /// Waiters to drop; dropping a waker may run any code.
    pub(crate) discarded: Vec<Waiter>,
    /// Path errors to forward to the engines of these peers.
    pub(crate) misrouted: Vec<(SocketAddr, PathError)>,
    /// Paths to examine, which takes system calls.
    pub(crate) examinations: Vec<Examination>,
    /// Handlers to drop: with one, its socket may be closed.
    pub(crate) handlers: Vec<Arc<dyn Handler>>,
}

impl Engine {
    /// Waiters are to be woken, bodies are to be dropped, or other work is to be done, after the unlock.
    #[inline]
    pub(crate) fn has_work_after_unlock(&self) -> bool {
        self.endpoint.has_spent() || self.has_rare_work()
    }

    /// Returns whether there is such work other than bodies. Nearly every call leaves a body.
    #[inline]
    fn has_rare_work(&self) -> bool {
        !self.mail.wakes.is_empty()
            || !self.mail.discarded.is_empty()
            || !self.paths.misrouted.is_empty()
            || !self.paths.examinations.is_empty()
            || self.handlers.has_removed()
    }

    /// Bodies to drop after the unlock: dropping a body may run any code.
    #[inline]
    pub(crate) fn take_spent(&mut self, spent: &mut SpentBodies) {
        self.endpoint.take_spent(spent);
    }

    /// The body to drop after the unlock, if that is the only work: the usual case after an operation on a single call.
    #[inline]
    pub(crate) fn take_only_work(&mut self) -> Option<Body> {
        if self.has_rare_work() { None } else { self.endpoint.take_only_spent() }
    }

    #[inline]
    pub(crate) fn take_after_unlock(&mut self) -> Option<AfterUnlock> {
        self.has_rare_work().then(|| AfterUnlock {
            wakes: mem::take(&mut self.mail.wakes),
            discarded: mem::take(&mut self.mail.discarded),
            misrouted: mem::take(&mut self.paths.misrouted),
            examinations: mem::take(&mut self.paths.examinations),
            handlers: self.handlers.take_removed(),
        })
    }

    /// Chooses all waiters, because a thread panicked under the lock.
    #[cold]
    pub(crate) fn wake_all_after_panic(&mut self) -> Option<AfterUnlock> {
        self.mail.wake_all();
        self.close_handlers();
        self.mail.wakes.extend(self.drain.waiter.take());
        self.mail.wakes.extend(self.leadership.background().map(Waiter::Thread));
        self.mail.wakes.extend(self.leadership.event_loop().map(Waiter::Thread));
        self.take_after_unlock()
    }
}
