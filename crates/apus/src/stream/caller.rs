//! The end of a stream that connected: it makes all calls, as pure state.

use std::time::Duration;

use apus_proto::Time;
use bytes::Bytes;

use crate::error::CallError;
use crate::stream::halves::{Broken, Halves};
use crate::stream::message::{MORE, OPEN, RESET, Reason, SegmentHeader};

/// A stream at the end that connected.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) halves: Halves,
    /// The listener has answered.
    opened: bool,
    /// Outstanding calls.
    outstanding: usize,
    /// Number of responses that are certain to come, whether or not the peer has bytes to send: it keeps no more calls than the
    /// last call allowed.
    due: usize,
    /// Number of calls to keep outstanding without bytes to send, so that the peer can send.
    wanted: usize,
    /// Number of failed calls.
    epoch: u16,
    /// No call of this epoch was made. The next call reports that responses were lost.
    epoch_begins: bool,
    /// The next call acknowledges at once that the peer's half is complete.
    acknowledge: bool,
    /// The reason for the end of the stream, which the peer must learn.
    unreported_end: Option<Reason>,
    /// Time since which calls fail.
    failing_since: Option<Time>,
    /// Time before which no call is made.
    retry_at: Option<Time>,
    lost_after: Duration,
}

/// A call that is due.
#[derive(Debug)]
pub(crate) struct CallBody {
    pub(crate) body: Bytes,
    /// Offset of the segment in the call, if it has one.
    pub(crate) segment: Option<u64>,
}

