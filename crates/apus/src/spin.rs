//! How long a thread polls before it sleeps.
//!
//! Polling finds a message microseconds earlier than a wake-up does, and burns a core when nothing
//! comes. So a thread polls about two of the round trips it has seen, stops polling after it has
//! lost several times in a row, probes again now and then, and never polls on the core that the
//! message has to come from: there it would only keep the peer from running.

use std::time::Duration;

/// What a socket has learnt about one kind of waiting. Pure: time is an argument.
#[derive(Debug)]
pub(crate) struct Spin {
    /// Mean time to the message, of waits that polling could win.
    mean: Duration,
    /// Polls lost since the last one that was won.
    lost: u32,
    /// Waits left to go without polling.
    skip: u32,
    /// The next pause is 2^this waits.
    pause: u32,
    waits: u32,
    /// The wait that began last polls.
    polls: bool,
    shares_core: bool,
    /// A poll was lost: look where the peer runs before polling again.
    doubt: bool,
}

impl Spin {
    pub(crate) const fn new() -> Self {
        Self {
            mean: START_MEAN,
            lost: 0,
            skip: 0,
            pause: 0,
            waits: 0,
            polls: false,
            shares_core: false,
            doubt: false,
        }
    }

    /// A wait begins. How long to poll; zero: sleep at once. `shares_core` tells whether the last
    /// packet came from the core we are on; it is only asked when in doubt, since it costs a
    /// system call.
    pub(crate) fn begin(&mut self, shares_core: impl FnOnce() -> bool) -> Duration {
        if self.doubt || self.waits.is_multiple_of(CORE_CHECK_EVERY) {
            self.shares_core = shares_core();
            self.doubt = false;
        }
        self.waits = self.waits.wrapping_add(1);
        self.polls = !self.shares_core && self.skip == 0;
        if self.polls {
            return (self.mean * 2).clamp(BUDGET_MIN, BUDGET_MAX);
        }
        self.skip = self.skip.saturating_sub(1);
        Duration::ZERO
    }

    /// The wait ended with a message `after` it began. `slept`: polling did not find it.
    pub(crate) fn ended(&mut self, after: Duration, slept: bool) {
        if !slept || after <= BUDGET_MAX {
            // Won, or a longer budget would have won.
            self.mean = (self.mean * 7 + after) / 8;
            (self.lost, self.skip, self.pause) = (0, 0, 0);
            return;
        }
        if !self.polls {
            return;
        }
        self.doubt = true;
        self.lost += 1;
        if self.lost >= LOST_MAX {
            self.skip = 1 << self.pause;
            self.pause = (self.pause + 1).min(PAUSE_MAX);
        }
    }
}

/// Half of the first budget of 50 µs.
const START_MEAN: Duration = Duration::from_micros(25);
const BUDGET_MIN: Duration = Duration::from_micros(10);
const BUDGET_MAX: Duration = Duration::from_micros(100);
/// Polls lost in a row before pausing.
const LOST_MAX: u32 = 4;
/// The longest pause is 2^6 waits.
const PAUSE_MAX: u32 = 6;
/// Waits between two looks at where the peer runs, when nothing else gives reason to look.
const CORE_CHECK_EVERY: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_millis(3);

    fn begin(spin: &mut Spin) -> u128 {
        spin.begin(|| false).as_micros()
    }

    #[test]
    fn the_budget_follows_the_time_to_the_message_within_its_bounds() {
        let mut spin = Spin::new();
        assert_eq!(begin(&mut spin), 50);
        for _ in 0..100 {
            spin.ended(Duration::from_micros(20), false);
        }
        assert_eq!(begin(&mut spin), 40);
        for _ in 0..100 {
            spin.ended(Duration::from_micros(2), false);
        }
        assert_eq!(begin(&mut spin), 10);
        for _ in 0..100 {
            spin.ended(Duration::from_micros(95), true);
        }
        assert_eq!(begin(&mut spin), 100);
    }

    #[test]
    fn lost_polls_pause_polling_for_longer_and_longer() {
        let mut spin = Spin::new();
        let mut polls = Vec::new();
        for wait in 0..300 {
            if begin(&mut spin) > 0 {
                polls.push(wait);
            }
            spin.ended(LATE, true);
        }
        assert_eq!(polls, [0, 1, 2, 3, 5, 8, 13, 22, 39, 72, 137, 202, 267]);
    }

    #[test]
    fn one_message_in_time_ends_the_pause() {
        let mut spin = Spin::new();
        for _ in 0..40 {
            begin(&mut spin);
            spin.ended(LATE, true);
        }
        spin.ended(Duration::from_micros(30), true);
        assert!(begin(&mut spin) > 0);
    }

    #[test]
    fn the_core_is_looked_at_in_doubt_and_every_64_waits() {
        let mut spin = Spin::new();
        let mut looks = Vec::new();
        for wait in 0..130 {
            spin.begin(|| {
                looks.push(wait);
                false
            });
            spin.ended(if wait == 10 { LATE } else { Duration::ZERO }, wait == 10);
        }
        assert_eq!(looks, [0, 11, 64, 128]);
    }

    #[test]
    fn nobody_polls_on_the_core_of_the_peer() {
        let mut spin = Spin::new();
        assert_eq!(spin.begin(|| true), Duration::ZERO);
        for _ in 1..64 {
            assert_eq!(spin.begin(|| panic!("asked too early")), Duration::ZERO);
        }
        assert!(spin.begin(|| false) > Duration::ZERO);
    }
}
