//! Second copies of slow calls.

use std::time::Duration;

/// A second copy of a call that takes long, to another endpoint; the first response counts, and the other copy is given up. For
/// calls that are [idempotent](crate::UnaryCall::idempotent), with [`ChannelBuilder::hedge`](crate::ChannelBuilder::hedge).
///
/// ```
/// use std::time::Duration;
/// use apus_rpc::Hedge;
///
/// let fixed = Hedge::after(Duration::from_millis(2));
/// let measured = Hedge::after_p95().at_most(0.05);
/// ```
///
/// Copies are at most a tenth of the calls in each 10 s, so that servers that are slow because they have much to do do not get
/// twice as much. None is sent while none of the calls in these 10 s has ended without one, or while many calls fail
/// ([`Retry::throttle`](crate::Retry::throttle)).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Hedge {
    pub(crate) delay: HedgeDelay,
    pub(crate) share_max: f64,
}

/// The time after which the second copy is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HedgeDelay {
    Fixed(Duration),
    P95,
}

impl Hedge {
    /// Sends the second copy this long after the first one.
    #[must_use]
    pub const fn after(delay: Duration) -> Self {
        Self { delay: HedgeDelay::Fixed(delay), share_max: 0.1 }
    }

    /// Sends the second copy when a call has taken longer than 95 % of the calls of the last 10 s. There are no copies until 20
    /// calls have ended.
    #[must_use]
    pub const fn after_p95() -> Self {
        Self { delay: HedgeDelay::P95, share_max: 0.1 }
    }

    /// The largest share of calls that have a second copy: 0 to 1, default 0.1.
    #[must_use]
    pub fn at_most(mut self, share: f64) -> Self {
        self.share_max = share.clamp(0.0, 1.0);
        self
    }
}
