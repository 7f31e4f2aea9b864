//! A ring of cache lines: frames from one process to the other, in order, each seen once.
//!
//! A frame occupies one or more slots of 64 bytes that follow each other:
//!
//! | bytes of the first slot | content |
//! |---|---|
//! | 0..8 | the stamp: 0, or kind (8 bits) and length of the payload (32 bits) once the frame is complete |
//! | 8..24 | two words that belong to the layer above |
//! | 24.. | payload, which goes on in the next slots |
//!
//! The reader polls the stamp of the slot that comes next. The writer writes the frame, then sets the stamp of the slot *behind* the
//! frame to 0, then the frame's own stamp. So the stamp that the reader polls was never payload, and a frame of one slot costs one
//! cache line between two cores.
//!
//! The reader tells by a word in its own memory how many slots it has read. The writer reads that word only when the ring seems
//! full.

use std::sync::atomic::Ordering;

use crate::segment::{Memory, PeerSegment};

/// Bytes of a slot: a cache line.
pub(crate) const SLOT: usize = 64;

/// Bytes of a frame before its payload.
const HEAD: usize = 24;

/// Two words of a message that the layer above has for itself: what it is about, and whose it is.
pub type Words = [u64; 2];

/// A frame that fills the ring up to its end: the next frame begins at its start.
const SKIP: u8 = 0xff;

/// The peer's memory holds something that no honest peer writes. The pair is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// A frame is longer than the ring allows.
    #[error("a frame of {0} bytes")]
    Length(u64),
    /// A frame of a kind that does not exist.
    #[error("a frame of kind {0}")]
    Kind(u8),
    /// The peer says that it has read slots that were not written, or takes back that it has read some.
    #[error("{read} slots read of {written}")]
    Cursor {
        /// What the peer says.
        read: u64,
        /// Slots written.
        written: u64,
    },
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    slots: Memory,
    /// Slots written since the beginning.
    written: u64,
    /// Slots of them that the peer has read, as far as is known.
    read: u64,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    peer: PeerSegment,
    /// Where the ring begins in the peer's segment.
    start: usize,
    /// Slots of the ring.
    count: u64,
    /// Slots read since the beginning.
    read: u64,
    /// What the peer was told of it.
    told: u64,
}

/// A frame that was read. Its payload lies in the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) words: Words,
    /// Where the payload begins in the peer's segment.
    pub(crate) at: usize,
    /// Bytes of the payload.
    pub(crate) length: usize,
}

const fn slots_of(payload: usize) -> u64 {
    ((HEAD + payload).div_ceil(SLOT)) as u64
}

impl Producer {
    /// A ring in `slots`, which are zero.
    pub(crate) fn new(slots: Memory) -> Self {
        debug_assert!((slots.size() / SLOT).is_power_of_two() && slots.size() >= 8 * SLOT);
        Self { slots, written: 0, read: 0 }
    }

    #[inline]
    fn count(&self) -> u64 {
        (self.slots.size() / SLOT) as u64
    }

    /// Bytes of the longest payload: that of a quarter of the ring, so that a frame that does not fit before the ring's end fits
    /// behind its start.
    #[inline]
    pub(crate) fn payload_max(&self) -> usize {
        self.slots.size() / 4 - HEAD
    }

    /// Writes a frame. False if there is no room until the peer has read more; nothing has happened then. `read`: where the peer
    /// tells how many slots it has read.
    ///
    /// # Errors
    ///
    /// [`Broken::Cursor`].
    #[inline]
    pub(crate) fn push(
        &mut self,
        kind: u8,
        words: Words,
        payload: &[u8],
        read: impl FnOnce() -> u64,
    ) -> Result<bool, Broken> {
        debug_assert!(payload.len() <= self.payload_max() && kind != 0);
        let slots = slots_of(payload.len());
        let to_end = self.count() - (self.written & (self.count() - 1));
        // A frame does not go around the end, and one slot behind it is free for the next stamp.
        let skipped = if slots > to_end { to_end } else { 0 };
        let needed = skipped + slots + 1;
        if self.count() - (self.written - self.read) < needed {
            self.note_read(read())?;
            if self.count() - (self.written - self.read) < needed {
                return Ok(false);
            }
        }
        if skipped > 0 {
            self.publish(SKIP, skipped, 0);
        }
        let at = self.offset(self.written);
        self.slots.word(at + 8).store(words[0], Ordering::Relaxed);
        self.slots.word(at + 16).store(words[1], Ordering::Relaxed);
        self.slots.copy_in(at + HEAD, payload);
        self.publish(kind, slots, payload.len());
        Ok(true)
    }

