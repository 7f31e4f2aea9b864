//! Items that arrive in any order, in the order of their numbers.

use std::collections::BTreeMap;

/// Puts items into the order of their numbers, which count from 1.
pub(crate) struct InOrder<T> {
    next: u64,
    early: BTreeMap<u64, T>,
}

/// Numbers from the next one on that are taken. A sender has two under way.
const EARLY_MAX: u64 = 16;

/// What became of an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SeqPlace {
    /// It waits for its turn, or it has its turn now.
    Kept,
    /// Its number was there before.
    Known,
    /// Its number is too far ahead.
    Refused,
}

impl<T> InOrder<T> {
    pub(crate) fn new() -> Self {
        Self { next: 1, early: BTreeMap::new() }
    }

    /// What would become of an item with this number.
    //= docs/rpc-wire.md#E23
    pub(crate) fn place(&self, seq: u64) -> SeqPlace {
        if seq < self.next || self.early.contains_key(&seq) {
            return SeqPlace::Known;
        }
        if seq - self.next >= EARLY_MAX {
            return SeqPlace::Refused;
        }
        SeqPlace::Kept
    }

    /// Adds an item whose [`place`](Self::place) is kept.
    pub(crate) fn push(&mut self, seq: u64, item: T) {
        debug_assert_eq!(self.place(seq), SeqPlace::Kept);
        self.early.insert(seq, item);
    }

    /// Takes the next item in order, if it is there.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.early.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }

    /// Number of items that wait for an earlier one.
    pub(crate) fn early(&self) -> usize {
        self.early.len()
    }

    /// Takes all items, whatever their order.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.early).into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_order_and_once() {
        //= docs/rpc-wire.md#E23
        let mut order = InOrder::new();
        order.push(2, "b");
        assert_eq!((order.pop(), order.place(2)), (None, SeqPlace::Known));
        order.push(1, "a");
        assert_eq!([order.pop(), order.pop(), order.pop()], [Some("a"), Some("b"), None]);
        assert_eq!(order.place(1), SeqPlace::Known);
        for seq in 4..3 + EARLY_MAX {
            order.push(seq, "x");
        }
        assert_eq!(
            (order.place(3), order.place(3 + EARLY_MAX)),
            (SeqPlace::Kept, SeqPlace::Refused)
        );
        assert_eq!((order.early(), order.take_all().count()), (15, 15));
    }
}
