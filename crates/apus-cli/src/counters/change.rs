//! Growth of counters between two readings.

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
    /// Growth since the earlier reading.
    pub(crate) grown: Counters,
    /// The process was missing at the earlier reading, so its whole counts are growth.
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
        // The clock of the day may have been set between the readings.
        let monotonic = after.monotonic.as_ref().zip(before.monotonic.as_ref());
        let by_day = || Duration::from_nanos(after.taken_ns.saturating_sub(before.taken_ns));
        let time = monotonic.and_then(|(after, before)| after.since(before)).unwrap_or_else(by_day);
        Self { time, taken_ns: after.taken_ns, processes: processes.collect() }
    }

    /// Growth per second; `None` if no time passed between the readings.
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub(crate) fn rate(&self, grown: u64) -> Option<f64> {
        let seconds = self.time.as_secs_f64();
        (seconds > 0.0).then(|| grown as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::snapshot::Moment;

    #[test]
    fn a_clock_that_is_set_changes_no_rate() {
        let at = |taken_ns, boot: &str, ns| Snapshot {
            taken_ns,
            monotonic: Some(Moment { boot: boot.to_owned(), ns }),
            processes: Vec::new(),
        };
        let time = |before, after| Change::between(&before, &after).time;
        let second = 1_000_000_000;
        assert_eq!(time(at(900 * second, "a", 5), at(2, "a", second + 5)), Duration::from_secs(1));
        assert_eq!(time(at(second, "a", 5), at(3 * second, "b", 9)), Duration::from_secs(2));
        let file = serde_json::from_str("{\"taken_ns\": 1, \"processes\": []}").unwrap();
        assert_eq!(time(file, at(second + 1, "a", 7)), Duration::from_secs(1));
    }
}
