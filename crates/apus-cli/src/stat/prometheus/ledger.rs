//! Which processes a page is about.
//!
//! By default the processes of one program are one series, so that a host has as many series as programs, however often these start. The
//! counters of a process that has ended stay in the sum of its program: a sum that fell would look like a restart to Prometheus.
//!
//! With a series for each process, one that has ended is on one more page within a minute, with its last counters, and then on none.

use std::collections::{BTreeMap, BTreeSet};

use apus_metrics::GaugeFold;

use crate::counters::{Counters, Identity, Process, Snapshot};

/// Labels of a series: names and values.
pub(super) type Labels = Vec<(&'static str, String)>;

/// The counters of one series, and the number of running processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Group {
    pub(super) running: u64,
    /// Whether the last process to end had not closed its nodes.
    pub(super) died: bool,
    pub(super) counters: Counters,
    /// Gauges of running processes.
    pub(super) gauges: Counters,
}

/// The processes of earlier pages.
#[derive(Debug)]
pub(super) struct Ledger {
    per_process: bool,
    /// Running processes with their last counters.
    last: BTreeMap<Identity, Last>,
    /// Sums over ended processes, by program.
    ended: BTreeMap<String, Ended>,
    /// Ended processes that were on a page after their end.
    reported: BTreeSet<Identity>,
}

/// The last known state of a process.
#[derive(Debug)]
struct Last {
    program: String,
    closed: bool,
    counters: Counters,
    gauges: Counters,
}

impl Last {
    fn of(process: &Process) -> Self {
        let Process { program, closed, counters, gauges, .. } = process;
        let (counters, gauges) = (counters.clone(), gauges.clone());
        Self { program: program.clone(), closed: *closed, counters, gauges }
    }
}

/// The processes of a program that have ended.
#[derive(Debug, Default)]
struct Ended {
    counters: Counters,
    /// Time at which the program last had a process.
    seen: u64,
    /// Whether one of the last processes to end had not closed its nodes.
    died: bool,
}

/// Time for which a program without a process stays on the page.
const PROGRAM_KEPT_NS: u64 = 3_600_000_000_000;

/// Time after its end during which a process may be on a page, if no page was requested before.
const PROCESS_KEPT_NS: u64 = 60_000_000_000;

/// Upper bound on programs with their own series. The other programs share one series.
const PROGRAMS_MAX: usize = 1_000;

impl Ledger {
    pub(super) fn new(per_process: bool) -> Self {
        let (last, ended, reported) = Default::default();
        Self { per_process, last, ended, reported }
    }

    /// The groups of a page, from the present counters of the processes.
    pub(super) fn take(&mut self, now: &Snapshot) -> BTreeMap<Labels, Group> {
        let mut groups = match self.per_process {
            true => self.by_process(now),
            false => self.by_program(now),
        };
        for process in &now.processes {
            for (place, attached) in process.attached.iter().enumerate() {
                let mut labels = self.labels(process);
                labels.push(("place", place.to_string()));
                if self.per_process {
                    labels.push(("attached", attached.pid.to_string()));
                }
                labels.push(("uid", attached.uid.to_string()));
                add(&mut groups.entry(labels).or_default().counters, &attached.counters);
            }
        }
        groups
    }

    fn labels(&self, process: &Process) -> Labels {
        let Process { pid, start, namespace, program, .. } = process;
        let mut labels = vec![("program", program.clone())];
        if self.per_process {
            let number = [("pid", pid.to_string()), ("start", start.to_string())];
            labels.extend(number);
            labels.push(("namespace", namespace.to_string()));
        }
        labels
    }

    fn by_process(&mut self, now: &Snapshot) -> BTreeMap<Labels, Group> {
        let there: BTreeSet<Identity> = now.processes.iter().map(Process::identity).collect();
        self.reported.retain(|identity| there.contains(identity));
        let mut groups = BTreeMap::new();
        for process in &now.processes {
            let runs = process.alive == Some(true);
            let is_recent = now.taken_ns.saturating_sub(process.written_ns) <= PROCESS_KEPT_NS;
            // The end of a process of another pid namespace is not visible. A process that writes nothing for that long is at least idle.
            let is_shown = match process.alive {
                Some(true) => true,
                Some(false) => is_recent && self.reported.insert(process.identity()),
                None => is_recent,
            };
            if is_shown {
                let counters = process.counters.clone();
                let has_ended = process.alive == Some(false);
                let gauges = if has_ended { Counters::new() } else { process.gauges.clone() };
                let died = has_ended && !process.closed;
                let group = Group { running: u64::from(runs), died, counters, gauges };
                groups.insert(self.labels(process), group);
            }
        }
        groups
    }

