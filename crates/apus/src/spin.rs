//! How long a thread polls before it sleeps.
//!
//! Polling finds a message tens of microseconds earlier than a wake-up does, and burns a core when
//! nothing comes. A wake-up that befalls one message in a hundred is the 99th percentile, so a
//! thread polls long enough to outlast 99 of 100 waits for messages that come at random: five times
//! the mean wait. Where that would be longer than [`BUDGET_MAX`], messages are rare, and it does not
//! pay: a thread that has lost several times in a row stops polling and probes again now and then.
//!
//! It does not poll on the core that the message has to come from: there it would only keep the peer
//! from running. It learns that by giving way: when another thread ran meanwhile and the message was
//! there afterwards, the core is shared.

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
    /// The last message polled for came when this thread gave way.
    shares_core: bool,
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
        }
    }

    /// A wait begins. How long to poll; zero: sleep at once.
    pub(crate) fn begin(&mut self) -> Duration {
        self.waits = self.waits.wrapping_add(1);
        let look = self.waits.is_multiple_of(CORE_CHECK_EVERY);
        self.polls = self.skip == 0 && (look || !self.shares_core);
        if self.polls {
            return (self.mean * OUTLAST).clamp(BUDGET_MIN, BUDGET_MAX);
        }
        self.skip = self.skip.saturating_sub(1);
        Duration::ZERO
    }

    /// Polling found the message. `shares_core`: after giving way to another thread.
    #[inline]
    pub(crate) fn shares_core(&mut self, shares_core: bool) {
        self.shares_core = shares_core;
    }

    /// The wait ended with a message `after` it began. `slept`: polling did not find it.
    pub(crate) fn ended(&mut self, after: Duration, slept: bool) {
        if !slept || after <= BUDGET_MAX {
            // Won, or a longer budget would have won.
            self.mean = (self.mean * 15 + after) / 16;
            (self.lost, self.skip, self.pause) = (0, 0, 0);
            return;
        }
        if !self.polls {
            return;
        }
        self.lost += 1;
        if self.lost >= LOST_MAX {
            self.skip = 1 << self.pause;
            self.pause = (self.pause + 1).min(PAUSE_MAX);
        }
    }
}

/// Of waits that end at random, exp(-5) or 0.7 % take longer than five times the mean.
const OUTLAST: u32 = 5;
/// A first budget of 50 µs.
const START_MEAN: Duration = Duration::from_micros(10);
/// About what a wake-up costs: sleeping sooner loses more than it saves when a peer is a little late
/// (the 99.9th percentile of 100 B calls with 10 µs is 45 µs, with 30 µs 34 µs).
const BUDGET_MIN: Duration = Duration::from_micros(30);
/// Messages that come less often than every 50 µs are waited for asleep, more or less.
const BUDGET_MAX: Duration = Duration::from_micros(250);
/// Polls lost in a row before pausing.
const LOST_MAX: u32 = 4;
/// The longest pause is 2^6 waits.
const PAUSE_MAX: u32 = 6;
/// On a shared core, one wait in this many polls again to see whether it still is.
const CORE_CHECK_EVERY: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_millis(3);

    fn begin(spin: &mut Spin) -> u128 {
        spin.begin().as_micros()
    }

    #[test]
    fn the_budget_follows_the_time_to_the_message_within_its_bounds() {
        let mut spin = Spin::new();
        assert_eq!(begin(&mut spin), 50);
        for _ in 0..200 {
            spin.ended(Duration::from_micros(20), false);
        }
        assert_eq!(begin(&mut spin), 99);
        for _ in 0..200 {
            spin.ended(Duration::from_micros(2), false);
        }
        assert_eq!(begin(&mut spin), 30);
        for _ in 0..200 {
            spin.ended(Duration::from_micros(95), true);
        }
        assert_eq!(begin(&mut spin), 250);
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
    fn nobody_polls_on_the_core_of_the_peer_but_to_see_whether_it_has_moved() {
        let mut spin = Spin::new();
        spin.begin();
        spin.shares_core(true);
        let polls: Vec<u32> = (2..200).filter(|_| spin.begin() > Duration::ZERO).collect();
        assert_eq!(polls, [64, 128, 192]);
        spin.shares_core(false);
        assert!(spin.begin() > Duration::ZERO);
    }
}
