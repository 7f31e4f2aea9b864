//! The use of the server's CPUs over the counted time of a run.
//!
//! The published script divided the cycles of 10 seconds by the queries of 30. Here the load generator itself reads the counters at
//! the end of its warm-up and at the end, so that time and queries cover the same window.

use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use super::pmu::{Counted, Pmu};
use apus_memcached::Edge;

/// Reads counters at both ends of a run.
pub(super) struct Meter {
    cpus: Vec<usize>,
    /// CPU clocks of the server's processes.
    server: Vec<ClockId>,
    /// CPU clocks of the threads of NAPI instances.
    threads: Vec<ClockId>,
    /// `None` if the CPUs have no counters.
    pmu: Mutex<Option<Pmu>>,
    readings: Mutex<Vec<Reading>>,
}

/// All counters at one time.
#[derive(Clone, Copy)]
struct Reading {
    at: Instant,
    /// Idle time of the server's CPUs since boot.
    idle: Duration,
    /// CPU time of the server's processes.
    server: Duration,
    /// CPU time of the threads of NAPI instances.
    threads: Duration,
    counted: Option<Counted>,
}

/// The use between the two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    /// Time on the clock.
    pub(super) wall: Duration,
    /// Time in which the server's CPUs were not idle.
    pub(super) busy: Duration,
    /// CPU time of the server's processes. Includes interrupts that arrived in that time, unless the kernel accounts for them
    /// separately.
    pub(super) server: Duration,
    /// CPU time of the threads of NAPI instances; `None` without threads.
    pub(super) threads: Option<Duration>,
    /// Cycles and instructions of the server's CPUs; `None` if they have no counters.
    pub(super) counted: Option<Counted>,
}

impl Meter {
    /// A meter of these CPUs, processes of the server, and threads of NAPI instances.
    pub(super) fn new(cpus: &[usize], server: &[i32], threads: &[i32]) -> Self {
        // A process that has exited has no clock, and used no time.
        let clocks = |pids: &[i32]| -> Vec<ClockId> {
            let clock = |pid: &i32| clock_getcpuclockid(Pid::from_raw(*pid)).ok();
            pids.iter().filter_map(clock).collect()
        };
        Self {
            cpus: cpus.to_vec(),
            server: clocks(server),
            threads: clocks(threads),
            pmu: Mutex::new(Pmu::open(cpus)),
            readings: Mutex::new(Vec::new()),
        }
    }

    /// Reads all counters. Called at both ends.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub(super) fn read(&self, _: Edge) -> Result<()> {
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let mut pmu = self.pmu.lock().expect("it does not panic while it holds the lock");
        let counted = pmu.as_mut().map(Pmu::read).transpose();
        let reading = Reading {
            at: Instant::now(),
            idle: idle(&text, &self.cpus).context("/proc/stat has no such CPU")?,
            server: sum(&self.server),
            threads: sum(&self.threads),
            counted: counted.context("the counters of the CPUs")?,
        };
        self.readings.lock().expect("it does not panic while it holds the lock").push(reading);
        Ok(())
    }

    /// The use between the two readings; `None` unless there are two.
    pub(super) fn used(&self) -> Option<Used> {
        let readings = self.readings.lock().expect("it does not panic while it holds the lock");
        let [begin, end] = readings[..] else { return None };
        let wall = end.at - begin.at;
        let cpus = u32::try_from(self.cpus.len()).expect("there are fewer CPUs");
        Some(Used {
            wall,
            busy: (wall * cpus).saturating_sub(end.idle.saturating_sub(begin.idle)),
            server: end.server.saturating_sub(begin.server),
            threads: (!self.threads.is_empty()).then(|| end.threads.saturating_sub(begin.threads)),
            counted: end.counted.zip(begin.counted).map(|(end, begin)| Counted {
                cycles: end.cycles.saturating_sub(begin.cycles),
                instructions: end.instructions.saturating_sub(begin.instructions),
            }),
        })
    }
}

fn sum(clocks: &[ClockId]) -> Duration {
    let times = clocks.iter().filter_map(|clock| clock.now().ok());
    times.map(Duration::from).sum()
}

/// Idle time of CPUs since boot, in steps of 10 ms, from the text of `/proc/stat`. The kernel measures it by the clock when a CPU
/// becomes idle and busy, not by samples.
fn idle(stat: &str, cpus: &[usize]) -> Option<Duration> {
    let of = |cpu: &usize| {
        let name = format!("cpu{cpu}");
        let line = stat.lines().find(|line| line.split(' ').next() == Some(&name))?;
        // user nice system idle iowait
        let times: Vec<u64> =
            line.split_whitespace().skip(4).take(2).filter_map(|it| it.parse().ok()).collect();
        let [idle, iowait] = times[..] else { return None };
        Some(TICK * u32::try_from(idle + iowait).ok()?)
    };
    cpus.iter().map(of).sum()
}

/// `USER_HZ` is 100 on every architecture that Apus runs on.
const TICK: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_of_the_cpus_asked_for() {
        let stat = "cpu  9 9 9 9 9 9\ncpu0 1 2 3 400 5 6 7\ncpu1 1 2 3 40 10 6 7\ncpu10 0 0 0 1 0 0\nintr 5\n";
        assert_eq!(idle(stat, &[1]), Some(Duration::from_millis(500)));
        assert_eq!(idle(stat, &[0, 1]), Some(Duration::from_millis(4550)));
        assert_eq!(idle(stat, &[2]), None);
    }

    #[test]
    fn time_is_that_between_the_readings() {
        let own = std::process::id() as i32;
        let meter = Meter::new(&[0], &[own], &[]);
        assert_eq!(meter.used(), None);
        meter.read(Edge::Begin).unwrap();
        let until = Instant::now() + Duration::from_millis(5);
        while Instant::now() < until {}
        meter.read(Edge::End).unwrap();
        let used = meter.used().unwrap();
        assert!(used.wall >= Duration::from_millis(5) && used.server > Duration::ZERO);
        assert_eq!(used.threads, None);
    }
}
