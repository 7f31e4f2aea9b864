//! One reading of everything that the screen shows.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use apus_shm::CounterDirectory;
use apus_trace::Trace;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Uid, User};
use procfs::process::Process as SystemProcess;
use procfs::{CpuTime, Current as _, CurrentSI as _, KernelStats, LoadAverage};

use super::recorded::Recorded;
use crate::counters::{Identity, Process, Snapshot, Unreadable};
use crate::trace::trace_of;

/// Counters of all processes, and the system's figures of processes and host.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// When: time since the command started.
    pub(super) at: Duration,
    pub(super) counters: Snapshot,
    /// Files that could not be read.
    pub(super) unreadable: Unreadable,
    /// Of processes that run in the pid namespace of this one.
    pub(super) usage: BTreeMap<Identity, Usage>,
    pub(super) host: HostFigures,
    /// Recent calls of the process that was asked for, if it has a time trace.
    pub(super) recorded: Option<(Identity, Recorded)>,
}

/// The system's figures of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Usage {
    /// The name of its user, or the number if there is no name.
    pub(super) user: String,
    /// CPU time that it has used.
    pub(super) cpu: Duration,
}

/// The system's figures of the host. `None` where the system has none.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct HostFigures {
    pub(super) cpus: Option<usize>,
    /// Means of one, five and fifteen minutes.
    pub(super) load: Option<[f32; 3]>,
    /// Ticks in which its CPUs were busy, and all ticks.
    pub(super) ticks: Option<(u64, u64)>,
}

/// Reads the counters and the system.
#[derive(Debug)]
pub(super) struct Reader {
    directory: CounterDirectory,
    users: BTreeMap<u32, String>,
}

impl Reader {
    pub(super) fn new(directory: CounterDirectory) -> Self {
        Self { directory, users: BTreeMap::new() }
    }

    /// Directory of the counters.
    pub(super) fn directory(&self) -> String {
        self.directory.path().display().to_string()
    }

    /// Reads everything once, and the time trace of one process.
    ///
    /// # Errors
    /// When the directory of the counters cannot be used.
    pub(super) fn take(&mut self, at: Duration, traced: Option<Identity>) -> io::Result<Sample> {
        let (counters, unreadable) = Snapshot::take(&self.directory)?;
        let running = counters.processes.iter().filter(|it| it.alive == Some(true));
        let usage: BTreeMap<_, _> =
            running.filter_map(|it| Some((it.identity(), self.usage(it)?))).collect();
        let recorded = traced.filter(|it| usage.contains_key(it));
        let recorded = recorded.and_then(|it| Some((it, recorded_of(it.0)?)));
        Ok(Sample { at, counters, unreadable, usage, host: HostFigures::now(), recorded })
    }

    /// None if the process has ended meanwhile.
    fn usage(&mut self, process: &Process) -> Option<Usage> {
        let system = SystemProcess::new(i32::try_from(process.pid).ok()?).ok()?;
        let stat = system.stat().ok()?;
        if stat.starttime != process.start {
            return None; // Another process has its number now.
        }
        let ticks = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
        let user = self.user(system.uid().ok()?);
        Some(Usage { user, cpu: Duration::try_from_secs_f64(ticks).ok()? })
    }

    fn user(&mut self, uid: u32) -> String {
        let name = || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        self.users.entry(uid).or_insert_with(|| name().unwrap_or_else(|| uid.to_string())).clone()
    }
}

/// None if the process has no trace, or one that cannot be read now.
fn recorded_of(pid: u32) -> Option<Recorded> {
    let trace = Trace::read(trace_of(pid).ok()??.file()).ok()?;
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?);
    let from = now.saturating_sub(RECORDED_FOR).as_nanos();
    Some(Recorded::of(&trace, u64::try_from(from).ok()?))
}

impl HostFigures {
    fn now() -> Self {
        let stats = KernelStats::current().ok();
        let load = LoadAverage::current().ok();
        Self {
            cpus: stats.as_ref().map(|it| it.cpu_time.len()),
            load: load.map(|it| [it.one, it.five, it.fifteen]),
            ticks: stats.map(|it| ticks(&it.total)),
        }
    }
}

fn ticks(time: &CpuTime) -> (u64, u64) {
    let idle = time.idle + time.iowait.unwrap_or(0);
    let others = [time.irq, time.softirq, time.steal].into_iter().flatten().sum::<u64>();
    let busy = time.user + time.nice + time.system + others;
    (busy, busy + idle)
}

/// Age up to which ended calls count as recent.
pub(super) const RECORDED_FOR: Duration = Duration::from_secs(10);
