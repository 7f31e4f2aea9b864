//! A sending port: which calls are outstanding, and when the next one is due.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use apus_load::Poisson;

use crate::slots::Slots;

/// A call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Bytes of the request.
    pub length: u32,
    /// From when its time counts, in nanoseconds since the start of the run.
    pub started_ns: u64,
    /// Place of the server in the list.
    pub server: usize,
}

/// The outstanding calls of a port, shared by its threads.
#[derive(Debug)]
pub struct Port {
    calls: Mutex<Calls>,
    room: Condvar,
    /// No further calls start.
    ended: AtomicBool,
}

#[derive(Debug)]
struct Calls {
    slots: Slots<Call>,
    /// Failed calls, and from when their slots are free again, in nanoseconds since the start of the run.
    resting: VecDeque<(u64, u64)>,
}

impl Port {
    /// A port with at most `limit` calls outstanding.
    pub fn new(limit: u32) -> Self {
        let calls = Calls { slots: Slots::new(limit), resting: VecDeque::new() };
        Self { calls: Mutex::new(calls), room: Condvar::new(), ended: AtomicBool::new(false) }
    }

    /// Notes a call that starts at `now_ns` and returns its key; `None` when as many are outstanding as allowed.
    pub fn begin(&self, call: Call, now_ns: u64) -> Option<u64> {
        let mut calls = self.lock();
        while calls.resting.front().is_some_and(|(from_ns, _)| *from_ns <= now_ns) {
            let (_, key) = calls.resting.pop_front().expect("it was just seen");
            calls.slots.release(key);
        }
        calls.slots.begin(|_| call)
    }

    /// Waits until another call may start, but not for long.
    pub fn wait_for_room(&self, timeout: Duration) {
        let calls = self.lock();
        if calls.slots.free() == 0 {
            // The caller looks for room again in any case.
            drop(self.room.wait_timeout(calls, timeout));
        }
    }

    /// Takes back a call that was begun; `None` when the key is none of an outstanding call.
    pub fn finish(&self, key: u64) -> Option<Call> {
        let mut calls = self.lock();
        let call = calls.slots.finish(key)?;
        if calls.slots.free() == 1 {
            self.room.notify_one();
        }
        Some(call)
    }

    /// A call that is outstanding.
    pub fn call(&self, key: u64) -> Option<Call> {
        self.lock().slots.get(key).copied()
    }

    /// As [`finish`](Self::finish) for a call that failed: another may start in its place from `free_ns` on only, so that
    /// a closed loop does not storm a server that is not there.
    pub fn fail(&self, key: u64, free_ns: u64) -> Option<Call> {
        let mut calls = self.lock();
        let call = calls.slots.take(key)?;
        calls.resting.push_back((free_ns, key));
        Some(call)
    }

    /// Takes back all calls that are outstanding.
    pub fn take_all(&self) -> Vec<Call> {
        self.lock().slots.take_all()
    }

    /// No further calls start from now on.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether replies may still come.
    pub fn expects_replies(&self) -> bool {
        // In this order: a call started before the end is seen as outstanding.
        !self.ended.load(Ordering::Acquire) || self.outstanding() > 0
    }

    /// Calls outstanding.
    pub fn outstanding(&self) -> usize {
        self.lock().slots.outstanding()
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // Every change is complete before anything can panic.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When calls are due.
#[derive(Clone, Debug)]
pub enum Pace {
    /// As soon as one may start.
    Closed,
    /// At times drawn beforehand, the next of them given.
    Open(Poisson, u64),
}

impl Pace {
    /// Calls with the byte rate `gbps` of messages of `bytes_mean` bytes on average; 0 is a closed loop.
    pub fn new(gbps: f64, bytes_mean: f64, seed: u64) -> anyhow::Result<Self> {
        if gbps == 0.0 {
            return Ok(Self::Closed);
        }
        let mut arrivals = Poisson::for_throughput(gbps, bytes_mean, seed)?;
        let first = arrivals.next().unwrap_or(0);
        Ok(Self::Open(arrivals, first))
    }

    /// How long until the next call is due, at `now_ns`; its time is in the past when this is zero.
    pub fn wait(&self, now_ns: u64) -> Duration {
        match self {
            Self::Closed => Duration::ZERO,
            Self::Open(_, due_ns) => Duration::from_nanos(due_ns.saturating_sub(now_ns)),
        }
    }

    /// The moment from which the call that is due counts.
    pub fn due_ns(&self, now_ns: u64) -> u64 {
        match self {
            Self::Closed => now_ns,
            Self::Open(_, due_ns) => *due_ns,
        }
    }

    /// The call that was due has started.
    pub fn advance(&mut self) {
        if let Self::Open(arrivals, due_ns) = self {
            *due_ns = arrivals.next().unwrap_or(u64::MAX);
        }
    }
}

/// Nanoseconds since the start of the run.
pub fn nanos_since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call = Call { length: 100, started_ns: 5, server: 0 };

    #[test]
    fn no_more_calls_than_allowed() {
        let port = Port::new(2);
        let (first, second) = (port.begin(CALL, 0).unwrap(), port.begin(CALL, 0).unwrap());
        assert_ne!(first, second);
        assert_eq!(port.begin(CALL, 0), None);
        assert_eq!(port.outstanding(), 2);
        assert_eq!(port.finish(first), Some(CALL));
        assert_eq!(port.finish(first), None);
        assert!(port.begin(CALL, 0).is_some());
    }

    #[test]
    fn the_place_of_a_failed_call_rests() {
        let port = Port::new(1);
        let key = port.begin(CALL, 0).unwrap();
        assert_eq!(port.fail(key, 50), Some(CALL));
        assert_eq!((port.outstanding(), port.begin(CALL, 49)), (0, None));
        assert!(port.begin(CALL, 50).is_some());
    }

    #[test]
    fn replies_are_expected_until_the_last_call_has_ended() {
        let port = Port::new(1);
        assert!(port.expects_replies(), "the first call may start any moment");
        let call = port.begin(CALL, 0).unwrap();
        port.end();
        assert!(port.expects_replies());
        port.finish(call);
        assert!(!port.expects_replies());
    }

    #[test]
    fn a_closed_loop_is_always_due() {
        let mut pace = Pace::new(0.0, 100.0, 1).unwrap();
        pace.advance();
        assert_eq!((pace.wait(7), pace.due_ns(7)), (Duration::ZERO, 7));
    }

    #[test]
    fn an_open_loop_counts_from_the_intended_time() {
        let mut pace = Pace::new(0.001, 100.0, 1).unwrap();
        let due = pace.due_ns(0);
        assert_eq!(pace.wait(0), Duration::from_nanos(due));
        assert_eq!(pace.wait(due + 9), Duration::ZERO);
        assert_eq!(pace.due_ns(due + 9), due);
        pace.advance();
        assert!(pace.due_ns(0) >= due);
    }
}
