//! How long a thread looks at memory before it sleeps.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::carry::connection::holders;
use crate::carry::thread;
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

    /// Whether the next wait here looks at memory.
    #[inline]
    pub(crate) fn looks_next(&self) -> bool {
        self.budget.load(Ordering::Relaxed) >= BUDGET_MIN
            || self.skipped.load(Ordering::Relaxed).is_multiple_of(TRY_AGAIN)
    }
}

/// Looks until `is_there` is true, for as long as looking paid in recent waits. Returns false if it never was.
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
    let Some(place) = Place::take() else { return false };
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
            // Others want this processor, and the time that was spent here counts against this thread.
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
        if place.is_wanted() {
            // A relative wants to look here as well: there are more threads than processors, and they run when this one sleeps.
            spin.budget.store(0, Ordering::Relaxed);
            return is_there();
        }
    }
}

/// Threads of this process that sleep until a carried connection wakes them. One that looks at memory lets them run.
pub(crate) static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// This thread begins to sleep, or has slept.
pub(super) fn note_sleep(begins: bool) {
    let next = |count: u32| if begins { Some(count + 1) } else { count.checked_sub(1) };
    let _ = SLEEPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
}

/// The right to look at memory on a processor: one thread of a process and its relatives at a time. If another one has it, that one was
/// put aside in the middle, so there are more threads than processors.
struct Place(&'static AtomicU64);

impl Place {
    fn take() -> Option<Self> {
        // SAFETY: the call takes no arguments.
        let processor = unsafe { libc::sched_getcpu() } as usize;
        let (place, me) = (holders::place(processor)?, thread::thread());
        let take = |holder| {
            let (taken, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            place.compare_exchange(holder, me, taken, relaxed).is_ok()
        };
        let holder = place.load(Ordering::Relaxed);
        let is_free = holder == 0 || Self::was_left(holder & !WANTED, me);
        let has_taken = is_free && take(holder);
        if !has_taken && holder & WANTED == 0 && holder != 0 {
            let (before, now) = (holder, holder | WANTED);
            let _ = place.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        has_taken.then_some(Self(place))
    }

    /// Whether another thread wanted to look here since this one does.
    fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) & WANTED != 0
    }

    /// Whether the holder has jumped out of a call, or has died. That is asked now and then.
    #[cold]
    fn was_left(holder: u64, me: u64) -> bool {
        static REFUSED: AtomicU32 = AtomicU32::new(0);
        let is_time = REFUSED.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_FOR_HOLDER);
        holder == me || is_time && thread::is_dead(holder)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A wake-up takes that long where it is slow.
const BUDGET_MAX: u32 = 200;
/// After a success, waits that take a little longer still succeed.
const BUDGET_FIRST: u32 = 50;
/// Below this it does not pay at all.
const BUDGET_MIN: u32 = 10;
/// Number of waits without a look before the next try.
const TRY_AGAIN: u32 = 64;
const LOOKS: u32 = 16;
/// Refusals of a place of which one asks whether its holder is there.
const LOOK_FOR_HOLDER: u32 = 256;
/// A thread that looked for the last time so long ago was not running meanwhile.
const PREEMPTED: Duration = Duration::from_micros(300);
/// In the word of a place: another thread wants it. Numbers of threads have fewer bits.
const WANTED: u64 = 1 << 31;
/// Looks before the clock is read.
const FIRST_LOOKS: u32 = 64;
