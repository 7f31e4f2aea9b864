//! Time as an input of the core: nanoseconds since a moment that only the caller knows.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

/// A moment on the caller's clock, in nanoseconds since an arbitrary start.
///
/// The core never reads a clock: every call that needs the time takes it as an argument, so the
/// same code runs on a real clock, a virtual one, and a simulator's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time(u64);

impl Time {
    /// The start of the caller's clock.
    pub const ZERO: Self = Self(0);

    /// Returns the moment `nanos` nanoseconds after the start.
    #[inline]
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the moment `nanos` nanoseconds later. Saturates.
    #[inline]
    pub(crate) const fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the earlier of two moments. `None` means never.
#[inline]
#[must_use]
pub fn sooner(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Returns a duration in nanoseconds, without 128-bit arithmetic. Saturates as the moments do.
#[inline]
pub(crate) const fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(duration.subsec_nanos() as u64)
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates after about 584 years.
    #[inline]
    fn add(self, delta: Duration) -> Self {
        Self(self.0.saturating_add(nanos(delta)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09} s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
