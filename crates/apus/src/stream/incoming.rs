//! The incoming half of a stream: bytes in order, for any order of their messages.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

/// The peer broke a rule of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

/// Received and unread bytes, at most a window: a peer that sends more violates the rules.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Number of bytes received without a gap.
    next: u64,
    /// Number of bytes read by the application.
    taken: u64,
    /// The highest limit advertised to the peer.
    advertised: u64,
    window: u64,
    /// Unread payloads in order.
    ready: VecDeque<Bytes>,
    /// Short payloads after `ready`, merged, so that many short ones take no more memory than the window.
    tail: Vec<u8>,
    /// Payloads behind a gap, by offset.
    early: BTreeMap<u64, Bytes>,
    early_bytes: u64,
    /// End of the stream, if the peer has sent it.
    end: Option<u64>,
    /// Whether the application has stopped reading: bytes are dropped and count as read.
    discards: bool,
}

impl Incoming {
    /// `window`: upper bound on waiting bytes.
    pub(crate) fn new(window: u64) -> Self {
        Self {
            next: 0,
            taken: 0,
            advertised: 0,
            window,
            ready: VecDeque::new(),
            tail: Vec::new(),
            early: BTreeMap::new(),
            early_bytes: 0,
            end: None,
            discards: false,
        }
    }

    /// Takes the payload of a message.
    ///
    /// # Errors
    ///
    /// The payload exceeds the advertised limit or the end of the stream, the end moves, or there are more gaps than calls can
    /// make.
    pub(crate) fn insert(
        &mut self,
        offset: u64,
        payload: Bytes,
        fin: bool,
    ) -> Result<(), Violation> {
        let end = offset.checked_add(payload.len() as u64).ok_or(Violation)?;
        if end > self.advertised && !payload.is_empty() {
            return Err(Violation);
        }
        if fin {
            let arrived =
                self.early.last_key_value().map_or(0, |(at, early)| at + early.len() as u64);
            if self.end.is_some_and(|known| known != end) || end < self.next.max(arrived) {
                return Err(Violation);
            }
            self.end = Some(end);
        }
        if self.end.is_some_and(|known| end > known) {
            return Err(Violation);
        }
        if offset > self.next {
            return self.keep(offset, payload);
        }
        self.append(offset, payload);
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() <= self.next) {
            let (offset, payload) = entry.remove_entry();
            self.early_bytes -= payload.len() as u64;
            self.append(offset, payload);
        }
        Ok(())
    }

    /// Keeps a payload until the gap before it is closed.
    fn keep(&mut self, offset: u64, payload: Bytes) -> Result<(), Violation> {
        if payload.is_empty() || self.early.get(&offset).is_some_and(|it| it.len() >= payload.len())
        {
            return Ok(());
        }
        self.early_bytes += payload.len() as u64;
        if let Some(before) = self.early.insert(offset, payload) {
            self.early_bytes -= before.len() as u64;
        }
        let fits = self.early.len() <= EARLY_MAX && self.early_bytes <= self.advertised - self.next;
        if fits { Ok(()) } else { Err(Violation) }
    }

    /// Takes the new part of a payload that begins at the next missing byte or before it.
    fn append(&mut self, offset: u64, payload: Bytes) {
        let known = usize::try_from(self.next - offset).unwrap_or(usize::MAX);
        if known >= payload.len() {
            return;
        }
        let payload = payload.slice(known..);
        self.next += payload.len() as u64;
        if self.discards {
            self.taken = self.next;
        } else if payload.len() < SHORT {
            if self.tail.capacity() == 0 {
                self.tail.reserve(payload.len().max(SHORT));
            }
            self.tail.extend_from_slice(&payload);
            if self.tail.len() >= TAIL {
                self.flush_tail();
            }
        } else {
            self.flush_tail();
            self.ready.push_back(payload);
        }
    }

    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            self.ready.push_back(std::mem::take(&mut self.tail).into());
        }
    }

    /// The next bytes, at most `max`; `None` if no byte has arrived.
    pub(crate) fn take(&mut self, max: usize) -> Option<Bytes> {
        if self.ready.is_empty() {
            self.flush_tail();
        }
        let front = self.ready.front_mut()?;
        let part = front.split_to(front.len().min(max));
        if front.is_empty() {
            self.ready.pop_front();
        }
        self.taken += part.len() as u64;
        Some(part)
    }

    /// Drops waiting bytes, and all bytes that arrive later.
    pub(crate) fn discard(&mut self) {
        self.discards = true;
        self.ready.clear();
        self.tail = Vec::new();
        self.taken = self.next;
    }

    pub(crate) fn discards(&self) -> bool {
        self.discards
    }

    /// Number of bytes that can be read now.
    pub(crate) fn readable(&self) -> u64 {
        self.next - self.taken
    }

    /// Whether the whole stream has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.end == Some(self.next)
    }

    /// The acknowledgement for the peer: received bytes, and one more for the end.
    pub(crate) fn received(&self) -> u64 {
        self.next + u64::from(self.is_complete())
    }

    /// Limit up to which the peer may send. Counts as advertised.
    pub(crate) fn advertise_limit(&mut self) -> u64 {
        self.advertised = self.advertised.max(self.taken + self.window);
        self.advertised
    }

    /// Whether the limit has moved by half a window since it was advertised.
    pub(crate) fn limit_is_due(&self) -> bool {
        !self.is_complete() && self.taken + self.window >= self.advertised + self.window / 2
    }

    /// Sets the upper bound on waiting bytes. An advertised limit stays valid.
    pub(crate) fn set_window(&mut self, window: u64) {
        self.window = window;
    }
}

