//! Times that tasks wait for, on one thread of the process. It is started with the first wait.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{mem, process, thread};

/// The thread's times. A forked child of the process starts a thread of its own.
struct Timer {
    state: Mutex<TimerState>,
    changed: Condvar,
}

struct TimerState {
    /// The process whose thread runs; 0 for none.
    process: u32,
    next: u64,
    /// The waits that have neither ended nor been dropped, by their times and numbers.
    waiting: BTreeMap<(Instant, u64), Waker>,
}

static TIMER: Timer = Timer {
    state: Mutex::new(TimerState { process: 0, next: 0, waiting: BTreeMap::new() }),
    changed: Condvar::new(),
};

impl Timer {
    fn state(&self) -> MutexGuard<'_, TimerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a new wait; `None` if the system has no thread left.
    fn wait(&'static self, until: Instant, waker: Waker) -> Option<u64> {
        let mut state = self.state();
        if state.process != process::id() {
            // Those of a parent are for its thread, and their tasks do not run here: not even their drops.
            mem::forget(mem::take(&mut state.waiting));
            let thread = thread::Builder::new().name("apus-rpc-timer".to_owned());
            thread.spawn(|| self.run()).ok()?;
            state.process = process::id();
        }
        let number = state.next;
        state.next += 1;
        state.waiting.insert((until, number), waker);
        if state.waiting.first_key_value().is_some_and(|((_, first), _)| *first == number) {
            self.changed.notify_one();
        }
        Some(number)
    }

    fn run(&self) {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let later = state.waiting.split_off(&(now, u64::MAX));
            let due = mem::replace(&mut state.waiting, later);
            if !due.is_empty() {
                drop(state);
                due.into_values().for_each(Waker::wake);
                state = self.state();
                continue;
            }
            let first = state.waiting.first_key_value();
            let first = first.map(|((time, _), _)| time.duration_since(now));
            state = match first {
                Some(time) => match self.changed.wait_timeout(state, time) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                },
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A wait until a time. From [`sleep`].
pub(crate) struct Sleep {
    until: Instant,
    number: Option<u64>,
}

/// Waits for a time, on any executor.
pub(crate) fn sleep(time: Duration) -> Sleep {
    let now = Instant::now();
    // A time beyond the clock's range is a year.
    let until = now.checked_add(time).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
    Sleep { until, number: None }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.until {
            return Poll::Ready(());
        }
        if let Some(number) = self.number
            && let Some(waker) = TIMER.state().waiting.get_mut(&(self.until, number))
        {
            waker.clone_from(context.waker());
            return Poll::Pending;
        }
        self.number = TIMER.wait(self.until, context.waker().clone());
        // Without a thread, nothing would end the wait.
        if self.number.is_some() { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            // The waker is dropped without the lock.
            let waker = TIMER.state().waiting.remove(&(self.until, number));
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;

    #[test]
    fn a_wait_that_is_dropped_leaves_nothing() {
        let mut context = Context::from_waker(Waker::noop());
        let mut waits: Vec<_> = (0..1000).map(|_| sleep(Duration::from_secs(3600))).collect();
        let first = waits[0].until;
        for wait in &mut waits {
            assert!(Pin::new(wait).poll(&mut context).is_pending());
        }
        let last = waits[999].until;
        let count = || TIMER.state().waiting.range((first, 0)..=(last, u64::MAX)).count();
        assert_eq!(count(), 1000);
        drop(waits);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_child_of_fork_does_not_wait_for_its_parent() {
        static CHILD: Timer = Timer {
            state: Mutex::new(TimerState { process: 0, next: 0, waiting: BTreeMap::new() }),
            changed: Condvar::new(),
        };
        let later = Instant::now() + Duration::from_secs(3600);
        {
            let mut state = CHILD.state();
            state.process = process::id() + 1;
            state.waiting.insert((later, 0), Waker::noop().clone());
            state.next = 1;
        }
        assert_eq!(CHILD.wait(later, Waker::noop().clone()), Some(1));
        let numbers: Vec<u64> = CHILD.state().waiting.keys().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [1]);
    }

    #[test]
    fn waits_end_in_the_order_of_their_times() {
        let begin = Instant::now();
        let (long, short) = (Duration::from_millis(40), Duration::from_millis(5));
        let mut later = sleep(long);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut later).poll(&mut context).is_pending());
        block_on(sleep(short));
        assert!(begin.elapsed() >= short);
        block_on(later);
        assert!(begin.elapsed() >= long);
        drop(sleep(Duration::MAX));
    }
}
