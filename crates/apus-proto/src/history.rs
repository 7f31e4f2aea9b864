//! At most once: an exact record, in a few bytes, of the requests taken from a client.
//!
//! A server must remember more than the RPCs it has state for. Without the record, it would execute again a duplicate that arrives
//! after the RPC was acknowledged and forgotten (the hole that the Homa module admits in its notes.txt). Apus clients number the
//! requests to each peer without gaps, so the history of a client is a number below which everything was taken, and a bitmap above
//! it. Rules `once-1` and `once-2` of docs/protocol.md.

use std::collections::VecDeque;

/// Upper bound on the requests in the bitmap. A request is refused only if its client has started this many later requests at a
/// peer before its first packet arrives.
pub(crate) const SPAN: u64 = 1 << 20;

/// Requests in one chunk of the bitmap. A chunk exists only if one of its requests was taken, so numbers that are picked to be far
/// apart cost their sender about as much as this node.
const CHUNK: u64 = 4096;
const CHUNK_WORDS: usize = (CHUNK / 64) as usize;

/// A request this far beyond the last chunk is not taken.
const AHEAD: u64 = SPAN / 2;

/// Strays in a row, with no request taken in between, after which the history is of no use.
const STRAYS_MAX: u8 = 16;

/// The requests of one client, by sequence number.
#[derive(Debug)]
pub(crate) struct History {
    /// Number below which everything was taken. A multiple of [`CHUNK`].
    floor: u64,
    /// Chunk `c` holds the [`CHUNK`] numbers from `floor + c * CHUNK` on.
    chunks: VecDeque<Chunk>,
    /// Number of allocated bitmaps.
    bitmaps: u64,
    /// The part of the bitmap used last. It is written to the chunks when another part is used or this one is full. Requests arrive
    /// mostly in order, so 63 of 64 requests touch nothing else, and a client with few requests has no chunks.
    recent: Recent,
    strays: Strays,
}

/// Result of the check whether a request was received before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplayCheck {
    Fresh,
    Taken,
    /// Its number is farther ahead than the number of any client that counts without gaps.
    Ahead,
    /// The numbers of the client are out of the window of this history: its requests would be refused for ever.
    Lost,
}

/// Requests in a row whose numbers are below the floor or far ahead. A changed packet that was taken moves the window away from the
/// client's numbers.
#[derive(Debug, Default)]
struct Strays {
    count: u8,
    /// The part of the bitmap used last when the last stray came.
    since: (u64, u64),
}

/// 64 numbers from a multiple of 64 on, with a bit for each one taken.
#[derive(Debug)]
struct Recent {
    first: u64,
    bits: u64,
}

/// A full chunk takes no bitmap. A request that never arrives therefore leaves one bitmap behind, not all later ones.
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
    /// Creates an empty history. Clients count from 1.
    pub(crate) fn new() -> Self {
        let recent = Recent { first: 0, bits: 1 };
        let (chunks, strays) = Default::default();
        Self { floor: 0, chunks, bitmaps: 0, recent, strays }
    }

    /// Whether a request that arrives may be taken.
    #[inline]
    pub(crate) fn admit(&mut self, sequence: u64) -> ReplayCheck {
        let (first, bit) = place(sequence);
        if first == self.recent.first {
            // Below the floor all of them are taken.
            return if self.recent.bits & bit != 0 {
                ReplayCheck::Taken
            } else {
                ReplayCheck::Fresh
            };
        }
        self.admit_far(sequence)
    }

    fn admit_far(&mut self, sequence: u64) -> ReplayCheck {
        //= docs/protocol.md#once-6
        let ahead = sequence >= self.end().saturating_add(AHEAD);
        if !ahead && sequence >= self.floor {
            return if self.is_taken(sequence) { ReplayCheck::Taken } else { ReplayCheck::Fresh };
        }
        let since = (self.recent.first, self.recent.bits);
        let in_a_row = self.strays.since == since;
        self.strays =
            Strays { count: if in_a_row { self.strays.count.saturating_add(1) } else { 1 }, since };
        match ahead {
            _ if self.strays.count >= STRAYS_MAX => ReplayCheck::Lost,
            true => ReplayCheck::Ahead,
            false => ReplayCheck::Taken,
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

    /// Returns the chunks' bits of the 64 numbers from `first` on. `first` is not below the floor.
    fn word(&self, first: u64) -> u64 {
        let above = first - self.floor;
        let chunk = usize::try_from(above / CHUNK).unwrap_or(usize::MAX);
        match self.chunks.get(chunk) {
            None | Some(Chunk::None) => 0,
            Some(Chunk::Some(bitmap)) => bitmap.words[(above % CHUNK / 64) as usize],
            Some(Chunk::All) => u64::MAX,
        }
    }

    /// Records that `sequence` was taken. Bounded: at most `SPAN / CHUNK` steps, and rarely any.
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

    /// Records that `sequence` was taken, if it is new and its record changes nothing but the recent bits. Returns whether it did.
    #[inline]
    pub(crate) fn take_next(&mut self, sequence: u64) -> bool {
        let (first, bit) = place(sequence);
        let bits = self.recent.bits | bit;
        let takes = first == self.recent.first && bits != self.recent.bits && bits != u64::MAX;
        if takes {
            self.recent.bits = bits;
        }
        takes
    }

    /// Writes the recent bits to the chunks.
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

    /// Returns one more than the highest number that may have been taken.
    pub(crate) fn end(&self) -> u64 {
        (self.floor + self.chunks.len() as u64 * CHUNK).max(self.recent.first + 64)
    }

    /// Returns the memory of the history in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        (self.chunks.len() * size_of::<Chunk>()) as u64 + self.bitmaps * size_of::<Bitmap>() as u64
    }
}

/// Returns the first of the 64 numbers that include `sequence`, and the bit of `sequence`.
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
