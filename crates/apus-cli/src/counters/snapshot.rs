//! The counters of all processes at a moment, and the same as JSON.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use apus_metrics::layout::ABSENT;
use apus_metrics::reading::FILE_MAX;
use apus_metrics::{Counter, Reading};
use apus_shm::{CounterDirectory, ProcessName};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The counters of processes as they were read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// When: nanoseconds since the epoch.
    pub(crate) taken_ns: u64,
    /// The same by the monotonic clock; earlier files lack it.
    #[serde(default)]
    pub(crate) monotonic: Option<Moment>,
    pub(crate) processes: Vec<Process>,
}

/// A moment of `CLOCK_MONOTONIC`, which starts again with the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Moment {
    /// The boot id of the host.
    pub(crate) boot: String,
    pub(crate) ns: u64,
}

impl Moment {
    fn now() -> Option<Self> {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?;
        let ns = u64::try_from(Duration::from(time).as_nanos()).ok()?;
        Some(Self { boot: format!("{:032x}", u128::from_be_bytes(apus_trace::machine())), ns })
    }

    /// The time since another moment, if the host has run since.
    pub(crate) fn since(&self, before: &Self) -> Option<Duration> {
        let ns = self.ns.checked_sub(before.ns).filter(|_| self.boot == before.boot)?;
        Some(Duration::from_nanos(ns))
    }
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its start time, as in `/proc/PID/stat`.
    pub(crate) start: u64,
    /// Inode of its pid namespace.
    pub(crate) namespace: u64,
    pub(crate) program: String,
    /// Its version of Apus.
    pub(crate) version: String,
    /// Whether it runs; `None` for a process of another pid namespace.
    pub(crate) alive: Option<bool>,
    /// Whether the process closed or dropped all of its nodes, which a killed process does not. Absent in files of older versions.
    #[serde(default)]
    pub(crate) closed: bool,
    /// Time at which its counters were last written, in nanoseconds since the epoch.
    pub(crate) written_ns: u64,
    /// Counters by group and name, with a point between.
    pub(crate) counters: Counters,
    /// Gauges with a value, by group and name. Absent in files of older versions.
    #[serde(default)]
    pub(crate) gauges: Counters,
    /// Processes that use its engine.
    pub(crate) attached: Vec<AttachedSnapshot>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct AttachedSnapshot {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// The process has detached from the engine.
    pub(crate) ended: bool,
    pub(crate) counters: Counters,
}

/// Files that cannot be read, and why.
pub(crate) type Unreadable = Vec<(ProcessName, String)>;

pub(crate) type Counters = BTreeMap<String, u64>;

impl Snapshot {
    /// Reads all files of a directory. Returns files that cannot be read beside the rest.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub(crate) fn take(directory: &CounterDirectory) -> io::Result<(Self, Unreadable)> {
        let mut snapshot =
            Self { taken_ns: now_ns(), monotonic: Moment::now(), processes: Vec::new() };
        let mut unreadable = Vec::new();
        for name in directory.list()? {
            match read_steady(directory, &name) {
                Ok(reading) => snapshot.processes.push(Process::of(name, reading)),
                // It was removed meanwhile, or is being made.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => unreadable.push((name, error.to_string())),
            }
        }
        Ok((snapshot, unreadable))
    }

    /// Reads a file that `--json` has written.
    ///
    /// # Errors
    /// When the file cannot be read, or is something else.
    pub(crate) fn from_file(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read `{}`", path.display()))?;
        let parsed = serde_json::from_str(&text);
        parsed.with_context(|| format!("`{}` is not a file of `apus stat --json`", path.display()))
    }
}

/// Identifies a process: its PID, its start time, and the inode of its pid namespace.
pub(crate) type Identity = (u32, u64, u64);

impl Process {
    /// The identity of the process.
    pub(crate) fn identity(&self) -> Identity {
        (self.pid, self.start, self.namespace)
    }

    fn of(name: ProcessName, reading: Reading) -> Self {
        let Reading { start, closed, written_ns, counters, attached, .. } = reading;
        let attached = attached.into_iter().map(|it| AttachedSnapshot {
            pid: it.pid,
            uid: it.uid,
            ended: it.ended,
            counters: named(it.counters),
        });
        Self {
            pid: name.pid,
            start: name.ticks,
            namespace: name.namespace,
            program: start.program,
            version: start.version,
            alive: name.is_alive(),
            closed,
            written_ns: written_ns.max(start.made_ns),
            attached: attached.collect(),
            gauges: gauges(&counters),
            counters: named(counters),
        }
    }
}

/// The counters that are not zero.
fn named(counters: Vec<Counter>) -> Counters {
    let counted = counters.iter().filter(|counter| counter.gauge.is_none() && counter.value > 0);
    counted.map(entry).collect()
}

/// The gauges that have a value.
fn gauges(counters: &[Counter]) -> Counters {
    let present = counters.iter().filter(|it| it.gauge.is_some() && it.value != ABSENT);
    present.map(entry).collect()
}

fn entry(counter: &Counter) -> (String, u64) {
    (format!("{}.{}", counter.group, counter.name), counter.value)
}

/// Reads until nothing was written meanwhile, a few times. A process that was killed while it wrote leaves a mixture for ever.
fn read_steady(directory: &CounterDirectory, name: &ProcessName) -> io::Result<Reading> {
    let read = || {
        let bytes = directory.read(name, FILE_MAX)?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::NotFound.into()); // It is being made.
        }
        Reading::parse(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    };
    let mut reading = read()?;
    for _ in 0..READS_MAX {
        let again = read()?;
        let steady = reading.is_steady(&again);
        reading = again;
        if steady {
            break;
        }
    }
    Ok(reading)
}

pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

const READS_MAX: u32 = 8;
