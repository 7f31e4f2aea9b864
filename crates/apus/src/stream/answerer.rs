//! The end of a stream that was accepted: it answers calls, as pure state.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::stream::halves::{Broken, Halves};
use crate::stream::message::{FIN, OPEN, Reason, SegmentHeader};

/// A stream at the end that was accepted. `C` stands for a call that can be answered.
#[derive(Debug)]
pub(crate) struct Answerer<C> {
    pub(crate) halves: Halves,
    /// Calls that were not answered, oldest first.
    held: VecDeque<UnansweredCall<C>>,
    /// The latest epoch of the peer. Calls of earlier epochs may be lost, and with them the segments in their responses.
    epoch: u16,
    /// Number of calls that may stay unanswered while there are no bytes to send, according to the last call.
    keep: usize,
    /// Number of calls to answer although there are no bytes to send.
    answers_due: usize,
    /// Received bytes that were acknowledged to the peer.
    acknowledged: u64,
}

/// A call that was not answered.
#[derive(Debug)]
struct UnansweredCall<C> {
    call: C,
    epoch: u16,
    /// Number of calls that may be kept, according to this call.
    keep: usize,
}

/// An answer that is due.
#[derive(Debug)]
pub(crate) struct Answer<C> {
    pub(crate) call: C,
    epoch: u16,
    keep: usize,
    pub(crate) body: Bytes,
    /// Offset of the segment in the answer, if it has one.
    segment: Option<u64>,
}

impl<C> Answerer<C> {
    pub(crate) fn new(halves: Halves) -> Self {
        Self { halves, held: VecDeque::new(), epoch: 0, keep: 1, answers_due: 0, acknowledged: 0 }
    }

    /// Ends the stream at once. The next answer reports it to the peer.
    pub(crate) fn reset(&mut self, reason: Reason) {
        if !self.halves.is_over() {
            self.halves.end(Broken::ByUs(reason));
        }
    }

    /// Handles a call of the peer.
    pub(crate) fn handle_call(&mut self, header: &SegmentHeader, payload: Bytes, call: C) {
        let keep = usize::from(header.keep).min(KEEP_MAX);
        self.held.push_back(UnansweredCall { call, epoch: header.epoch, keep });
        let was_complete = self.halves.incoming.is_complete();
        if !self.halves.handle(header, payload) {
            return;
        }
        self.keep = keep;
        if is_later(header.epoch, self.epoch) {
            self.epoch = header.epoch;
            self.halves.outgoing.all_lost();
            self.answers_due = 1; // The advertised limit may be lost as well.
        }
        let completes = self.halves.incoming.is_complete() && !was_complete;
        self.answers_due += usize::from(header.has(OPEN) || header.has(FIN) || completes);
    }

    /// Number of calls that may be kept: the smallest number in any of them, since calls arrive in any order. The caller relies on
    /// the responses.
    fn keep(&self) -> usize {
        self.held.iter().map(|held| held.keep).fold(self.keep, usize::min)
    }

    /// Whether a call must be answered now.
    pub(crate) fn has_answer(&self) -> bool {
        let halves = &self.halves;
        let unacknowledged = halves.incoming.received() - self.acknowledged;
        let answers = self.held.len() > self.keep()
            || self.answers_due > 0
            || unacknowledged >= ACKNOWLEDGE_AFTER
            || halves.is_over()
            || halves.outgoing.has_segment()
            || halves.incoming.limit_is_due()
            || self.held.iter().any(|held| held.epoch != self.epoch);
        answers && !self.held.is_empty()
    }

    /// The next answer that is due.
    pub(crate) fn poll_answer(&mut self) -> Option<Answer<C>> {
        if !self.has_answer() {
            return None;
        }
        let UnansweredCall { call, epoch, keep } = self.held.pop_front()?;
        if let Some(broken) = &self.halves.broken {
            let reason = match broken {
                Broken::ByUs(reason) => *reason,
                _ => Reason::Unknown,
            };
            let header = SegmentHeader::reset(self.halves.id, reason);
            let body = Bytes::copy_from_slice(&header.encode());
            return Some(Answer { call, epoch, keep, body, segment: None });
        }
        // The loss of a response to a call of an earlier epoch would not be detected.
        let is_late = epoch != self.epoch;
        let sends = !is_late && self.halves.outgoing.has_segment();
        self.answers_due = self.answers_due.saturating_sub(usize::from(!is_late));
        self.acknowledged = self.halves.incoming.received();
        let (body, segment) = self.halves.message(0, 0, 0, sends);
        Some(Answer { call, epoch, keep, body, segment })
    }

    /// Handles an answer that could not be sent. With `again`, its call can be answered later.
    pub(crate) fn not_answered(&mut self, answer: Answer<C>, again: bool) {
        if let Some(offset) = answer.segment {
            self.halves.outgoing.lost(offset);
        }
        if again {
            let Answer { call, epoch, keep, .. } = answer;
            self.held.push_front(UnansweredCall { call, epoch, keep });
        }
    }

    /// Forgets the calls whose client is gone. Returns `true` if no call is left.
    pub(crate) fn retain_calls(&mut self, mut is_active: impl FnMut(&C) -> bool) -> bool {
        self.held.retain(|held| is_active(&held.call));
        self.held.is_empty()
    }
}

/// Epochs count without end.
fn is_later(epoch: u16, than: u16) -> bool {
    (1..1 << 15).contains(&epoch.wrapping_sub(than))
}

/// Upper bound on kept calls.
const KEEP_MAX: usize = 64;

/// Number of received bytes after which a call is answered with an acknowledgement.
const ACKNOWLEDGE_AFTER: u64 = 256 << 10;
