//! Open-loop arrivals, Poisson or ETC's, and the lateness of the generator.
//!
//! A closed loop (the next call after the end of the last one) needs no schedule and is up to the caller.

use rand::RngExt;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::random::{Random, pareto, seeded};

/// Lateness above which a start counts as late, in nanoseconds: 50 µs.
pub const LATE_NS: u64 = 50_000;

/// Share of late starts above which a run carries a warning: 1 %.
pub const LATE_SHARE_MAX: f64 = 0.01;

/// An endless open-loop schedule: intended start times in nanoseconds since the start of the run, with exponential gaps.
///
/// Latency must be measured from these times, not from the time at which the generator sends; otherwise a stall of the system hides
/// the calls that it delayed.
#[derive(Clone, Debug)]
pub struct Poisson {
    gap_mean_ns: f64,
    /// Exact to a nanosecond for 104 days, after which a double has no such digits.
    next_ns: f64,
    rng: Random,
}

impl Poisson {
    /// Arrivals at `calls_per_s` on average. Refused unless the rate is finite and above zero.
    pub fn new(calls_per_s: f64, seed: u64) -> Result<Self, RateError> {
        if !calls_per_s.is_finite() || calls_per_s <= 0.0 {
            return Err(RateError { value: calls_per_s });
        }
        Ok(Self { gap_mean_ns: 1e9 / calls_per_s, next_ns: 0.0, rng: seeded(seed) })
    }

    /// Arrivals such that messages of `bytes_mean` bytes on average make `gbps` gigabits per second of message bytes in one
    /// direction (as `cp_node --gbps`). Refused unless the resulting rate is finite and above zero.
    pub fn for_throughput(gbps: f64, bytes_mean: f64, seed: u64) -> Result<Self, RateError> {
        Self::new(gbps * 1e9 / 8.0 / bytes_mean, seed)
    }

    /// The average rate, in calls per second.
    #[must_use]
    pub fn calls_per_s(&self) -> f64 {
        1e9 / self.gap_mean_ns
    }
}

impl Iterator for Poisson {
    type Item = u64;

    /// The next intended start, in nanoseconds since the start of the run. Never ends, never falls.
    fn next(&mut self) -> Option<u64> {
        // 1 - u lies in (0, 1], so the logarithm is finite.
        let gaps = -(1.0 - self.rng.random::<f64>()).ln();
        self.next_ns += gaps * self.gap_mean_ns;
        Some(self.next_ns as u64)
    }
}

/// An endless open-loop schedule like [`Poisson`], with the gaps of ETC (see [`etc`](crate::etc)): generalized Pareto, so burstier
/// than exponential. The shape is the paper's, and the scale follows from the rate.
#[derive(Clone, Debug)]
pub struct Pareto {
    gap_scale_ns: f64,
    next_ns: f64,
    rng: Random,
}

impl Pareto {
    /// Shape of the gaps.
    const SHAPE: f64 = 0.154_971;

    /// Arrivals at `calls_per_s` on average. Refused unless the rate is finite and above zero.
    pub fn new(calls_per_s: f64, seed: u64) -> Result<Self, RateError> {
        if !calls_per_s.is_finite() || calls_per_s <= 0.0 {
            return Err(RateError { value: calls_per_s });
        }
        // The mean of the distribution is scale / (1 - shape).
        let gap_scale_ns = 1e9 / calls_per_s * (1.0 - Self::SHAPE);
        Ok(Self { gap_scale_ns, next_ns: 0.0, rng: seeded(seed) })
    }
}

impl Iterator for Pareto {
    type Item = u64;

    /// The next intended start, in nanoseconds since the start of the run. Never ends, never falls.
    fn next(&mut self) -> Option<u64> {
        self.next_ns += pareto(self.gap_scale_ns, Self::SHAPE, &mut self.rng);
        Some(self.next_ns as u64)
    }
}

/// An impossible rate of arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("rate {value} calls/s: expected a finite number above 0")]
pub struct RateError {
    /// The requested rate, in calls per second.
    pub value: f64,
}

/// The lateness of a generator's starts against its schedule. A late generator measures itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lateness {
    started: u64,
    late: u64,
    max_ns: u64,
}

impl Lateness {
    /// No starts yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes one start, intended at `intended_ns` and made at `actual_ns` on the same clock. An early start counts as on time.
    pub fn record(&mut self, intended_ns: u64, actual_ns: u64) {
        let behind_ns = actual_ns.saturating_sub(intended_ns);
        self.started += 1;
        self.late += u64::from(behind_ns > LATE_NS);
        self.max_ns = self.max_ns.max(behind_ns);
    }

    /// Adds the starts of another thread of the same generator.
    pub fn merge(&mut self, other: &Self) {
        self.started += other.started;
        self.late += other.late;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of starts.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.started
    }

