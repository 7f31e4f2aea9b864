//! At most once: which requests of a client were already taken, exactly, in a few bytes.
//!
//! A server must remember more than the RPCs it has state for: a duplicate of a request that
//! arrives after the RPC was acknowledged and forgotten would otherwise be executed again (the
//! hole the Homa module admits in its notes.txt). Apus clients number the requests to each peer
//! without gaps, so the history of a client is one number below which everything was taken and a
//! bitmap above it. Rules `once-1` and `once-2` of docs/protocol.md.

use std::collections::VecDeque;

/// Requests the bitmap may span. A client would have to start this many later requests at a peer
/// before the first packet of an earlier one arrived for that one to be refused.
pub(crate) const SPAN: u64 = 1 << 20;

/// Requests of one chunk of the bitmap, which is only there when one of them was taken: numbers
/// picked to be far apart cost the one who sends them about what they cost here.
const CHUNK: u64 = 4096;
const CHUNK_WORDS: usize = (CHUNK / 64) as usize;

/// A request this far beyond the last chunk is not taken.
const AHEAD: u64 = SPAN / 2;

/// Strays in a row, with no request taken in between, after which the history is of no use.
const STRAYS_MAX: u8 = 16;

/// The requests of one client, by sequence number.
#[derive(Debug)]
pub(crate) struct History {
    /// Everything below was taken. A multiple of [`CHUNK`].
    floor: u64,
    /// Chunk `c` is about `floor + c * CHUNK` and the numbers after it.
    chunks: VecDeque<Chunk>,
    /// Bitmaps that are there.
    bitmaps: u64,
    /// The part of the bitmap used last, which the chunks get to know when another is used or this one
    /// is full. Requests come mostly in order: nothing else is looked at for 63 of 64, and a client of
    /// few requests has no chunks.
    recent: Recent,
    strays: Strays,
}

/// What a history says of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Fresh,
    Taken,
    /// Its number is farther ahead than a client that numbers its requests without gaps can be.
    Ahead,
    /// The client's numbers and this history have lost each other: its requests would be refused for ever.
    Lost,
}

/// Requests in a row whose numbers are below the floor or far ahead. A changed packet that was taken moves the window away from the
/// client's numbers.
#[derive(Debug, Default)]
struct Strays {
    count: u8,
    /// What was taken last when the last one came.
    since: (u64, u64),
}

/// 64 numbers that begin at a multiple of 64, and which of them were taken.
#[derive(Debug)]
struct Recent {
    first: u64,
    bits: u64,
}

/// Whole chunks take no bitmap: a request that never came leaves one behind, not all that follow.
#[derive(Debug)]
enum Chunk {
    None,
    Some(Box<Bitmap>),
    All,
}

#[derive(Debug)]
struct Bitmap {
    taken: u64,
    words: [u64; CHUNK_WORDS],
}

impl History {
    /// A history of which nothing was taken. Clients count from 1.
    pub(crate) fn new() -> Self {
        let recent = Recent { first: 0, bits: 1 };
        let (chunks, strays) = Default::default();
        Self { floor: 0, chunks, bitmaps: 0, recent, strays }
    }

    /// Whether a request that arrives may be taken.
    #[inline]
    pub(crate) fn admit(&mut self, sequence: u64) -> Verdict {
        let (first, bit) = place(sequence);
        if first == self.recent.first {
            // Below the floor all of them are taken.
            return if self.recent.bits & bit != 0 { Verdict::Taken } else { Verdict::Fresh };
        }
        self.admit_far(sequence)
    }

    fn admit_far(&mut self, sequence: u64) -> Verdict {
        //= docs/protocol.md#once-6
        let ahead = sequence >= self.end().saturating_add(AHEAD);
        if !ahead && sequence >= self.floor {
            return if self.is_taken(sequence) { Verdict::Taken } else { Verdict::Fresh };
        }
        let since = (self.recent.first, self.recent.bits);
        let in_a_row = self.strays.since == since;
        self.strays =
            Strays { count: if in_a_row { self.strays.count.saturating_add(1) } else { 1 }, since };
        match ahead {
            _ if self.strays.count >= STRAYS_MAX => Verdict::Lost,
            true => Verdict::Ahead,
            false => Verdict::Taken,
        }
    }

    //= docs/protocol.md#once-1
    #[inline]
    pub(crate) fn is_taken(&self, sequence: u64) -> bool {
        if sequence < self.floor {
            return true;
        }
        let (first, bit) = place(sequence);
        if first == self.recent.first {
            return self.recent.bits & bit != 0;
        }
        self.word(first) & bit != 0
    }

    /// What the chunks know of the 64 numbers that begin at `first`, not below the floor.
    fn word(&self, first: u64) -> u64 {
        let above = first - self.floor;
        let chunk = usize::try_from(above / CHUNK).unwrap_or(usize::MAX);
        match self.chunks.get(chunk) {
            None | Some(Chunk::None) => 0,
            Some(Chunk::Some(bitmap)) => bitmap.words[(above % CHUNK / 64) as usize],
            Some(Chunk::All) => u64::MAX,
        }
    }

    /// Notes that `sequence` was taken. Bounded: `SPAN / CHUNK` steps at most, and rarely any.
    #[inline(always)]
    pub(crate) fn take(&mut self, sequence: u64) {
        let Some(above) = sequence.checked_sub(self.floor) else { return };
        let (first, bit) = place(sequence);
        if first != self.recent.first {
            self.keep_recent();
            if above >= SPAN {
                //= docs/protocol.md#once-2
                self.raise_floor((sequence - SPAN + CHUNK) & !(CHUNK - 1));
            }
            self.recent = Recent { first, bits: self.word(first) };
        }
        self.recent.bits |= bit;
        if self.recent.bits == u64::MAX {
            self.keep_recent();
        }
    }

