//! Counts of answered requests.

use std::sync::atomic::{AtomicU64, Ordering};

use derive_more::Sub;

/// Counts of all threads of a server.
#[derive(Debug, Default)]
pub struct Traffic {
    requests: AtomicU64,
    in_bytes: AtomicU64,
    out_bytes: AtomicU64,
    wrong: AtomicU64,
    executed_twice: AtomicU64,
}

/// The counts at one time, or over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Sub)]
pub struct Counts {
    /// Requests answered.
    pub requests: u64,
    /// Bytes of requests.
    pub in_bytes: u64,
    /// Bytes of replies.
    pub out_bytes: u64,
    /// Checked requests with a wrong byte.
    pub wrong: u64,
    /// Checked requests that were executed a second time.
    pub executed_twice: u64,
}

impl Traffic {
    /// Adds the counts of a batch of requests.
    pub fn add(&self, counts: Counts) {
        self.requests.fetch_add(counts.requests, Ordering::Relaxed);
        self.in_bytes.fetch_add(counts.in_bytes, Ordering::Relaxed);
        self.out_bytes.fetch_add(counts.out_bytes, Ordering::Relaxed);
        if counts.wrong + counts.executed_twice > 0 {
            self.wrong.fetch_add(counts.wrong, Ordering::Relaxed);
            self.executed_twice.fetch_add(counts.executed_twice, Ordering::Relaxed);
        }
    }

    /// The current counts.
    pub fn counts(&self) -> Counts {
        Counts {
            requests: self.requests.load(Ordering::Relaxed),
            in_bytes: self.in_bytes.load(Ordering::Relaxed),
            out_bytes: self.out_bytes.load(Ordering::Relaxed),
            wrong: self.wrong.load(Ordering::Relaxed),
            executed_twice: self.executed_twice.load(Ordering::Relaxed),
        }
    }
}

impl Counts {
    /// The line of statistics over `seconds`.
    pub fn line(self, seconds: f64) -> String {
        let gbps = |bytes: u64| bytes as f64 * 8.0 / 1e9 / seconds;
        format!(
            "{:9.2} Kops/s {:7.3} Gbps in {:7.3} Gbps out   avg. length {:.1}",
            self.requests as f64 / 1e3 / seconds,
            gbps(self.in_bytes),
            gbps(self.out_bytes),
            self.in_bytes as f64 / self.requests.max(1) as f64,
        )
    }
}
