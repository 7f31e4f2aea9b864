//! Waits for the engine's lock.

use std::collections::BTreeMap;

use super::{WORST, end, thread};
use crate::distribution::Distribution;
use crate::merged::Merged;
use crate::report::{Cell, Report};

/// A wait for the lock.
struct LockWait {
    ring: usize,
    from: u64,
    until: u64,
    /// The thread that probably held the lock: the other thread of the process whose record is the last before the end of the wait.
    holder: Option<usize>,
}

/// Waits for an engine's lock, by thread, with the probable holder.
#[must_use]
pub fn locks(merged: &Merged) -> Report {
    let mut waits = waits(merged);
    let mut report = Report::default();
    let all: Distribution = waits.iter().map(|wait| wait.until - wait.from).collect();
    report.fact("waits", all.count());
    let mut threads: BTreeMap<(usize, Option<usize>), Vec<u64>> = BTreeMap::new();
    for wait in &waits {
        threads.entry((wait.ring, wait.holder)).or_default().push(wait.until - wait.from);
    }
    let columns = [&["thread", "waits_for", "share"][..], &Distribution::TIMES].concat();
    let table = report.table("threads", &columns);
    let name = |ring| thread(merged, ring);
    for ((ring, holder), times) in threads {
        let total: u64 = times.iter().sum();
        let share = total as f64 / end(merged).max(1) as f64;
        let start = [name(ring).into(), holder.map(name).into(), share.into()];
        let times: Distribution = times.into_iter().collect();
        table.row(start.into_iter().chain(times.times()));
    }
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.until - wait.from));
    if let Some(wait) = waits.first() {
        report.find(format!(
            "{} waited {:.1} us for the engine's lock{}; of {} waits, the median took {:.1} us",
            name(wait.ring),
            (wait.until - wait.from) as f64 / 1e3,
            wait.holder
                .map_or_else(String::new, |ring| format!(", which {} probably had", name(ring))),
            waits.len(),
            all.median() as f64 / 1e3
        ));
    }
    let table = report.table("longest", &["thread", "waits_for", "from_us", "waited_us"]);
    for wait in waits.iter().take(WORST) {
        let [from, waited] = [wait.from, wait.until - wait.from].map(Cell::nanos);
        table.row([name(wait.ring).into(), wait.holder.map(name).into(), from, waited]);
    }
    report
}

fn waits(merged: &Merged) -> Vec<LockWait> {
    let process = |ring: usize| {
        let source = &merged.rings[ring];
        let merged = source.name.split_once('/').filter(|_| source.program == "merged");
        (source.trace, merged.map(|(process, _)| process))
    };
    let mut last: Vec<Option<u64>> = vec![None; merged.rings.len()];
    let mut waits = Vec::new();
    for moment in &merged.moments {
        let (ring, until) = (moment.ring, moment.nanos);
        if merged.name(moment) == "lock_wait" {
            let others = (0..last.len()).filter(|&it| it != ring && process(it) == process(ring));
            let holder = others.filter(|&it| last[it].is_some()).max_by_key(|&it| last[it]);
            let from = until.saturating_sub(moment.arguments[0].into());
            waits.push(LockWait { ring, from, until, holder });
        }
        last[ring] = Some(until);
    }
    waits
}

#[cfg(test)]
mod tests {
    use crate::script::script;

    use super::*;

    #[test]
    fn the_thread_that_recorded_last_probably_had_the_lock() {
        let report = locks(&script(
            "0 c.a sleep 0
             100 c.b link_recv 1
             52000 c.b link_flush 1
             52500 c.a lock_wait 50000",
        ));
        assert_eq!(report.cell("longest", 0, "waits_for"), Some(&Cell::from("c.1/b")));
        assert_eq!(report.cell("longest", 0, "waited_us"), Some(&Cell::Number(50.0)));
        assert!(report.findings[0].starts_with("c.1/a waited 50.0 us"), "{report:?}");
    }
}
