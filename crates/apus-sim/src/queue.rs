//! The event queue.
//!
//! A wheel of narrow slots holds the near future, and a heap the rest. A slot is sorted when its turn comes. Slots hold a handful
//! of events each, so an event costs about 20 ns for any number of hosts. Events of the same time come out in the order in which
//! they were put in, which makes a run repeatable.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Width of a slot: 2^13 ps, about 8 ns.
const SHIFT: u32 = 13;
/// Number of slots: the wheel reaches 67 µs ahead, beyond the next step of every packet.
const SLOTS: u64 = 8192;
const WORDS: usize = (SLOTS / 64) as usize;

/// One event: its kind, and two numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Event {
    /// Its time, in picoseconds.
    pub(crate) at: u64,
    pub(crate) what: What,
    /// A port or a host.
    pub(crate) place: u32,
    /// A packet, or a transport's own number.
    pub(crate) subject: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum What {
    /// A packet is ready to leave by a port.
    AtPort,
    /// A port has sent its packet.
    PortFree,
    /// A packet has passed a host's software.
    AtHost,
    /// A time that a transport asked for.
    Timer,
    /// A host's application has a message to send.
    Message,
}

#[derive(Debug)]
pub(crate) struct EventQueue {
    slots: Vec<Vec<Event>>,
    /// Buffers of emptied slots. The last one is used first, because it is still in the cache.
    spare: Vec<Vec<Event>>,
    occupied: [u64; WORDS],
    /// The slot being emptied, counted since time 0.
    slot: u64,
    /// Its events in order.
    current: Vec<Event>,
    /// Number of its events that were taken.
    taken: usize,
    far: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Orders far events of the same time.
    serial: u64,
    len: usize,
}

impl EventQueue {
    pub(crate) fn new() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            spare: Vec::new(),
            occupied: [0; WORDS],
            slot: 0,
            current: Vec::new(),
            taken: 0,
            far: BinaryHeap::new(),
            serial: 0,
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, event: Event) {
        self.len += 1;
        let slot = event.at >> SHIFT;
        if slot <= self.slot {
            let rest = &self.current[self.taken..];
            let after = rest.partition_point(|earlier| earlier.at <= event.at);
            self.current.insert(self.taken + after, event);
        } else if slot < self.slot + SLOTS {
            self.put(slot, event);
        } else {
            self.serial += 1;
            self.far.push(Reverse((event.at, self.serial, event)));
        }
    }

    #[inline]
    fn put(&mut self, slot: u64, event: Event) {
        let index = (slot % SLOTS) as usize;
        let slot = &mut self.slots[index];
        if slot.capacity() == 0 {
            *slot = self.spare.pop().unwrap_or_default();
        }
        slot.push(event);
        self.occupied[index / 64] |= 1 << (index % 64);
    }

    /// The next event, if there is one.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        if self.taken == self.current.len() && !self.advance() {
            return None;
        }
        let event = self.current[self.taken];
        self.taken += 1;
        self.len -= 1;
        Some(event)
    }

    /// Advances to the next slot with events. Returns `false` if there is none.
    fn advance(&mut self) -> bool {
        if self.len == 0 {
            return false;
        }
        self.current.clear();
        self.taken = 0;
        let next = self.next_slot();
        let far = self.far.peek().map_or(u64::MAX, |Reverse((at, ..))| at >> SHIFT);
        self.slot = next.unwrap_or(u64::MAX).min(far);
        while let Some(&Reverse((at, _, event))) = self.far.peek()
            && at >> SHIFT < self.slot + SLOTS
        {
            self.far.pop();
            self.put(at >> SHIFT, event);
        }
        let index = (self.slot % SLOTS) as usize;
        self.occupied[index / 64] &= !(1 << (index % 64));
        let next = std::mem::take(&mut self.slots[index]);
        self.spare.push(std::mem::replace(&mut self.current, next));
        self.current.sort_by_key(|event| event.at); // Stable: first in, first out.
        true
    }

    /// The first slot after the current one with events.
    fn next_slot(&self) -> Option<u64> {
        let first = ((self.slot + 1) % SLOTS) as usize;
        let mut word = first / 64;
        let mut bits = self.occupied[word] & (u64::MAX << (first % 64));
        for _ in 0..=WORDS {
            if bits != 0 {
                let index = word as u64 * 64 + u64::from(bits.trailing_zeros());
                return Some(self.slot + 1 + (index + SLOTS - first as u64) % SLOTS);
            }
            word = (word + 1) % WORDS;
            bits = self.occupied[word];
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, subject: u32) -> Event {
        Event { at, what: What::Timer, place: 0, subject }
    }

    #[test]
    fn events_come_out_by_time_then_by_age() {
        let mut queue = EventQueue::new();
        let far = 1 << 40;
        for (subject, at) in [far, 5, 20_000, 5, far, 0, far + 1].into_iter().enumerate() {
            queue.push(event(at, subject as u32));
        }
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).map(|e| e.subject).collect();
        assert_eq!(order, [5, 1, 3, 2, 0, 4, 6]);
    }

    #[test]
    fn what_is_put_in_on_the_way_finds_its_place() {
        let mut queue = EventQueue::new();
        let mut state = 1u64;
        let (mut now, mut popped) = (0, 0);
        for subject in 0..1_000 {
            queue.push(event(subject % 7 * 1_000, subject as u32));
        }
        while let Some(next) = queue.pop() {
            assert!(next.at >= now, "{} before {now}", next.at);
            now = next.at;
            popped += 1;
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if popped < 20_000 {
                queue.push(event(now + (state >> 33) % (1 << (state % 30)), 0));
            }
        }
        assert_eq!(popped, 20_999);
    }
}
