//! The process's clock, in the core's terms.

use apus_proto::Time;

#[cfg(not(all(test, apus_model)))]
pub(crate) use real::now;

#[cfg(all(test, apus_model))]
pub(crate) use crate::sync::now;

#[cfg(not(all(test, apus_model)))]
mod real {
    use std::sync::OnceLock;

    use super::Time;
    use apus_net::clock::boot_nanos;

    /// Time since the first call in this process, suspended time included: all nodes of a process
    /// share one clock, so that moments of one can be compared with moments of another. One vDSO call.
    ///
    /// A peer forgets this node by its own clock, which continues while this machine is suspended; so must ours (rule `once-5`).
    /// Sleeps do not count suspended time: a timer that became due during a suspend may be met that much later, unless a packet
    /// comes before.
    #[inline]
    pub(crate) fn now() -> Time {
        static START: OnceLock<u64> = OnceLock::new();
        let start = *START.get_or_init(boot_nanos);
        // The start was read before, but machines have been seen whose cores disagree by some
        // nanoseconds.
        Time::from_nanos(boot_nanos().saturating_sub(start))
    }
}
