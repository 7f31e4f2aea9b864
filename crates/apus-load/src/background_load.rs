//! Use of the machine by other processes during a measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::process;
use std::time::Instant;

use procfs::process::{Stat, all_processes};
use procfs::{CurrentSI, KernelStats};

/// Share of the machine's CPU time used by other processes above which a run carries a warning: 5 %.
const OTHERS_SHARE_MAX: f64 = 0.05;

/// Share of the machine's CPU time taken by the hypervisor above which a run carries a warning: 1 %.
const STEAL_SHARE_MAX: f64 = 0.01;

/// The kernel reports CPU times to user space in hundredths of a second on every architecture of Linux (`USER_HZ`).
const TICKS_PER_S: f64 = 100.0;

/// `PF_KTHREAD` of the kernel's `sched.h`: marks a kernel thread.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// A watch over the CPU time of other processes, until [`end`](Self::end).
///
/// Start and end each read `/proc` once (about 20 µs per process of the machine), so they belong outside the measured time.
#[derive(Debug)]
pub struct Watch {
    ours: BTreeSet<u32>,
    before: Snapshot,
    started: Instant,
}

impl Watch {
    /// Starts watching. This process and all its descendants belong to the measurement.
    #[must_use]
    pub fn start() -> Self {
        let before = Snapshot::take();
        let ours = before.family([process::id()].into());
        Self { ours, before, started: Instant::now() }
    }

    /// The use by other processes since the start.
    #[must_use]
    pub fn end(self) -> BackgroundLoad {
        let elapsed_s = self.started.elapsed().as_secs_f64();
        let after = Snapshot::take();
        BackgroundLoad::between(&self.before, &after, self.ours, elapsed_s)
    }
}

/// The use of the machine by other processes during a measurement. All figures are lower bounds: they are 0 for values that `/proc`
/// does not show.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct BackgroundLoad {
    /// Duration of the watch, in seconds.
    pub elapsed_s: f64,
    /// CPUs online.
    pub cores: usize,
    /// CPU time of processes outside the measurement, in seconds. Interrupts count for no process.
    pub others_s: f64,
    /// Name of the other process that used most CPU time, and that time in seconds.
    pub busiest: Option<(String, f64)>,
    /// Time that a hypervisor gave to other machines although this one was ready to run, in seconds.
    pub steal_s: f64,
}

impl BackgroundLoad {
    fn between(before: &Snapshot, after: &Snapshot, ours: BTreeSet<u32>, elapsed_s: f64) -> Self {
        let ours = after.family(ours);
        let used = |snapshot: &Snapshot, mine: bool| -> u64 {
            let counted = snapshot.processes.iter().filter(|(pid, _)| ours.contains(pid) == mine);
            counted.map(|(_, process)| process.ticks).sum()
        };
        let difference = |mine| used(after, mine).saturating_sub(used(before, mine));
        // Both views are incomplete: the list of processes misses those hidden from a container, and the total misses other
        // processes to the extent that interrupts were charged to ours. Both are lower bounds, so the larger one is nearer.
        let busy = after.busy_ticks.saturating_sub(before.busy_ticks);
        let others = difference(false).max(busy.saturating_sub(difference(true)));
        let busiest = after
            .processes
            .iter()
            .filter(|(pid, _)| !ours.contains(pid))
            .map(|(pid, process)| {
                let earlier = before.ticks_in(*pid, after);
                (process.ticks.saturating_sub(earlier), process)
            })
            .max_by_key(|(ticks, _)| *ticks)
            .filter(|(ticks, _)| *ticks > 0)
            .map(|(ticks, process)| (process.name.clone(), ticks as f64 / TICKS_PER_S));
        Self {
            elapsed_s,
            cores: after.cores,
            others_s: others as f64 / TICKS_PER_S,
            busiest,
            steal_s: after.steal_ticks.saturating_sub(before.steal_ticks) as f64 / TICKS_PER_S,
        }
    }

    /// Share of the machine's CPU time that other processes used, 0 to 1.
    #[must_use]
    pub fn others_share(&self) -> f64 {
        self.share_of_machine(self.others_s)
    }

    /// Share of the machine's CPU time that the hypervisor took, 0 to 1.
    #[must_use]
    pub fn steal_share(&self) -> f64 {
        self.share_of_machine(self.steal_s)
    }

