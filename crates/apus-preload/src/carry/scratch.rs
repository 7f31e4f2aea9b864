//! Memory for calls whose lists are too long for small stacks.
//!
//! A call takes a block and gives it back. A signal handler that interrupts the call takes another block. Blocks are kept for
//! later calls of any thread. If a handler leaves a call by a jump, [`holds`](crate::carry::holds) gives the block back.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::carry::holds::Hold;
use crate::carry::mapping::{map, unmap};
use crate::carry::thread;

/// Number of blocks that are kept. Further calls get temporary memory.
const BLOCKS: usize = 64;

/// Upper bound on the size of a block that is kept. Larger memory is temporary.
const KEPT_MAX: usize = 256 << 10;

static POOL: [Block; BLOCKS] = [const { Block::new() }; BLOCKS];

struct Block {
    /// The thread that has the block. 0 for a free block.
    owner: AtomicU64,
    memory: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl Block {
    const fn new() -> Self {
        Self {
            owner: AtomicU64::new(0),
            memory: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
        }
    }

    fn take(&self, me: u64) -> Option<Hold> {
        if self.owner.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let hold = Hold::token(&self.owner);
        let taken = self.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(hold)
    }

    /// The block's memory, with room for `bytes` bytes.
    fn memory(&self, bytes: usize) -> Option<*mut u8> {
        let known = self.memory.load(Ordering::Relaxed);
        if self.bytes.load(Ordering::Relaxed) >= bytes {
            return Some(known);
        }
        let memory = map(bytes)?;
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        self.memory.store(memory, Ordering::Relaxed);
        if before > 0 {
            unmap(known, before);
        }
        Some(memory)
    }
}

/// A block that a call has taken.
pub(crate) struct Scratch {
    memory: *mut u8,
    bytes: usize,
    block: Option<(&'static Block, Hold)>,
}

impl Scratch {
    /// Takes uninitialized memory of `bytes` bytes. Returns `None` if memory is exhausted.
    #[inline(never)]
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let me = thread::thread();
        let bytes = bytes.next_multiple_of(4096);
        let kept = if bytes <= KEPT_MAX { &POOL[..] } else { &[] };
        let Some((block, hold)) = kept.iter().find_map(|block| Some((block, block.take(me)?)))
        else {
            return Some(Self { memory: map(bytes)?, bytes, block: None });
        };
        let memory = block.memory(bytes);
        if memory.is_none() {
            block.owner.store(0, Ordering::Release);
        }
        Some(Self { memory: memory?, bytes, block: Some((block, hold)) })
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.memory
    }

    /// Pointer to the first byte, aligned for any type.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        match &self.block {
            Some((block, _)) => block.owner.store(0, Ordering::Release),
            None => unmap(self.memory, self.bytes),
        }
    }
}

/// Frees the blocks of an ended thread.
pub(super) fn give_back(owner: u64) {
    for block in &POOL {
        let _ = block.owner.compare_exchange(owner, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Runs in a child of fork. Frees the blocks of the parent's other threads.
pub(crate) fn forget_all() {
    let me = thread::thread();
    for block in POOL.iter().filter(|block| block.owner.load(Ordering::Relaxed) != me) {
        block.owner.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_and_not_by_two() {
        let first = Scratch::new(100).unwrap().as_mut_ptr();
        let mut again = Scratch::new(5_000).unwrap();
        let mut nested = nested();
        assert_ne!(again.as_mut_ptr(), nested.as_mut_ptr());
        drop((again, nested));
        let mut third = Scratch::new(4_000).unwrap();
        assert!(third.bytes >= 4_000 && !third.as_mut_ptr().is_null() && !first.is_null());
    }

    /// Takes a block further down the stack, as a handler would.
    #[inline(never)]
    fn nested() -> Scratch {
        let room = std::hint::black_box([0_u8; 256]);
        let scratch = Scratch::new(100 + usize::from(room[0])).unwrap();
        std::hint::black_box(&room);
        scratch
    }
}
