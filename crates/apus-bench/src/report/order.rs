//! The order of values in tables.

/// Each value once, in the order of first appearance.
pub(super) fn in_order<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut known, value| {
        if !known.contains(&value) {
            known.push(value);
        }
        known
    })
}
