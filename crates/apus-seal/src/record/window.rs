//! Replay windows: the numbers of a lane that have arrived (rule seal-14).

use crate::record::datagram::{LANES, Number};

/// Words of the windows of datagrams without a payload of their own: 1,024 bits.
const SHORT_WORDS: usize = 16;
/// Words of the windows of datagrams with the header behind the payload: 8,192 bits. A receive buffer holds 5,700 full packets.
const LONG_WORDS: usize = 128;
/// Words of the windows of datagrams from other addresses: 64 bits.
const FOREIGN_WORDS: usize = 1;

/// The reason why the number of a datagram is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stale {
    /// A datagram with this number was opened.
    Replayed,
    /// The number is below the window, which no longer knows whether it was used.
    TooOld,
}

/// The highest number of a lane that has arrived, and a bit for each of the numbers below it.
pub(crate) struct ReplayWindow<const WORDS: usize> {
    highest: u64,
    /// Bit `n` mod the number of bits belongs to number `n`. Without bits, all numbers up to the highest count as arrived.
    bits: Option<Box<[u64; WORDS]>>,
}

impl<const WORDS: usize> ReplayWindow<WORDS> {
    const BITS: u64 = WORDS as u64 * 64;

    /// A window into which no number has come.
    const EMPTY: Self = Self { highest: 0, bits: None };

    #[inline(always)]
    fn check(&self, counter: u64) -> Result<(), Stale> {
        if counter > self.highest {
            return Ok(());
        }
        match &self.bits {
            Some(bits) if self.highest - counter < Self::BITS => {
                let is_new = bits[word(counter) % WORDS] & bit(counter) == 0;
                if is_new { Ok(()) } else { Err(Stale::Replayed) }
            }
            _ => Err(Stale::TooOld),
        }
    }

    /// Marks a number for which [`check`](Self::check) found no reason.
    #[inline(always)]
    fn set(&mut self, counter: u64) {
        let bits = self.bits.get_or_insert_with(|| Box::new([u64::MAX; WORDS]));
        if counter > self.highest {
            // The numbers between have not arrived. Their bits are those of numbers that leave the window.
            if counter - self.highest > 1 {
                clear(bits, self.highest + 1, counter);
            }
            self.highest = counter;
        }
        bits[word(counter) % WORDS] |= bit(counter);
    }

    fn shrink(&mut self) {
        self.bits = None;
    }
}

/// Clears the bits of the numbers from `from` to `end - 1`.
#[cold]
fn clear<const WORDS: usize>(bits: &mut [u64; WORDS], mut from: u64, end: u64) {
    if end - from >= WORDS as u64 * 64 {
        *bits = [0; WORDS];
        return;
    }
    while from < end {
        let next = end.min((from | 63) + 1);
        let mask = u64::MAX << (from % 64) & u64::MAX >> (63 - (next - 1) % 64);
        bits[word(from) % WORDS] &= !mask;
        from = next;
    }
}

#[inline]
const fn word(counter: u64) -> usize {
    (counter / 64) as usize
}

#[inline]
const fn bit(counter: u64) -> u64 {
    1 << (counter % 64)
}

//= docs/protocol.md#seal-14
/// The windows of all lanes of a path. Levels overtake each other in switches, so each lane has its own.
pub(crate) struct Windows {
    short: [ReplayWindow<SHORT_WORDS>; LANES / 2],
    long: [ReplayWindow<LONG_WORDS>; LANES / 2],
    /// Windows of datagrams that came from another address than that of the path.
    foreign: Option<Box<[ReplayWindow<FOREIGN_WORDS>; LANES]>>,
}

impl Windows {
    pub(crate) fn new() -> Self {
        Self {
            short: [ReplayWindow::EMPTY; LANES / 2],
            long: [ReplayWindow::EMPTY; LANES / 2],
            foreign: None,
        }
    }

    /// Tests the number of a datagram before it is opened. `is_home` says whether it came from the address of the path.
    #[inline(always)]
    pub(crate) fn check(&self, number: Number, is_home: bool) -> Result<(), Stale> {
        let (lane, counter) = (number.lane(), number.counter());
        if lane.is_multiple_of(2) {
            self.short[lane / 2].check(counter)?;
        } else {
            self.long[lane / 2].check(counter)?;
        }
        match &self.foreign {
            Some(foreign) if !is_home => foreign[lane].check(counter),
            _ => Ok(()),
        }
    }