/// Upper bound on payloads behind a gap. Each call has one message, so an honest peer has no more than its outstanding calls.
const EARLY_MAX: usize = 64;

/// Length below which payloads are merged.
const SHORT: usize = 4 << 10;

/// Upper bound on the length of merged payloads.
const TAIL: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn incoming(window: u64) -> Incoming {
        let mut incoming = Incoming::new(window);
        incoming.advertise_limit();
        incoming
    }

    fn all(incoming: &mut Incoming) -> Vec<u8> {
        std::iter::from_fn(|| incoming.take(5)).flatten().collect()
    }

    #[test]
    fn bytes_come_in_order_once_whatever_arrives() {
        let mut incoming = incoming(100);
        for (offset, payload) in [(4, "efg"), (0, "ab"), (0, "abcd"), (4, "efg"), (2, "cdef")] {
            incoming.insert(offset, payload.into(), false).unwrap();
        }
        assert_eq!(all(&mut incoming), b"abcdefg");
        assert_eq!((incoming.received(), incoming.readable()), (7, 0));
    }

    #[test]
    fn a_stream_ends_when_its_last_byte_has_arrived() {
        let mut incoming = incoming(100);
        incoming.insert(3, "def".into(), true).unwrap();
        assert!(!incoming.is_complete());
        incoming.insert(0, "abc".into(), false).unwrap();
        assert!(incoming.is_complete());
        assert_eq!(incoming.received(), 7);
        incoming.insert(6, Bytes::new(), true).unwrap();
        assert_eq!(all(&mut incoming), b"abcdef");
    }

    #[test]
    fn the_limit_moves_with_the_reader() {
        let mut incoming = incoming(100);
        incoming.insert(0, vec![1; 100].into(), false).unwrap();
        assert_eq!((incoming.advertise_limit(), incoming.limit_is_due()), (100, false));
        assert_eq!(incoming.take(49).unwrap().len(), 49);
        assert!(!incoming.limit_is_due());
        assert_eq!(incoming.take(1).unwrap().len(), 1);
        assert!(incoming.limit_is_due());
        assert_eq!((incoming.advertise_limit(), incoming.limit_is_due()), (150, false));
    }

    #[test]
    fn lies_are_violations() {
        let lies: [(u64, usize, bool); 6] = [
            (0, 101, false),      // beyond the limit,
            (100, 1, false),      // also alone,
            (u64::MAX, 2, false), // also where numbers end;
            (0, 5, true),         // an end before what has arrived,
            (11, 0, true),        // a second end,
            (10, 1, false),       // bytes behind the end.
        ];
        for (offset, length, fin) in lies {
            let mut incoming = incoming(100);
            incoming.insert(8, "89".into(), true).unwrap();
            let result = incoming.insert(offset, vec![0; length].into(), fin);
            assert_eq!(result, Err(Violation), "{length} bytes at {offset}");
        }
    }

    #[test]
    fn gaps_and_bytes_behind_them_are_bounded() {
        let mut incoming = incoming(1_000);
        let kept = (1..).take_while(|gap| incoming.insert(gap * 2, "x".into(), false).is_ok());
        assert_eq!(kept.count(), EARLY_MAX);
        let mut overlapping = self::incoming(100);
        overlapping.insert(1, vec![0; 99].into(), false).unwrap();
        assert_eq!(overlapping.insert(2, vec![0; 98].into(), false), Err(Violation));
    }

    #[test]
    fn what_nobody_reads_counts_as_read() {
        let mut incoming = incoming(10);
        incoming.insert(0, "abc".into(), false).unwrap();
        incoming.discard();
        incoming.insert(3, "defghij".into(), false).unwrap();
        assert_eq!((incoming.readable(), incoming.advertise_limit()), (0, 20));
    }

    #[test]
    fn short_payloads_are_put_together() {
        let mut incoming = incoming(1 << 20);
        for offset in 0..100_000 {
            incoming.insert(offset, "x".into(), false).unwrap();
        }
        assert!(incoming.ready.len() <= 100_000 / TAIL + 1);
        assert_eq!(incoming.readable(), 100_000);
    }
}