    /// Warnings about the run: other processes used more than 5 % of the machine, or the hypervisor took more than 1 %. The kernel
    /// counts in ticks of 10 ms, so one tick per CPU is not significant and is left out.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let grain_s = self.cores as f64 / TICKS_PER_S;
        let exceeds = |cpu_s: f64, share: f64| self.share_of_machine(cpu_s - grain_s) > share;
        if exceeds(self.others_s, OTHERS_SHARE_MAX) {
            let busiest = match &self.busiest {
                Some((name, cpu_s)) => format!(", `{name}` alone {cpu_s:.2} s"),
                None => String::new(),
            };
            warnings.push(format!(
                "other processes used {:.0} % of the CPU time of all {} cores during the run ({:.2} s{busiest})",
                self.others_share() * 100.0,
                self.cores,
                self.others_s,
            ));
        }
        if exceeds(self.steal_s, STEAL_SHARE_MAX) {
            warnings.push(format!(
                "the hypervisor took {:.1} % of the CPU time for other machines during the run ({:.2} s of steal)",
                self.steal_share() * 100.0,
                self.steal_s,
            ));
        }
        warnings
    }

    fn share_of_machine(&self, cpu_s: f64) -> f64 {
        let capacity_s = self.elapsed_s * self.cores as f64;
        if capacity_s > 0.0 { (cpu_s / capacity_s).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// CPU times at one time, in ticks since boot.
#[derive(Clone, Debug, Default)]
struct Snapshot {
    cores: usize,
    /// Busy time of all CPUs, in user and system mode, without interrupts.
    busy_ticks: u64,
    steal_ticks: u64,
    /// Processes by PID, without kernel threads.
    processes: BTreeMap<u32, ProcessTimes>,
}

#[derive(Clone, Debug, PartialEq)]
struct ProcessTimes {
    parent: u32,
    name: String,
    /// Its own time, and the time of its children that ended and were waited for, so that no time is lost if a child ends in
    /// between.
    ticks: u64,
}

impl Snapshot {
    fn take() -> Self {
        let mut snapshot = Self::default();
        if let Ok(stat) = KernelStats::current() {
            snapshot.cores = stat.cpu_time.len();
            snapshot.busy_ticks = stat.total.user + stat.total.nice + stat.total.system;
            snapshot.steal_ticks = stat.total.steal.unwrap_or(0);
        }
        // A process may end between the listing and the reading.
        let found = all_processes().into_iter().flatten().flatten();
        let stats = found.filter_map(|process| process.stat().ok());
        let programs = stats.filter(|stat| u64::from(stat.flags) & KERNEL_THREAD == 0);
        snapshot.processes =
            programs.map(|stat| (stat.pid as u32, ProcessTimes::of(stat))).collect();
        snapshot
    }

    /// The ticks of a process in `later` that are from before: its own, and the ticks of its descendants that have ended since, which
    /// the kernel adds to their parent's.
    fn ticks_in(&self, pid: u32, later: &Self) -> u64 {
        let family = self.family([pid].into());
        let ended = |member: &u32| *member == pid || !later.processes.contains_key(member);
        let ended = family.iter().filter(|member| ended(member));
        ended.filter_map(|member| self.processes.get(member)).map(|process| process.ticks).sum()
    }

    /// `members` and all their descendants.
    fn family(&self, mut members: BTreeSet<u32>) -> BTreeSet<u32> {
        // Each pass except the last adds at least one generation.
        loop {
            let known = members.len();
            let children =
                self.processes.iter().filter(|(_, process)| members.contains(&process.parent));
            let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
            members.extend(children);
            if members.len() == known {
                return members;
            }
        }
    }
}

impl ProcessTimes {
    fn of(stat: Stat) -> Self {
        let children = u64::try_from(stat.cutime + stat.cstime).unwrap_or(0);
        Self {
            parent: stat.ppid as u32,
            name: stat.comm,
            ticks: stat.utime + stat.stime + children,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, name: &str, ticks: u64) -> ProcessTimes {
        ProcessTimes { parent, name: name.to_owned(), ticks }
    }

    fn snapshot(
        busy_ticks: u64,
        steal_ticks: u64,
        processes: &[(u32, u32, &str, u64)],
    ) -> Snapshot {
        let processes = processes
            .iter()
            .map(|(pid, parent, name, ticks)| (*pid, process(*parent, name, *ticks)));
        Snapshot { cores: 2, busy_ticks, steal_ticks, processes: processes.collect() }
    }

    #[test]
    fn descendants_are_ours() {
        let world = snapshot(
            0,
            0,
            &[(1, 0, "init", 0), (9, 1, "us", 0), (4, 9, "child", 0), (3, 4, "grandchild", 0)],
        );
        assert_eq!(world.family([9].into()), [3, 4, 9].into());
    }

    #[test]
    fn other_processes_are_reported_with_the_busiest_by_name() {
        let before =
            snapshot(1000, 0, &[(1, 0, "init", 50), (9, 1, "us", 100), (5, 1, "compiler", 10)]);
        let after =
            snapshot(3000, 0, &[(1, 0, "init", 50), (9, 1, "us", 1900), (5, 1, "compiler", 210)]);
        let found = BackgroundLoad::between(&before, &after, [9].into(), 10.0);
        assert_eq!(found.others_s, 2.0);
        assert_eq!(found.busiest, Some(("compiler".to_owned(), 2.0)));
        assert_eq!(
            found.warnings(),
            [
                "other processes used 10 % of the CPU time of all 2 cores during the run (2.00 s, `compiler` alone 2.00 s)"
            ]
        );
    }

    #[test]
    fn a_child_that_ended_counts_once_and_for_us() {
        // The child's 40 ticks from before the start move to the parent when the parent waits for it.
        let before = snapshot(0, 0, &[(9, 1, "us", 100), (4, 9, "child", 40)]);
        let after = snapshot(500, 0, &[(9, 1, "us", 100 + 540)]);
        let found = BackgroundLoad::between(&before, &after, [9, 4].into(), 10.0);
        assert_eq!((found.others_s, found.busiest), (0.0, None));
    }

    #[test]
    fn the_busiest_is_not_charged_for_what_its_child_did_before() {
        // A compiler that ran for 9 s before the start and 1 s after it ends; then its parent has its time.
        let before = snapshot(0, 0, &[(5, 1, "make", 3), (6, 5, "sh", 0), (7, 6, "compiler", 900)]);
        let after = snapshot(100, 0, &[(5, 1, "make", 1003)]);
        let found = BackgroundLoad::between(&before, &after, BTreeSet::new(), 1.0);
        assert_eq!((found.others_s, found.busiest), (1.0, Some(("make".to_owned(), 1.0))));
    }

    #[test]
    fn what_a_container_hides_shows_in_the_total() {
        let before = snapshot(0, 0, &[(9, 1, "us", 0)]);
        let after = snapshot(900, 0, &[(9, 1, "us", 600)]);
        let found = BackgroundLoad::between(&before, &after, [9].into(), 10.0);
        assert_eq!((found.others_s, found.warnings().len()), (3.0, 1));
    }

    #[test]
    fn a_little_is_tolerated() {
        let before = snapshot(0, 0, &[]);
        let found =
            BackgroundLoad::between(&before, &snapshot(100, 20, &[]), BTreeSet::new(), 10.0);
        assert_eq!((found.others_share(), found.steal_share()), (0.05, 0.01));
        assert!(found.warnings().is_empty());
    }

    #[test]
    fn a_run_shorter_than_a_tick_accuses_nobody() {
        // 59 µs, as for a probe of loopback, in which two ticks were counted by chance.
        let before = snapshot(1000, 0, &[(5, 1, "compiler", 10)]);
        let after = snapshot(1002, 2, &[(5, 1, "compiler", 12)]);
        let found = BackgroundLoad::between(&before, &after, BTreeSet::new(), 59e-6);
        assert!(found.warnings().is_empty(), "{:?}", found.warnings());
        assert_eq!((found.others_share(), found.steal_share()), (1.0, 1.0));
        // Half a second in which other processes had one of two CPUs is reported.
        let after = snapshot(1050, 0, &[(5, 1, "compiler", 60)]);
        let found = BackgroundLoad::between(&before, &after, BTreeSet::new(), 0.5);
        assert_eq!(found.warnings().len(), 1);
    }

    #[test]
    fn steal_is_reported() {
        let found = BackgroundLoad::between(
            &snapshot(0, 0, &[]),
            &snapshot(0, 60, &[]),
            BTreeSet::new(),
            10.0,
        );
        assert_eq!(
            found.warnings(),
            [
                "the hypervisor took 3.0 % of the CPU time for other machines during the run (0.60 s of steal)"
            ]
        );
    }

    #[test]
    fn without_proc_nothing_is_claimed() {
        let nothing = Snapshot::default();
        let found = BackgroundLoad::between(&nothing, &nothing, BTreeSet::new(), 1.0);
        assert!(found.warnings().is_empty());
    }

    #[test]
    fn a_real_watch_sees_this_machine() {
        let found = Watch::start().end();
        assert!(found.cores >= 1 && found.elapsed_s >= 0.0);
    }
}
