//! At most once: which requests of a client were already taken, exactly, in a few bytes.
//!
//! A server must remember more than the RPCs it has state for: a duplicate of a request that
//! arrives after the RPC was acknowledged and forgotten would otherwise be executed again (the
//! hole the Homa module admits in its notes.txt). Apus clients number the requests to each peer
//! without gaps, so the history of a client is one number below which everything was taken and a
//! bitmap above it. Rules `once-1` to `once-4` of docs/protocol.md.

use std::collections::VecDeque;

/// Requests the bitmap may span. A client would have to start this many later requests at a peer
/// before the first packet of an earlier one arrived for that one to be refused.
pub(crate) const SPAN: u64 = 1 << 20;

/// How far behind the first request heard of others are still taken as new.
const REORDERING: u64 = 4096;

/// Bytes of one bitmap word, charged to the peer's budget.
pub(crate) const WORD_BYTES: u64 = 8;

/// The requests of one client incarnation, by sequence number.
#[derive(Debug)]
pub(crate) struct History {
    /// Everything below was taken. A multiple of 64.
    floor: u64,
    /// Bit `i` of word `w`: `floor + 64 w + i` was taken.
    words: VecDeque<u64>,
}

impl History {
    /// A history that begins around `first`, the first sequence number heard of.
    ///
    /// Requests from shortly before are still fresh, because the network reorders; much earlier
    /// ones belong to the time before this server knew the client and are refused.
    pub(crate) fn new(first: u64) -> Self {
        Self { floor: first.saturating_sub(REORDERING) & !63, words: VecDeque::new() }
    }

    #[inline]
    pub(crate) fn is_taken(&self, sequence: u64) -> bool {
        let Some(above) = sequence.checked_sub(self.floor) else { return true };
        let word = usize::try_from(above / 64).unwrap_or(usize::MAX);
        self.words.get(word).is_some_and(|bits| bits & (1 << (above % 64)) != 0)
    }

    /// Notes that `sequence` was taken. Bounded: one word per 64 numbers skipped, `SPAN` at most.
    #[inline]
    pub(crate) fn take(&mut self, sequence: u64) {
        let Some(above) = sequence.checked_sub(self.floor) else { return };
        if above >= SPAN {
            self.raise_floor((sequence - SPAN + 64) & !63);
        }
        let above = sequence - self.floor;
        let word = (above / 64) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (above % 64);
        while self.words.front() == Some(&u64::MAX) {
            self.words.pop_front();
            self.floor += 64;
        }
    }

    fn raise_floor(&mut self, floor: u64) {
        let dropped = usize::try_from((floor - self.floor) / 64).unwrap_or(usize::MAX);
        self.words.drain(..dropped.min(self.words.len()));
        self.floor = floor;
    }

    /// Memory held, in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.words.len() as u64 * WORD_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_requests_leave_at_most_one_word() {
        let mut history = History::new(0);
        for sequence in 0..100_000 {
            assert!(!history.is_taken(sequence));
            history.take(sequence);
            assert!(history.is_taken(sequence));
            assert!(history.bytes() <= WORD_BYTES);
        }
        assert!(history.is_taken(0));
    }

    #[test]
    fn a_late_first_packet_is_fresh_once() {
        let mut history = History::new(500);
        history.take(500);
        assert!(!history.is_taken(3));
        history.take(3);
        assert!(history.is_taken(3) && !history.is_taken(4));
    }

    #[test]
    fn memory_is_bounded_whatever_the_peer_sends() {
        let mut history = History::new(0);
        for sequence in [1, SPAN - 1, 3 * SPAN, u64::MAX >> 1, 5] {
            history.take(sequence);
            assert!(history.bytes() <= SPAN / 8);
            assert!(history.is_taken(sequence));
        }
    }
}
