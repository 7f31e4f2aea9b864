//! Per-RPC deadlines on a hashed wheel.
//!
//! An RPC has at most one entry. Moving a deadline back costs nothing: the entry stays where it is, and when it expires the
//! endpoint reads the RPC's real deadline and puts it back. An ended RPC leaves a stale entry, which is skipped. So timers cost
//! nothing per packet and one push per call. This is the kernel module's coarse tick (homa_timer.c) without the scan over all RPCs.

use std::time::Duration;

use crate::slab::RpcKey;
use crate::time::Time;

/// Width of a slot. Timers expire up to this much late, never early.
pub(crate) const TICK: Duration = Duration::from_micros(500);

/// Returns whether a call begun at `started` is out of time by this node's clock or by its server's. The remaining time that the
/// server receives is rounded down.
pub(crate) fn is_over(now: Time, started: Time, expires: Time) -> bool {
    let rounding = expires.saturating_since(started) / TIME_ROUNDING;
    expires <= now + TICK + rounding
}

/// Reciprocal of the largest rounding of a transmitted time. With an engine between two nodes, the time is transmitted twice.
const TIME_ROUNDING: u32 = 100_000;
const TICK_NANOS: u64 = TICK.as_nanos() as u64;
/// Number of slots on the wheel. Deadlines up to 512 ms away go straight to their slot; others expire early and are put back.
const SLOTS: u64 = 1024;
const WORDS: usize = (SLOTS / 64) as usize;
/// Upper bound on emptied slots whose memory is kept: the slots of a 16 ms RTO.
const SPARE_MAX: usize = 32;

#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Vec<Vec<RpcKey>>,
    occupied: [u64; WORDS],
    /// The next tick to examine. Everything before it was removed.
    next_tick: u64,
    entries: usize,
    /// The tick of the first entry, or `u64::MAX`. Every turn of the engine reads it.
    first: u64,
    /// Memory of emptied slots. Few slots are in use at a time, but half a second uses all of them: memory kept in each would be a
    /// hundred times the need.
    spare: Vec<Vec<RpcKey>>,
}

/// A slot for several RPCs that are due at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    tick: u64,
}

impl Place {
    /// Returns the time of expiry.
    #[inline]
    pub(crate) fn expires(self) -> Time {
        Time::from_nanos(self.tick * TICK_NANOS)
    }
}

impl Wheel {
    pub(crate) fn new() -> Self {
        let slots = (0..SLOTS).map(|_| Vec::new()).collect();
        Self {
            slots,
            occupied: [0; WORDS],
            next_tick: 0,
            entries: 0,
            first: u64::MAX,
            spare: Vec::new(),
        }
    }

    /// Inserts `key` to expire at `due`, or earlier if that is beyond the wheel. Returns the time of expiry.
    #[inline]
    pub(crate) fn insert(&mut self, now: Time, due: Time, key: RpcKey) -> Time {
        let place = self.place(now, due);
        self.put(place, key);
        place.expires()
    }

    /// Returns the place of RPCs that expire at `due`, or earlier if that is beyond the wheel. It is valid until the next
    /// [`expire`](Self::expire).
    #[inline]
    pub(crate) fn place(&mut self, now: Time, due: Time) -> Place {
        if self.entries == 0 {
            self.next_tick = now.as_nanos() / TICK_NANOS;
        }
        let tick = due.as_nanos().div_ceil(TICK_NANOS);
        Place { tick: tick.clamp(self.next_tick, self.next_tick + SLOTS - 1) }
    }

    /// Inserts `key` at a place.
    #[inline]
    pub(crate) fn put(&mut self, Place { tick }: Place, key: RpcKey) {
        let slot = (tick % SLOTS) as usize;
        if self.slots[slot].capacity() == 0 {
            self.slots[slot] = self.spare.pop().unwrap_or_default();
        }
        self.slots[slot].push(key);
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.entries += 1;
        self.first = self.first.min(tick);
    }

    /// Returns the time at which [`Wheel::expire`] has something to do.
    #[inline]
    pub(crate) fn next(&self) -> Option<Time> {
        (self.first != u64::MAX).then(|| Time::from_nanos(self.first * TICK_NANOS))
    }

    /// Returns the first tick from `next_tick` on whose slot has entries.
    fn find_first(&self) -> u64 {
        let from = (self.next_tick % SLOTS) as usize;
        let mut word = from / 64;
        let mut bits = self.occupied[word] & (u64::MAX << (from % 64));
        for _ in 0..=WORDS {
            if bits != 0 {
                let slot = word as u64 * 64 + u64::from(bits.trailing_zeros());
                return self.next_tick + (slot + SLOTS - from as u64) % SLOTS;
            }
            word = (word + 1) % WORDS;
            bits = self.occupied[word];
        }
        u64::MAX
    }

    /// Moves the entries of at most one slot that is due at `now` to `expired`. Returns `false` if no slot is due.
    pub(crate) fn expire(&mut self, now: Time, expired: &mut Vec<RpcKey>) -> bool {
        let now_tick = now.as_nanos() / TICK_NANOS;
        let tick = self.first;
        if tick > now_tick {
            return false;
        }
        let slot = (tick % SLOTS) as usize;
        self.entries -= self.slots[slot].len();
        let mut emptied = std::mem::take(&mut self.slots[slot]);
        expired.append(&mut emptied);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(emptied);
        }
        self.occupied[slot / 64] &= !(1 << (slot % 64));
        self.next_tick = tick + 1;
        self.first = self.find_first();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Handle;

    fn key(index: u32) -> RpcKey {
        RpcKey::new(index, 0)
    }

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn entries_come_out_in_order_and_never_early() {
        let mut wheel = Wheel::new();
        for (index, millis) in [(0, 7), (1, 3), (2, 300), (3, 3)] {
            wheel.insert(at(1), at(millis), key(index));
        }
        let mut expired = Vec::new();
        assert_eq!(wheel.next(), Some(at(3)));
        assert!(!wheel.expire(Time::from_nanos(2_999_999), &mut expired));
        assert!(wheel.expire(at(3), &mut expired));
        assert_eq!(expired, [key(1), key(3)]);
        expired.clear();
        assert!(wheel.expire(at(400), &mut expired) && wheel.expire(at(400), &mut expired));
        assert_eq!(expired, [key(0), key(2)]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_deadline_beyond_the_wheel_comes_by_early() {
        let mut wheel = Wheel::new();
        let out = wheel.insert(at(0), at(10_000), key(0));
        assert!(wheel.next() == Some(out) && out <= at(512));
    }

    #[test]
    fn memory_is_that_of_the_slots_in_use() {
        let mut wheel = Wheel::new();
        let mut expired = Vec::new();
        for millis in 0..2_000 {
            for index in 0..1_000 {
                wheel.insert(at(millis), at(millis + 5), key(index));
            }
            while wheel.expire(at(millis), &mut expired) {
                expired.clear();
            }
        }
        let kept = wheel.slots.iter().chain(&wheel.spare).map(Vec::capacity).sum::<usize>();
        assert!(kept < 50_000, "memory for {kept} entries, of which 5,000 are there");
    }

    #[test]
    fn the_wheel_starts_again_after_it_was_empty_for_long() {
        let mut wheel = Wheel::new();
        wheel.insert(at(0), at(1), key(0));
        wheel.expire(at(5), &mut Vec::new());
        wheel.insert(at(1_000_000), at(1_000_002), key(1));
        assert_eq!(wheel.next(), Some(at(1_000_002)));
    }
}
