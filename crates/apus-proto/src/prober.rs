//! Prober to one peer about calls that merely wait for their responses.
//!
//! A service may hold very many calls, and all that a question about one of them brings is BUSY. What
//! the questions cost must not grow with the calls, or it slows the service, which brings more
//! questions. So they are spaced (rule `loss-12`), and those beyond wait their turn: first what
//! nothing was heard of, because it may be lost, then what the server is known to have.

use std::collections::VecDeque;
use std::time::Duration;

use crate::slab::RpcKey;
use crate::time::{Time, nanos};
use crate::timer::TICK;

/// Prober in one tick, in the long run, and at once after a pause.
const PER_TICK: u32 = 8;
const BURST: u32 = 512;

/// One question in so many is about a call the server is known to have, while others wait.
const KNOWN_SHARE: u32 = 8;

#[derive(Debug)]
pub(crate) struct Prober {
    /// Prober that may be asked now, as of the tick `filled`.
    allowed: u32,
    filled: u64,
    asked: u32,
    /// Calls that wait for their turn, in the order they came; entries of those that ended or went on
    /// go stale.
    unheard: VecDeque<RpcKey>,
    known: VecDeque<RpcKey>,
    /// When questions of any kind were asked last, at least a rto apart.
    last: [Time; 3],
}

impl Prober {
    pub(crate) const fn new() -> Self {
        Self {
            allowed: BURST,
            filled: 0,
            asked: 0,
            unheard: VecDeque::new(),
            known: VecDeque::new(),
            last: [Time::ZERO; 3],
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.unheard.is_empty() || !self.known.is_empty()
    }

    /// Whether a question may be asked now; counts it if so.
    pub(crate) fn take(&mut self, now: Time) -> bool {
        let tick = now.as_nanos() / nanos(TICK);
        let ticks = u32::try_from(tick.saturating_sub(self.filled)).unwrap_or(u32::MAX);
        self.filled = self.filled.max(tick);
        //= docs/protocol.md#loss-12
        self.allowed = self.allowed.saturating_add(ticks.saturating_mul(PER_TICK)).min(BURST);
        let may = self.allowed > 0;
        self.allowed -= u32::from(may);
        may
    }

    /// Nothing was asked after all.
    pub(crate) fn give_back(&mut self) {
        self.allowed += 1;
    }

    /// A call that waits its turn; `known` if the server is known to have it.
    pub(crate) fn push(&mut self, key: RpcKey, known: bool) {
        let queue = if known { &mut self.known } else { &mut self.unheard };
        queue.push_back(key);
    }

    /// Whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<RpcKey> {
        self.asked = self.asked.wrapping_add(1);
        let of_known =
            if self.asked.is_multiple_of(KNOWN_SHARE) { self.known.pop_front() } else { None };
        of_known.or_else(|| self.unheard.pop_front()).or_else(|| self.known.pop_front())
    }

    /// The peer is asked something, and should answer within `rto`.
    pub(crate) fn note(&mut self, now: Time, rto: Duration) {
        if now.saturating_since(self.last[2]) >= rto {
            self.last = [self.last[1], self.last[2], now];
        }
    }

    /// Whether two questions since the peer was `heard` last should have been answered by now.
    pub(crate) fn are_unanswered(&self, heard: Time) -> bool {
        self.last[0] > heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Handle;

    #[test]
    fn a_burst_is_allowed_and_then_some_in_each_tick() {
        let mut questions = Prober::new();
        let at = |tick: u32| Time::ZERO + TICK * tick;
        let allowed = |questions: &mut Prober, now| {
            std::iter::repeat_with(|| questions.take(now)).take_while(|&may| may).count()
        };
        assert_eq!(allowed(&mut questions, at(1)), BURST as usize);
        assert_eq!(allowed(&mut questions, at(1)), 0);
        assert_eq!(allowed(&mut questions, at(4)), 3 * PER_TICK as usize);
        assert_eq!(allowed(&mut questions, at(1_000_000)), BURST as usize);
    }

    #[test]
    fn what_may_be_lost_goes_first_and_the_rest_does_not_starve() {
        let mut questions = Prober::new();
        (0..100).for_each(|index| questions.push(RpcKey::new(index, 0), index % 2 == 0));
        let first: Vec<_> = (0..40).map_while(|_| questions.pop()).collect();
        let known = first.iter().filter(|key| key.index() % 2 == 0).count();
        assert_eq!(known, 5);
        assert_eq!(std::iter::from_fn(|| questions.pop()).count(), 60);
        assert!(!questions.is_waiting());
    }
}
