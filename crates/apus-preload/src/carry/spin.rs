//! How long a thread looks at memory before it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::originals::own;

/// The clock of timeouts.
pub(crate) struct Clock;

impl Clock {
    /// Time since the machine started.
    pub(crate) fn now() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: there is room for the time, and the clock exists.
        let _ = unsafe { own::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// What is known of waiting at a connection.
pub(crate) struct Spin {
    /// Microseconds for which it pays to look.
    budget: AtomicU32,
    /// Waits without a look.
    skipped: AtomicU32,
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Self { budget: AtomicU32::new(BUDGET_MAX), skipped: AtomicU32::new(0) }
    }
}

/// Looks until `is_there` is true, for as long as that has paid of late. False if it never was.
#[inline]
pub(crate) fn until(spin: &Spin, is_there: impl Fn() -> bool) -> bool {
    let mut budget = spin.budget.load(Ordering::Relaxed);
    if budget < BUDGET_MIN {
        // Now and then it is tried again.
        if !spin.skipped.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRY_AGAIN) {
            return false;
        }
        budget = BUDGET_MAX;
    }
    let Some(_place) = Place::take() else { return false };
    for _ in 0..FIRST_LOOKS {
        if is_there() {
            spin.budget.store(BUDGET_FIRST, Ordering::Relaxed);
            return true; // Too soon for the clock to matter.
        }
        std::hint::spin_loop();
    }
    let began = Clock::now();
    let (budget, mut last) = (Duration::from_micros(budget.into()), began);
    loop {
        let is_there = (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            is_there()
        });
        if !is_there && SLEEPERS.load(Ordering::Relaxed) > 0 {
            // SAFETY: the call has no arguments.
            unsafe { own::sched_yield() };
        }
        let now = Clock::now();
        if now - last > PREEMPTED {
            // Others want this processor, and the time that was spent here counts against this thread.
            spin.budget.store(0, Ordering::Relaxed);
            return is_there;
        }
        if is_there {
            let next = ((now - began).as_micros() as u32 * 7).clamp(BUDGET_FIRST, BUDGET_MAX);
            spin.budget.store(next, Ordering::Relaxed);
            return true;
        }
        if now - began > budget {
            spin.budget.store(budget.as_micros() as u32 / 2, Ordering::Relaxed);
            return false;
        }
        last = now;
    }
}

/// Threads of this process that sleep until a carried connection wakes them. One that looks at memory lets them run.
pub(crate) static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// The right to look at memory on a processor: one thread of a process at a time. If another one has it, that one was put aside in
/// the middle, so there are more threads than processors.
struct Place(&'static AtomicBool);

impl Place {
    fn take() -> Option<Self> {
        static TAKEN: [AtomicBool; 64] = [const { AtomicBool::new(false) }; 64];
        // SAFETY: the call has no arguments.
        let processor = unsafe { libc::sched_getcpu() } as usize;
        let taken = &TAKEN[processor % TAKEN.len()];
        (!taken.swap(true, Ordering::Relaxed)).then_some(Self(taken))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A wake-up takes that long where it is slow.
const BUDGET_MAX: u32 = 200;
/// After a success, waits that take a little longer still succeed.
const BUDGET_FIRST: u32 = 50;
/// Below this it does not pay at all.
const BUDGET_MIN: u32 = 10;
/// So many waits are not looked at before the next try.
const TRY_AGAIN: u32 = 64;
const LOOKS: u32 = 16;
/// A thread that looked for the last time so long ago was not running meanwhile.
const PREEMPTED: Duration = Duration::from_micros(300);
/// Looks before the clock is read.
const FIRST_LOOKS: u32 = 64;
