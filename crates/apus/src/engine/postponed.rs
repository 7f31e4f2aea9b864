//! Timers that wait for packets.

use std::time::Duration;

use apus_proto::Time;

/// Timers wait no longer than this for packets to be taken.
const WAIT_MAX: Duration = Duration::from_millis(20);

/// Since when timers that are due wait, because packets do: what a timer is about to ask for may be among them. Not for long, or a
/// node that never has time to take everything would have no timers.
#[derive(Default)]
pub(crate) struct Postponed(Option<Time>);

impl Postponed {
    /// Whether timers that are `due` run now, while more packets wait or not.
    #[inline]
    pub(crate) fn run(&mut self, now: Time, due: bool, more: bool) -> bool {
        if !due || !more {
            self.0 = None;
            return due;
        }
        let since = *self.0.get_or_insert(now);
        let over = now.saturating_since(since) >= WAIT_MAX;
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

    #[test]
    fn timers_wait_for_packets_but_not_for_long() {
        let mut timers = Postponed::default();
        assert!(timers.run(at(1), true, false), "nothing waits");
        assert!(!timers.run(at(2), true, true));
        assert!(!timers.run(at(21), true, true));
        assert!(timers.run(at(22), true, true));
        assert!(!timers.run(at(23), true, true), "each time anew");
        assert!(timers.run(at(24), true, false), "all were taken");
    }

    #[test]
    fn timers_that_are_not_due_any_more_have_not_waited() {
        let mut timers = Postponed::default();
        assert!(!timers.run(at(1), true, true));
        assert!(!timers.run(at(2), false, true));
        assert!(!timers.run(at(50), true, true));
    }
}
