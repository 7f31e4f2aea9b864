//! Calls that wait for room in the limits and budgets of the node beside its outstanding calls.

use std::mem;
#[cfg(feature = "tower")]
use std::task::Waker;

use apus_proto::slab::Handle;
use apus_proto::{Body, CallOptions, Cookie, Remote, SocketKey, Time};

use super::Engine;
use super::waiting_calls::WaitingCall;
use crate::address::Address;
#[cfg(feature = "tower")]
use crate::delivery::parker::{self, Waiter};
use crate::error::CallError;
use crate::mail::CallKey;
use crate::sync::clock;

impl Engine {
    /// Has a call that was refused for want of room wait, if the end of another one may make room. Returns the refusal otherwise.
    #[cold]
    pub(super) fn wait_for_room(
        &mut self,
        call: CallKey,
        socket: SocketKey,
        again: Option<(Address, CallOptions)>,
        refusal: CallError,
    ) -> Result<CallKey, CallError> {
        let may_wait = is_want_of_room(&refusal)
            && self.endpoint.has_calls()
            && self.waiting.calls.len() < WAITING_MAX;
        let Some((to, options)) = again.filter(|_| may_wait) else {
            self.mail.forget_call(call);
            return Err(refusal);
        };
        let body = self.endpoint.take_refused().unwrap_or_default();
        self.counters.calls_waited += 1;
        self.waiting.calls.push_back(WaitingCall { call, socket, to, body, options, refusal });
        self.waiting.tried = self.room_mark();
        self.waiting.progress = (clock::now(), self.progress());
        self.need_progress();
        Ok(call)
    }

    /// Changes when there is more room.
    fn room_mark(&self) -> (u64, u64) {
        let counters = self.endpoint.counters();
        let ended = counters.calls_completed + counters.calls_failed + counters.calls_aborted;
        (ended, self.endpoint.held_bytes())
    }

    /// Changes while messages move.
    fn progress(&self) -> u64 {
        let counters = self.endpoint.counters();
        let moved = counters.data_bytes_sent + counters.data_bytes_received;
        let (ended, held) = self.room_mark();
        moved.wrapping_add(ended).wrapping_add(held)
    }

    /// Nothing moves, and responses that the application has not taken are in the way: perhaps of the calls under way as well.
    fn is_stuck(&mut self, now: Time) -> bool {
        let progress = self.progress();
        if self.waiting.progress.1 != progress {
            self.waiting.progress = (now, progress);
        }
        let since = self.waiting.progress.0;
        now.saturating_since(since) >= self.endpoint.peer_timeout() && self.mail.has_undelivered()
    }

    /// Begins waiting calls for which there is room, and ends those whose deadline has passed or for which no room will be made.
    #[cold]
    pub(super) fn retry_waiting(&mut self, now: Time) {
        self.report_backlog();
        let mark = self.room_mark();
        let has_room = mem::replace(&mut self.waiting.tried, mark) != mark;
        let is_stuck = self.is_stuck(now);
        let mut began = false;
        for _ in 0..self.waiting.calls.len() {
            let Some(mut waiting) = self.waiting.calls.pop_front() else { break };
            if !self.mail.is_expected(waiting.call) {
                self.endpoint.discard(waiting.body); // It was given up.
                continue;
            }
            let is_over = waiting.options.deadline.map_or(is_stuck, |deadline| deadline <= now);
            let body = mem::take(&mut waiting.body);
            if is_over || !has_room && self.endpoint.has_calls() {
                match is_over {
                    true => self.end_waiting(waiting, body),
                    false => self.waiting.calls.push_back(WaitingCall { body, ..waiting }),
                }
                continue;
            }
            match self.try_waiting(now, &waiting, body) {
                Ok(()) => began = true,
                Err((body, refusal)) if is_want_of_room(&refusal) && self.endpoint.has_calls() => {
                    self.waiting.calls.push_back(WaitingCall { body, refusal, ..waiting });
                }
                Err((body, refusal)) => self.end_waiting(WaitingCall { refusal, ..waiting }, body),
            }
        }
        if began {
            self.transmit(now);
        }
        if self.waiting.is_empty() {
            for task in mem::take(&mut self.waiting.tasks) {
                self.mail.wake_registered(task);
            }
        }
    }

    /// Begins a call that has waited, unless there is no room for it. Nothing is transmitted yet.
    fn try_waiting(
        &mut self,
        now: Time,
        waiting: &WaitingCall,
        body: Body,
    ) -> Result<(), (Body, CallError)> {
        let path = match self.resolve(waiting.to) {
            Ok(path) => path,
            Err(error) => return Err((body, error)),
        };
        let to = self.route(now, Remote::new(path, waiting.to.port));
        let cookie = Cookie::Key(waiting.call.to_bits());
        let options = CallOptions { cookie, ..waiting.options.clone() };
        match self.endpoint.call(now, waiting.socket, to, body, options) {
            Ok(rpc) => {
                let mark = self.endpoint.take_trace_mark(rpc);
                self.mail.call_started(waiting.call, rpc, mark);
                self.endpoint.report_paths(&mut *self.link);
                Ok(())
            }
            Err(error) => {
                let body = self.endpoint.take_refused().unwrap_or_default();
                Err((body, CallError::refused(error)))
            }
        }
    }

    /// Ends a call that found no room.
    fn end_waiting(&mut self, waiting: WaitingCall, body: Body) {
        self.endpoint.discard(body);
        self.mail.fail(waiting.call, waiting.refusal);
    }

    /// Waiting calls have ended with their sockets.
    pub(super) fn forget_waiting(&mut self) {
        for waiting in mem::take(&mut self.waiting.calls) {
            self.endpoint.discard(waiting.body);
        }
        for task in mem::take(&mut self.waiting.tasks) {
            self.mail.wake_registered(task);
        }
    }

    /// Whether no call waits for room. Otherwise the task is woken when the last call has stopped waiting.
    #[cfg(feature = "tower")]
    pub(crate) fn has_room(&mut self, task: &Waker) -> bool {
        let is_known = |waiter: &Waiter| waiter.will_wake(task);
        if !self.waiting.is_empty() && !self.waiting.tasks.iter().any(is_known) {
            let task = Waiter::task(parker::next_id(), task);
            self.mail.register(&task);
            self.waiting.tasks.push(task);
            self.need_progress();
        }
        self.waiting.is_empty()
    }
}

/// Whether a call may begin later that cannot begin now.
fn is_want_of_room(refusal: &CallError) -> bool {
    matches!(refusal, CallError::OverBudget { .. } | CallError::TooManyCalls { .. })
}

/// Calls of an engine that may wait: a program that makes more without an end is to be refused.
const WAITING_MAX: usize = 1_024;