    /// Marks the number of a datagram that was tested and whose tag fits.
    #[inline(always)]
    pub(crate) fn set(&mut self, number: Number, is_home: bool) {
        let (lane, counter) = (number.lane(), number.counter());
        if !is_home {
            self.set_foreign(lane, counter);
        } else if lane.is_multiple_of(2) {
            self.short[lane / 2].set(counter);
        } else {
            self.long[lane / 2].set(counter);
        }
    }

    //= docs/protocol.md#seal-10
    /// A number that came from another address stays free for the address of the path, so a copy that was sent ahead from a
    /// forged address does not cost the original.
    #[cold]
    fn set_foreign(&mut self, lane: usize, counter: u64) {
        self.foreign.get_or_insert_with(|| Box::new([ReplayWindow::EMPTY; LANES]))[lane]
            .set(counter);
    }

    //= docs/protocol.md#seal-8
    /// Gives up the memory of all lanes but their highest numbers. No datagram of before is opened later.
    pub(crate) fn shrink(&mut self) {
        self.short.iter_mut().for_each(ReplayWindow::shrink);
        self.long.iter_mut().for_each(ReplayWindow::shrink);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// All numbers that have arrived.
    struct Naive {
        arrived: BTreeSet<u64>,
        bits: u64,
    }

    impl Naive {
        fn check(&self, counter: u64) -> Result<(), Stale> {
            let highest = self.arrived.last().copied().unwrap_or(0);
            if counter + self.bits <= highest {
                Err(Stale::TooOld)
            } else if self.arrived.contains(&counter) {
                Err(Stale::Replayed)
            } else {
                Ok(())
            }
        }
    }

    fn compare<const WORDS: usize>(counters: &[u64]) {
        let mut window = ReplayWindow::<WORDS>::EMPTY;
        let mut naive = Naive { arrived: BTreeSet::new(), bits: WORDS as u64 * 64 };
        for &counter in counters {
            let result = window.check(counter);
            assert_eq!(result, naive.check(counter), "{counter}");
            if result.is_ok() {
                window.set(counter);
                naive.arrived.insert(counter);
            }
        }
    }

    /// Numbers around one that goes forward, with a jump now and then.
    fn counters() -> impl Strategy<Value = Vec<u64>> {
        let step = (prop_oneof![8 => 0..3_u64, 2 => 0..200_u64, 1 => 0..20_000_u64], 0..150_u64);
        prop::collection::vec(step, 1..400).prop_map(|steps| {
            let mut at = 1;
            let around = |(forward, back): (u64, u64)| {
                at += forward;
                at.saturating_sub(back).max(1)
            };
            steps.into_iter().map(around).collect()
        })
    }

    proptest! {
        //= docs/protocol.md#seal-14
        #[test]
        fn windows_of_all_sizes_know_which_numbers_have_arrived(counters in counters()) {
            compare::<FOREIGN_WORDS>(&counters);
            compare::<SHORT_WORDS>(&counters);
            compare::<LONG_WORDS>(&counters);
        }
    }

    #[test]
    fn numbers_near_the_end_of_a_lane_are_known() {
        let last = (1 << 60) - 1;
        compare::<FOREIGN_WORDS>(&[1, last, last - 63, last - 64, last, 1]);
    }

    #[test]
    fn a_jump_of_a_whole_window_forgets_all_numbers_before() {
        for jump in [63, 64, 65, 128] {
            compare::<FOREIGN_WORDS>(&[1, 2, 3, 3 + jump, 2 + jump, 4, 3, 3 + jump]);
        }
    }

    //= docs/protocol.md#seal-8
    #[test]
    fn a_lane_that_shrinks_refuses_what_was_below_its_highest_number() {
        let mut lane = ReplayWindow::<SHORT_WORDS>::EMPTY;
        lane.set(5);
        lane.shrink();
        assert_eq!(lane.check(5), Err(Stale::TooOld));
        assert_eq!(lane.check(4), Err(Stale::TooOld));
        assert_eq!(lane.check(6), Ok(()));
        lane.set(8);
        assert_eq!(lane.check(4), Err(Stale::Replayed));
        assert_eq!(lane.check(6), Ok(()));
    }
}
