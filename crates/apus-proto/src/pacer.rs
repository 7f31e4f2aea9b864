//! An estimate of the NIC's queue, so that the shortest message can always go next.
//!
//! Rule `pace-1`: the link is taken to be busy until it would have carried everything handed to
//! it, at 99 % of its rate; nothing that may wait is handed over while that is further ahead than
//! the allowed backlog (`homa_pacer.c`, `link_idle_time`).

use std::time::Duration;

use crate::time::Time;

/// Bytes a packet takes on the wire beyond its Homa bytes: IP and UDP headers, Ethernet header with
/// VLAN tag, preamble, checksum and gap.
const OVERHEAD: u64 = 28 + 42;

#[derive(Debug)]
pub(crate) struct Pacer {
    idle_at: Time,
    picos_per_byte: u64,
    backlog: Duration,
    enabled: bool,
}

impl Pacer {
    pub(crate) fn new(enabled: bool, link_mbps: u64, backlog: Duration) -> Self {
        let mut pacer = Self { idle_at: Time::ZERO, picos_per_byte: 0, backlog, enabled };
        pacer.set_rate(link_mbps);
        pacer
    }

    pub(crate) fn set_rate(&mut self, link_mbps: u64) {
        self.picos_per_byte = 8_000_000 * 100 / 99 / link_mbps.max(1);
    }

    /// When the next packet may go.
    pub(crate) fn ready_at(&self) -> Time {
        //= docs/protocol.md#pace-1
        let backlog = u64::try_from(self.backlog.as_nanos()).unwrap_or(u64::MAX);
        Time::from_nanos(self.idle_at.as_nanos().saturating_sub(backlog))
    }

    #[inline]
    pub(crate) fn is_ready(&self, now: Time) -> bool {
        !self.enabled || self.ready_at() <= now
    }

    /// A packet of `bytes` Homa bytes was handed to the link.
    #[inline]
    pub(crate) fn charge(&mut self, now: Time, bytes: usize) {
        if self.enabled {
            let nanos = (bytes as u64 + OVERHEAD) * self.picos_per_byte / 1000;
            self.idle_at = self.idle_at.max(now) + Duration::from_nanos(nanos);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_go_at_the_rate_of_the_link() {
        let mut pacer = Pacer::new(true, 10_000, Duration::from_micros(5));
        let (mut now, mut sent) = (Time::ZERO, 0u64);
        while now < Time::ZERO + Duration::from_millis(10) {
            if pacer.is_ready(now) {
                pacer.charge(now, 1480);
                sent += 1480 + OVERHEAD;
            } else {
                now = pacer.ready_at();
            }
        }
        let full = 12_500_000; // bytes in 10 ms at 10 Gb/s
        assert!(sent > full * 98 / 100 && sent < full, "{sent}");
    }

    #[test]
    fn switched_off_it_never_holds_anything_back() {
        let mut pacer = Pacer::new(false, 1, Duration::ZERO);
        pacer.charge(Time::ZERO, 1 << 30);
        assert!(pacer.is_ready(Time::ZERO));
    }
}
