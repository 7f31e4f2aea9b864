//! Samples for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use super::sample::{HostFigures, Sample, Usage};
use crate::counters::{Counters, Process, Snapshot};

/// A process that runs, with these counters.
pub(super) fn process(pid: u32, counters: &[(&str, u64)]) -> Process {
    Process {
        pid,
        start: 0,
        namespace: 0,
        program: format!("program-{pid}"),
        version: "0.1.0".to_owned(),
        alive: Some(true),
        closed: false,
        written_ns: 0,
        gauges: Counters::new(),
        counters: counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        attached: Vec::new(),
    }
}

/// A process that has ended.
pub(super) fn ended(pid: u32) -> Process {
    Process { alive: Some(false), ..process(pid, &[]) }
}

/// A sample at this number of seconds after the start. Running processes belong to alice, and have used no CPU time.
pub(super) fn sample(seconds: f64, processes: impl IntoIterator<Item = Process>) -> Sample {
    let processes: Vec<_> = processes.into_iter().collect();
    let running = processes.iter().filter(|it| it.alive == Some(true));
    let usage = || Usage { user: "alice".to_owned(), cpu: Duration::ZERO };
    let usage: BTreeMap<_, _> = running.map(|it| (it.identity(), usage())).collect();
    Sample {
        at: Duration::from_secs_f64(seconds),
        counters: Snapshot { taken_ns: 0, monotonic: None, processes },
        unreadable: Vec::new(),
        usage,
        host: HostFigures::default(),
        recorded: None,
    }
}