    fn by_program(&mut self, now: &Snapshot) -> BTreeMap<Labels, Group> {
        let mut before = std::mem::take(&mut self.last);
        for process in &now.processes {
            let identity = process.identity();
            let was_there = before.remove(&identity).is_some();
            if process.alive != Some(false) {
                self.last.insert(identity, Last::of(process));
            } else if was_there {
                // Its file has its last counters.
                before.insert(identity, Last::of(process));
            }
        }
        // The remaining processes have ended.
        let mut died: BTreeMap<String, bool> = BTreeMap::new();
        for Last { program, closed, counters, .. } in before.into_values() {
            *died.entry(program.clone()).or_default() |= !closed;
            add(&mut self.ended.entry(program).or_default().counters, &counters);
        }
        for (program, died) in died {
            self.ended.entry(program).or_default().died = died;
        }
        let running = now.processes.iter().filter(|process| process.alive != Some(false));
        for process in running {
            if self.ended.len() < PROGRAMS_MAX || self.ended.contains_key(&process.program) {
                self.ended.entry(process.program.clone()).or_default().seen = now.taken_ns;
            }
        }
        let is_kept = |ended: &Ended| now.taken_ns.saturating_sub(ended.seen) <= PROGRAM_KEPT_NS;
        self.ended.retain(|_, ended| is_kept(ended));
        let mut groups: BTreeMap<Labels, Group> = BTreeMap::new();
        let label = |program: &str| vec![("program", program.to_owned())];
        for (program, ended) in &self.ended {
            let group = groups.entry(label(program)).or_default();
            group.died = ended.died;
            add(&mut group.counters, &ended.counters);
        }
        for Last { program, counters, gauges, .. } in self.last.values() {
            let known = self.ended.contains_key(program);
            let group = groups.entry(label(if known { program } else { "other" })).or_default();
            group.running += 1;
            add(&mut group.counters, counters);
            fold(&mut group.gauges, gauges);
        }
        groups
    }
}

fn add(sum: &mut Counters, counters: &Counters) {
    for (name, value) in counters {
        let sum = sum.entry(name.clone()).or_default();
        *sum = sum.wrapping_add(*value);
    }
}