    /// The share of starts that were more than [`LATE_NS`] late, 0 to 1; 0 without starts.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.started == 0 { 0.0 } else { self.late as f64 / self.started as f64 }
    }

    /// Lateness of the latest start, in µs.
    #[must_use]
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1e3
    }

    /// Whether the run measures the generator rather than the transport or server: more than [`LATE_SHARE_MAX`] of the starts were
    /// late. Such a run is refused.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.share() > LATE_SHARE_MAX
    }

    /// A warning if more than [`LATE_SHARE_MAX`] of the starts were late. `who` is the name of the generator, such as a transport.
    #[must_use]
    pub fn warning(&self, who: &str) -> Option<String> {
        self.is_refused().then(|| {
            format!(
                "{who}: the generator was late: {:.1} % of calls started more than {} µs after their time (worst {:.0} µs), so the \
                 load came in bursts; the run is refused",
                self.share() * 100.0,
                LATE_NS / 1000,
                self.max_us(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gaps_are_exponential() {
        let times: Vec<u64> = Poisson::new(1e6, 11).unwrap().take(200_000).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1000.0 - 1.0).abs() < 0.01, "{mean}");
        // An exponential distribution's deviation equals its mean, and 1/e of the gaps exceed it.
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.02, "{}", variance.sqrt());
        let above = gaps.iter().filter(|gap| **gap > 1000.0).count() as f64 / gaps.len() as f64;
        assert!((above - 1.0 / std::f64::consts::E).abs() < 0.005, "{above}");
    }

    #[test]
    fn gaps_of_etc_have_the_rate_asked_for_and_a_longer_tail() {
        let times: Vec<u64> = Pareto::new(1e6, 11).unwrap().take(400_000).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean / 1000.0 - 1.0).abs() < 0.01, "{mean}");
        // Deviation over mean is 1 / sqrt(1 - 2 shape) = 1.204.
        assert!((variance.sqrt() / mean - 1.204).abs() < 0.05, "{}", variance.sqrt() / mean);
        assert!(Pareto::new(0.0, 1).is_err());
    }

    #[test]
    fn one_seed_gives_one_schedule() {
        let schedule = |seed| Poisson::new(5e4, seed).unwrap().take(100).collect::<Vec<_>>();
        assert_eq!(schedule(1), schedule(1));
        assert_ne!(schedule(1), schedule(2));
    }

    #[test]
    fn throughput_becomes_a_rate() {
        // 2 Gb/s of 10,990 bytes on average: 22,747 calls a second.
        let arrivals = Poisson::for_throughput(2.0, 10_990.0, 1).unwrap();
        assert!((arrivals.calls_per_s() - 22_747.95).abs() < 0.1, "{}", arrivals.calls_per_s());
    }

    #[test]
    fn impossible_rates_are_refused_by_value() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Poisson::new(rate, 1).is_err());
        }
        assert_eq!(
            Poisson::new(-2.5, 1).unwrap_err().to_string(),
            "rate -2.5 calls/s: expected a finite number above 0"
        );
    }

    #[test]
    fn one_late_start_in_a_hundred_is_tolerated_more_are_reported() {
        let mut lateness = Lateness::new();
        assert_eq!((lateness.share(), lateness.warning("x")), (0.0, None));
        for call in 0..99 {
            lateness.record(call * 1000, call * 1000 + LATE_NS);
        }
        lateness.record(1_000_000, 3_000_000);
        assert_eq!((lateness.share(), lateness.warning("x")), (0.01, None));
        lateness.record(1_000_000, 1_000_000 + LATE_NS + 1);
        let warning = lateness.warning("tcp-epoll").unwrap();
        assert!(warning.contains("tcp-epoll: the generator was late: 2.0 %"), "{warning}");
        assert!(warning.contains("worst 2000 µs"), "{warning}");
    }

    #[test]
    fn early_is_in_time() {
        let mut lateness = Lateness::new();
        lateness.record(500, 100);
        assert_eq!((lateness.started(), lateness.max_us()), (1, 0.0));
    }

    proptest! {
        #[test]
        fn merging_is_recording_in_one(starts in prop::collection::vec((0..1u64 << 40, 0..1u64 << 40), 0..40), cut in 0..40usize) {
            let (mut whole, mut parts) = (Lateness::new(), [Lateness::new(), Lateness::new()]);
            for (position, (intended, actual)) in starts.into_iter().enumerate() {
                whole.record(intended, actual);
                parts[usize::from(position >= cut)].record(intended, actual);
            }
            let [mut first, second] = parts;
            first.merge(&second);
            prop_assert_eq!(first, whole);
        }

        #[test]
        fn schedules_never_fall(rate in 1.0..1e8f64, seed: u64) {
            let times: Vec<u64> = Poisson::new(rate, seed).unwrap().take(200).collect();
            prop_assert!(times.is_sorted());
        }
    }
}
