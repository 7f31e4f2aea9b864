//! What the kernel counts: TCP's losses in this namespace, and how busy the processors are.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// TCP's counters worth a look, and what they are called here.
const TCP_COUNTERS: [(&str, &str, &str); 3] = [
    ("/proc/net/snmp", "Tcp: RetransSegs", "tcp_retransmits"),
    ("/proc/net/netstat", "TcpExt: TCPTimeouts", "tcp_timeouts"),
    ("/proc/net/netstat", "TcpExt: TCPLossProbes", "tcp_loss_probes"),
];

/// What TCP has counted in this network namespace since it exists.
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

/// What all processors have done since the machine started, in the kernel's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Processors {
    busy: u64,
    idle: u64,
    steal: u64,
}

impl Processors {
    /// As of now.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read.
    pub(crate) fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read `/proc/stat`")?;
        Self::parse(&text).context("`/proc/stat` has no line of all processors")
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> =
            line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as user already
        let [user, nice, system, idle, iowait, irq, softirq, steal] = *ticks.first_chunk::<8>()?;
        Some(Self { busy: user + nice + system + irq + softirq, idle: idle + iowait, steal })
    }

    /// What share of the processors' time was not idle since `earlier`, 0 to 1; time that the hypervisor gave to
    /// others was not idle.
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
        let before = Processors::parse("cpu  0 0 0 0 0 0 0 0 0 0\n").unwrap();
        let after = Processors::parse("cpu  10 0 10 60 0 5 10 5 0 0\ncpu0 1 2\n").unwrap();
        assert_eq!(after.busy_since(before), 0.4);
        assert_eq!(after.busy_since(after), 0.0);
        assert_eq!(Processors::parse("cpu  1 2\n"), None);
    }
}
