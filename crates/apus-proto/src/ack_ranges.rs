//! Finished calls that were not acknowledged to a server yet, as ranges of ids (rule `ack-2`).

use apus_wire::RpcId;
use apus_wire::compact::AckRange;

/// Upper bound on the acknowledgements that wait for a message.
const WAITING_MAX: u32 = 5;

/// Acknowledgements for a server that reads compact bundles. Calls end mostly in the order of their ids.
#[derive(Debug, Default)]
pub(crate) struct AckRanges {
    ranges: Vec<AckRange>,
    /// Number of acknowledgements.
    count: u32,
}

impl AckRanges {
    /// Adds an acknowledgement. Returns `true` if from now on too many wait, so that they are to be sent without a message.
    #[inline]
    pub(crate) fn push(&mut self, id: RpcId) -> bool {
        //= docs/protocol.md#ack-2
        self.count = self.count.wrapping_add(1); // Fewer than 2^32 calls fit into memory.
        if !self.ranges.last_mut().is_some_and(|last| last.extend(id)) {
            self.ranges.push(AckRange { first: id, count: 1 });
        }
        self.count == WAITING_MAX.wrapping_add(1)
    }

    /// Adds an acknowledgement that may be there already.
    pub(crate) fn ensure(&mut self, id: RpcId) {
        if !self.ranges.iter().any(|range| range.contains(id)) {
            self.push(id);
        }
    }

    /// Removes and returns the last range.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<AckRange> {
        if self.count == 0 {
            return None;
        }
        let range = self.ranges.pop()?;
        self.count = self.count.saturating_sub(u32::from(range.count));
        Some(range)
    }

    /// Removes and returns the last acknowledgement.
    pub(crate) fn pop_one(&mut self) -> Option<RpcId> {
        let last = self.ranges.last_mut()?;
        let id = last.ids().last()?;
        last.count = last.count.saturating_sub(1);
        self.count = self.count.saturating_sub(1);
        if last.count == 0 {
            self.ranges.pop();
        }
        Some(id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= docs/protocol.md#ack-2
    #[test]
    fn ids_in_order_are_one_range_and_the_sixth_does_not_wait() {
        let mut acks = AckRanges::default();
        let sixth: Vec<bool> = (1..=8).map(|number| acks.push(RpcId(2 * number))).collect();
        assert_eq!(sixth, [false, false, false, false, false, true, false, false]);
        assert!(!acks.push(RpcId(40)));
        acks.ensure(RpcId(40));
        acks.ensure(RpcId(4));
        assert_eq!(acks.pop(), Some(AckRange { first: RpcId(40), count: 1 }));
        assert_eq!(acks.pop_one(), Some(RpcId(16)));
        assert_eq!(acks.pop(), Some(AckRange { first: RpcId(2), count: 7 }));
        assert!(acks.pop().is_none() && acks.pop_one().is_none() && acks.is_empty());
    }

    #[test]
    fn a_range_is_no_longer_than_its_field() {
        let mut acks = AckRanges::default();
        (0..300).for_each(|number| {
            acks.push(RpcId(2 * number));
        });
        assert_eq!(acks.pop(), Some(AckRange { first: RpcId(510), count: 45 }));
        assert_eq!(acks.pop(), Some(AckRange { first: RpcId(0), count: 255 }));
    }
}
