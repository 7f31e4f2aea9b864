//! The time for which a thread spins on memory before it sleeps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::carry::connection::holders;
use crate::carry::thread;
use crate::originals::own;

/// The clock of timeouts.
pub(crate) struct Clock;

impl Clock {
    /// Time since the host booted.
    pub(crate) fn now() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the buffer has room for the time, and the clock exists.
        let _ = unsafe { own::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// Statistics of the waits at a connection.
pub(crate) struct Spin {
    /// Time for which spinning pays, in microseconds.
    budget: AtomicU32,
    /// Number of waits that did not spin.
    skipped: AtomicU32,
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Self { budget: AtomicU32::new(BUDGET_MAX), skipped: AtomicU32::new(0) }
    }

    /// Whether the next wait here spins.
    #[inline]
    pub(crate) fn looks_next(&self) -> bool {
        self.budget.load(Ordering::Relaxed) >= BUDGET_MIN
            || self.skipped.load(Ordering::Relaxed).is_multiple_of(TRY_AGAIN)
    }
}

/// Spins until `is_there` returns true, for at most the time that paid in recent waits. Returns `false` if it never did.
#[inline]
pub(crate) fn until(spin: &Spin, is_there: impl Fn() -> bool) -> bool {
    if cfg!(all(test, apus_model)) {
        return is_there();
    }
    let mut budget = spin.budget.load(Ordering::Relaxed);
    if budget < BUDGET_MIN {
        // Spinning is retried at intervals.
        if !spin.skipped.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRY_AGAIN) {
            return false;
        }
        budget = BUDGET_MAX;
    }
    let Some(permit) = SpinPermit::take() else { return false };
    for _ in 0..FIRST_LOOKS {
        if is_there() {
            spin.budget.store(BUDGET_FIRST, Ordering::Relaxed);
            return true; // So early that the clock does not matter.
        }
        std::hint::spin_loop();
    }
    let began = Clock::now();
    let (budget, mut last) = (Duration::from_micros(budget.into()), began);
    loop {
        let has_come = (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            is_there()
        });
        if !has_come && SLEEPERS.load(Ordering::Relaxed) > 0 {
            // SAFETY: the call takes no arguments.
            unsafe { own::sched_yield() };
        }
        let now = Clock::now();
        if now - last > PREEMPTED {
            // Other threads need this processor, and the time spent here counts against this thread.
            spin.budget.store(0, Ordering::Relaxed);
            return has_come;
        }
        if has_come {
            let next = ((now - began).as_micros() as u32 * 7).clamp(BUDGET_FIRST, BUDGET_MAX);
            spin.budget.store(next, Ordering::Relaxed);
            return true;
        }
        if now - began > budget {
            spin.budget.store(budget.as_micros() as u32 / 2, Ordering::Relaxed);
            return false;
        }
        last = now;
        if permit.is_wanted() {
            // A relative wants to spin here too, so there are more threads than processors. They run when this one sleeps.
            spin.budget.store(0, Ordering::Relaxed);
            return is_there();
        }
    }
}

/// Number of this process's threads that sleep until a carried connection wakes them. A spinning thread yields to them.
pub(crate) static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// Notes that this thread begins or ends a sleep.
pub(super) fn note_sleep(begins: bool) {
    let next = |count: u32| if begins { Some(count + 1) } else { count.checked_sub(1) };
    let _ = SLEEPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// The right to spin on a processor, for one thread of a process and its relatives at a time. If another thread has it, that
/// thread was preempted while spinning, so there are more threads than processors.
struct SpinPermit(&'static AtomicU64);

impl SpinPermit {
    fn take() -> Option<Self> {
        // SAFETY: the call takes no arguments.
        let processor = unsafe { libc::sched_getcpu() } as usize;
        let (word, me) = (holders::place(processor)?, thread::thread());
        let take = |holder| {
            let (taken, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            word.compare_exchange(holder, me, taken, relaxed).is_ok()
        };
        let holder = word.load(Ordering::Relaxed);
        let is_free = holder == 0 || Self::was_left(holder & !WANTED, me);
        let has_taken = is_free && take(holder);
        if !has_taken && holder & WANTED == 0 && holder != 0 {
            let (before, now) = (holder, holder | WANTED);
            let _ = word.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        has_taken.then_some(Self(word))
    }

    /// Whether another thread has wanted to spin here since this thread took the permit.
    fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WANTED != 0
    }

    /// Whether the holder has left its call by a jump, or has died. Checks for death at intervals only.
    #[cold]
    fn was_left(holder: u64, me: u64) -> bool {
        static REFUSED: AtomicU32 = AtomicU32::new(0);
        let is_time = REFUSED.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_FOR_HOLDER);
        holder == me || is_time && thread::is_dead(holder)
    }
}

impl Drop for SpinPermit {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Upper bound on the budget in microseconds: the duration of a slow wake-up.
const BUDGET_MAX: u32 = 200;
/// The budget after a success, in microseconds. Slightly longer waits then succeed too.
const BUDGET_FIRST: u32 = 50;
/// Budget in microseconds below which spinning does not pay.
const BUDGET_MIN: u32 = 10;
/// Number of waits without spinning before the next try.
const TRY_AGAIN: u32 = 64;
/// Looks between two clock reads.
const LOOKS: u32 = 16;
/// Refusals of a place per check that its holder lives.
const LOOK_FOR_HOLDER: u32 = 256;
/// A gap of this length between two clock reads means that the thread was preempted.
const PREEMPTED: Duration = Duration::from_micros(300);
/// Flag in the word of a place: another thread wants it. Thread numbers have fewer bits.
const WANTED: u64 = 1 << 31;
/// Looks before the clock is first read.
const FIRST_LOOKS: u32 = 64;
