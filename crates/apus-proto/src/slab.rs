//! Slots with generational handles: a handle to something that ended never finds its successor.

use std::marker::PhantomData;

/// A typed handle into a [`Slab`].
pub(crate) trait Handle: Copy {
    fn new(index: u32, generation: u32) -> Self;
    fn index(self) -> u32;
    fn generation(self) -> u32;
}

macro_rules! handle {
    ($(#[$doc:meta])* $visibility:vis $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        $visibility struct $name {
            index: u32,
            generation: u32,
        }

        impl $crate::slab::Handle for $name {
            fn new(index: u32, generation: u32) -> Self {
                Self { index, generation }
            }

            fn index(self) -> u32 {
                self.index
            }

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

#[derive(Debug)]
pub(crate) struct Slab<K, T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    key: PhantomData<K>,
}

impl<K: Handle, T> Slab<K, T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), key: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of slots ever used: the bound of a sweep by [`Slab::at`].
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> K {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return K::new(index, slot.generation);
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 slots fit in memory");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        K::new(index, 0)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        let slot = self.slots.get(key.index() as usize)?;
        if slot.generation == key.generation() { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index() as usize)?;
        if slot.generation == key.generation() { slot.value.as_mut() } else { None }
    }

    /// The slot the next value will be put into, if it was used before.
    #[inline]
    pub(crate) fn next_generation(&self) -> Option<u32> {
        Some(self.slots[*self.free.last()? as usize].generation)
    }

    /// Drops the value in its place; false if the handle was stale.
    #[inline]
    pub(crate) fn remove(&mut self, key: K) -> bool {
        let slot = self.slots.get_mut(key.index() as usize);
        let Some(slot) = slot.filter(|slot| slot.generation == key.generation()) else {
            return false;
        };
        if slot.value.is_none() {
            return false;
        }
        slot.value = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index());
        true
    }

    /// What is in slot `index`, if anything.
    #[inline]
    pub(crate) fn at(&self, index: usize) -> Option<(K, &T)> {
        let slot = self.slots.get(index)?;
        let value = slot.value.as_ref()?;
        let index = u32::try_from(index).expect("slot numbers are 32 bits");
        Some((K::new(index, slot.generation), value))
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
    }
}
