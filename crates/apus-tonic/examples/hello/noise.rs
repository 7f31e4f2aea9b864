//! The CPU time that other programs took during a measurement.

use std::fs;

/// More than this share of the CPU time is reported.
const SHARE_MAX: f64 = 0.05;

/// CPU times in ticks of the kernel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Noise {
    all: u64,
    busy: u64,
    own: u64,
}

impl Noise {
    /// The times at present, zeroes if the kernel does not give them.
    pub(crate) fn begin() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (machine, own) = (read("/proc/stat"), read("/proc/self/stat"));
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        // user, nice, system, idle, iowait, irq, softirq, steal
        let machine = numbers(machine.lines().next().unwrap_or_default());
        let all: u64 = machine.iter().take(8).sum();
        let idle: u64 = machine.iter().skip(3).take(2).sum();
        // The name of the program, in brackets, is before the numbers: utime and stime are the 12th and 13th.
        let own =
            own.rsplit_once(") ").map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>());
        let own = own.unwrap_or_default();
        let own = own.iter().skip(11).take(2).filter_map(|number| number.parse::<u64>().ok()).sum();
        Self { all, busy: all - idle, own }
    }

    /// The times since the beginning.
    pub(crate) fn end(self) -> Self {
        let now = Self::begin();
        Self { all: now.all - self.all, busy: now.busy - self.busy, own: now.own - self.own }
    }

    /// The share of the CPU time that others have taken.
    pub(crate) fn share_of_others(&self) -> f64 {
        self.busy.saturating_sub(self.own) as f64 / self.all.max(1) as f64
    }

    /// Says so if other work was on the machine.
    pub(crate) fn warn(&self) {
        let share = self.share_of_others();
        if share > SHARE_MAX {
            eprintln!(
                "warning: other work took {:.0} % of the CPU time: compare ratios within this run only",
                share * 100.0
            );
        }
    }
}
