//! A hash table for lookups only, so that its order never shows.
//!
//! The table holds slot numbers of a [`Slab`] and compares keys in the values. Even with very many values it stays small enough for
//! the cache, and the caller needs the value of a lookup anyway.

use std::hash::{BuildHasher, Hash};
use std::marker::PhantomData;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::slab::{Handle, Slab};

/// A value that can be looked up by an `N`.
pub(crate) trait Named<N> {
    fn name(&self) -> N;
}

/// Keyed by the endpoint's seed, because the names come from the network.
#[derive(Debug)]
pub(crate) struct Lookup<K, N> {
    slots: HashTable<u32>,
    hasher: FixedState,
    entry: PhantomData<(N, K)>,
}

impl<K: Handle, N: Eq + Hash> Lookup<K, N> {
    pub(crate) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self { slots: HashTable::new(), hasher, entry: PhantomData }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    #[inline]
    pub(crate) fn find<T: Named<N>>(&self, values: &Slab<K, T>, name: &N) -> Option<K> {
        let is_it =
            |slot: &u32| values.at(*slot as usize).is_some_and(|(_, value)| value.name() == *name);
        let slot = self.slots.find(self.hasher.hash_one(name), is_it)?;
        values.at(*slot as usize).map(|(key, _)| key)
    }

    /// Adds a value with a unique name.
    #[inline]
    pub(crate) fn insert<T: Named<N>>(&mut self, values: &Slab<K, T>, key: K) {
        let hash = |slot: &u32| self.hasher.hash_one(name(values, *slot));
        self.slots.insert_unique(hash(&key.index()), key.index(), hash);
    }

    /// Removes the value at `key`, which has this name.
    #[inline]
    pub(crate) fn remove(&mut self, key: K, name: N) {
        let found = self.slots.find_entry(self.hasher.hash_one(name), |&slot| slot == key.index());
        if let Ok(entry) = found {
            entry.remove();
        }
    }
}

/// Returns the name of the value in a slot of the table.
#[inline]
fn name<K: Handle, T: Named<N>, N>(values: &Slab<K, T>, slot: u32) -> N {
    let (_, value) = values.at(slot as usize).expect("the table names values that exist");
    value.name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::RpcKey;

    impl Named<Self> for u64 {
        fn name(&self) -> Self {
            *self
        }
    }

    #[test]
    fn values_are_found_by_their_names_until_they_are_taken_out() {
        let mut values: Slab<RpcKey, u64> = Slab::new();
        let mut lookup: Lookup<RpcKey, u64> = Lookup::new(1);
        let keys: Vec<_> = (0..1_000)
            .map(|n| {
                let key = values.insert(7 * n);
                lookup.insert(&values, key);
                key
            })
            .collect();
        for (n, &key) in (0..).zip(&keys).filter(|(n, _)| n % 2 == 0) {
            lookup.remove(key, 7 * n);
            values.remove(key);
        }
        for (n, &key) in (0..).zip(&keys) {
            let expected = (n % 2 == 1).then_some(key);
            assert_eq!(lookup.find(&values, &(7 * n)), expected);
        }
        assert_eq!(lookup.find(&values, &6), None);
    }
}
