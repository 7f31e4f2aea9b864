//! A bounded map that evicts entries without recent use.
//!
//! Second chance: use sets a mark on an entry. When the map is full, a hand that moves around clears marks and evicts the first
//! entry without one. So entries that are used once, in any number, evict only such entries.

use std::collections::HashMap;
use std::hash::Hash;

/// A map with a fixed maximum of entries. An insertion examines two entries on average if all others are new, and never more than
/// all.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    places: HashMap<K, usize>,
    entries: Vec<Entry<K, V>>,
    max: usize,
    hand: usize,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    used: bool,
}

impl<K: Copy + Eq + Hash, V> Recent<K, V> {
    pub(crate) fn new(max: usize) -> Self {
        Self { places: HashMap::new(), entries: Vec::new(), max, hand: 0 }
    }

    /// Returns the place of an entry, for [`at`](Self::at). Valid until the next insertion.
    #[inline]
    pub(crate) fn place(&self, key: &K) -> Option<usize> {
        self.places.get(key).copied()
    }

    /// Returns the entry at a place, and marks it as used.
    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut V {
        let entry = &mut self.entries[place];
        entry.used = true;
        &mut entry.value
    }

    /// Returns the value of `key`, and marks it as used.
    #[inline]
    pub(crate) fn use_of(&mut self, key: &K) -> Option<&mut V> {
        let place = self.place(key)?;
        Some(self.at(place))
    }

    /// Returns the value of `key` without marking it.
    #[inline]
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        Some(&self.entries[self.place(key)?].value)
    }

    /// Returns the values of all entries, without marking them.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|entry| &mut entry.value)
    }

    /// Adds an entry without a mark, in place of an unmarked one if the map is full. Returns its place and the evicted value. `key`
    /// must be new.
    pub(crate) fn insert(&mut self, key: K, value: V) -> (usize, Option<V>) {
        let entry = Entry { key, value, used: false };
        if self.entries.len() < self.max {
            self.entries.push(entry);
            let place = self.entries.len() - 1;
            self.places.insert(key, place);
            return (place, None);
        }
        self.turn();
        let place = self.hand;
        self.hand = (self.hand + 1) % self.max;
        let old = std::mem::replace(&mut self.entries[place], entry);
        self.places.remove(&old.key);
        self.places.insert(key, place);
        (place, Some(old.value))
    }

    /// Moves the hand on to an entry without a mark.
    fn turn(&mut self) {
        while std::mem::take(&mut self.entries[self.hand].used) {
            self.hand = (self.hand + 1) % self.max;
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_comes_once_evicts_one_that_came_once() {
        let mut recent = Recent::new(4);
        for key in 0..4 {
            recent.insert(key, key * 10);
        }
        for unknown in 100..1_000 {
            assert_eq!(recent.use_of(&2), Some(&mut 20), "{unknown}");
            let (place, evicted) = recent.insert(unknown, unknown);
            assert_ne!(evicted, Some(20));
            assert_eq!((recent.len(), recent.place(&unknown)), (4, Some(place)));
        }
        assert_eq!(recent.peek(&0), None);
    }

    #[test]
    fn with_a_mark_on_each_the_hand_goes_round_once() {
        let mut recent = Recent::new(3);
        (0..3).for_each(|key| _ = recent.insert(key, ()));
        (0..3).for_each(|key| _ = recent.use_of(&key));
        recent.insert(3, ());
        assert_eq!((recent.place(&0), recent.place(&3)), (None, Some(0)));
    }
}
