//! Counters of the kernel: TCP's losses in this namespace, and the use of the processors.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use procfs::{CpuTime, CurrentSI, KernelStats};

/// TCP's counters of interest, with their names in results.
const TCP_COUNTERS: [(&str, &str, &str); 3] = [
    ("/proc/net/snmp", "Tcp: RetransSegs", "tcp_retransmits"),
    ("/proc/net/netstat", "TcpExt: TCPTimeouts", "tcp_timeouts"),
    ("/proc/net/netstat", "TcpExt: TCPLossProbes", "tcp_loss_probes"),
];

/// TCP's counters in this network namespace since its creation.
pub(crate) fn tcp_counters() -> BTreeMap<String, u64> {
    let read = |(file, key, name): (&str, &str, &str)| {
        let count = counter(&fs::read_to_string(file).ok()?, key)?;
        Some((name.to_owned(), count))
    };
    TCP_COUNTERS.into_iter().filter_map(read).collect()
}

/// A counter of a file with pairs of lines: "Tcp: A B" and "Tcp: 1 2".
fn counter(text: &str, key: &str) -> Option<u64> {
    let (group, name) = key.split_once(' ')?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let names = lines.next()?.split_ascii_whitespace();
    let mut values = lines.next()?.split_ascii_whitespace();
    let place = names.into_iter().position(|found| found == name)?;
    values.nth(place)?.parse().ok()
}

/// Times of all processors since boot, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Processors {
    busy: u64,
    idle: u64,
    steal: u64,
}

impl Processors {
    /// The current times.
    ///
    /// # Errors
    /// If `/proc/stat` cannot be read.
    pub(crate) fn now() -> Result<Self> {
        Ok(Self::of(&KernelStats::current().context("cannot read `/proc/stat`")?.total))
    }

    /// The user time includes guests.
    fn of(total: &CpuTime) -> Self {
        let interrupts = total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        Self {
            busy: total.user + total.nice + total.system + interrupts,
            idle: total.idle + total.iowait.unwrap_or(0),
            steal: total.steal.unwrap_or(0),
        }
    }

    /// Share of the processors' time since `earlier` that was not idle, 0 to 1. Time that the hypervisor gave to other machines was
    /// not idle.
    pub(crate) fn busy_since(self, earlier: Self) -> f64 {
        let used = (self.busy + self.steal).saturating_sub(earlier.busy + earlier.steal) as f64;
        let idle = self.idle.saturating_sub(earlier.idle) as f64;
        if used + idle > 0.0 { used / (used + idle) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_stands_below_its_name() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: InSegs RetransSegs\nTcp: 10 7\n";
        assert_eq!(counter(text, "Tcp: RetransSegs"), Some(7));
        assert_eq!(counter(text, "Tcp: Unknown"), None);
        assert_eq!(counter("", "Tcp: InSegs"), None);
    }

    #[test]
    fn interrupts_and_stolen_time_are_not_idle() {
        let before = Processors { busy: 0, idle: 0, steal: 0 };
        let after = Processors { busy: 35, idle: 60, steal: 5 };
        assert_eq!(after.busy_since(before), 0.4);
        assert_eq!(after.busy_since(after), 0.0);
    }
}
