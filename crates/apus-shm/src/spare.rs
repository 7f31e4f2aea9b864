//! Memory of copied bodies, kept for reuse: fresh memory would cost a page fault for each of its pages.

use std::sync::{Arc, Mutex};

use bytes::Bytes;

/// Memory of dropped bodies, for later bodies of the pair.
#[derive(Debug, Default)]
pub(crate) struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// Returns empty memory with room for `length` bytes.
    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let fits = |memory: &Vec<u8>| (length..=length * 2).contains(&memory.capacity());
        let found = self.0.lock().ok().and_then(|mut spare| {
            let index = spare.iter().rposition(fits)?; // The last one is most likely in a cache.
            Some(spare.swap_remove(index))
        });
        found.unwrap_or_else(|| Vec::with_capacity(length))
    }

    /// Returns the body in `memory`, which is kept once the body is dropped.
    pub(crate) fn body(self: &Arc<Self>, memory: Vec<u8>) -> Bytes {
        if memory.len() < WORTH_KEEPING {
            return memory.into();
        }
        Bytes::from_owner(Copied { memory, spare: Arc::clone(self) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_ok_and(|spare| spare.is_empty())
    }

    /// Drops all kept memory.
    pub(crate) fn clear(&self) {
        if let Ok(mut spare) = self.0.lock() {
            *spare = Vec::new();
        }
    }

    fn keep(&self, mut memory: Vec<u8>) {
        // In a forked child, the lock may be held by a thread that does not exist there.
        let Ok(mut spare) = self.0.try_lock() else { return };
        let kept: usize = spare.iter().map(Vec::capacity).sum();
        if kept + memory.capacity() <= SPARE_MAX {
            memory.clear();
            spare.push(memory);
        }
    }
}

#[derive(Debug)]
struct Copied {
    memory: Vec<u8>,
    spare: Arc<Spare>,
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.spare.keep(std::mem::take(&mut self.memory));
    }
}

/// Length in bytes from which on bodies have pages of their own.
const WORTH_KEEPING: usize = 128 << 10;

/// Upper bound on the bytes that a pair keeps.
const SPARE_MAX: usize = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_if_it_fits() {
        let spare = Arc::new(Spare::default());
        let address = |body: &Bytes| body.as_ptr();
        let body = |length: usize| {
            let mut memory = spare.take(length);
            memory.resize(length, 7);
            spare.body(memory)
        };
        let first = body(1 << 20);
        let place = address(&first);
        let clone = first.clone();
        drop(first);
        assert_ne!(address(&body(1 << 20)), place, "a clone holds it");
        spare.clear();
        drop(clone);
        assert_ne!(address(&body(300_000)), place, "it would waste more than half");
        assert_eq!(address(&body((1 << 20) - 5)), place);
        spare.clear();
        assert!(spare.0.lock().unwrap().is_empty());
    }

    #[test]
    fn no_more_is_kept_than_a_pair_may() {
        let spare = Arc::new(Spare::default());
        let bodies: Vec<_> = (0..5).map(|_| spare.body(vec![7; 10 << 20])).collect();
        drop(bodies);
        assert_eq!(spare.0.lock().unwrap().len(), 3);
        drop(spare.body(vec![7; WORTH_KEEPING - 1]));
        assert_eq!(spare.0.lock().unwrap().len(), 3);
    }
}
