//! The known rate of the host's link.

use std::time::Duration;

use crate::pacer::OVERHEAD;

/// Bytes that a full Ethernet packet takes on a link, headers and gap included.
pub(crate) const FULL_PACKET: u64 = 1_472 + OVERHEAD;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkRate {
    mbps: u64,
}

impl LinkRate {
    /// Converts a rate in 10^6 bit/s.
    pub(crate) fn from_mbps(mbps: u64) -> Self {
        Self { mbps: mbps.max(1) }
    }

    /// Returns the time that the link takes for `bytes`.
    pub(crate) fn time_of(self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(8_000) / self.mbps)
    }

    /// Returns the bytes that the link carries in `span`.
    pub(crate) fn bytes_in(self, span: Duration) -> u64 {
        u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).saturating_mul(self.mbps) / 8_000
    }
}