    /// Slots that the peer has read, and those that were written.
    pub(crate) fn progress(&self, read: u64) -> (u64, u64) {
        (read, self.written)
    }

    /// Makes the frame at the end visible.
    #[inline]
    fn publish(&mut self, kind: u8, slots: u64, payload: usize) {
        let (frame, next) = (self.offset(self.written), self.offset(self.written + slots));
        self.slots.word(next).store(0, Ordering::Relaxed);
        let stamp = (payload as u64) << 8 | u64::from(kind);
        self.slots.word(frame).store(stamp, Ordering::Release);
        self.written += slots;
    }

    #[inline]
    fn note_read(&mut self, read: u64) -> Result<(), Broken> {
        if read < self.read || read > self.written {
            return Err(Broken::Cursor { read, written: self.written });
        }
        self.read = read;
        Ok(())
    }

    #[inline]
    fn offset(&self, slot: u64) -> usize {
        (slot & (self.count() - 1)) as usize * SLOT
    }
}

impl Consumer {
    /// The ring of `size` bytes at `start` of the peer's segment.
    pub(crate) fn new(peer: PeerSegment, start: usize, size: usize) -> Self {
        Self { peer, start, count: (size / SLOT) as u64, read: 0, told: 0 }
    }

    /// Whether a frame is there. One load from a cache line.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.peer.load(self.offset(), Ordering::Acquire) != 0
    }

    /// Reads the next frame. Its payload stays where it is until [`tell`](Self::tell).
    ///
    /// # Errors
    ///
    /// [`Broken`] if no honest peer would have written it.
    #[inline]
    pub(crate) fn pop(&mut self) -> Result<Option<Frame>, Broken> {
        loop {
            let offset = self.offset();
            let stamp = self.peer.load(offset, Ordering::Acquire);
            if stamp == 0 {
                return Ok(None);
            }
            let (kind, length) = (stamp as u8, stamp >> 8);
            let to_end = self.count - (self.read & (self.count - 1));
            if kind == SKIP {
                if to_end == self.count {
                    return Err(Broken::Kind(kind)); // Nothing is skipped at the start; this loop ends.
                }
                self.read += to_end;
                continue;
            }
            // Compared as a number of bytes before anything is computed from it: the peer may have written any.
            if length > (to_end as usize * SLOT - HEAD) as u64 {
                return Err(Broken::Length(length));
            }
            let length = length as usize;
            self.read += slots_of(length);
            let words = [
                self.peer.load(offset + 8, Ordering::Relaxed),
                self.peer.load(offset + 16, Ordering::Relaxed),
            ];
            return Ok(Some(Frame { kind, words, at: offset + HEAD, length }));
        }
    }

    /// Tells the peer what was read, if that is news: its slots may be written again. `word` is this process's.
    #[inline]
    pub(crate) fn tell(&mut self, word: &std::sync::atomic::AtomicU64) {
        if self.told != self.read {
            self.told = self.read;
            word.store(self.read, Ordering::Release);
        }
    }

    #[inline]
    fn offset(&self) -> usize {
        self.start + (self.read & (self.count - 1)) as usize * SLOT
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::PAGE;

    const SIZE: usize = 16 * SLOT;

    struct Ends {
        producer: Producer,
        consumer: Consumer,
        read: AtomicU64,
    }

    fn ends() -> Ends {
        let (slots, _) = Memory::private(PAGE).split(SIZE);
        let consumer = Consumer::new(slots.as_peer(), 0, SIZE);
        Ends { producer: Producer::new(slots), consumer, read: AtomicU64::new(0) }
    }

    impl Ends {
        fn push(&mut self, kind: u8, words: Words, payload: &[u8]) -> bool {
            self.producer.push(kind, words, payload, || self.read.load(Ordering::Acquire)).unwrap()
        }

        fn pop(&mut self) -> Option<(u8, Words, Vec<u8>)> {
            let frame = self.consumer.pop().unwrap()?;
            let mut payload = Vec::new();
            self.consumer.peer.copy_out(frame.at..frame.at + frame.length, &mut payload);
            Some((frame.kind, frame.words, payload))
        }
    }

    #[test]
    fn frames_arrive_in_order_and_whole() {
        let mut ends = ends();
        let longest = vec![0xff; ends.producer.payload_max()];
        assert!(ends.push(1, [1, 2], b"") && ends.push(2, [3, 4], &longest));
        assert!(ends.consumer.is_ready());
        assert_eq!(ends.pop(), Some((1, [1, 2], vec![])));
        assert_eq!(ends.pop(), Some((2, [3, 4], longest)));
        assert_eq!(ends.pop(), None);
        assert!(!ends.consumer.is_ready());
    }

    #[test]
    fn the_ring_is_full_until_the_reader_tells() {
        let mut ends = ends();
        let fitted = (0..).take_while(|&number| ends.push(1, [number, 0], b"")).count();
        assert_eq!(fitted, 15, "one slot is the next stamp");
        assert_eq!(ends.pop().unwrap().1, [0, 0]);
        assert!(!ends.push(1, [15, 0], b""), "the reader has not told yet");
        ends.consumer.tell(&ends.read);
        assert!(ends.push(1, [15, 0], b"") && !ends.push(1, [16, 0], b""));
    }

    /// Payload that looks like stamps is never taken for frames, at any alignment with the ring's end.
    #[test]
    fn payload_is_never_a_stamp() {
        let mut ends = ends();
        let payload = vec![1; ends.producer.payload_max()];
        for round in 0..if cfg!(miri) { 100 } else { 1_000_u64 } {
            let length = round as usize * 37 % (payload.len() + 1);
            assert!(ends.push(7, [round, !round], &payload[..length]));
            assert_eq!(ends.pop(), Some((7, [round, !round], payload[..length].to_vec())));
            assert_eq!(ends.pop(), None);
            ends.consumer.tell(&ends.read);
        }
    }

    #[test]
    fn a_stamp_that_lies_is_an_error() {
        let lengths = [SIZE as u64, u64::MAX >> 8, (SIZE - HEAD) as u64 + 1];
        for length in lengths {
            let ends = ends();
            ends.producer.slots.word(0).store(length << 8 | 1, Ordering::Release);
            let mut consumer = ends.consumer;
            assert_eq!(consumer.pop().unwrap_err(), Broken::Length(length));
        }
    }

    #[test]
    fn a_reader_does_not_go_round_and_round() {
        let mut ends = ends();
        for slot in 0..16 {
            ends.producer.slots.word(slot * SLOT).store(SKIP.into(), Ordering::Release);
        }
        assert_eq!(ends.consumer.pop().unwrap_err(), Broken::Kind(SKIP));
    }

    #[test]
    fn a_cursor_that_lies_is_an_error() {
        for lie in [u64::MAX, 16, 14] {
            let mut ends = ends();
            while ends.push(1, [0, 0], b"") {}
            ends.producer.read = 15;
            ends.producer.written = 15 + 15;
            let error = ends.producer.push(1, [0, 0], b"", || lie).map(drop);
            if lie == 16 {
                assert_eq!(error, Ok(()));
            } else {
                assert_eq!(error, Err(Broken::Cursor { read: lie, written: 30 }));
            }
        }
    }

    #[test]
    fn two_threads_exchange_frames() {
        let Ends { mut producer, mut consumer, read } = ends();
        let rounds = if cfg!(miri) { 200 } else { 20_000_u64 };
        std::thread::scope(|scope| {
            let read = &read;
            scope.spawn(move || {
                for number in 0..rounds {
                    let payload = [number as u8; 200];
                    let payload = &payload[..number as usize % 200];
                    while !producer
                        .push(1, [number, 0], payload, || read.load(Ordering::Acquire))
                        .unwrap()
                    {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..rounds {
                let frame = loop {
                    match consumer.pop().unwrap() {
                        Some(frame) => break frame,
                        None => std::thread::yield_now(),
                    }
                };
                let mut payload = Vec::new();
                consumer.peer.copy_out(frame.at..frame.at + frame.length, &mut payload);
                consumer.tell(read);
                assert_eq!(frame.words, [number, 0]);
                assert_eq!(payload, vec![number as u8; number as usize % 200]);
            }
        });
    }
}