    /// Writes what is recent to the chunks.
    fn keep_recent(&mut self) {
        let Recent { first, bits } = self.recent;
        let Some(above) = first.checked_sub(self.floor) else { return };
        let index = (above / CHUNK) as usize;
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, || Chunk::None);
        }
        let chunk = &mut self.chunks[index];
        if matches!(chunk, Chunk::None) {
            *chunk = Chunk::Some(Box::new(Bitmap { taken: 0, words: [0; CHUNK_WORDS] }));
            self.bitmaps += 1;
        }
        let Chunk::Some(bitmap) = chunk else { return };
        let word = &mut bitmap.words[(above % CHUNK / 64) as usize];
        bitmap.taken += u64::from((bits & !*word).count_ones());
        *word |= bits;
        if bitmap.taken == CHUNK {
            *chunk = Chunk::All;
            self.bitmaps -= 1;
            while matches!(self.chunks.front(), Some(Chunk::All)) {
                self.chunks.pop_front();
                self.floor += CHUNK;
            }
        }
    }

    fn raise_floor(&mut self, floor: u64) {
        let dropped = usize::try_from((floor - self.floor) / CHUNK).unwrap_or(usize::MAX);
        let dropped = self.chunks.drain(..dropped.min(self.chunks.len()));
        let bitmaps = dropped.filter(|chunk| matches!(chunk, Chunk::Some(_))).count();
        self.bitmaps -= bitmaps as u64;
        self.floor = floor;
    }

    /// One beyond the highest number that may have been taken.
    pub(crate) fn end(&self) -> u64 {
        (self.floor + self.chunks.len() as u64 * CHUNK).max(self.recent.first + 64)
    }

    /// Memory held, in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        (self.chunks.len() * size_of::<Chunk>()) as u64 + self.bitmaps * size_of::<Bitmap>() as u64
    }
}

/// The first of the 64 numbers among which `sequence` is, and its bit.
#[inline]
fn place(sequence: u64) -> (u64, u64) {
    (sequence & !63, 1 << (sequence % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of the whole span and one chunk.
    const FEW_BYTES: u64 = SPAN / CHUNK * 16 + 520;

    #[test]
    fn in_order_requests_leave_at_most_one_chunk() {
        let mut history = History::new();
        for sequence in 1..100_000 {
            assert!(!history.is_taken(sequence));
            history.take(sequence);
            assert!(history.is_taken(sequence));
            assert!(history.bytes() <= 16 + 520);
        }
        assert!(history.is_taken(0) && history.end() >= 100_000);
    }

    #[test]
    fn a_request_that_never_came_leaves_one_chunk_behind() {
        let mut history = History::new();
        (1..SPAN).filter(|&sequence| sequence != 70).for_each(|sequence| history.take(sequence));
        assert!(!history.is_taken(70) && history.is_taken(71) && history.is_taken(SPAN - 1));
        assert!(history.bytes() <= SPAN / CHUNK * 16 + 520);
        history.take(70);
        assert_eq!(history.bytes(), 0);
    }

    #[test]
    fn it_knows_the_same_as_a_set_of_all_numbers() {
        let mut history = History::new();
        let mut taken = std::collections::BTreeSet::from([0]);
        let mut state = 1u64;
        for step in 0..40_000_u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let back = (state >> 33) % if step % 16 == 0 { 5_000 } else { 100 };
            let sequence = (step / 2).saturating_sub(back);
            assert_eq!(history.is_taken(sequence), taken.contains(&sequence), "{sequence}");
            history.take(sequence);
            taken.insert(sequence);
        }
        assert!((0..25_000).all(|number| history.is_taken(number) == taken.contains(&number)));
    }

    #[test]
    fn a_client_of_few_requests_takes_no_more_memory() {
        let mut history = History::new();
        (1..60).for_each(|sequence| history.take(sequence));
        assert_eq!(history.bytes(), 0);
    }

    #[test]
    fn a_late_first_packet_is_fresh_once() {
        let mut history = History::new();
        history.take(500);
        assert!(!history.is_taken(3));
        history.take(3);
        assert!(history.is_taken(3) && !history.is_taken(4));
    }

    #[test]
    fn memory_is_bounded_whatever_the_peer_sends() {
        let mut history = History::new();
        for sequence in [1, SPAN - 1, 3 * SPAN, u64::MAX >> 1, 5] {
            let before = history.bytes();
            history.take(sequence);
            assert!(history.bytes() <= before + FEW_BYTES);
            assert!(history.is_taken(sequence));
        }
        for sequence in (0..SPAN).step_by(64) {
            history.take((u64::MAX >> 1) - SPAN / 2 + sequence);
            assert!(history.bytes() <= SPAN / 8 + SPAN / CHUNK * 24);
        }
    }

    #[test]
    fn the_floor_rises_over_what_was_skipped() {
        let mut history = History::new();
        (1..10).for_each(|sequence| history.take(sequence));
        history.take(SPAN + 7);
        assert!(history.is_taken(0) && history.is_taken(CHUNK - 1));
        assert!(!history.is_taken(CHUNK) && !history.is_taken(SPAN + 6));
    }
}
