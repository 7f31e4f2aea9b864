//! Calls and copies of the last 10 s, which decide about further copies. Times are arguments.

use std::time::{Duration, Instant};

use crate::client::hedge::{Hedge, HedgeDelay};

/// Length of a slot of the window.
const SLOT: Duration = Duration::from_secs(1);

/// Number of slots.
const SLOTS: usize = 10;

/// Number of calls from which a quantile is taken.
const SAMPLES_MIN: u32 = 20;

/// Buckets of times: four for each doubling, from 1 µs to 67 s.
const BUCKETS: usize = 26 * 4;

/// The calls of a channel that may have a second copy, in slots of a second.
#[derive(Debug)]
pub(crate) struct HedgeWindow {
    begin: Instant,
    /// Number of the slot that `slots[current % SLOTS]` is.
    current: u64,
    slots: Box<[WindowSlot; SLOTS]>,
    /// The 95 % quantile when the slot began, or since there were enough calls.
    p95: Option<Duration>,
}

#[derive(Clone, Debug)]
struct WindowSlot {
    calls: u32,
    copies: u32,
    /// First copies that have ended.
    ended: u32,
    /// Numbers of first copies by the time that they took, also of those that were given up.
    times: [u32; BUCKETS],
}

impl WindowSlot {
    const EMPTY: Self = Self { calls: 0, copies: 0, ended: 0, times: [0; BUCKETS] };

    fn note(&mut self, time: Duration) {
        let count = &mut self.times[bucket(time)];
        *count = count.saturating_add(1);
    }
}

impl HedgeWindow {
    pub(crate) fn new(now: Instant) -> Self {
        let slots = Box::new([const { WindowSlot::EMPTY }; SLOTS]);
        Self { begin: now, current: 0, slots, p95: None }
    }

    /// Forgets slots that are older than the window.
    fn advance(&mut self, now: Instant) -> &mut WindowSlot {
        let number = now.duration_since(self.begin).as_secs() / SLOT.as_secs();
        if number > self.current {
            self.p95 = self.quantile();
            for gone in 0..(number - self.current).min(SLOTS as u64) {
                self.slots[index(number - gone)] = WindowSlot::EMPTY;
            }
            self.current = number;
        }
        &mut self.slots[index(self.current)]
    }

    fn sum(&self, of: impl Fn(&WindowSlot) -> u32) -> u64 {
        self.slots.iter().map(|slot| u64::from(of(slot))).sum()
    }

    /// A call begins. Returns the time after which it may have a second copy.
    pub(crate) fn begin(&mut self, hedge: Hedge, now: Instant) -> Option<Duration> {
        let slot = self.advance(now);
        slot.calls = slot.calls.saturating_add(1);
        match hedge.delay {
            HedgeDelay::Fixed(delay) => Some(delay),
            HedgeDelay::P95 => {
                if self.p95.is_none() {
                    self.p95 = self.quantile();
                }
                self.p95
            }
        }
    }

    /// Whether a call that takes long gets a second copy, which is counted.
    pub(crate) fn copy(&mut self, hedge: Hedge, now: Instant) -> bool {
        self.advance(now);
        let (calls, copies) = (self.sum(|slot| slot.calls), self.sum(|slot| slot.copies));
        let is_allowed = (copies + 1) as f64 <= calls as f64 * hedge.share_max;
        let may_copy = is_allowed && self.sum(|slot| slot.ended) > 0;
        if may_copy {
            self.slots[index(self.current)].copies += 1;
        }
        may_copy
    }

    /// The first copy of a call has ended after this time.
    pub(crate) fn ended(&mut self, time: Duration, now: Instant) {
        let slot = self.advance(now);
        slot.ended = slot.ended.saturating_add(1);
        slot.note(time);
    }

    /// The first copy of a call was given up after this time, because the second one has answered. It would have taken longer.
    pub(crate) fn given_up(&mut self, time: Duration, now: Instant) {
        self.advance(now).note(time);
    }

    /// The time below which 95 % of the calls in the window have ended.
    fn quantile(&self) -> Option<Duration> {
        let mut counts = [0_u64; BUCKETS];
        for slot in self.slots.iter() {
            for (count, times) in counts.iter_mut().zip(slot.times) {
                *count += u64::from(times);
            }
        }
        let total: u64 = counts.iter().sum();
        if total < u64::from(SAMPLES_MIN) {
            return None;
        }
        let mut below = 0;
        let is_reached = |count: &u64| {
            below += count;
            below * 100 >= total * 95
        };
        counts.iter().position(is_reached).map(upper_bound)
    }
}

fn index(slot: u64) -> usize {
    usize::try_from(slot % SLOTS as u64).expect("less than a usize")
}

/// The bucket of a time.
fn bucket(time: Duration) -> usize {
    let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
    let doublings = us.ilog2();
    // The two bits below the highest one.
    let quarter =
        if doublings >= 2 { us >> (doublings - 2) & 3 } else { (us << 2 >> doublings) & 3 };
    let quarter = usize::try_from(quarter).expect("two bits");
    (doublings as usize * 4 + quarter).min(BUCKETS - 1)
}

