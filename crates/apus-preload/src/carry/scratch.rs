//! Memory for calls whose lists are too long for small stacks.
//!
//! A call takes a block and gives it back; a signal handler that interrupts it takes another one. Blocks stay for the calls that follow,
//! of any thread. A call that a handler leaves by a jump gives nothing back: the next one of its thread finds the block abandoned, since
//! its own frame is further up the stack.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::carry::token;
use crate::originals::own;

/// Blocks that stay. Calls beyond have blocks that do not.
const BLOCKS: usize = 64;

static POOL: [Block; BLOCKS] = [const { Block::new() }; BLOCKS];

struct Block {
    /// The thread that has it; 0: it is free.
    owner: AtomicU64,
    /// Where the frame of the call is that has it.
    frame: AtomicUsize,
    memory: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

impl Block {
    const fn new() -> Self {
        Self {
            owner: AtomicU64::new(0),
            frame: AtomicUsize::new(0),
            memory: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
        }
    }

    fn take(&self, me: u64, frame: usize) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        let may =
            owner == 0 || owner == me && is_abandoned(self.frame.load(Ordering::Relaxed), frame);
        let taken = may
            && self.owner.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            self.frame.store(frame, Ordering::Relaxed);
        }
        taken
    }

    /// Its memory, with room for so many bytes.
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
    block: Option<&'static Block>,
}

impl Scratch {
    /// Memory for so many bytes, which have any values. `None` if there is no memory.
    #[inline(never)]
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let mark = 0_u8;
        let (me, frame) = (token::thread(), (&raw const mark).addr());
        let bytes = bytes.next_multiple_of(4096);
        let Some(block) = POOL.iter().find(|block| block.take(me, frame)) else {
            return Some(Self { memory: map(bytes)?, bytes, block: None });
        };
        let memory = block.memory(bytes);
        if memory.is_none() {
            block.owner.store(0, Ordering::Release);
        }
        Some(Self { memory: memory?, bytes, block: Some(block) })
    }

    /// The first byte; it is aligned for any type.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        match self.block {
            Some(block) => block.owner.store(0, Ordering::Release),
            None => unmap(self.memory, self.bytes),
        }
    }
}

/// Whether the call with a frame at `taken` has ended, for a call of the same thread with one at `here`.
#[cold]
fn is_abandoned(taken: usize, here: usize) -> bool {
    // SAFETY: zero is a value of each field.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: without a new stack the call only tells the present one.
    let result = unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    // A handler on a stack of its own has a frame anywhere.
    here >= taken && result == 0 && stack.ss_flags & libc::SS_ONSTACK == 0
}

/// In a child of fork: other threads of the parent had blocks.
pub(crate) fn forget_all() {
    let me = token::thread();
    for block in POOL.iter().filter(|block| block.owner.load(Ordering::Relaxed) != me) {
        block.owner.store(0, Ordering::Relaxed);
    }
}

fn map(bytes: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the call makes memory of its own.
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

    #[test]
    fn a_block_that_was_left_by_a_jump_is_found() {
        assert!(is_abandoned(1_000, 1_000) && is_abandoned(1_000, 2_000));
        assert!(!is_abandoned(2_000, 1_000), "the call was interrupted");
    }
}
