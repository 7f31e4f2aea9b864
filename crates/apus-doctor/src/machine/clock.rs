//! The clock that the kernel gives to programs, and the cost of a reading.

use std::hint::black_box;
use std::time::Instant;

use crate::files::Files;
use crate::finding::{Finding, Subject, Verdict};

const SUBJECT: Subject = Subject::Clock;

#[derive(Debug)]
pub(super) struct Clock {
    source: Option<String>,
    available: Vec<String>,
    /// Median time of a reading, in nanoseconds.
    reading_ns: f64,
}

impl Clock {
    pub(super) fn gather(files: &dyn Files) -> Self {
        let path = |file: &str| format!("{SOURCES}/{file}");
        let available = files.text(&path("available_clocksource")).unwrap_or_default();
        Self {
            source: files.text(&path("current_clocksource")),
            available: available.split_whitespace().map(str::to_owned).collect(),
            reading_ns: reading_ns(),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let Some(source) = &self.source else {
            return vec![Finding::not_known(SUBJECT, "source", "the kernel does not report it")];
        };
        let found = format!(
            "{source}, of {}; a reading takes {:.0} ns",
            self.available.join(", "),
            self.reading_ns
        );
        let finding = Finding::new(SUBJECT, "source", verdict(source, self.reading_ns), found)
            .apus("reads the clock in every turn of the engine; a clock such as tsc or kvm-clock needs no system call")
            .value("source", source.as_str())
            .value("reading_ns", self.reading_ns);
        let better = BY_MEMORY.iter().find(|name| self.available.iter().any(|it| it == *name));
        let brings = "readings without a system call; not measured here";
        vec![match better {
            Some(better) => finding
                .change(format!("echo {better} | sudo tee {SOURCES}/current_clocksource"), brings),
            None => finding.change(
                "dmesg | grep -i -e tsc -e clocksource # why the kernel does not trust the TSC",
                brings,
            ),
        }]
    }
}

/// The median of batches, so that pauses of the machine do not count.
fn reading_ns() -> f64 {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..BATCH {
                black_box(Instant::now());
            }
            start.elapsed().as_nanos() as f64 / f64::from(BATCH)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    batches[batches.len() / 2]
}

/// A source that is read by a system call is bad; so is any source that is as slow.
fn verdict(source: &str, reading_ns: f64) -> Verdict {
    match reading_ns {
        ns if ns > READING_BAD_NS => Verdict::Bad,
        _ => Verdict::good_if(BY_MEMORY.contains(&source)),
    }
}

/// Sources that programs read without a system call, the best first.
const BY_MEMORY: &[&str] = &["tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"];

const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0";

/// Upper bound on a reading without a system call.
const READING_BAD_NS: f64 = 500.0;

const BATCHES: usize = 31;
const BATCH: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FakeFiles;

    #[test]
    fn a_source_with_system_calls_is_replaced() {
        let files = FakeFiles(&[
            ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
            (
                "/sys/devices/system/clocksource/clocksource0/available_clocksource",
                "tsc hpet acpi_pm \n",
            ),
        ]);
        let clock = Clock { reading_ns: 900.0, ..Clock::gather(&files) };
        let finding = clock.findings().remove(0);
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(finding.change.unwrap().starts_with("echo tsc | sudo tee /sys/devices/"));
        let clock = Clock { source: Some("tsc".to_owned()), reading_ns: 25.0, ..clock };
        assert_eq!(clock.findings()[0].verdict, Verdict::Good);
        assert_eq!(Clock::gather(&FakeFiles(&[])).findings()[0].verdict, Verdict::NotKnown);
    }
}
