//! Time that the CPUs lose now.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::distribution::Distribution;
use crate::report::{Cell, Report};

/// Upper bound on gaps kept per CPU. A shorter list is complete.
const GAPS_MAX: usize = 100_000;

/// Rows of the list of the longest gaps.
const LONGEST: usize = 20;

/// A time in which a thread did not run, relative to the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gap {
    from: u64,
    until: u64,
}

/// Watches all CPUs that this process may use, with one thread per CPU that reads the clock in a loop. Reports gaps of at least
/// `threshold`, and gaps that all CPUs had at once.
///
/// Takes all these CPUs for `time`.
///
/// # Errors
///
/// The errors of starting or pinning a thread.
pub fn taken_time(time: Duration, threshold: Duration) -> io::Result<Report> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let cpus = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false));
    let start = Instant::now();
    let watches = cpus.map(|cpu| {
        let thread = thread::Builder::new().name(format!("watch-{cpu}"));
        Ok((cpu, thread.spawn(move || watch(cpu, start, time, threshold))?))
    });
    let watches = watches.collect::<io::Result<Vec<_>>>()?;
    let gaps = watches.into_iter().map(|(cpu, thread)| {
        let gaps = thread.join().map_err(|_| io::Error::other("a thread panicked"))?;
        Ok((cpu, gaps?))
    });
    Ok(report(&gaps.collect::<io::Result<Vec<_>>>()?, time))
}

fn watch(cpu: usize, start: Instant, time: Duration, threshold: Duration) -> io::Result<Vec<Gap>> {
    let mut only = CpuSet::new();
    only.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &only)?;
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut gaps = Vec::new();
    let mut before = start.elapsed();
    while before < time {
        let now = start.elapsed();
        if now - before >= threshold && gaps.len() < GAPS_MAX {
            gaps.push(Gap { from: nanos(before), until: nanos(now) });
        }
        before = now;
    }
    Ok(gaps)
}

fn report(watched: &[(usize, Vec<Gap>)], time: Duration) -> Report {
    let mut report = Report::default();
    let all = on_all(watched);
    if watched.len() > 1
        && let Some(longest) = all.iter().max_by_key(|gap| gap.until - gap.from)
    {
        report.find(format!(
            "all {} CPUs were taken at once, {} times, for up to {:.1} us",
            watched.len(),
            all.len(),
            (longest.until - longest.from) as f64 / 1e3
        ));
    }
    let columns = [&["cpu", "share"][..], &Distribution::TIMES].concat();
    let table = report.table("cpus", &columns);
    let rows = watched.iter().map(|(cpu, gaps)| (cpu.to_string(), &gaps[..]));
    for (cpu, gaps) in rows.chain([("all at once".to_owned(), &all[..])]) {
        let times: Distribution = gaps.iter().map(|gap| gap.until - gap.from).collect();
        let taken: u64 = gaps.iter().map(|gap| gap.until - gap.from).sum();
        let share = taken as f64 / time.as_nanos().max(1) as f64;
        table.row([cpu.into(), share.into()].into_iter().chain(times.times()));
    }
    let table = report.table("longest", &["cpu", "from_us", "took_us"]);
    let mut longest: Vec<_> =
        watched.iter().flat_map(|(cpu, gaps)| gaps.iter().map(move |gap| (cpu, gap))).collect();
    longest.sort_by_key(|(_, gap)| std::cmp::Reverse(gap.until - gap.from));
    for (cpu, gap) in longest.into_iter().take(LONGEST) {
        let [from, took] = [gap.from, gap.until - gap.from].map(Cell::nanos);
        table.row([Cell::from(cpu.to_string()), from, took]);
    }
    report
}

/// Gaps that all CPUs had at once.
fn on_all(watched: &[(usize, Vec<Gap>)]) -> Vec<Gap> {
    let mut gaps = watched.iter().map(|(_, gaps)| gaps);
    let Some(first) = gaps.next() else { return Vec::new() };
    gaps.fold(first.clone(), |all, gaps| {
        let (mut others, mut both) = (gaps.iter().peekable(), Vec::new());
        for one in all {
            while others.next_if(|other| other.until <= one.from).is_some() {}
            while let Some(other) = others.peek().filter(|other| other.from < one.until) {
                let (from, until) = (one.from.max(other.from), one.until.min(other.until));
                both.push(Gap { from, until });
                if other.until > one.until {
                    break;
                }
                others.next();
            }
        }
        both
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(times: &[(u64, u64)]) -> Vec<Gap> {
        times.iter().map(|&(from, until)| Gap { from, until }).collect()
    }

    #[test]
    fn gaps_of_all_cpus_are_those_that_overlap() {
        let watched = [(0, gaps(&[(0, 10), (20, 40)])), (1, gaps(&[(5, 25), (30, 35), (38, 90)]))];
        assert_eq!(on_all(&watched), gaps(&[(5, 10), (20, 25), (30, 35), (38, 40)]));
        let report = report(&watched, Duration::from_nanos(100));
        assert_eq!(report.cell("cpus", 2, "count"), Some(&Cell::Count(4)));
        assert_eq!(report.cell("longest", 0, "took_us"), Some(&Cell::Number(0.052)));
        assert!(report.findings[0].starts_with("all 2 CPUs were taken at once, 4 times"));
        assert_eq!(on_all(&watched[..1]), watched[0].1);
    }

    #[test]
    fn all_cpus_that_may_be_used_are_watched() {
        let report = taken_time(Duration::from_millis(2), Duration::from_micros(1)).unwrap();
        let cpus = thread::available_parallelism().unwrap().get();
        // A limit of the CPU time may reduce the number.
        assert!(report.tables[0].rows.len() > cpus.min(1));
    }
}
