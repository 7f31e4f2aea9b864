//! Values in numbered slots. A key of a value that is gone never finds its successor.

/// Names a value: slot number and how many values the slot has had. As one number it fits the
/// core's cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    pub(crate) fn to_cookie(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two halves of a cookie")]
    pub(crate) fn from_cookie(cookie: u64) -> Self {
        Self { index: cookie as u32, generation: (cookie >> 32) as u32 }
    }
}

#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, generation: slot.generation };
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 calls fit in memory");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Key { index, generation: 0 }
    }

    #[inline]
    pub(crate) fn find(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// Removes every value for which `keep` is false. Looks at every slot.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&mut T) -> bool) {
        for (index, slot) in (0u32..).zip(&mut self.slots) {
            if slot.value.as_mut().is_some_and(|value| !keep(value)) {
                slot.value = None;
                slot.generation = slot.generation.wrapping_add(1);
                self.free.push(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_outlives_its_value_without_finding_the_next() {
        let mut slots = Slots::new();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_eq!(first.index, second.index);
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(Key::from_cookie(second.to_cookie())), Some(&mut "second"));
        slots.retain(|_| false);
        assert_eq!(slots.find(second), None);
    }
}
