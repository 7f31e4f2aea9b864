//! The waits of the tasks of an event loop.

use apus_proto::Time;

use crate::delivery::spin::{PollBudget, Spin};

/// The waits of the tasks of an event loop. Each wait lasts until one of them is woken.
#[derive(Debug)]
pub(crate) struct TaskWaits {
    pub(super) spin: Spin,
    /// Begin of a wait whose polling goes on after a look at other tasks, and its remaining polling.
    pub(super) polling: Option<(Time, PollBudget)>,
    /// Begin of the wait, and the time at which the loop fell asleep in it.
    pub(super) sleeps: Option<(Time, Time)>,
}

impl TaskWaits {
    pub(crate) const fn new() -> Self {
        Self { spin: Spin::new(), polling: None, sleeps: None }
    }
}
