//! Who acts for one side of a direction: one thread at a time, of any process of the side.
//!
//! The word of a token holds the thread that has it. A thread of a process that died never gives it back; the next one that waits for
//! long notices and takes it over. The words of the direction are in order at any time.

use std::sync::atomic::{AtomicU64, Ordering};

use apus_shm::Memory;

use super::holds::Hold;

/// A token that is held; dropping it gives it back.
pub(crate) struct Token<'a> {
    word: &'a AtomicU64,
    /// A call that is left by a jump gives the token back.
    _hold: Hold,
}

/// The calling thread has the token already: a signal handler interrupted it.
pub(crate) struct Interrupted;

impl<'a> Token<'a> {
    /// Takes the token whose word lies at `offset`. Waits for its holder, which never sleeps with it.
    #[inline]
    pub(crate) fn take(memory: &'a Memory, offset: usize) -> Result<Self, Interrupted> {
        let (word, me) = (memory.word(offset), thread());
        let hold = Hold::token(word);
        match word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Self { word, _hold: hold }),
            Err(_) => Self::contend(word, me, hold),
        }
    }

    #[cold]
    fn contend(word: &'a AtomicU64, me: u64, hold: Hold) -> Result<Self, Interrupted> {
        let mut tries = 0_u32;
        loop {
            let holder = word.load(Ordering::Relaxed);
            if holder == me {
                return Err(Interrupted);
            }
            let is_free = holder == 0 || tries % LOOK_EVERY == LOOK_EVERY - 1 && is_dead(holder);
            let taken = is_free
                && word.compare_exchange(holder, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if taken {
                return Ok(Self { word, _hold: hold });
            }
            tries = tries.wrapping_add(1);
            if tries > SPINS {
                // SAFETY: the call has no arguments.
                unsafe { crate::originals::own::sched_yield() };
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl Drop for Token<'_> {
    #[inline]
    fn drop(&mut self) {
        self.word.store(0, Ordering::Release);
    }
}

/// This thread: process and thread number.
#[inline]
pub(crate) fn thread() -> u64 {
    thread_local! {
        // A `const` thread local without a destructor is a load; a child of fork sees the value of its parent, so the process is
        // looked at as well.
        static THREAD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    let process = super::process::id();
    let known = THREAD.get();
    if known >> 32 == u64::from(process) {
        return known;
    }
    // SAFETY: the call has no arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
    let word = u64::from(process) << 32 | thread;
    THREAD.set(word);
    word
}

pub(super) fn is_dead(holder: u64) -> bool {
    // One that this process cannot see may live.
    let Some(process) = super::process::visible((holder >> 32) as u32) else { return false };
    let (process, thread) = (i64::from(process), (holder & u64::from(u32::MAX)) as i64);
    // SAFETY: signal 0 is none; the call only looks whether the thread is there.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0_i64) };
    result != 0 && crate::errno::current() == libc::ESRCH
}

const SPINS: u32 = 200;
/// How often a waiting thread looks whether the holder still lives.
const LOOK_EVERY: u32 = 1_000;
