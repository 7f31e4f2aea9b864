//! The outstanding calls of a sending port.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::slots::Slots;

/// A call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Bytes of the request.
    pub(super) length: u32,
    /// Start of its latency, in nanoseconds since the start of the run.
    pub(super) started_ns: u64,
    /// Index of its server.
    pub(super) server: usize,
}

/// The outstanding calls of a port, shared by its threads.
#[derive(Debug)]
pub(super) struct Port {
    calls: Mutex<Calls>,
    room: Condvar,
    /// Whether no further calls start.
    ended: AtomicBool,
}

#[derive(Debug)]
struct Calls {
    slots: Slots<Call>,
    /// Failed calls, each with the time at which its slot is free again, in nanoseconds since the start of the run.
    resting: VecDeque<(u64, u64)>,
}

impl Port {
    /// A port with at most `limit` outstanding calls.
    pub(super) fn new(limit: u32) -> Self {
        let calls = Calls { slots: Slots::new(limit), resting: VecDeque::new() };
        Self { calls: Mutex::new(calls), room: Condvar::new(), ended: AtomicBool::new(false) }
    }

    /// Adds a call that starts at `now_ns`. Returns its key, or `None` if no more calls may be outstanding.
    pub(super) fn begin(&self, call: Call, now_ns: u64) -> Option<u64> {
        let mut calls = self.lock();
        while calls.resting.front().is_some_and(|(from_ns, _)| *from_ns <= now_ns) {
            let (_, key) = calls.resting.pop_front().expect("it was just seen");
            calls.slots.release(key);
        }
        calls.slots.begin(|_| call)
    }

    /// Waits until another call may start, but at most `timeout`.
    pub(super) fn wait_for_room(&self, timeout: Duration) {
        let calls = self.lock();
        if calls.slots.free() == 0 {
            // The caller checks for room again in any case.
            drop(self.room.wait_timeout(calls, timeout));
        }
    }

    /// Removes an outstanding call; `None` if no outstanding call has the key.
    pub(super) fn finish(&self, key: u64) -> Option<Call> {
        let mut calls = self.lock();
        let call = calls.slots.finish(key)?;
        if calls.slots.free() == 1 {
            self.room.notify_one();
        }
        Some(call)
    }

    /// The outstanding call with this key.
    pub(super) fn call(&self, key: u64) -> Option<Call> {
        self.lock().slots.get(key).copied()
    }

    /// Removes a failed call. Its slot is free from `free_ns` on, so that a closed loop does not flood a server that is down.
    pub(super) fn fail(&self, key: u64, free_ns: u64) -> Option<Call> {
        let mut calls = self.lock();
        let call = calls.slots.take(key)?;
        calls.resting.push_back((free_ns, key));
        Some(call)
    }

    /// Removes all outstanding calls.
    pub(super) fn take_all(&self) -> Vec<Call> {
        self.lock().slots.take_all()
    }

    /// Ends the start of calls.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether replies may still arrive.
    pub(super) fn expects_replies(&self) -> bool {
        // The order matters: a call started before the end counts as outstanding.
        !self.ended.load(Ordering::Acquire) || self.outstanding() > 0
    }

    /// Number of outstanding calls.
    pub(super) fn outstanding(&self) -> usize {
        self.lock().slots.outstanding()
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // Every change is complete before any panic.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
}
