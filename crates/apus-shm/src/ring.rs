//! A ring of cache lines: frames from one process to the other, each delivered once and in order.
//!
//! A frame occupies one or more consecutive slots of 64 bytes:
//!
//! | bytes of the first slot | content |
//! |---|---|
//! | 0..8 | the stamp: 0, or kind (8 bits) and length of the payload (32 bits) once the frame is complete |
//! | 8..24 | two words that belong to the layer above |
//! | 24.. | payload, which continues in the next slots |
//!
//! The reader polls the stamp of the next slot. The writer writes the frame, then sets the stamp of the slot *after* the frame to
//! 0, then sets the frame's own stamp. So the polled stamp was never payload, and a frame of one slot costs one cache line between
//! two cores.
//!
//! The reader reports the number of read slots by a word in its own memory. The writer reads that word only when the ring seems
//! full.

use std::sync::atomic::Ordering;

use crate::segment::{LINE, Memory, PeerSegment};

/// Size of a slot in bytes: a cache line.
pub(crate) const SLOT: usize = LINE;

/// Distance in slots between a frame and the slots that are fetched for writing when it is written. The transfer of a line from the
/// peer's processor takes about as long as the work on this many short messages.
const AHEAD: u64 = 12;
/// Upper bound on the slots fetched for a frame. Longer frames are read in order, and the processor fetches them by itself.
const FETCHED_MAX: u64 = 4;

/// Bytes of a frame before its payload.
const HEAD: usize = 24;

/// Two words of a message for the layer above: its kind with parameters, and the id of its call.
pub type Words = [u64; 2];

/// Kind of the last frame before the peer continues in its longer ring.
pub(crate) const LONGER: u8 = 3;

/// Kind of a frame that fills the ring up to its end. The next frame begins at the ring's start.
const SKIP: u8 = 0xff;

/// The peer's memory has content that no honest peer writes. The pair is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// A frame is longer than the ring allows.
    #[error("a frame of {0} bytes")]
    Length(u64),
    /// A frame has an undefined kind.
    #[error("a frame of kind {0}")]
    Kind(u8),
    /// The peer reports read slots that were not written, or a lower number than before.
    #[error("{read} slots read of {written}")]
    Cursor {
        /// Number of slots that the peer reports as read.
        read: u64,
        /// Number of slots written.
        written: u64,
    },
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    slots: Memory,
    /// Number of slots of the ring, a power of two.
    count: u64,
    /// Number of slots written since the beginning.
    written: u64,
    /// Number of slots that the peer has read, as last reported.
    read: u64,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    peer: PeerSegment,
    /// Offset of the ring in the peer's segment.
    start: usize,
    /// Number of slots of the ring.
    count: u64,
    /// Number of slots read since the beginning.
    read: u64,
    /// Number of read slots last reported to the peer.
    reported: u64,
}

/// A frame that was read. Its payload is in the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) words: Words,
    /// Offset of the payload in the peer's segment.
    pub(crate) at: usize,
    /// Length of the payload in bytes.
    pub(crate) length: usize,
}

const fn slots_of(payload: usize) -> u64 {
    ((HEAD + payload).div_ceil(SLOT)) as u64
}

impl Producer {
    /// Creates a ring in `slots`, which must be zero.
    pub(crate) fn new(slots: Memory) -> Self {
        debug_assert!((slots.size() / SLOT).is_power_of_two() && slots.size() >= 8 * SLOT);
        let count = (slots.size() / SLOT) as u64;
        Self { slots, count, written: 0, read: 0 }
    }

    /// Returns the length of the longest payload in bytes, a quarter of the ring. So a frame that does not fit before the ring's
    /// end fits after its start.
    #[cfg(test)]
    fn payload_max(&self) -> usize {
        self.count as usize * SLOT / 4 - HEAD
    }

