//! The measured delay and rate of a peer, from which all adaptive behaviour of the core derives.

use std::time::Duration;

use crate::time::Time;

/// Number of samples before a low rate is believed: the first samples are of messages that waited for others.
const SETTLED: u32 = 8;
/// Time for which a measured extreme is believed.
const WINDOW: Duration = Duration::from_secs(5);
/// A sample counts as at most this many times the smoothed delay. One odd moment, such as a sender with something shorter to send,
/// must not lengthen the RTO of all RPCs.
const SAMPLE_MAX: u64 = 16;

/// The best value of the present and the previous window, so that old extremes expire.
#[derive(Clone, Copy, Debug)]
struct Extreme {
    present: u64,
    previous: u64,
    since: Time,
}

impl Extreme {
    const fn new() -> Self {
        Self { present: u64::MAX, previous: u64::MAX, since: Time::ZERO }
    }

    fn sample(&mut self, now: Time, value: u64) {
        if now.saturating_since(self.since) > WINDOW {
            self.previous = self.present;
            self.present = u64::MAX;
            self.since = now;
        }
        self.present = self.present.min(value);
    }

    fn least(&self) -> Option<u64> {
        Some(self.present.min(self.previous)).filter(|&value| value != u64::MAX)
    }
}

/// Round-trip delay to a peer: smoothed with its deviation (the estimator of RFC 6298), and the recent minimum.
#[derive(Debug)]
pub(crate) struct Delay {
    smoothed: u64,
    deviation: u64,
    least: Extreme,
}

impl Delay {
    pub(crate) const fn new() -> Self {
        Self { smoothed: 0, deviation: 0, least: Extreme::new() }
    }

    /// Takes a round trip without retransmission as a sample.
    #[inline]
    pub(crate) fn sample(&mut self, now: Time, round_trip: Duration) {
        let sample = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX >> 8).max(1);
        if self.smoothed == 0 {
            self.smoothed = sample;
            self.deviation = sample / 2;
        } else {
            //= docs/protocol.md#measure-1
            let sample = sample.min(SAMPLE_MAX * self.smoothed);
            self.deviation = (3 * self.deviation + self.smoothed.abs_diff(sample)) / 4;
            self.smoothed = (7 * self.smoothed + sample) / 8;
        }
        self.least.sample(now, sample);
    }

    /// Takes a round trip that includes a wait of unknown length, which is only an upper bound.
    pub(crate) fn bound(&mut self, now: Time, round_trip: Duration) {
        let sample = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX >> 8).max(1);
        self.least.sample(now, sample);
    }

    /// Returns the RTO; `None` before the first sample.
    pub(crate) fn rto(&self) -> Option<Duration> {
        self.rto_nanos().map(Duration::from_nanos)
    }

    /// Returns the RTO in nanoseconds.
    #[inline]
    pub(crate) fn rto_nanos(&self) -> Option<u64> {
        (self.smoothed != 0).then(|| self.smoothed.saturating_add(4 * self.deviation))
    }

    /// Returns the minimum round trip of the last seconds.
    pub(crate) fn least(&self) -> Option<Duration> {
        self.least.least().map(Duration::from_nanos)
    }
}

/// The highest recent rate of data between this node and a peer.
#[derive(Debug)]
pub(crate) struct Rate {
    /// Minimum time in picoseconds per byte.
    pace: Extreme,
    samples: u32,
}

impl Rate {
    pub(crate) const fn new() -> Self {
        Self { pace: Extreme::new(), samples: 0 }
    }

    /// Takes a sample: `bytes` were transferred in `elapsed`. Ignores times below 1 µs, which are too short to mean anything.
    pub(crate) fn sample(&mut self, now: Time, bytes: u64, elapsed: Duration) {
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX / 1000);
        if bytes == 0 || nanos < 1_000 {
            return;
        }
        self.samples = self.samples.saturating_add(1);
        self.pace.sample(now, (nanos.saturating_mul(1000) / bytes).max(1));
    }

    /// Returns whether there are enough samples that the highest rate is probably among them.
    pub(crate) fn is_settled(&self) -> bool {
        self.samples >= SETTLED
    }

    /// Returns the bytes transferred in `span` at the highest rate seen.
    pub(crate) fn bytes_in(&self, span: Duration) -> Option<u64> {
        let pace = self.pace.least()?;
        Some(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 1000).saturating_mul(1000) / pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn rto_follows_the_measured_delay() {
        let mut delay = Delay::new();
        assert_eq!(delay.rto(), None);
        for step in 0..200 {
            delay.sample(Time::from_nanos(step), micros(100));
        }
        let steady = delay.rto().expect("sampled");
        assert!(steady >= micros(100) && steady < micros(110), "{steady:?}");
        delay.sample(Time::from_nanos(200), micros(1000));
        assert!(delay.rto().expect("sampled") > micros(1000));
        assert_eq!(delay.least(), Some(micros(100)));
    }

    #[test]
    fn one_odd_sample_does_not_spoil_the_rto() {
        let mut delay = Delay::new();
        for step in 0..100 {
            delay.sample(Time::from_nanos(step), micros(100));
        }
        delay.sample(Time::from_nanos(100), Duration::from_secs(3600));
        assert!(delay.rto().expect("sampled") < micros(2_000));
        delay.bound(Time::from_nanos(101), micros(50));
        assert_eq!(delay.least(), Some(micros(50)));
    }

    #[test]
    fn an_old_least_fades() {
        let mut delay = Delay::new();
        delay.sample(Time::ZERO + micros(1), micros(10));
        for second in [6, 12, 18] {
            delay.sample(Time::ZERO + Duration::from_secs(second), micros(50));
        }
        assert_eq!(delay.least(), Some(micros(50)));
    }

    #[test]
    fn rate_is_the_highest_seen() {
        let mut rate = Rate::new();
        rate.sample(Time::ZERO, 125_000, micros(100)); // 10 Gb/s
        rate.sample(Time::ZERO, 125_000, micros(1000));
        assert_eq!(rate.bytes_in(micros(10)), Some(12_500));
        rate.sample(Time::ZERO, 1_000_000, Duration::from_nanos(10));
        assert_eq!(rate.bytes_in(micros(10)), Some(12_500));
    }
}
