//! Slots with generational handles: the handle of an ended value never finds its successor.

use std::marker::PhantomData;

/// A typed handle into a [`Slab`]: a slot, and the number of earlier values in the slot.
pub trait Handle: Copy {
    /// Creates the handle of a value.
    fn new(index: u32, generation: u32) -> Self;

    /// Returns the slot.
    fn index(self) -> u32;

    /// Returns the number of earlier values in the slot.
    fn generation(self) -> u32;

    /// Returns the handle as one number, to pass outside and back.
    #[inline]
    fn to_bits(self) -> u64 {
        u64::from(self.generation()) << 32 | u64::from(self.index())
    }

    /// Returns the handle for the number that [`to_bits`](Self::to_bits) returned.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a number")]
    fn from_bits(bits: u64) -> Self {
        Self::new(bits as u32, (bits >> 32) as u32)
    }
}

/// Defines a type of handles.
#[macro_export]
macro_rules! handle {
    ($(#[$doc:meta])* $visibility:vis $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        $visibility struct $name {
            index: u32,
            generation: u32,
        }

        impl $crate::slab::Handle for $name {
            #[inline]
            fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }

            #[inline]
            fn index(self) -> u32 {
                self.index
            }

            #[inline]
            fn generation(self) -> u32 {
                self.generation
            }
        }
    };
}

handle! {
    /// A socket of an [`Endpoint`](crate::Endpoint); stays unique after the socket is closed.
    pub SocketKey
}
handle! {
    /// One RPC of an [`Endpoint`](crate::Endpoint); stays unique after the RPC has ended.
    pub RpcKey
}
handle! {
    /// One peer node.
    pub(crate) PeerKey
}

impl SocketKey {
    /// A small number, unique among the sockets open now: usable as a table index.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of values, each in a slot of its own. The handle of a removed value never finds its successor.
#[derive(Debug)]
pub struct Slab<K, T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    key: PhantomData<K>,
}

impl<K: Handle, T> Slab<K, T> {
    /// Creates an empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), key: PhantomData }
    }

    /// Returns the number of values.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether there is no value.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of slots ever used: the bound of a sweep by [`Slab::at`].
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Puts a value into a slot.
    ///
    /// # Panics
    ///
    /// At 2^32 values.
    #[inline]
    pub fn insert(&mut self, value: T) -> K {
        self.insert_with(|_| value)
    }

    /// Puts a value that knows its handle into a slot.
    ///
    /// # Panics
    ///
    /// At 2^32 values.
    #[inline]
    pub fn insert_with(&mut self, make: impl FnOnce(K) -> T) -> K {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            let key = K::new(index, slot.generation);
            slot.value = Some(make(key));
            return key;
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 slots fit in memory");
        let key = K::new(index, 0);
        self.slots.push(Slot { generation: 0, value: Some(make(key)) });
        key
    }

    /// Returns the value, unless it was removed.
    #[inline]
    #[must_use]
    pub fn get(&self, key: K) -> Option<&T> {
        let slot = self.slots.get(key.index() as usize)?;
        if slot.generation == key.generation() { slot.value.as_ref() } else { None }
    }

    /// Returns the value, unless it was removed.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index() as usize)?;
        if slot.generation == key.generation() { slot.value.as_mut() } else { None }
    }

    /// Drops the value in its place. Returns `false` if the handle is stale.
    #[inline]
    pub fn remove(&mut self, key: K) -> bool {
        self.remove_with(key, |_| ()).is_some()
    }

    /// Drops the value in its place after `take` has taken the parts that are needed. A large value is never moved.
    #[inline]
    pub fn remove_with<R>(&mut self, key: K, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        let slot = self.slots.get_mut(key.index() as usize)?;
        if slot.generation != key.generation() {
            return None;
        }
        let taken = take(slot.value.as_mut()?);
        slot.value = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index());
        Some(taken)
    }

    /// Removes a value from its slot and returns it.
    #[inline]
    pub fn take(&mut self, key: K) -> Option<T> {
        let slot = self.slots.get_mut(key.index() as usize)?;
        if slot.generation != key.generation() {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index());
        Some(value)
    }

    /// Returns the handles of all values. Examines every slot.
    pub fn keys(&self) -> impl Iterator<Item = K> {
        (0..self.slots()).filter_map(|index| self.at(index)).map(|(key, _)| key)
    }

    /// Drops every value for which `keep` is false. Examines every slot.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            if slot.value.as_mut().is_some_and(|value| !keep(value)) {
                slot.value = None;
                slot.generation = slot.generation.wrapping_add(1);
                self.free.push(index);
            }
        }
    }

    /// Returns the value in slot `index` and its handle.
    #[inline]
    #[must_use]
    pub fn at(&self, index: usize) -> Option<(K, &T)> {
        let slot = self.slots.get(index)?;
        let value = slot.value.as_ref()?;
        let index = u32::try_from(index).expect("slot numbers are 32 bits");
        Some((K::new(index, slot.generation), value))
    }
}

impl<K: Handle, T> Default for Slab<K, T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_outlives_its_value_without_finding_the_next() {
        let mut slab: Slab<RpcKey, &str> = Slab::new();
        let first = slab.insert("first");
        assert!(slab.remove(first));
        let second = slab.insert("second");
        assert_eq!(first.index, second.index);
        assert_eq!(slab.get(first), None);
        assert!(!slab.remove(first));
        assert_eq!(slab.get(second), Some(&"second"));
        assert_eq!((slab.len(), slab.slots()), (1, 1));
        assert_eq!(slab.get(RpcKey::from_bits(second.to_bits())), Some(&"second"));
        assert_eq!((slab.take(second), slab.take(second)), (Some("second"), None));
        let third = slab.insert("third");
        slab.retain(|_| false);
        assert_eq!((slab.get(third), slab.len()), (None, 0));
    }
}