impl Caller {
    /// `lost_after`: time for which calls may fail before the stream ends.
    pub(crate) fn new(halves: Halves, lost_after: Duration) -> Self {
        Self {
            halves,
            opened: false,
            outstanding: 0,
            due: 0,
            wanted: 1,
            epoch: 0,
            epoch_begins: false,
            acknowledge: false,
            unreported_end: None,
            failing_since: None,
            retry_at: None,
            lost_after,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opened
    }

    /// Whether the stream has ended, the peer knows it, and no call is outstanding.
    pub(crate) fn is_done(&self) -> bool {
        let is_settled =
            self.unreported_end.is_none() && !self.acknowledge && self.outstanding == 0;
        self.halves.is_over() && (is_settled || !self.may_report_end())
    }

    /// Whether the end of the stream can be reported to the peer.
    fn may_report_end(&self) -> bool {
        matches!(self.halves.broken, None | Some(Broken::ByUs(_)))
    }

    /// Ends the stream at once.
    pub(crate) fn reset(&mut self, reason: Reason) {
        if !self.halves.is_over() {
            self.halves.end(Broken::ByUs(reason));
            self.unreported_end = self.opened.then_some(reason);
        }
    }

    /// Time at which [`poll_call`](Self::poll_call) must be called again without a message.
    pub(crate) fn due(&self) -> Option<Time> {
        self.retry_at
    }

    /// The next call that is due.
    pub(crate) fn poll_call(&mut self, now: Time) -> Option<CallBody> {
        if self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        if self.halves.broken.is_some() {
            let header = SegmentHeader::reset(self.halves.id, self.unreported_end.take()?);
            self.outstanding += 1;
            return Some(CallBody {
                body: Bytes::copy_from_slice(&header.encode()),
                segment: None,
            });
        }
        if !self.opened {
            return (self.outstanding == 0).then(|| self.call(OPEN, false));
        }
        let sends = self.sends();
        (sends || self.calls_without_segment()).then(|| self.call(0, sends))
    }

    /// Whether a call is due, unless calls have just failed.
    pub(crate) fn has_call(&self) -> bool {
        match (&self.halves.broken, self.opened) {
            (Some(_), _) => self.unreported_end.is_some(),
            (None, false) => self.outstanding == 0,
            (None, true) => self.sends() || self.calls_without_segment(),
        }
    }

    fn calls_without_segment(&self) -> bool {
        let wanted = if self.halves.is_over() { 0 } else { self.wanted };
        let limit = self.halves.incoming.limit_is_due();
        self.epoch_begins || self.acknowledge || limit || self.outstanding < wanted
    }

    /// Whether to send a segment now. While a response is certain to come, a short segment waits for more bytes. More outstanding
    /// calls than the peer may keep are not sufficient: the peer may keep fewer with each response, and learns of that with the
    /// next call only.
    fn sends(&self) -> bool {
        let outgoing = &self.halves.outgoing;
        if self.outstanding <= self.keep() || self.due == 0 {
            outgoing.has_segment()
        } else {
            self.outstanding < self.keep() + PIPELINE && outgoing.has_full_segment()
        }
    }

    /// Number of calls that the peer may leave unanswered while it has no bytes to send.
    fn keep(&self) -> usize {
        self.wanted + 1
    }

    fn call(&mut self, flags: u8, with_segment: bool) -> CallBody {
        (self.acknowledge, self.epoch_begins) = (false, false);
        self.outstanding += 1;
        self.due = self.due.max(self.outstanding.saturating_sub(self.keep()));
        let keep = u8::try_from(self.keep()).unwrap_or(u8::MAX);
        let (body, segment) = self.halves.message(flags, keep, self.epoch, with_segment);
        CallBody { body, segment }
    }

    /// Handles the response to a call.
    pub(crate) fn handle_response(&mut self, response: &Bytes) {
        self.ended();
        self.failing_since = None;
        let Some((header, payload)) = SegmentHeader::parse(response) else {
            return self.reset(Reason::Violation);
        };
        let was_complete = self.halves.incoming.is_complete();
        let more = header.has(MORE);
        let empty = payload.is_empty();
        let (was_open, was_broken) = (self.opened, self.halves.broken.is_some());
        self.opened = true;
        if !self.halves.handle(&header, payload) {
            // The peer learns of an end that this response has caused, or that came before it knew of the stream.
            let is_unknown = !was_broken || (!was_open && !header.has(RESET));
            if let Some(Broken::ByUs(reason)) = self.halves.broken.as_ref().filter(|_| is_unknown) {
                self.unreported_end = Some(*reason);
            }
            return;
        }
        self.acknowledge |= self.halves.incoming.is_complete() && !was_complete;
        self.wanted = match (self.halves.incoming.is_complete(), more, empty) {
            (true, ..) => 1,
            (_, true, _) => (self.wanted * 2).min(WANTED_MAX),
            (_, _, false) => (self.wanted - 1).max(1),
            _ => self.wanted,
        };
    }

    fn ended(&mut self) {
        self.outstanding -= 1;
        self.due = self.due.saturating_sub(1);
    }

    /// Handles a call that was not begun or has failed.
    pub(crate) fn handle_failure(&mut self, now: Time, segment: Option<u64>, error: CallError) {
        self.ended();
        if self.halves.is_over() {
            return; // The peer has forgotten the stream, or learns by itself that the calls have ended.
        }
        let since = *self.failing_since.get_or_insert(now);
        let lost = now.saturating_since(since) >= self.lost_after;
        if !self.opened {
            return self.halves.end(Broken::NotOpened(error));
        }
        if lost || !passes(&error) {
            return self.halves.end(Broken::Failed(error));
        }
        if let Some(offset) = segment {
            self.halves.outgoing.lost(offset);
        }
        if !std::mem::replace(&mut self.epoch_begins, true) {
            self.epoch = self.epoch.wrapping_add(1);
        }
        self.retry_at = Some(now + RETRY_AFTER);
    }
}

/// Whether a later call may succeed.
fn passes(error: &CallError) -> bool {
    use apus_wire::PathError::{HostUnreachable, PermissionDenied};
    matches!(
        error,
        CallError::TooManyCalls { .. }
            | CallError::OverBudget { .. }
            | CallError::TooManyPeers { .. }
            | CallError::PeerTimeout { .. }
            | CallError::PeerUnreachable { error: HostUnreachable | PermissionDenied, .. }
            | CallError::ResponseLost
            | CallError::MayHaveExecuted
            | CallError::Overloaded { .. }
            | CallError::EngineEnded
            | CallError::NoEngine
            | CallError::NotSent
    )
}

/// Number of outstanding calls beyond those that the peer may keep.
const PIPELINE: usize = 16;

/// Upper bound on calls that wait for the peer's bytes while it sends without a pause.
const WANTED_MAX: usize = 16;

/// Time between a failed call and the next one.
const RETRY_AFTER: Duration = Duration::from_millis(10);