/// Takes the gauges of another process.
fn fold(all: &mut Counters, gauges: &Counters) {
    for (name, value) in gauges {
        let known =
            apus_metrics::metrics().find(|it| name.split_once('.') == Some((it.group, it.name)));
        let fold = known.and_then(|it| it.gauge).unwrap_or(GaugeFold::Least);
        let folded = fold.fold(all.get(name).copied(), Some(*value));
        all.extend(folded.map(|value| (name.clone(), value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRES: &str = "identity.certificate_expires_s";
    const SECOND: u64 = 1_000_000_000;

    fn process(pid: u32, alive: Option<bool>, calls: u64) -> Process {
        Process {
            pid,
            start: 1,
            namespace: 2,
            program: "shop".to_owned(),
            version: "0.1.0".to_owned(),
            alive,
            closed: false,
            written_ns: 100 * SECOND,
            counters: BTreeMap::from([("protocol.calls".to_owned(), calls)]),
            gauges: BTreeMap::from([(EXPIRES.to_owned(), calls)]),
            attached: Vec::new(),
        }
    }

    fn at(second: u64, processes: Vec<Process>) -> Snapshot {
        Snapshot { taken_ns: second * SECOND, monotonic: None, processes }
    }

    fn shop(ledger: &mut Ledger, snapshot: &Snapshot) -> (u64, u64) {
        let groups = ledger.take(snapshot);
        assert_eq!(groups.len(), 1);
        let group = &groups[&vec![("program", "shop".to_owned())]];
        (group.running, group.counters["protocol.calls"])
    }

    #[test]
    fn the_sum_of_a_program_never_falls() {
        let mut ledger = Ledger::new(false);
        let two = at(100, vec![process(7, Some(true), 10), process(8, Some(true), 5)]);
        assert_eq!(shop(&mut ledger, &two), (2, 15));
        let ended = at(101, vec![process(7, Some(false), 12), process(8, Some(true), 6)]);
        assert_eq!(shop(&mut ledger, &ended), (1, 18));
        assert_eq!(shop(&mut ledger, &ended), (1, 18), "it ends once");
        // Its file goes away as well, and that of the other one, which was killed.
        assert_eq!(shop(&mut ledger, &at(102, vec![process(9, Some(true), 1)])), (1, 19));
        assert_eq!(shop(&mut ledger, &at(103, vec![])), (0, 19));
        assert!(ledger.take(&at(103 + 3_601, vec![])).is_empty(), "after an hour");
    }

    #[test]
    fn gauges_are_those_of_the_running_processes() {
        let processes = || {
            let running = [process(7, Some(true), 30), process(8, Some(true), 20)];
            running.into_iter().chain([process(9, Some(false), 10)]).collect()
        };
        for per_process in [false, true] {
            let mut ledger = Ledger::new(per_process);
            let groups = ledger.take(&at(100, processes()));
            let gauges = groups.values().filter_map(|group| group.gauges.get(EXPIRES));
            let gauges: Vec<u64> = gauges.copied().collect();
            assert_eq!(gauges, if per_process { vec![30, 20] } else { vec![20] });
        }
    }

    #[test]
    fn the_end_of_the_last_process_of_a_program_is_reported() {
        let died = |ledger: &mut Ledger, second, processes| {
            let groups = ledger.take(&at(second, processes));
            groups[&vec![("program", "shop".to_owned())]].died
        };
        let ended = |pid, closed| Process { closed, ..process(pid, Some(false), 1) };
        let mut ledger = Ledger::new(false);
        let runs = |pid| process(pid, Some(true), 1);
        assert!(!died(&mut ledger, 100, vec![runs(7), runs(8), runs(9)]));
        assert!(!died(&mut ledger, 101, vec![ended(7, true), runs(8), runs(9)]));
        assert!(died(&mut ledger, 102, vec![ended(7, true), ended(8, false), runs(9)]));
        assert!(died(&mut ledger, 103, vec![runs(9)]), "until another one ends");
        assert!(!died(&mut ledger, 104, vec![ended(9, true)]));
        // One whose file is gone did not close its nodes as far as anybody knows.
        assert!(!died(&mut ledger, 105, vec![runs(10)]));
        assert!(died(&mut ledger, 106, vec![]));
    }

    #[test]
    fn processes_that_had_ended_before_are_on_no_page() {
        let mut ledger = Ledger::new(false);
        let ended = (0..70).map(|pid| process(pid, Some(false), 1)).collect();
        assert!(ledger.take(&at(100, ended)).is_empty());
    }

    #[test]
    fn a_process_that_has_ended_is_on_one_page() {
        let mut ledger = Ledger::new(true);
        let pages = |ledger: &mut Ledger, second, alive| {
            ledger.take(&at(second, vec![process(7, alive, 10)])).len()
        };
        assert_eq!(pages(&mut ledger, 100, Some(true)), 1);
        assert_eq!(pages(&mut ledger, 120, Some(false)), 1);
        assert_eq!(pages(&mut ledger, 121, Some(false)), 0);
        assert_eq!(pages(&mut Ledger::new(true), 161, Some(false)), 0, "a minute later");
        assert_eq!(pages(&mut Ledger::new(true), 161, None), 0);
        assert_eq!(pages(&mut Ledger::new(true), 161, Some(true)), 1);
    }

    #[test]
    fn many_programs_are_bounded() {
        let mut ledger = Ledger::new(false);
        let one = |pid| Process { program: format!("p{pid}"), ..process(pid, Some(true), 1) };
        let groups = ledger.take(&at(100, (0..1_500).map(one).collect()));
        assert_eq!(groups.len(), PROGRAMS_MAX + 1);
        assert_eq!(groups[&vec![("program", "other".to_owned())]].running, 500);
    }
}