/// The shortest time that is longer than those of a bucket.
fn upper_bound(bucket: usize) -> Duration {
    let quarters = (bucket % 4 + 5) as f64 / 4.0;
    Duration::from_secs_f64(quarters * (1_u64 << (bucket / 4)) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_time_is_in_its_bucket_which_is_a_quarter_wide_at_most() {
        for us in [1, 2, 3, 4, 7, 10, 100, 999, 12_345, 1_000_000, 59_000_000] {
            let time = Duration::from_micros(us);
            let upper = upper_bound(bucket(time));
            assert!(
                time < upper && upper.as_secs_f64() <= time.as_secs_f64() * 1.26,
                "{us} {upper:?}"
            );
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn copies_are_a_tenth_of_the_calls_in_the_window() {
        let begin = Instant::now();
        let mut window = HedgeWindow::new(begin);
        let hedge = Hedge::after(MS);
        let mut copies = 0;
        // Each call would have a copy, as if all servers were slow. Ten calls a second for a minute.
        for number in 0..600 {
            let now = begin + 100 * MS * number;
            assert_eq!(window.begin(hedge, now), Some(MS));
            copies += u32::from(window.copy(hedge, now));
            window.ended(50 * MS, now);
        }
        assert!((55..=60).contains(&copies), "{copies}");
        // After a pause, earlier calls allow nothing.
        let now = begin + Duration::from_secs(600);
        window.begin(hedge, now);
        window.ended(MS, now);
        assert!(!window.copy(hedge, now));
        assert!(!window.copy(hedge.at_most(0.0), now) && window.copy(hedge.at_most(1.0), now));
    }

    #[test]
    fn nothing_is_copied_while_no_call_ends() {
        let begin = Instant::now();
        let mut window = HedgeWindow::new(begin);
        let hedge = Hedge::after(MS);
        for _ in 0..100 {
            window.begin(hedge, begin);
        }
        assert!(!window.copy(hedge, begin));
        window.ended(MS, begin);
        assert!(window.copy(hedge, begin));
        // The only end is forgotten after 10 s.
        for second in 1..=10 {
            let now = begin + Duration::from_secs(second);
            for _ in 0..100 {
                window.begin(hedge, now);
            }
            assert_eq!(window.copy(hedge, now), second < 10, "{second}");
        }
    }

    #[test]
    fn the_delay_may_be_measured() {
        let begin = Instant::now();
        let mut window = HedgeWindow::new(begin);
        let hedge = Hedge::after_p95();
        for number in 1..=100 {
            let delay = window.begin(hedge, begin);
            assert_eq!(delay.is_some(), number > 20, "{number}");
            window.ended(if number % 25 == 0 { 80 * MS } else { 2 * MS }, begin);
        }
        let next = begin + SLOT;
        let delay = window.begin(hedge, next).expect("enough calls");
        assert!((2 * MS..3 * MS).contains(&delay), "{delay:?}");
        for _ in 0..20 {
            window.ended(80 * MS, next);
        }
        let delay = window.begin(hedge, next + SLOT).expect("enough calls");
        assert!((80 * MS..101 * MS).contains(&delay), "{delay:?}");
        assert_eq!(window.begin(hedge, next + 20 * SLOT), Some(delay), "that of the last calls");
        assert_eq!(window.begin(hedge, next + 21 * SLOT), None);
    }

    #[test]
    fn calls_whose_copy_was_faster_are_slow_calls() {
        let begin = Instant::now();
        let mut window = HedgeWindow::new(begin);
        let hedge = Hedge::after_p95();
        // The tenth part of all calls is slow, and a copy answers after 20 ms.
        for number in 0..100 {
            match number % 10 {
                0 => window.given_up(20 * MS, begin),
                _ => window.ended(2 * MS, begin),
            }
        }
        let delay = window.begin(hedge, begin).expect("enough calls");
        assert!((20 * MS..26 * MS).contains(&delay), "{delay:?}");
    }

    #[test]
    fn a_copy_that_is_given_up_has_not_ended() {
        let begin = Instant::now();
        let mut window = HedgeWindow::new(begin);
        let hedge = Hedge::after(MS).at_most(1.0);
        window.begin(hedge, begin);
        window.given_up(MS, begin);
        assert!(!window.copy(hedge, begin));
        window.ended(MS, begin);
        assert!(window.copy(hedge, begin));
    }

    #[test]
    fn a_quantile_is_that_of_all_calls_however_many() {
        let begin = Instant::now();
        let mut window = HedgeWindow::new(begin);
        // A share of 4 %.
        for number in 0..200_000 {
            window.ended(if number % 25 == 0 { 80 * MS } else { 2 * MS }, begin);
        }
        let delay = window.begin(Hedge::after_p95(), begin).expect("enough calls");
        assert!((2 * MS..3 * MS).contains(&delay), "{delay:?}");
    }
}
