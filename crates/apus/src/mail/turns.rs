//! A queue that is fair: lines that wait take turns.

use std::mem;

/// A queue of lines that take turns. Each turn takes the oldest item of its line. So at most one item of each other line comes
/// before the first item of a line. A turn looks at its own item and line and at those before it only. Memory: the largest number
/// of items there were at a time, and 12 bytes for each line there has been.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    /// Items, and free places among them.
    places: Vec<Place<T>>,
    /// The first of the free places.
    free: u32,
    /// Those with items are a ring, in the order of turns.
    lines: Vec<Line>,
    /// The line in the ring that has had its turn last.
    last: u32,
    len: usize,
}

#[derive(Debug)]
struct Place<T> {
    item: Option<T>,
    /// The next place of the line, or the next free place.
    next: u32,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    oldest: u32,
    newest: u32,
    /// The next line in the ring.
    next: u32,
}

impl Line {
    const EMPTY: Self = Self { oldest: NONE, newest: NONE, next: NONE };
}

/// The item whose turn it is was not wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unwanted;

/// The index of no place and no line.
const NONE: u32 = u32::MAX;

impl<T> Turns<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: NONE, lines: Vec::new(), last: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an item to a line, which is a small number.
    #[inline]
    pub(crate) fn push(&mut self, index: usize, item: T) {
        if index >= self.lines.len() {
            self.lines.resize(index + 1, Line::EMPTY);
        }
        let at = self.put(item);
        let line = &mut self.lines[index];
        let newest = mem::replace(&mut line.newest, at);
        if line.oldest == NONE {
            line.oldest = at;
            self.join(index);
        } else {
            self.places[newest as usize].next = at;
        }
        self.len += 1;
    }

    /// Puts an item into a free place.
    #[inline]
    fn put(&mut self, item: T) -> u32 {
        let at = self.free;
        let Some(place) = self.places.get_mut(at as usize) else {
            let at = u32::try_from(self.places.len()).expect("fewer than 2^32 fit in memory");
            self.places.push(Place { item: Some(item), next: NONE });
            return at;
        };
        self.free = mem::replace(&mut place.next, NONE);
        place.item = Some(item);
        at
    }

    /// A line that was empty has its turn after all others.
    #[inline]
    fn join(&mut self, index: usize) {
        let joining = u32::try_from(index).expect("the number of a line is small");
        let next = match self.lines.get_mut(self.last as usize) {
            Some(last) => mem::replace(&mut last.next, joining),
            None => joining,
        };
        self.lines[index].next = next;
        self.last = joining;
    }

    /// Takes the item whose turn it is.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_if(|_| true).ok().flatten()
    }

    /// The same, if the item is wanted; otherwise it stays, which is an error.
    #[inline]
    pub(crate) fn pop_if(
        &mut self,
        is_wanted: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, Unwanted> {
        let Some(last) = self.lines.get(self.last as usize) else { return Ok(None) };
        let index = last.next;
        let line = &mut self.lines[index as usize];
        let at = line.oldest;
        let place = &mut self.places[at as usize];
        if !place.item.as_ref().is_none_or(is_wanted) {
            return Err(Unwanted);
        }
        let item = place.item.take();
        line.oldest = mem::replace(&mut place.next, mem::replace(&mut self.free, at));
        if line.oldest != NONE {
            self.last = index;
        } else if self.last == index {
            self.last = NONE;
        } else {
            let next = line.next;
            self.lines[self.last as usize].next = next;
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
    fn an_item_waits_for_one_of_each_other_line() {
        let mut turns = Turns::new();
        (0..1_000).for_each(|number| turns.push(7, (7, number)));
        turns.push(3, (3, 0));
        turns.push(3, (3, 1));
        turns.push(9, (9, 0));
        let first: Vec<_> = (0..7).map_while(|_| turns.pop()).collect();
        assert_eq!(first, [(7, 0), (3, 0), (9, 0), (7, 1), (3, 1), (7, 2), (7, 3)]);
        assert_eq!(turns.len(), 996);
        // One that comes later waits for no more.
        turns.push(3, (3, 2));
        assert_eq!([turns.pop(), turns.pop()], [Some((7, 4)), Some((3, 2))]);
        assert!((5..1_000).all(|number| turns.pop() == Some((7, number))));
        assert!(turns.pop().is_none() && turns.len() == 0);
    }

    #[test]
    fn memory_is_that_of_the_most_items_at_a_time() {
        let mut turns = Turns::new();
        for line in 0..10_000 {
            (0..10).for_each(|number| turns.push(line, number));
            assert!(iter::from_fn(|| turns.pop()).eq(0..10));
        }
        assert_eq!(turns.places.len(), 10);
        // All of them at once: each has one turn before any has its second.
        for number in 0..2 {
            (0..10_000).for_each(|line| turns.push(line, line + number));
        }
        for number in 0..2 {
            assert!((0..10_000).all(|line| turns.pop() == Some(line + number)));
        }
        assert_eq!(turns.places.len(), 20_000);
    }

    /// Against a model that has a queue for each line.
    #[test]
    fn whatever_the_order_of_arrival_lines_take_turns() {
        let mut turns = Turns::new();
        let mut model: VecDeque<(usize, VecDeque<u32>)> = VecDeque::new();
        let mut random = 1u64;
        for number in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Phases in which it grows, and in which it shrinks.
            let pushes = (random >> 60) < if number / 1_000 % 2 == 0 { 9 } else { 6 };
            if pushes {
                let index = (random >> 40) as usize % 6;
                turns.push(index, (index, number));
                match model.iter_mut().find(|(line, _)| *line == index) {
                    Some((_, numbers)) => numbers.push_back(number),
                    None => model.push_back((index, VecDeque::from([number]))),
                }
            } else {
                let expected = model.pop_front().map(|(line, mut numbers)| {
                    let number = numbers.pop_front().expect("a line without items has no turn");
                    if !numbers.is_empty() {
                        model.push_back((line, numbers));
                    }
                    (line, number)
                });
                assert_eq!(turns.pop(), expected);
            }
            assert_eq!(turns.len(), model.iter().map(|(_, numbers)| numbers.len()).sum::<usize>());
        }
    }
}
