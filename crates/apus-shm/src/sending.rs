//! Outgoing messages of a pair: short ones first, then the long one with the fewest bytes left.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::pool::Run;
use crate::ring::Words;

/// A message that has no memory yet.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) words: Words,
    pub(crate) body: Bytes,
}

/// A long message, possibly with a part in memory.
#[derive(Debug)]
pub(crate) struct Long {
    pub(crate) number: u32,
    pub(crate) words: Words,
    /// The message in two parts. The second one is mostly empty.
    parts: [Bytes; 2],
    /// Number of copied bytes.
    pub(crate) copied: usize,
    /// The run for the next bytes, if there is one.
    pub(crate) target: Option<Target>,
    /// Words of a message without a body that follows this one.
    then: Option<Words>,
}

/// A run that is being filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) run: Run,
    /// Bytes of the message before this run.
    pub(crate) start: usize,
    /// Length of the message's part in this run, in bytes.
    pub(crate) length: usize,
}

impl Long {
    pub(crate) fn len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }

    pub(crate) fn left(&self) -> usize {
        self.len() - self.copied
    }

    /// Returns the next `length` bytes to be copied, as they are in the two parts.
    pub(crate) fn next(&self, length: usize) -> [&[u8]; 2] {
        let [first, second] = &self.parts;
        let (start, end) = (self.copied, self.copied + length);
        let border = first.len();
        let in_second = start.saturating_sub(border)..end.saturating_sub(border);
        [&first[start.min(border)..end.min(border)], &second[in_second]]
    }

    /// Returns whether memory was taken for it.
    pub(crate) fn is_begun(&self) -> bool {
        self.copied > 0 || self.target.is_some()
    }
}

/// Queued messages, in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    short: VecDeque<QueuedMessage>,
    /// Bytes of memory that all queued messages take.
    bytes: usize,
    /// Long messages, by the bytes left, then by age.
    long: BTreeMap<(usize, u32), Long>,
    numbers: u32,
    /// Number of messages partly sent to the peer; see [`BEGUN_MAX`].
    begun: usize,
}

/// Upper bound on the long messages that are partly sent at the same time. A later shorter message waits for one of them.
pub(crate) const BEGUN_MAX: usize = 8;

