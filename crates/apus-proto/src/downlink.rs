//! Bytes received on the link per level, and the capacity of the link.
//!
//! A switch sends the packets of a higher level first, so data of a lower level waits while higher levels fill the link. Such data
//! is not lost, and a request to send it again would only add to the load (rule `loss-8`).

use std::time::Duration;

use apus_wire::Priority;

use crate::delay::Rate;
use crate::link::LinkRate;
use crate::pacer::OVERHEAD;
use crate::time::Time;

/// Minimum time over which the rate is measured, because packets queued in the host arrive in bursts.
const SPAN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Downlink {
    /// Bytes received so far at each level, headers included.
    by_level: [u64; 8],
    /// Start of the present span.
    since: Time,
    /// Bytes received in the present span.
    bytes: u64,
    /// The recent maximum rate of the link.
    rate: Rate,
    /// The capacity of the link, if known.
    link: Option<LinkRate>,
}

impl Downlink {
    pub(crate) const fn new(link: Option<LinkRate>) -> Self {
        Self { by_level: [0; 8], since: Time::ZERO, bytes: 0, rate: Rate::new(), link }
    }

    pub(crate) fn set_link(&mut self, link: Option<LinkRate>) {
        self.link = link;
    }

    /// Records the arrival of a packet of `bytes` Homa bytes.
    #[inline]
    pub(crate) fn arrived(&mut self, now: Time, level: Priority, bytes: usize) {
        let bytes = bytes as u64 + OVERHEAD;
        let elapsed = now.saturating_since(self.since);
        if elapsed >= SPAN {
            self.rate.sample(now, self.bytes, elapsed);
            self.since = now;
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.by_level[usize::from(level.get())] += bytes;
    }

    /// Returns the bytes received so far at this level and above. A packet of this level may wait for such bytes.
    #[inline]
    pub(crate) fn ahead_of(&self, level: Priority) -> u64 {
        self.by_level[usize::from(level.get())..].iter().sum()
    }

    /// Returns the minimum time that the link takes for `bytes`; zero while its rate is unknown.
    pub(crate) fn time_of(&self, bytes: u64) -> Duration {
        self.link.map_or(Duration::ZERO, |link| link.time_of(bytes))
    }

    /// Returns whether the link was full for all but `idle` of the time `elapsed`, in which `bytes` arrived. Returns `false` while
    /// the rate is unknown. A sixteenth of the time is the tolerance for imprecise measurements.
    pub(crate) fn was_full(&self, bytes: u64, elapsed: Duration, idle: Duration) -> bool {
        let least = elapsed.saturating_sub(idle + elapsed / 16);
        //= docs/protocol.md#measure-4
        let link = self.link.map_or(u64::MAX, |link| link.bytes_in(least));
        self.rate.bytes_in(least).is_some_and(|carried| bytes >= carried.min(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_full_when_it_brings_what_it_can() {
        let (high, low) = (Priority::clamped(5), Priority::LOWEST);
        let mut link = Downlink::new(None);
        let micros = |n: u64| Time::from_nanos(n * 1_000);
        assert!(!link.was_full(1 << 20, Duration::from_micros(1), Duration::ZERO));
        for n in 0..2_000 {
            link.arrived(micros(n), high, 1_250 - 70); // 10 Gb/s
        }
        let before = (link.ahead_of(high), link.ahead_of(low));
        for n in 2_000..3_000 {
            link.arrived(micros(n), if n % 2 == 0 { high } else { low }, 1_250 - 70);
        }
        let full = |level, before| {
            let bytes = link.ahead_of(level) - before;
            link.was_full(bytes, Duration::from_micros(1_000), Duration::from_micros(100))
        };
        assert!(full(low, before.1), "everything goes before the lowest level");
        assert!(!full(high, before.0), "half of it does not go before this");
    }

    //= docs/protocol.md#measure-4
    #[test]
    fn a_lump_does_not_make_the_link_faster_than_it_is() {
        let (rate, level) = (LinkRate::from_mbps(50), Priority::LOWEST);
        let full = |link| {
            let mut link = Downlink::new(link);
            // A packet every 250 µs; once, the packets of 5 ms in one burst.
            for n in 0..2_000 {
                let lumped = (1_000..1_020).contains(&n);
                let at = if lumped { 1_020 } else { n };
                link.arrived(Time::from_nanos(at * 250_000), level, 1_472);
            }
            let (bytes, elapsed) = (40 * (1_472 + OVERHEAD), Duration::from_millis(10));
            link.was_full(bytes, elapsed, Duration::from_millis(1))
        };
        assert!(full(Some(rate)));
        assert!(!full(None));
    }
}
