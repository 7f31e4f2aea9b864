//! What the link brings: how much at which level, and how much it can.
//!
//! A switch sends the packets of a higher level first, so data of a lower one waits for as long as
//! the link is full of others. Such data is not lost, and asking for it would only add to the load
//! (rule `loss-8`).

use std::time::Duration;

use apus_wire::Priority;

use crate::delay::Rate;
use crate::pacer::OVERHEAD;
use crate::time::Time;

/// The rate is measured over no less than this: what waited in a queue of the host comes in lumps.
const SPAN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Downlink {
    /// Bytes that came so far at each level, headers included.
    by_level: [u64; 8],
    /// The present span: since when, and the bytes in it.
    since: Time,
    bytes: u64,
    /// The most the link brought lately.
    rate: Rate,
}

impl Downlink {
    pub(crate) const fn new() -> Self {
        Self { by_level: [0; 8], since: Time::ZERO, bytes: 0, rate: Rate::new() }
    }

    /// A packet of `bytes` Homa bytes came.
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

    /// Bytes that came so far at this level and above: what a packet of the level may wait for.
    #[inline]
    pub(crate) fn ahead_of(&self, level: Priority) -> u64 {
        self.by_level[usize::from(level.get())..].iter().sum()
    }

    /// Whether the link was full for all but `idle` of the time `elapsed`, in which `bytes` came. Never,
    /// as long as its rate is not known. A sixteenth of the time is taken for what is not measured
    /// well.
    pub(crate) fn was_full(&self, bytes: u64, elapsed: Duration, idle: Duration) -> bool {
        let least = elapsed.saturating_sub(idle + elapsed / 16);
        self.rate.bytes_in(least).is_some_and(|carried| bytes >= carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_full_when_it_brings_what_it_can() {
        let (high, low) = (Priority::clamped(5), Priority::LOWEST);
        let mut link = Downlink::new();
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
}
