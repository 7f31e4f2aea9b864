//! Timers, and answers to questions of peers, that wait for packets.

use std::time::Duration;

use apus_proto::Time;

/// Timers wait no longer than this for packets to be taken.
pub(crate) const TIMERS_WAIT: Duration = Duration::from_millis(20);

/// Answers wait no longer than this: a peer that asks may have lost data.
pub(crate) const ANSWERS_WAIT: Duration = Duration::from_millis(2);

/// Time at which due timers or answers began to wait for packets. The data that a timer is about to request, or the answer itself,
/// may be among those packets. The wait is bounded: an overloaded node would otherwise run no timers.
#[derive(Default)]
pub(crate) struct Postponed(Option<Time>);

impl Postponed {
    /// Whether timers or answers that are `due` run now, while more packets wait or not. They wait for `most`.
    #[inline]
    pub(crate) fn run(&mut self, now: Time, due: bool, more: bool, most: Duration) -> bool {
        if !due || !more {
            self.0 = None;
            return due;
        }
        let since = *self.0.get_or_insert(now);
        let over = now.saturating_since(since) >= most;
        if over {
            self.0 = None;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn run(timers: &mut Postponed, ms: u64, due: bool, more: bool) -> bool {
        timers.run(at(ms), due, more, TIMERS_WAIT)
    }

    #[test]
    fn timers_wait_for_packets_but_not_for_long() {
        let mut timers = Postponed::default();
        assert!(run(&mut timers, 1, true, false), "nothing waits");
        assert!(!run(&mut timers, 2, true, true));
        assert!(!run(&mut timers, 21, true, true));
        assert!(run(&mut timers, 22, true, true));
        assert!(!run(&mut timers, 23, true, true), "each time anew");
        assert!(run(&mut timers, 24, true, false), "all were taken");
    }

    #[test]
    fn timers_that_are_not_due_any_more_have_not_waited() {
        let mut timers = Postponed::default();
        assert!(!run(&mut timers, 1, true, true));
        assert!(!run(&mut timers, 2, false, true));
        assert!(!run(&mut timers, 50, true, true));
    }
}
