//! An estimate of the NIC's queue, so that the shortest message can always go next.
//!
//! Rule `pace-1`: the link counts as busy until it would have carried everything passed to it, at 99 % of its rate. While that time
//! is further ahead than the allowed backlog, the pacer holds back everything that may wait (`homa_pacer.c`, `link_idle_time`).

use std::time::Duration;

use crate::time::Time;

/// Bytes that a packet takes on the wire beyond its Homa bytes: IP and UDP headers, Ethernet header with VLAN tag, preamble,
/// checksum and gap.
pub(crate) const OVERHEAD: u64 = 28 + 42;

#[derive(Debug)]
pub(crate) struct Pacer {
    /// Time at which the link will have carried everything from all endpoints of the host.
    idle_at: Time,
    /// Time at which this endpoint's part of the link will have carried everything from this endpoint.
    own_idle_at: Time,
    /// Number of endpoints that share the link now, including this one.
    senders: u64,
    /// Bytes that this endpoint has passed to the link so far.
    sent: u64,
    /// Bytes that the other endpoints have passed to the link, once they have reported.
    sent_by_others: Option<u64>,
    picos_per_byte: u64,
    backlog: Duration,
    enabled: bool,
}

impl Pacer {
    pub(crate) fn new(enabled: bool, link_mbps: u64, backlog: Duration) -> Self {
        let mut pacer = Self {
            idle_at: Time::ZERO,
            own_idle_at: Time::ZERO,
            senders: 1,
            sent: 0,
            sent_by_others: None,
            picos_per_byte: 0,
            backlog,
            enabled,
        };
        pacer.set_rate(link_mbps);
        pacer
    }

    /// Sets the time by which packets may be passed to the link ahead of the wire.
    pub(crate) fn set_backlog(&mut self, backlog: Duration) {
        self.backlog = backlog;
    }

    pub(crate) fn set_rate(&mut self, link_mbps: u64) {
        self.picos_per_byte = 8_000_000 * 100 / 99 / link_mbps.max(1);
    }

    /// Returns the time at which the next packet may go.
    pub(crate) fn ready_at(&self) -> Time {
        //= docs/protocol.md#pace-1
        let backlog = u64::try_from(self.backlog.as_nanos()).unwrap_or(u64::MAX);
        let idle_at = self.idle_at.min(self.own_idle_at);
        Time::from_nanos(idle_at.as_nanos().saturating_sub(backlog))
    }

    #[inline]
    pub(crate) fn is_ready(&self, now: Time) -> bool {
        !self.enabled || self.ready_at() <= now
    }

    /// Records a packet of `bytes` Homa bytes that was passed to the link.
    #[inline]
    pub(crate) fn charge(&mut self, now: Time, bytes: usize) {
        if self.enabled {
            let bytes = bytes as u64 + OVERHEAD;
            self.sent += bytes;
            let time = self.time_of(bytes);
            self.idle_at = self.idle_at.max(now) + Duration::from_nanos(time);
            //= docs/protocol.md#host-3
            self.own_idle_at = if self.senders == 1 {
                self.idle_at
            } else {
                self.own_idle_at.max(now) + Duration::from_nanos(time * self.senders)
            };
        }
    }

    /// Takes the report of the host's other endpoints: they have passed `sent` bytes to the link since they began, and `sending` of
    /// them have more that waits.
    pub(crate) fn set_others(&mut self, now: Time, sent: u64, sending: u64) {
        let before = self.sent_by_others.replace(sent).unwrap_or(sent);
        self.senders = 1 + sending;
        if self.enabled && sent > before {
            self.idle_at =
                self.idle_at.max(now) + Duration::from_nanos(self.time_of(sent - before));
        }
        if sending == 0 {
            self.own_idle_at = self.idle_at; // The whole link is its part.
        }
    }

    /// Returns the bytes passed to the link so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the time that the link takes for `bytes`, in nanoseconds.
    #[inline]
    fn time_of(&self, bytes: u64) -> u64 {
        bytes * self.picos_per_byte / 1000
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

    //= docs/protocol.md#host-3
    #[test]
    fn what_siblings_send_keeps_the_link_busy() {
        let mut pacer = Pacer::new(true, 10_000, Duration::ZERO);
        pacer.set_others(Time::ZERO, 1 << 40, 0);
        assert!(pacer.is_ready(Time::ZERO), "bytes from before the first report do not count");
        pacer.set_others(Time::ZERO, (1 << 40) + 12_500, 0);
        let busy = pacer.ready_at().saturating_since(Time::ZERO);
        assert!((10_000..10_200).contains(&busy.as_nanos()), "{busy:?}");
    }

    //= docs/protocol.md#host-3
    #[test]
    fn siblings_that_always_have_more_leave_an_even_part() {
        let mut pacer = Pacer::new(true, 10_000, Duration::from_micros(5));
        let (mut others, mut own) = (0, 0);
        for now in (0..10_000_000).step_by(1_000).map(Time::from_nanos) {
            others += 2_500; // Twice the link's rate.
            pacer.set_others(now, others, 3);
            if pacer.is_ready(now) {
                pacer.charge(now, 1480);
                own += 1480 + OVERHEAD;
            }
        }
        let quarter = 12_500_000 / 4;
        assert!(own > quarter * 9 / 10 && own < quarter, "{own}");
    }

    #[test]
    fn switched_off_it_never_holds_anything_back() {
        let mut pacer = Pacer::new(false, 1, Duration::ZERO);
        pacer.charge(Time::ZERO, 1 << 30);
        assert!(pacer.is_ready(Time::ZERO));
    }
}
