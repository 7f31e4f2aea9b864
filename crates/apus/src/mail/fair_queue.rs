//! A fair queue: flows take turns.

use std::mem;

/// A queue of flows that take turns. Each turn takes the oldest item of its flow. So at most one item of each other flow comes
/// before the first item of a flow. A turn reads only its own item and flow and those before it. Memory: the largest number of
/// simultaneous items, and 12 bytes for each flow that was ever used.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// Slots with items, and free slots.
    slots: Vec<Slot<T>>,
    /// The first free slot.
    free: u32,
    /// Flows. Those with items form a ring, in the order of turns.
    flows: Vec<Flow>,
    /// The flow in the ring that had its turn last.
    last: u32,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    item: Option<T>,
    /// The next slot of the flow, or the next free slot.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    oldest: u32,
    newest: u32,
    /// The next flow in the ring.
    next: u32,
}

impl Flow {
    const EMPTY: Self = Self { oldest: NONE, newest: NONE, next: NONE };
}

/// The caller refused the item whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unwanted;

/// The index of no slot and no flow.
const NONE: u32 = u32::MAX;

impl<T> FairQueue<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, flows: Vec::new(), last: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an item to a flow, which is a small number.
    #[inline]
    pub(crate) fn push(&mut self, index: usize, item: T) {
        if index >= self.flows.len() {
            self.flows.resize(index + 1, Flow::EMPTY);
        }
        let at = self.put(item);
        let flow = &mut self.flows[index];
        let newest = mem::replace(&mut flow.newest, at);
        if flow.oldest == NONE {
            flow.oldest = at;
            self.join(index);
        } else {
            self.slots[newest as usize].next = at;
        }
        self.len += 1;
    }

    /// Puts an item into a free slot.
    #[inline]
    fn put(&mut self, item: T) -> u32 {
        let at = self.free;
        let Some(slot) = self.slots.get_mut(at as usize) else {
            let at = u32::try_from(self.slots.len()).expect("fewer than 2^32 fit in memory");
            self.slots.push(Slot { item: Some(item), next: NONE });
            return at;
        };
        self.free = mem::replace(&mut slot.next, NONE);
        slot.item = Some(item);
        at
    }

    /// A flow that was empty has its turn after all others.
    #[inline]
    fn join(&mut self, index: usize) {
        let joining = u32::try_from(index).expect("the number of a flow is small");
        let next = match self.flows.get_mut(self.last as usize) {
            Some(last) => mem::replace(&mut last.next, joining),
            None => joining,
        };
        self.flows[index].next = next;
        self.last = joining;
    }

    /// Takes the item whose turn it is.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_if(|_| true).ok().flatten()
    }

    /// The same if the caller accepts the item; otherwise it stays, and the result is an error.
    #[inline(always)]
    pub(crate) fn pop_if(
        &mut self,
        is_wanted: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, Unwanted> {
        let Some(last) = self.flows.get(self.last as usize) else { return Ok(None) };
        let index = last.next;
        let flow = &mut self.flows[index as usize];
        let at = flow.oldest;
        let slot = &mut self.slots[at as usize];
        if !slot.item.as_ref().is_none_or(is_wanted) {
            return Err(Unwanted);
        }
        let item = slot.item.take();
        flow.oldest = mem::replace(&mut slot.next, mem::replace(&mut self.free, at));
        if flow.oldest != NONE {
            self.last = index;
        } else if self.last == index {
            self.last = NONE;
        } else {
            let next = flow.next;
            self.flows[self.last as usize].next = next;
        }
        self.len -= 1;
        Ok(item)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::iter;

    use super::*;

    #[test]
    fn an_item_waits_for_one_of_each_other_flow() {
        let mut queue = FairQueue::new();
        (0..1_000).for_each(|number| queue.push(7, (7, number)));
        queue.push(3, (3, 0));
        queue.push(3, (3, 1));
        queue.push(9, (9, 0));
        let first: Vec<_> = (0..7).map_while(|_| queue.pop()).collect();
        assert_eq!(first, [(7, 0), (3, 0), (9, 0), (7, 1), (3, 1), (7, 2), (7, 3)]);
        assert_eq!(queue.len(), 996);
        // A later item waits for no further ones.
        queue.push(3, (3, 2));
        assert_eq!([queue.pop(), queue.pop()], [Some((7, 4)), Some((3, 2))]);
        assert!((5..1_000).all(|number| queue.pop() == Some((7, number))));
        assert!(queue.pop().is_none() && queue.len() == 0);
    }

    #[test]
    fn memory_is_that_of_the_most_items_at_a_time() {
        let mut queue = FairQueue::new();
        for flow in 0..10_000 {
            (0..10).for_each(|number| queue.push(flow, number));
            assert!(iter::from_fn(|| queue.pop()).eq(0..10));
        }
        assert_eq!(queue.slots.len(), 10);
        // All of them at once: each has one turn before any has its second.
        for number in 0..2 {
            (0..10_000).for_each(|flow| queue.push(flow, flow + number));
        }
        for number in 0..2 {
            assert!((0..10_000).all(|flow| queue.pop() == Some(flow + number)));
        }
        assert_eq!(queue.slots.len(), 20_000);
    }

    /// Against a model that has a queue for each flow.
    #[test]
    fn whatever_the_order_of_arrival_flows_take_turns() {
        let mut queue = FairQueue::new();
        let mut model: VecDeque<(usize, VecDeque<u32>)> = VecDeque::new();
        let mut random = 1u64;
        for number in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Phases in which the queue grows, and in which it shrinks.
            let pushes = (random >> 60) < if number / 1_000 % 2 == 0 { 9 } else { 6 };
            if pushes {
                let index = (random >> 40) as usize % 6;
                queue.push(index, (index, number));
                match model.iter_mut().find(|(flow, _)| *flow == index) {
                    Some((_, numbers)) => numbers.push_back(number),
                    None => model.push_back((index, VecDeque::from([number]))),
                }
            } else {
                let expected = model.pop_front().map(|(flow, mut numbers)| {
                    let number = numbers.pop_front().expect("a flow without items has no turn");
                    if !numbers.is_empty() {
                        model.push_back((flow, numbers));
                    }
                    (flow, number)
                });
                assert_eq!(queue.pop(), expected);
            }
            assert_eq!(queue.len(), model.iter().map(|(_, numbers)| numbers.len()).sum::<usize>());
        }
    }
}