impl Sending {
    pub(crate) fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    /// Returns the bytes of memory that all queued messages take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has_short(&self) -> bool {
        !self.short.is_empty()
    }

    pub(crate) fn push_short(&mut self, words: Words, body: Bytes) {
        self.bytes += body.len() + size_of::<QueuedMessage>();
        self.short.push_back(QueuedMessage { words, body });
    }

    /// Returns the next short message.
    pub(crate) fn first_short(&self) -> Option<&QueuedMessage> {
        self.short.front()
    }

    /// Removes the first short message, which is in memory now.
    pub(crate) fn pop_short(&mut self) {
        if let Some(waiting) = self.short.pop_front() {
            self.bytes -= waiting.body.len() + size_of::<QueuedMessage>();
        }
    }

    pub(crate) fn push_long(&mut self, words: Words, parts: [Bytes; 2]) {
        let number = self.numbers;
        self.numbers = self.numbers.wrapping_add(1);
        let long = Long { number, words, parts, copied: 0, target: None, then: None };
        self.bytes += long.len() + size_of::<Long>();
        self.long.insert((long.left(), number), long);
    }

    /// Removes a message for which `is_it` is true, unless the peer has received a part of it. Examines the oldest message first.
    pub(crate) fn withdraw(&mut self, is_it: &dyn Fn(Words) -> bool) -> bool {
        let index = self.short.iter().position(|waiting| is_it(waiting.words));
        if let Some(waiting) = index.and_then(|index| self.short.remove(index)) {
            self.bytes -= waiting.body.len() + size_of::<QueuedMessage>();
            return true;
        }
        let found = self.long.iter().find(|(_, long)| !long.is_begun() && is_it(long.words));
        let key = found.map(|(key, _)| *key);
        let Some(long) = key.and_then(|key| self.long.remove(&key)) else { return false };
        self.bytes -= long.len() + size_of::<Long>();
        true
    }

    /// Returns the words of all queued messages. The peer has not received the last byte of any of them.
    pub(crate) fn words(&self) -> impl Iterator<Item = Words> {
        let short = self.short.iter().map(|waiting| waiting.words);
        short.chain(self.long.values().map(|long| long.words))
    }

    /// Makes a message without a body follow the long one in progress for which `is_it` is true. Returns `false` if there is none.
    pub(crate) fn follow(&mut self, words: Words, is_it: &dyn Fn(Words) -> bool) -> bool {
        let found = self.long.values_mut().find(|long| is_it(long.words));
        found.map(|long| long.then = Some(words)).is_some()
    }

    /// Removes and returns the next long message.
    pub(crate) fn take_long(&mut self) -> Option<Long> {
        if self.begun < BEGUN_MAX {
            return Some(self.long.pop_first()?.1);
        }
        let key = *self.long.iter().find(|(_, long)| long.is_begun())?.0;
        let long = self.long.remove(&key);
        debug_assert!(long.is_some(), "it was just found");
        long
    }

    /// Removes and returns the first long message that has memory already.
    pub(crate) fn take_filling(&mut self) -> Option<Long> {
        let key = *self.long.iter().find(|(_, long)| long.target.is_some())?.0;
        self.long.remove(&key)
    }

    /// Puts back a long message that is not completely in memory. `was_begun`: it was begun when it was removed.
    pub(crate) fn put_back(&mut self, long: Long, was_begun: bool) {
        self.begun += usize::from(long.is_begun() && !was_begun);
        self.long.insert((long.left(), long.number), long);
    }

    /// Records that a long message is completely in memory. `was_begun`: it was begun when it was removed.
    pub(crate) fn ended(&mut self, long: &Long, was_begun: bool) {
        self.bytes -= long.len() + size_of::<Long>();
        self.begun -= usize::from(was_begun);
        if let Some(words) = long.then {
            self.push_short(words, Bytes::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::CHUNK;

    fn push(sending: &mut Sending, bytes: usize) {
        sending.push_long([bytes as u64, 0], [vec![0; bytes].into(), Bytes::new()]);
    }

    #[test]
    fn the_message_with_the_fewest_bytes_left_is_next() {
        let mut sending = Sending::default();
        [3, 1, 2].into_iter().for_each(|chunks| push(&mut sending, chunks * CHUNK));
        let mut longest = sending.long.pop_last().unwrap().1;
        longest.copied = 3 * CHUNK - 1;
        sending.put_back(longest, false);
        let order: Vec<_> =
            std::iter::from_fn(|| sending.take_long()).map(|long| long.words[0]).collect();
        assert_eq!(order, [3, 1, 2].map(|chunks| chunks * CHUNK as u64));
    }

    #[test]
    fn a_message_that_was_not_begun_is_withdrawn() {
        let mut sending = Sending::default();
        [1, 2].into_iter().for_each(|chunks| push(&mut sending, chunks * CHUNK));
        sending.push_short([7, 0], Bytes::new());
        let mut begun = sending.take_long().unwrap();
        begun.copied = 1;
        sending.put_back(begun, false);
        let withdrawn = [CHUNK as u64, 2 * CHUNK as u64, 7, 7]
            .map(|number| sending.withdraw(&|words| words[0] == number));
        assert_eq!(withdrawn, [false, true, true, false]);
        assert_eq!(sending.words().collect::<Vec<_>>(), [[CHUNK as u64, 0]]);
        assert_eq!(sending.bytes(), CHUNK + size_of::<Long>(), "the one that was begun");
    }

    #[test]
    fn a_message_follows_the_one_that_it_is_about() {
        let mut sending = Sending::default();
        push(&mut sending, CHUNK);
        assert!(!sending.follow([1, 0], &|words| words[0] == 1));
        assert!(sending.follow([1, 0], &|words| words[0] == CHUNK as u64) && !sending.has_short());
        let long = sending.take_long().unwrap();
        sending.ended(&long, false);
        assert_eq!(sending.first_short().map(|short| short.words), Some([1, 0]));
    }

    #[test]
    fn bytes_are_copied_from_both_parts() {
        let mut sending = Sending::default();
        sending.push_long([0, 0], [Bytes::from_static(b"abc"), Bytes::from_static(b"defg")]);
        let mut long = sending.take_long().unwrap();
        for (copied, length, parts) in [
            (0, 2, ["ab", ""]),
            (0, 3, ["abc", ""]),
            (2, 3, ["c", "de"]),
            (3, 4, ["", "defg"]),
            (7, 0, ["", ""]),
        ] {
            long.copied = copied;
            assert_eq!(long.next(length), parts.map(str::as_bytes), "{copied}, {length}");
        }
    }

    #[test]
    fn the_peer_has_parts_of_few_messages() {
        let mut sending = Sending::default();
        for bytes in (100..100 + BEGUN_MAX).rev() {
            push(&mut sending, bytes * CHUNK);
            let mut long = sending.take_long().unwrap();
            assert_eq!(long.len(), bytes * CHUNK, "the shortest");
            let run = Run { segment: 0, first: 0, chunks: 1, generation: 1 };
            long.target = Some(Target { run, start: 0, length: CHUNK });
            sending.put_back(long, false);
        }
        push(&mut sending, 1);
        let long = sending.take_long().unwrap();
        assert_eq!(long.len(), 100 * CHUNK, "one byte waits until a message has ended");
        sending.ended(&long, true);
        assert_eq!(sending.take_long().unwrap().len(), 1);
    }
}
