//! What counters did between two readings.

use std::time::Duration;

use super::snapshot::{Counters, Process, Snapshot};

/// Two readings, one after the other.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) time: Duration,
    /// When the later reading was taken: nanoseconds since the epoch.
    pub(crate) taken_ns: u64,
    pub(crate) processes: Vec<ProcessChange>,
}

#[derive(Debug)]
pub(crate) struct ProcessChange {
    /// As it was at the later reading.
    pub(crate) process: Process,
    /// What the counters grew by.
    pub(crate) grown: Counters,
    /// It was not there at the earlier reading, so that all that it counted is growth.
    pub(crate) is_new: bool,
}

impl Change {
    pub(crate) fn between(before: &Snapshot, after: &Snapshot) -> Self {
        let same = |one: &Process, other: &Process| one.identity() == other.identity();
        let processes = after.processes.iter().map(|process| {
            let earlier = before.processes.iter().find(|earlier| same(earlier, process));
            let was = |name| earlier.and_then(|it| it.counters.get(name)).copied().unwrap_or(0);
            let grown = process.counters.iter().filter_map(|(name, value)| {
                let grown = value.saturating_sub(was(name));
                (grown > 0).then(|| (name.clone(), grown))
            });
            let (grown, is_new) = (grown.collect(), earlier.is_none());
            ProcessChange { process: process.clone(), grown, is_new }
        });
        let time = Duration::from_nanos(after.taken_ns.saturating_sub(before.taken_ns));
        Self { time, taken_ns: after.taken_ns, processes: processes.collect() }
    }

    /// What something grew by in a second; none if there was no time between the readings.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(crate) fn rate(&self, grown: u64) -> Option<f64> {
        let seconds = self.time.as_secs_f64();
        (seconds > 0.0).then(|| grown as f64 / seconds)
    }
}
