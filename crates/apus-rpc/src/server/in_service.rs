//! The handlers that go on, so that the end of a server can wait for them and drop them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::Context;
use crate::envelope::EnvelopeLimits;
use crate::server::admission::Admission;
use crate::server::counters::ServerCounters;
use crate::spawning::Spawn;

/// The contexts of handlers that have to wait, and what all handlers share.
pub(crate) struct InService {
    pub(crate) counters: Arc<ServerCounters>,
    pub(crate) admission: Admission,
    pub(crate) spawner: Arc<dyn Spawn>,
    pub(crate) limits: EnvelopeLimits,
    /// The time after the first part of a response in which a late HOLD has to arrive.
    pub(crate) hold_within: Duration,
    state: Mutex<WaitingHandlers>,
}

#[derive(Default)]
struct WaitingHandlers {
    next: u64,
    contexts: BTreeMap<u64, Context>,
    is_over: bool,
}

impl InService {
    pub(crate) fn new(
        admission: Admission,
        spawner: Arc<dyn Spawn>,
        limits: EnvelopeLimits,
        hold_within: Duration,
    ) -> Self {
        let (counters, state) = (Arc::default(), Mutex::default());
        Self { counters, admission, spawner, limits, hold_within, state }
    }

    fn state(&self) -> MutexGuard<'_, WaitingHandlers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a handler until the entry is dropped. Its request is given up at once if the server is over.
    pub(crate) fn enter(self: &Arc<Self>, context: Context) -> WaitingEntry {
        let mut state = self.state();
        if state.is_over {
            context.cancel();
        }
        let number = state.next;
        state.next += 1;
        state.contexts.insert(number, context);
        WaitingEntry { in_service: Arc::clone(self), number }
    }

    /// Gives all requests up, also those whose handlers wait later.
    pub(crate) fn cancel(&self) {
        let contexts: Vec<Context> = {
            let mut state = self.state();
            state.is_over = true;
            state.contexts.values().cloned().collect()
        };
        contexts.iter().for_each(Context::cancel);
    }
}

/// The entry of a handler.
pub(crate) struct WaitingEntry {
    in_service: Arc<InService>,
    number: u64,
}

impl Drop for WaitingEntry {
    fn drop(&mut self) {
        let context = self.in_service.state().contexts.remove(&self.number);
        drop(context);
    }
}
