//! Suspensions of interrupts and disturbances of the application, counted by tracepoints.
//!
//! A record for each poll and each softirq costs more than a microsecond per query, so a watched run has no other figures: CPU time
//! and latency come from runs without a watch.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use apus_irq::{Mode, NapiParameters, Watch, WatchCounts, busy_poll_packets};
use apus_load::Row;

use apus_memcached::{Edge, Outcome};

/// Watches runs in turn.
pub(super) struct Activity<'a> {
    watch: Watch,
    device: &'a str,
    cpus: &'a [usize],
    readings: Mutex<Vec<Reading>>,
}

/// All counts at one time.
struct Reading {
    counts: WatchCounts,
    /// Packets that applications in the server's network namespace received by busy polling.
    polled: u64,
}

impl<'a> Activity<'a> {
    /// Starts watching a device's NAPI instances and these CPUs.
    ///
    /// # Errors
    /// If this process lacks the privilege.
    pub(super) fn open(device: &'a str, cpus: &'a [usize]) -> Result<Self> {
        let watch = Watch::open(Duration::ZERO)?;
        Ok(Self { watch, device, cpus, readings: Mutex::new(Vec::new()) })
    }

    /// Prepares for a run in this mode.
    pub(super) fn prepare(&self, mode: Mode) {
        self.watch.set_suspension(Duration::from_nanos(mode.napi().irq_suspend_timeout_ns));
        self.readings.lock().expect("it does not panic while it holds the lock").clear();
    }

    /// Reads all counts. Called at both ends of a run, with a process of the server.
    ///
    /// # Errors
    /// If the kernel does not report them.
    pub(super) fn read(&self, _: Edge, server: i32) -> Result<()> {
        let polled = busy_poll_packets(Some(server)).context("BusyPollRxPackets")?;
        let reading = Reading { counts: self.watch.counts(), polled };
        self.readings.lock().expect("it does not panic while it holds the lock").push(reading);
        Ok(())
    }

    /// Adds the difference of the two readings to the row of a run in this mode.
    pub(super) fn add_to(&self, row: Row, mode: Mode, outcome: &Outcome) -> Row {
        let readings = self.readings.lock().expect("it does not panic while it holds the lock");
        let [begin, end] = &readings[..] else { return row };
        let counts = end.counts.since(&begin.counts);
        let napi = counts.of_device(self.device);
        let queries = outcome.answers as f64;
        let softirq_ns: u64 = self.cpus.iter().filter_map(|cpu| counts.softirq_ns.get(*cpu)).sum();
        // Without deferral the kernel arms the timer as well, but does not mask the interrupt.
        let NapiParameters { defer_hard_irqs, gro_flush_timeout_ns, .. } = mode.napi();
        let is_masked = defer_hard_irqs > 0 && gro_flush_timeout_ns > 0;
        let suspended = napi.long_rearms > 0 && is_masked;
        row.set("suspended", if suspended { "yes" } else { "no" })
            .set("suspensions_per_query", napi.long_rearms as f64 / queries)
            .set("expiries_per_query", napi.expiries as f64 / queries)
            .set("overruns_per_s", napi.overruns as f64 / outcome.seconds)
            .set("softirq_ns_per_query", softirq_ns as f64 / queries)
            .set("softirq_packets_per_query", napi.softirq_packets as f64 / queries)
            .set("task_packets_per_query", napi.task_packets as f64 / queries)
            .set("busy_polled_per_query", (end.polled - begin.polled) as f64 / queries)
            .set("lost_records", counts.lost)
    }
}
