//! Memory for calls whose lists are too long for small stacks.
//!
//! A call takes a block and gives it back; a signal handler that interrupts it takes another one. Blocks stay for the calls that follow,
//! of any thread. Of a call that a handler leaves by a jump, [`holds`](crate::carry::holds) gives the block back.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::carry::holds::Hold;
use crate::carry::thread;
use crate::originals::own;

/// Blocks that stay. Calls beyond have blocks that do not.
const BLOCKS: usize = 64;

static POOL: [Block; BLOCKS] = [const { Block::new() }; BLOCKS];

struct Block {
    /// The thread that has it; 0: it is free.
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

    /// Its memory, with room for this number of bytes.
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

/// A block, as long as a call has it.
pub(crate) struct Scratch {
    memory: *mut u8,
    bytes: usize,
    block: Option<(&'static Block, Hold)>,
}

impl Scratch {
    /// Memory for this number of bytes, uninitialised. `None` if memory is exhausted.
    #[inline(never)]
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let me = thread::thread();
        let bytes = bytes.next_multiple_of(4096);
        let taken = POOL.iter().find_map(|block| Some((block, block.take(me)?)));
        let Some((block, hold)) = taken else {
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

    /// The first byte; it is aligned for any type.
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

/// Blocks of a thread that has ended are free.
pub(super) fn give_back(owner: u64) {
    for block in &POOL {
        let _ = block.owner.compare_exchange(owner, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// In a child of fork: other threads of the parent had blocks.
pub(crate) fn forget_all() {
    let me = thread::thread();
    for block in POOL.iter().filter(|block| block.owner.load(Ordering::Relaxed) != me) {
        block.owner.store(0, Ordering::Relaxed);
    }
}

fn map(bytes: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the call makes a new mapping.
    let memory = unsafe { own::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

fn unmap(memory: *mut u8, bytes: usize) {
    // SAFETY: the memory was made by `map`, and nobody uses it.
    let _ = unsafe { own::munmap(memory.cast(), bytes) };
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

    /// As a handler would, further down the stack.
    #[inline(never)]
    fn nested() -> Scratch {
        let room = std::hint::black_box([0_u8; 256]);
        let scratch = Scratch::new(100 + usize::from(room[0])).unwrap();
        std::hint::black_box(&room);
        scratch
    }
}
