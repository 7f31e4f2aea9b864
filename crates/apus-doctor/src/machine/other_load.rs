//! The load of other programs on the machine, over a short time.

use std::thread;
use std::time::Duration;

use apus_load::{BackgroundLoad, Watch};
use procfs::{CpuPressure, LoadAverage};

use crate::files::{Files, parsed};
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::OtherLoad;

#[derive(Debug)]
pub(super) struct OtherLoad {
    load: BackgroundLoad,
    average: Option<LoadAverage>,
    pressure: Option<CpuPressure>,
}

impl OtherLoad {
    /// Lasts [`WATCHED`].
    pub(super) fn gather(files: &dyn Files) -> Self {
        let watch = Watch::start();
        thread::sleep(WATCHED);
        Self {
            load: watch.end(),
            average: parsed(files, "/proc/loadavg"),
            pressure: parsed(files, "/proc/pressure/cpu"),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        vec![others(self), steal(self), pressure(self)]
    }
}

fn others(other_load: &OtherLoad) -> Finding {
    let OtherLoad { load, average, .. } = other_load;
    let share = load.others_share() * 100.0;
    let busiest = load.busiest.as_ref();
    let busiest = busiest.map_or_else(String::new, |(name, _)| format!(", mainly `{name}`"));
    let average = average.as_ref();
    let average = average.map_or_else(String::new, |it| {
        format!("; load average {:.2} {:.2} {:.2}", it.one, it.five, it.fifteen)
    });
    let cores = load.cores;
    let found = format!("other processes used {share:.0} % of {cores} CPUs{busiest}{average}");
    Finding::new(SUBJECT, "other processes", Verdict::by(share, OTHERS_GOOD, OTHERS_BAD), found)
        .apus("stops polling, for increasing times, in a thread that loses its CPU to another program")
        .change(
            "top -b -n 1 | head -n 15 # lists the programs; `taskset` keeps them apart",
            "steady latency: other programs take a core for milliseconds, which causes most 99.9th percentiles (docs/performance.md)",
        )
        .value("others_percent", round(share))
        .value("watched_s", load.elapsed_s)
}

fn steal(other_load: &OtherLoad) -> Finding {
    let share = other_load.load.steal_share() * 100.0;
    let found = format!("the hypervisor took {share:.1} % of the CPU time for other machines");
    let verdict = Verdict::by(share, STEAL_GOOD, STEAL_BAD);
    let mut finding = Finding::new(SUBJECT, "steal", verdict, found)
        .apus("cannot prevent it; a sleeping thread would not run sooner")
        .value("steal_percent", round(share));
    if verdict != Verdict::Good {
        finding.brings = Some("the hypervisor takes no time from dedicated CPUs, which its operator assigns; not measured \
                               here".to_owned());
    }
    finding
}

fn pressure(other_load: &OtherLoad) -> Finding {
    let name = "pressure";
    let Some(CpuPressure { some, .. }) = &other_load.pressure else {
        return Finding::not_known(
            SUBJECT,
            name,
            "the kernel does not measure CPU pressure (it needs CONFIG_PSI and psi=1)",
        );
    };
    let share = f64::from(some.avg10);
    let found = format!(
        "at least one thread waited for a CPU in {:.0} % of the last 10 s, {:.0} % of 60 s, {:.0} % of 300 s",
        some.avg10, some.avg60, some.avg300
    );
    Finding::new(SUBJECT, name, Verdict::good_if(share <= PRESSURE_GOOD), found)
        .apus(
            "polls with each thread that waits for messages; more such threads than CPUs take turns",
        )
        .change(
            "cat /proc/pressure/cpu # again, after other programs have ended",
            "threads run as soon as they are woken",
        )
        .value("some_avg10_percent", round(share))
}

fn round(percent: f64) -> f64 {
    (percent * 10.0).round() / 10.0
}

const WATCHED: Duration = Duration::from_millis(250);

// Bounds in percent. Benchmarks warn at 5 and 1; the kernel counts in ticks of 10 ms, so a short time is less accurate.
const OTHERS_GOOD: f64 = 10.0;
const OTHERS_BAD: f64 = 60.0;
const STEAL_GOOD: f64 = 2.0;
const STEAL_BAD: f64 = 20.0;
const PRESSURE_GOOD: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    const FILES: FakeFiles = FakeFiles(&[
        ("/proc/loadavg", "4.16 4.23 3.60 7/136 11773\n"),
        (
            "/proc/pressure/cpu",
            "some avg10=58.16 avg60=40.64 avg300=57.74 total=22777079900\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        ),
    ]);

    #[test]
    fn load_of_others_is_reported() {
        let other_load = OtherLoad {
            load: BackgroundLoad {
                elapsed_s: 1.0,
                cores: 2,
                others_s: 1.5,
                busiest: Some(("cc1".to_owned(), 0.9)),
                steal_s: 0.1,
            },
            average: parsed(&FILES, "/proc/loadavg"),
            pressure: parsed(&FILES, "/proc/pressure/cpu"),
        };
        let [others, steal, pressure] = other_load.findings().try_into().unwrap();
        assert_eq!(
            others.found,
            "other processes used 75 % of 2 CPUs, mainly `cc1`; load average 4.16 4.23 3.60"
        );
        assert_eq!((others.verdict, steal.verdict), (Verdict::Bad, Verdict::CouldBeBetter));
        assert!(
            pressure
                .found
                .starts_with("at least one thread waited for a CPU in 58 % of the last 10 s")
        );
        let idle = OtherLoad { load: BackgroundLoad::default(), pressure: None, ..other_load };
        assert_eq!(self::others(&idle).verdict, Verdict::Good);
        assert_eq!(self::pressure(&idle).verdict, Verdict::NotKnown);
    }
}
