//! The results of a load, of one thread or of many on several hosts.

use apus_load::{Latency, Lateness};
use serde::{Deserialize, Serialize};

/// The results of a load, without the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Latency of reads, from the time at which each was due.
    pub gets: Latency,
    /// Latency of requests that set a value.
    pub updates: Latency,
    /// Time from the packet of a read to its answer's, by the kernel's stamps.
    #[serde(default)]
    pub packets: Latency,
    /// Lateness against the schedule; empty in a closed loop.
    pub lateness: Lateness,
    /// The counted time, in seconds.
    pub seconds: f64,
    /// Answers in the counted time.
    pub answers: u64,
    /// Reads of keys that had no value.
    pub misses: u64,
    /// Answers that were errors, or values of a wrong length.
    pub errors: u64,
    /// The first error.
    pub first_error: Option<String>,
    /// Requests without an answer after the drain.
    pub unfinished: u64,
    /// CPU time of the threads that generate the load.
    pub cpu_s: f64,
    /// Bytes written.
    pub sent_bytes: u64,
    /// Bytes read.
    pub received_bytes: u64,
}

impl Outcome {
    /// Adds the results of another part of the same load.
    pub fn merge(&mut self, other: Self) {
        self.gets.merge(&other.gets);
        self.updates.merge(&other.updates);
        self.packets.merge(&other.packets);
        self.lateness.merge(&other.lateness);
        self.seconds = self.seconds.max(other.seconds);
        self.answers += other.answers;
        self.misses += other.misses;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.unfinished += other.unfinished;
        self.cpu_s += other.cpu_s;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
    }

    /// Answers per second.
    pub fn qps(&self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_also_as_text() {
        let mut part = Outcome { seconds: 2.0, answers: 10, errors: 1, ..Outcome::default() };
        part.gets.record_ns(5_000);
        part.lateness.record(0, 1);
        part.first_error = Some("busy".to_owned());
        let text = serde_json::to_string(&part).unwrap();
        let mut whole = serde_json::from_str::<Outcome>(&text).unwrap();
        assert_eq!(whole, part);
        whole.merge(part);
        assert_eq!((whole.gets.count(), whole.answers, whole.errors), (2, 20, 2));
        assert_eq!((whole.qps(), whole.lateness.started()), (10.0, 2));
    }
}
