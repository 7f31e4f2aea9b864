//! A hash table that can only be looked up in, so that its order is never seen.

use std::hash::Hash;

use foldhash::quality::FixedState;
use hashbrown::HashMap;

/// Keyed by the endpoint's seed, because the keys come from the network.
#[derive(Debug)]
pub(crate) struct Lookup<K, V> {
    map: HashMap<K, V, FixedState>,
}

impl<K: Eq + Hash, V: Copy> Lookup<K, V> {
    pub(crate) fn new(seed: u64) -> Self {
        Self { map: HashMap::with_hasher(FixedState::with_seed(seed)) }
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.map.get(key).copied()
    }

    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.map.insert(key, value)
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.map.remove(key)
    }
}
