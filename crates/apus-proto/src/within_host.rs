//! Loss within the host: packets of a peer of the same host are lost in the receive buffer of this node's link only, where the kernel
//! counts them.

use crate::time::Time;

/// Packets that the receive buffer refused.
#[derive(Debug, Default)]
pub(crate) struct ReceiveDrops {
    /// Their number. `None`: not known, so every silence may be a loss.
    total: Option<u64>,
    /// Time of the last report of a higher number than before.
    grown: Time,
    /// Whether that report had no effect yet.
    are_new: bool,
}

impl ReceiveDrops {
    /// Takes the present number. The first report only begins the count.
    pub(crate) fn report(&mut self, now: Time, total: u64) {
        if self.total.replace(total).is_some_and(|before| before < total) {
            self.grown = now;
            self.are_new = true;
        }
    }

    /// Returns whether no packet was refused since `then`, as far as reported. False if the number is not known.
    pub(crate) fn none_since(&self, then: Time) -> bool {
        self.total.is_some() && self.grown <= then
    }

    #[inline]
    pub(crate) fn are_new(&self) -> bool {
        self.are_new
    }

    /// Returns whether a higher number was reported, once for each such report.
    pub(crate) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.are_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn only_growth_of_a_known_number_is_a_loss() {
        let mut drops = ReceiveDrops::default();
        assert!(!drops.none_since(at(1)), "not known");
        drops.report(at(1), 7);
        assert!(drops.none_since(at(0)) && !drops.take_new(), "earlier losses");
        drops.report(at(2), 7);
        assert!(drops.none_since(at(0)));
        drops.report(at(3), 8);
        assert!(drops.take_new() && !drops.take_new());
        assert!(!drops.none_since(at(2)) && drops.none_since(at(3)));
    }
}
