//! The measurements of a client's thread.

use std::fmt::Write as _;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use apus_load::{BySize, Latency, Lateness};

use super::errors::Errors;
use crate::transport::interface::Failed;

/// Upper bound on calls recorded for `--dump`, over all threads.
pub(super) const DUMP_MAX: usize = 500_000;

/// One thread's record, which the statistics read every second.
#[derive(Debug)]
pub(super) struct Recorder {
    record: Mutex<Measurements>,
}

impl Recorder {
    /// An empty record that keeps the last `dump` calls.
    pub(super) fn new(dump: usize) -> Self {
        Self { record: Mutex::new(Measurements::new(dump)) }
    }

    /// Locks the record for a batch of calls.
    pub(super) fn lock(&self) -> MutexGuard<'_, Measurements> {
        // A panic is reported elsewhere, and the thread's record is still valid.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measurements.
#[derive(Clone, Debug, Default)]
pub(super) struct Measurements {
    /// Since the last statistics.
    pub(super) interval: Interval,
    /// Failed calls since the start.
    pub(super) errors: Errors,
    /// Latencies since the start, by size of request.
    pub(super) by_size: BySize,
    /// Lateness against the schedule.
    pub(super) lateness: Lateness,
    /// Time lost because no more calls could be outstanding, in nanoseconds.
    pub(super) lag_ns: u64,
    /// Request bytes of calls that ended.
    pub(super) out_bytes: u64,
    /// Reply bytes.
    pub(super) in_bytes: u64,
    /// The last calls: bytes of the request, nanoseconds.
    last: Vec<(u32, u64)>,
    next: usize,
    dump: usize,
}

/// Values shown once a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Interval {
    pub(super) latency: Latency,
    pub(super) out_bytes: u64,
    pub(super) in_bytes: u64,
    pub(super) lag_ns: u64,
    /// Failed calls.
    pub(super) errors: u64,
}

impl Measurements {
    /// An empty record that keeps the last `dump` calls.
    pub(super) fn new(dump: usize) -> Self {
        Self { dump, ..Self::default() }
    }

    /// Records a successful call.
    pub(super) fn note(&mut self, request: u32, reply: u32, ns: u64) {
        self.interval.latency.record_ns(ns);
        self.interval.out_bytes += u64::from(request);
        self.interval.in_bytes += u64::from(reply);
        self.by_size.record(request, ns);
        if self.last.len() < self.dump {
            self.last.push((request, ns));
        } else if let Some(oldest) = self.last.get_mut(self.next) {
            *oldest = (request, ns);
            self.next = (self.next + 1) % self.dump;
        }
    }

    /// Records a failed call to `server`.
    pub(super) fn note_failure(&mut self, server: &str, failed: &Failed) {
        self.interval.errors += 1;
        self.errors.note(server, failed);
    }

    /// Records time in which a due call could not start.
    pub(super) fn note_lag(&mut self, ns: u64) {
        self.interval.lag_ns += ns;
    }

    /// Takes the measurements since the last call of this function.
    pub(super) fn take_interval(&mut self) -> Interval {
        let interval = mem::take(&mut self.interval);
        self.out_bytes += interval.out_bytes;
        self.in_bytes += interval.in_bytes;
        self.lag_ns += interval.lag_ns;
        interval
    }

    /// Adds another thread's measurements.
    pub(super) fn merge(&mut self, other: &Self) {
        self.by_size.merge(&other.by_size);
        self.errors.merge(&other.errors);
        self.lateness.merge(&other.lateness);
        self.lag_ns += other.lag_ns;
        self.out_bytes += other.out_bytes;
        self.in_bytes += other.in_bytes;
        self.last.extend_from_slice(&other.last);
    }

    /// The recorded calls, one per line: bytes of the request and the round trip in µs, like cp_node's `dump_times`.
    pub(super) fn dump(&self) -> String {
        let mut text = String::with_capacity(self.last.len() * 16);
        for (bytes, ns) in &self.last {
            writeln!(text, "{bytes} {:.3}", *ns as f64 / 1e3).expect("a string takes everything");
        }
        text
    }
}

impl Interval {
    /// Adds another thread's measurements.
    pub(super) fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.out_bytes += other.out_bytes;
        self.in_bytes += other.in_bytes;
        self.lag_ns += other.lag_ns;
        self.errors += other.errors;
    }

    /// The line of statistics, over `seconds` and `threads` sending threads.
    pub(super) fn line(&self, seconds: f64, threads: usize) -> String {
        let calls = self.latency.count();
        let gbps = |bytes: u64| bytes as f64 * 8.0 / 1e9 / seconds;
        let mut line = format!(
            "{:9.2} Kops/s {:7.3} Gbps out {:7.3} Gbps in   RTT (µs) P50 {:8.2} P99 {:8.2} P99.9 {:8.2}   avg. length {:.1}",
            calls as f64 / 1e3 / seconds,
            gbps(self.out_bytes),
            gbps(self.in_bytes),
            self.latency.p(50.0),
            self.latency.p(99.0),
            self.latency.p(99.9),
            self.out_bytes as f64 / calls.max(1) as f64,
        );
        let lag = self.lag_ns as f64 / 1e7 / seconds / threads.max(1) as f64;
        if lag >= 1.0 {
            write!(line, "   lag {lag:.1} %").expect("a string takes everything");
        }
        if self.errors > 0 {
            write!(line, "   {} errors", self.errors).expect("a string takes everything");
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_calls_are_kept() {
        let mut record = Measurements::new(3);
        (1..=5).for_each(|n| record.note(100 * n, 100, u64::from(n) * 1000));
        let mut lines: Vec<String> = record.dump().lines().map(str::to_owned).collect();
        lines.sort();
        assert_eq!(lines, ["300 3.000", "400 4.000", "500 5.000"]);
    }

    #[test]
    fn an_interval_is_taken_once_and_kept_in_the_total() {
        let mut record = Measurements::new(0);
        record.note(1000, 100, 5000);
        record.note_lag(20_000_000);
        record.note_failure("a:1", &Failed::wrong(1, "a wrong byte"));
        let interval = record.take_interval();
        let line = interval.line(1.0, 1);
        assert!(line.contains("P50     5.00") && line.contains("lag 2.0 %   1 errors"), "{line}");
        assert_eq!(record.take_interval().latency.count(), 0);
        assert_eq!(record.errors.total(), 1);
        assert_eq!((record.out_bytes, record.in_bytes, record.lag_ns), (1000, 100, 20_000_000));
    }
}