    /// Writes a frame. Returns `false`, with nothing written, if there is no room until the peer has read more. `read` reads the
    /// peer's report of read slots.
    ///
    /// # Errors
    ///
    /// [`Broken::Cursor`].
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        kind: u8,
        words: Words,
        payload: &[u8],
        read: impl FnOnce() -> u64,
    ) -> Result<bool, Broken> {
        debug_assert!(payload.len() <= self.count as usize * SLOT / 4 - HEAD && kind != 0);
        let slots = slots_of(payload.len());
        let to_end = self.count - (self.written & (self.count - 1));
        // A frame does not wrap around the end, and one slot after it must be free for the next stamp.
        let skipped = if slots > to_end { to_end } else { 0 };
        let needed = skipped + slots + 1;
        if self.count - (self.written - self.read) < needed {
            self.note_read(read())?;
            if self.count - (self.written - self.read) < needed {
                return Ok(false);
            }
        }
        if skipped > 0 {
            self.skip(skipped);
        }
        self.write(kind, words, payload, slots);
        self.slots.fetch_to_write(self.offset(self.written + AHEAD));
        for slot in 1..slots.min(FETCHED_MAX) {
            self.slots.fetch_to_write(self.offset(self.written + AHEAD + slot));
        }
        Ok(true)
    }

    /// Returns the numbers of slots that the peer has read and that were written.
    pub(crate) fn progress(&self, read: u64) -> (u64, u64) {
        (read, self.written)
    }

    /// Fills the ring up to its end, once in a round.
    #[cold]
    fn skip(&mut self, slots: u64) {
        self.write(SKIP, [0, 0], &[], slots);
    }

    /// Writes a frame of `slots` slots, which the peer can read from then on.
    #[inline(always)]
    fn write(&mut self, kind: u8, words: Words, payload: &[u8], slots: u64) {
        let places = (self.offset(self.written), self.offset(self.written + slots));
        let stamp = (payload.len() as u64) << 8 | u64::from(kind);
        self.slots.write_frame(places, words, payload, stamp);
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
        (slot & (self.count - 1)) as usize * SLOT
    }
}

impl Consumer {
    /// Creates the reader of a ring of `size` bytes at `start` of the peer's segment.
    pub(crate) fn new(peer: PeerSegment, start: usize, size: usize) -> Self {
        Self { peer, start, count: (size / SLOT) as u64, read: 0, reported: 0 }
    }

    /// Returns the segment of the ring.
    #[inline]
    pub(crate) fn segment(&self) -> &PeerSegment {
        &self.peer
    }

    /// Returns whether a frame is ready. Costs one load from a cache line.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.peer.load(self.offset(), Ordering::Acquire) != 0
    }

    /// Reads the next frame. Its payload stays in place until [`report`](Self::report).
    ///
    /// # Errors
    ///
    /// [`Broken`] for content that no honest peer writes.
    #[inline]
    pub(crate) fn pop(&mut self) -> Result<Option<Frame>, Broken> {
        loop {
            let place = self.read & (self.count - 1);
            let (offset, to_end) = (self.start + place as usize * SLOT, self.count - place);
            let (stamp, words) = self.peer.load_head(offset);
            if stamp == 0 {
                return Ok(None);
            }
            let (kind, length) = (stamp as u8, stamp >> 8);
            if kind == SKIP {
                if to_end == self.count {
                    return Err(Broken::Kind(kind)); // A skip never occurs at the ring's start, so this loop ends.
                }
                self.read += to_end;
                continue;
            }
            // The length is compared as a number of bytes before any computation: the peer may have written any value.
            if length > (to_end as usize * SLOT - HEAD) as u64 {
                return Err(Broken::Length(length));
            }
            let length = length as usize;
            self.read += slots_of(length);
            return Ok(Some(Frame { kind, words, at: offset + HEAD, length }));
        }
    }

    /// Reports new read slots to the peer, which may write them again. `word` is this process's.
    #[inline]
    pub(crate) fn report(&mut self, word: &std::sync::atomic::AtomicU64) {
        if self.reported != self.read {
            self.reported = self.read;
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
    fn the_ring_is_full_until_the_reader_reports() {
        let mut ends = ends();
        let fitted = (0..).take_while(|&number| ends.push(1, [number, 0], b"")).count();
        assert_eq!(fitted, 15, "one slot is the next stamp");
        assert_eq!(ends.pop().unwrap().1, [0, 0]);
        assert!(!ends.push(1, [15, 0], b""), "the reader has not reported yet");
        ends.consumer.report(&ends.read);
        assert!(ends.push(1, [15, 0], b"") && !ends.push(1, [16, 0], b""));
    }

    /// The reader never takes payload that looks like stamps for frames, at any alignment with the ring's end.
    #[test]
    fn payload_is_never_a_stamp() {
        let mut ends = ends();
        let payload = vec![1; ends.producer.payload_max()];
        for round in 0..if cfg!(miri) { 100 } else { 1_000_u64 } {
            let length = round as usize * 37 % (payload.len() + 1);
            assert!(ends.push(7, [round, !round], &payload[..length]));
            assert_eq!(ends.pop(), Some((7, [round, !round], payload[..length].to_vec())));
            assert_eq!(ends.pop(), None);
            ends.consumer.report(&ends.read);
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
                consumer.report(read);
                assert_eq!(frame.words, [number, 0]);
                assert_eq!(payload, vec![number as u8; number as usize % 200]);
            }
        });
    }
}
