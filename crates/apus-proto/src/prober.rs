//! Probes to one peer about calls that merely wait for their responses.
//!
//! A service may hold very many calls, and the answer to a probe about one of them is only BUSY. The cost of probes must not grow
//! with the number of calls, or it slows the service, which causes more probes. The prober therefore spaces them (rule `loss-12`).
//! Further probes wait for their turn: first those about calls without any received packet, because these may be lost, then those
//! about calls that the server is known to have.

use std::collections::VecDeque;
use std::time::Duration;

use crate::slab::RpcKey;
use crate::time::{Time, nanos};
use crate::timer::TICK;

/// Average number of probes per tick.
const PER_TICK: u32 = 8;
/// Upper bound on the probes sent at once after a pause.
const BURST: u32 = 512;

/// One probe of this many is about a call that the server is known to have, while others wait.
const KNOWN_SHARE: u32 = 8;

#[derive(Debug)]
pub(crate) struct Prober {
    /// Number of probes that may be sent now, as of the tick `filled`.
    allowed: u32,
    filled: u64,
    /// Number of turns so far.
    turns: u32,
    /// Calls that wait for their turn, in the order of arrival. Entries of calls that ended or continued go stale.
    unheard: VecDeque<RpcKey>,
    known: VecDeque<RpcKey>,
    /// The last three times of a probe of any kind, at least an RTO apart.
    last: [Time; 3],
}

impl Prober {
    pub(crate) const fn new() -> Self {
        Self {
            allowed: BURST,
            filled: 0,
            turns: 0,
            unheard: VecDeque::new(),
            known: VecDeque::new(),
            last: [Time::ZERO; 3],
        }
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.unheard.is_empty() || !self.known.is_empty()
    }

    /// Returns whether a probe may be sent now, and counts it if so.
    pub(crate) fn take(&mut self, now: Time) -> bool {
        let tick = now.as_nanos() / nanos(TICK);
        let ticks = u32::try_from(tick.saturating_sub(self.filled)).unwrap_or(u32::MAX);
        self.filled = self.filled.max(tick);
        //= docs/protocol.md#loss-12
        self.allowed = self.allowed.saturating_add(ticks.saturating_mul(PER_TICK)).min(BURST);
        let may = self.allowed > 0;
        self.allowed = self.allowed.saturating_sub(1);
        may
    }

    /// Returns the allowance of a probe that was not sent after all.
    pub(crate) fn give_back(&mut self) {
        self.allowed = self.allowed.saturating_add(1).min(BURST);
    }

    /// Adds a call that waits for its turn; `known` if the server is known to have it.
    pub(crate) fn push(&mut self, key: RpcKey, known: bool) {
        let queue = if known { &mut self.known } else { &mut self.unheard };
        queue.push_back(key);
    }

    /// Returns the next call in turn.
    pub(crate) fn pop(&mut self) -> Option<RpcKey> {
        self.turns = self.turns.wrapping_add(1);
        let known_first = self.turns.is_multiple_of(KNOWN_SHARE);
        let known = if known_first { self.known.pop_front() } else { None };
        known.or_else(|| self.unheard.pop_front()).or_else(|| self.known.pop_front())
    }

    /// Records a probe of any kind. The peer should answer within `rto`.
    pub(crate) fn note(&mut self, now: Time, rto: Duration) {
        if now.saturating_since(self.last[2]) >= rto {
            self.last = [self.last[1], self.last[2], now];
        }
    }

    /// Returns the time of the last probe of any kind.
    pub(crate) const fn last(&self) -> Time {
        self.last[2]
    }

    /// Returns whether two probes since the peer's last packet should have been answered by now.
    pub(crate) fn is_unanswered(&self, last_rx: Time) -> bool {
        self.last[0] > last_rx
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Handle;

    #[test]
    fn a_burst_is_allowed_and_then_some_in_each_tick() {
        let mut prober = Prober::new();
        let at = |tick: u32| Time::ZERO + TICK * tick;
        let allowed = |prober: &mut Prober, now| {
            std::iter::repeat_with(|| prober.take(now)).take_while(|&may| may).count()
        };
        assert_eq!(allowed(&mut prober, at(1)), BURST as usize);
        assert_eq!(allowed(&mut prober, at(1)), 0);
        assert_eq!(allowed(&mut prober, at(4)), 3 * PER_TICK as usize);
        assert_eq!(allowed(&mut prober, at(1_000_000)), BURST as usize);
    }

    #[test]
    fn calls_that_may_be_lost_go_first_and_the_others_do_not_starve() {
        let mut prober = Prober::new();
        (0..100).for_each(|index| prober.push(RpcKey::new(index, 0), index % 2 == 0));
        let first: Vec<_> = (0..40).map_while(|_| prober.pop()).collect();
        let known = first.iter().filter(|key| key.index() % 2 == 0).count();
        assert_eq!(known, 5);
        assert_eq!(std::iter::from_fn(|| prober.pop()).count(), 60);
        assert!(!prober.is_waiting());
    }
}
