//! An incoming message: its reassembly, and its state in the grant scheduler.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use apus_wire::{Priority, ReceiveTarget};

use crate::pieces::Pieces;
use crate::slab::RpcKey;
use crate::time::Time;

/// Upper bound on the gaps of one message. Further out-of-order packets are dropped and requested again.
pub(crate) const GAPS_MAX: usize = 1024;
/// Upper bound on the bytes of one gap. No honest packet is so far ahead of the previous one.
pub(crate) const GAP_MAX: u32 = 1 << 20;

/// Room made for a message at its first packet, in bytes, unless the message is shorter.
const ROOM_FIRST: usize = 64 << 10;
/// Room made whenever more is needed, as a multiple of the received bytes. It is address space, which takes no memory before bytes
/// arrive. A smaller growth would copy more.
const ROOM_GROWTH: usize = 16;
/// Room made for a packet that the link writes in place, in bytes: the longest possible packet.
const PACKET_MAX: usize = 64 << 10;

/// Bytes per quarter of `peer_timeout` below which a message is slow, if its sender may send more.
pub(crate) const SLOW_BYTES: u32 = 16 << 10;

/// Effect of a packet on its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Added {
    /// This many bytes were new.
    New {
        bytes: u32,
        /// The packet left a gap before it.
        gap: bool,
    },
    Duplicate,
    /// The message has too many gaps, or this one is too wide.
    TooManyGaps,
}

/// Rank of a message among those that wait for grants: remaining bytes, then age, then a unique tie-breaker.
pub(crate) type Rank = (u32, u64, RpcKey);

/// Received bytes of a message in its last two intervals.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Start of the present interval. The interval ends with the first packet after its time.
    since: Time,
    /// Received bytes of the message at that start.
    received: u32,
    /// Bytes received in the previous interval. Initially there is no such interval.
    before: u32,
}

#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) length: u32,
    /// Received bytes, in any order.
    pub(crate) received: u32,
    /// The message up to the first gap.
    bytes: Vec<u8>,
    /// Bytes behind gaps, except the highest run.
    pieces: Pieces,
    /// The highest run behind a gap; empty if there is no gap.
    tail: Vec<u8>,
    tail_start: u32,
    /// One byte beyond the highest received one.
    end: u32,
    /// Whether `bytes` are kept; otherwise they are only counted.
    kept: bool,
    /// Missing ranges below the highest received byte: start to end.
    gaps: BTreeMap<u32, u32>,

    /// Offset below which the sender may send everything.
    pub(crate) granted: u32,
    /// Age of the message, which breaks ties between equal rests.
    pub(crate) birth: u64,
    /// Remaining bytes under which the message stands in the grant order, if it does.
    pub(crate) ranked: Option<u32>,
    /// Part of this message in the bytes expected over all messages.
    pub(crate) expected: u64,
    /// Bytes of the receive buffer that the expected bytes take.
    pub(crate) taken: u64,
    /// Bytes charged to the budgets: the received ones, or all up to the last grant.
    pub(crate) charged: u32,
    /// A different length that the message's last packet stated.
    pub(crate) contradicted: Option<u32>,
    /// Whether granted bytes are late, so that the sender is probed.
    pub(crate) suspended: bool,
    /// Whether the message was marked for the grant scheduler since its last run.
    pub(crate) dirty: bool,
    /// Time of the last grant, and the granted bytes before it.
    pub(crate) grant_sent: Option<(Time, u32)>,
    /// Time of the last arrival of new bytes.
    pub(crate) progress: Time,
    pace: Pace,
    /// Time of the first packets, and the bytes received until then.
    pub(crate) began: (Time, u32),
    /// The level that was last announced to the sender, which keeps it for bytes granted without a level.
    pub(crate) scheduled: Priority,
    /// The levels assigned to bytes that have not arrived: end offset and level, in order.
    levels: VecDeque<(u32, Priority)>,
    /// Bytes received on the link at that level and above when the sender's last packet about the message arrived.
    pub(crate) ahead: u64,
}

impl Incoming {
    pub(crate) fn new(length: u32, granted: u32, birth: u64, now: Time) -> Self {
        Self {
            length,
            received: 0,
            bytes: Vec::new(),
            pieces: Pieces::new(),
            tail: Vec::new(),
            tail_start: 0,
            end: 0,
            kept: true,
            gaps: BTreeMap::new(),
            granted: granted.min(length),
            birth,
            ranked: None,
            expected: 0,
            taken: 0,
            charged: 0,
            contradicted: None,
            suspended: false,
            dirty: false,
            grant_sent: None,
            progress: now,
            pace: Pace { since: now, received: 0, before: u32::MAX },
            began: (now, 0),
            scheduled: Priority::LOWEST,
            levels: VecDeque::new(),
            ahead: 0,
        }
    }

    /// Creates a message whose bytes are only counted, not kept.
    pub(crate) fn counted(length: u32, granted: u32, birth: u64, now: Time) -> Self {
        let granted = granted.min(length);
        Self { length, granted, kept: false, ..Self::new(0, 0, birth, now) }
    }

    /// Returns one byte beyond the highest received one.
    #[inline]
    pub(crate) fn end(&self) -> u32 {
        self.end
    }

    /// Appends a payload that begins at or after the end.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "all bytes are within the message, whose length is a u32"
    )]
    fn append(&mut self, offset: u32, payload: &[u8]) {
        if self.kept {
            if offset > self.end {
                self.begin_tail(offset, payload);
            } else {
                let rest = self.length - self.end;
                let run = self.highest_run();
                make_room(run, payload.len(), rest);
                run.extend_from_slice(payload);
            }
        }
        self.end = offset + payload.len() as u32;
    }

    /// Returns the run that the next bytes are appended to if they leave no gap.
    #[inline]
    fn highest_run(&mut self) -> &mut Vec<u8> {
        if self.tail.is_empty() { &mut self.bytes } else { &mut self.tail }
    }

    /// Begins a new tail behind a new gap, and keeps the old tail as a piece.
    #[cold]
    fn begin_tail(&mut self, offset: u32, payload: &[u8]) {
        let mut piece = std::mem::replace(&mut self.tail, payload.to_vec());
        let start = std::mem::replace(&mut self.tail_start, offset);
        if !piece.is_empty() {
            piece.shrink_to_fit();
            self.pieces.insert_last(start, piece);
        }
    }

    /// Keeps bytes of a gap: after the bytes before the first gap, or as a piece until the gap before them closes. Bytes that have
    /// not arrived take no memory.
    fn keep(&mut self, offset: u32, payload: &[u8]) {
        //= docs/protocol.md#hostile-5
        if !self.kept {
            return;
        }
        if offset as usize != self.bytes.len() {
            return self.pieces.insert(offset, payload);
        }
        self.extend(payload);
        if let Some(piece) = self.pieces.take(self.bytes.len() as u32) {
            let (first, second) = piece.as_slices();
            self.extend(first);
            self.extend(second);
        }
        if !self.tail.is_empty() && self.bytes.len() as u32 == self.tail_start {
            let tail = std::mem::take(&mut self.tail);
            self.extend(&tail);
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "all bytes are within the message, whose length is a u32"
    )]
    fn extend(&mut self, bytes: &[u8]) {
        let rest = self.length - self.bytes.len() as u32;
        make_room(&mut self.bytes, bytes.len(), rest);
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the run to which the next bytes are appended, and the number of bytes missing after it. Returns `None` if bytes are
    /// not kept, or if the highest ones have arrived already.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "all bytes are within the message, whose length is a u32"
    )]
    pub(crate) fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        let rest = self.length - self.end;
        if !self.kept || rest == 0 {
            return None;
        }
        let message = self.highest_run();
        make_room(message, PACKET_MAX.min(rest as usize), rest);
        Some(ReceiveTarget { message, room: rest as usize })
    }

    /// Takes bytes that were appended to the receive target, without a copy. Returns `false` if they do not begin at the end.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "all bytes are within the message, whose length is a u32"
    )]
    pub(crate) fn append_in_place(&mut self, offset: u32, length: u32) -> bool {
        let here = match self.tail.len() {
            0 => self.bytes.len(),
            tail => self.tail_start as usize + tail,
        };
        if offset != self.end || here as u64 != u64::from(offset) + u64::from(length) {
            return false;
        }
        self.end += length;
        self.received += length;
        true
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "all bytes are within the message, whose length is a u32"
    )]
    pub(crate) fn remaining(&self) -> u32 {
        self.length - self.received
    }

    /// Returns the bytes that were granted and have not arrived.
    #[inline]
    pub(crate) fn outstanding(&self) -> u64 {
        u64::from(self.granted.saturating_sub(self.received))
    }

    /// Returns the bytes that may still be granted.
    #[inline]
    pub(crate) fn ungranted(&self) -> u32 {
        self.length.saturating_sub(self.granted)
    }

    /// Returns the bytes that the sender may send and that are not charged to the budgets.
    #[inline]
    pub(crate) fn uncharged(&self) -> u64 {
        u64::from(self.granted.saturating_sub(self.charged))
    }

    /// Records the arrival of new bytes. `interval` is the time in which a sender must send [`SLOW_BYTES`].
    #[inline]
    pub(crate) fn note_progress(&mut self, now: Time, interval: Duration) {
        self.progress = now;
        if now.saturating_since(self.pace.since) >= interval {
            let before = self.received.saturating_sub(self.pace.received);
            self.pace = Pace { since: now, received: self.received, before };
        }
    }

    /// Returns the bytes received recently, if they are too few for a message whose sender may send more.
    pub(crate) fn slow(&self, now: Time, interval: Duration) -> Option<u32> {
        let recent = self.received.saturating_sub(self.pace.received);
        let is_whole = now.saturating_since(self.pace.since) >= interval;
        let before = if is_whole { 0 } else { self.pace.before };
        let bytes = recent.saturating_add(before);
        (bytes < SLOW_BYTES && self.is_expecting()).then_some(bytes)
    }

    /// Allows the sender to send up to `granted`, with the new part at this level.
    pub(crate) fn grant(&mut self, granted: u32, level: Priority) {
        self.granted = granted;
        match self.levels.back_mut() {
            Some((until, last)) if *last == level => *until = granted,
            _ => {
                self.forget_levels();
                self.levels.push_back((granted, level));
            }
        }
    }

    /// Forgets the levels of received bytes.
    fn forget_levels(&mut self) {
        let here = self.gaps.keys().next().copied().unwrap_or(self.end);
        while self.levels.front().is_some_and(|&(until, _)| until <= here) {
            self.levels.pop_front();
        }
    }

    /// Returns the level at which the byte at `offset` is transmitted the first time.
    #[inline]
    pub(crate) fn level_at(&self, offset: u32) -> Priority {
        let level = self.levels.iter().find(|&&(until, _)| offset < until);
        level.or_else(|| self.levels.back()).map_or(Priority::HIGHEST, |&(_, level)| level)
    }

    /// Returns the lowest level at which missing bytes may wait.
    #[inline]
    pub(crate) fn lowest_level(&mut self) -> Priority {
        //= docs/protocol.md#loss-8
        self.forget_levels();
        let levels = self.levels.iter().map(|&(_, level)| level);
        levels.min().unwrap_or(Priority::HIGHEST)
    }

    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.received == self.length
    }

    /// Returns whether granted bytes have not arrived.
    #[inline]
    pub(crate) fn is_expecting(&self) -> bool {
        self.received < self.granted.max(self.end())
    }

    /// Takes the payload at `offset`. The caller has checked that it ends within the message.
    ///
    /// In order, the cost is one append; otherwise O(log gaps) and the copy.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the payload ends within the message, whose length is a u32"
    )]
    pub(crate) fn add(&mut self, offset: u32, payload: &[u8]) -> Added {
        let end = self.end();
        if offset == end {
            self.append(end, payload);
            let bytes = payload.len() as u32;
            self.received += bytes;
            return Added::New { bytes, gap: false };
        }
        if offset > end {
            //= docs/protocol.md#hostile-5
            if self.gaps.len() >= GAPS_MAX || offset - end > GAP_MAX {
                return Added::TooManyGaps;
            }
            self.gaps.insert(end, offset);
            self.append(offset, payload);
            let bytes = payload.len() as u32;
            self.received += bytes;
            return Added::New { bytes, gap: true };
        }
        let inside = payload.len().min((end - offset) as usize);
        let mut bytes = self.fill(offset, &payload[..inside]);
        self.append(end, &payload[inside..]);
        bytes += (payload.len() - inside) as u32;
        self.received += bytes;
        if bytes == 0 { Added::Duplicate } else { Added::New { bytes, gap: false } }
    }

    /// Copies the parts of `payload` that lie in gaps. Returns their number of bytes.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the payload ends within the message, and each gap that is met overlaps it"
    )]
    fn fill(&mut self, offset: u32, payload: &[u8]) -> u32 {
        let mut stop = offset + payload.len() as u32;
        let mut filled = 0;
        while stop > offset {
            let Some((&gap_start, &gap_end)) = self.gaps.range(..stop).next_back() else { break };
            if gap_end <= offset {
                break;
            }
            let (start, end) = (gap_start.max(offset), gap_end.min(stop));
            filled += end - start;
            self.gaps.remove(&gap_start);
            if gap_start < start {
                self.gaps.insert(gap_start, start);
            }
            if end < gap_end {
                self.gaps.insert(end, gap_end);
            }
            self.keep(start, &payload[(start - offset) as usize..(end - offset) as usize]);
            stop = start;
        }
        filled
    }

    /// Returns the ranges to request again: every gap, then the granted bytes beyond the highest received one.
    pub(crate) fn missing(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let tail = self.end()..self.granted;
        let gaps = self.gaps.iter().map(|(&start, &end)| start..end);
        gaps.chain((!tail.is_empty()).then_some(tail))
    }

    /// Returns the whole message, or nothing if it was only counted. The caller has checked that it is complete.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Makes room for `more` bytes after the present ones, and for some later ones, of `rest` that may arrive. A message of 64 KiB is
/// never moved for it, and one of 16 MiB twice.
#[inline]
fn make_room(run: &mut Vec<u8>, more: usize, rest: u32) {
    if run.capacity() - run.len() < more {
        grow(run, more, rest as usize);
    }
}

#[cold]
fn grow(run: &mut Vec<u8>, more: usize, rest: usize) {
    let wanted = run.len().saturating_mul(ROOM_GROWTH - 1).max(2 * more).max(ROOM_FIRST);
    run.reserve_exact(wanted.min(rest).max(more));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn incoming(length: u32) -> Incoming {
        Incoming::new(length, length, 0, Time::ZERO)
    }

    #[test]
    fn out_of_order_pieces_fill_their_gaps() {
        let mut message = incoming(10);
        assert_eq!(message.add(6, b"ghij"), Added::New { bytes: 4, gap: true });
        assert_eq!(message.missing().next(), Some(0..6));
        assert_eq!(message.add(2, b"cd"), Added::New { bytes: 2, gap: false });
        assert_eq!(message.missing().collect::<Vec<_>>(), [0..2, 4..6]);
        assert_eq!(message.add(2, b"cd"), Added::Duplicate);
        assert_eq!(message.add(0, b"abcdefgh"), Added::New { bytes: 4, gap: false });
        assert!(message.is_complete() && message.missing().next().is_none());
        assert_eq!(message.into_bytes(), b"abcdefghij");
    }

    #[test]
    fn a_counted_message_goes_the_same_way_without_its_bytes() {
        let mut message = Incoming::counted(10, 20, 0, Time::ZERO);
        assert_eq!((message.granted, message.end()), (10, 0));
        assert_eq!(message.add(6, b"ghij"), Added::New { bytes: 4, gap: true });
        assert_eq!(message.add(2, b"cd"), Added::New { bytes: 2, gap: false });
        assert_eq!(message.missing().collect::<Vec<_>>(), [0..2, 4..6]);
        assert_eq!(message.add(0, b"abcdefgh"), Added::New { bytes: 4, gap: false });
        assert!(message.is_complete() && message.into_bytes().is_empty());
    }

    #[test]
    fn gaps_are_bounded() {
        let mut message = incoming(1 << 20);
        for gap in 0..GAPS_MAX as u32 {
            assert!(matches!(message.add(2 * gap + 1, b"x"), Added::New { .. }));
        }
        assert_eq!(message.add(1 << 19, b"x"), Added::TooManyGaps);
        assert!(matches!(message.add(0, b"x"), Added::New { .. }));
    }

    //= docs/protocol.md#hostile-5
    #[test]
    fn what_did_not_come_takes_no_memory() {
        let mut message = incoming(64 << 20);
        message.add(GAP_MAX, b"x");
        assert_eq!((message.bytes.capacity(), message.tail.capacity()), (0, 1));
        message.add(0, b"x");
        assert!(message.bytes.capacity() <= ROOM_FIRST);
        let packet = [0; 1_400];
        while (message.bytes.len() as u32) < GAP_MAX {
            message.add(message.bytes.len() as u32, &packet);
            let most = ROOM_FIRST.max(ROOM_GROWTH * message.bytes.len());
            assert!(message.bytes.capacity() <= most);
        }
        assert!(message.tail.is_empty() && message.bytes.len() > 1 << 20);
    }

    #[test]
    fn a_link_finds_room_for_a_packet_also_behind_a_gap() {
        let mut message = incoming(1 << 20);
        for round in 0..16 {
            let receive_target = message.receive_target().expect("nothing is missing");
            let here = receive_target.message.len();
            assert!(here + receive_target.room == 1 << 20);
            assert!(receive_target.message.capacity() - here >= PACKET_MAX);
            receive_target.message.extend_from_slice(&[round; 60_000]);
            assert!(message.append_in_place(here as u32, 60_000));
        }
        message.add(1_000_000, b"x");
        let receive_target = message.receive_target().expect("the highest are not here");
        assert!(receive_target.message == b"x" && receive_target.room == (1 << 20) - 1_000_001);
        receive_target.message.extend_from_slice(b"yz");
        assert!(!message.append_in_place(1_000_001, 1), "two were appended");
        assert!(message.append_in_place(1_000_001, 2));
        message.add(960_000, &[0; 40_000]);
        let receive_target = message.receive_target().expect("the gap is closed");
        assert!(
            receive_target.message.len() == 1_000_003 && receive_target.message.ends_with(b"\0xyz")
        );
    }

    proptest! {
        #[test]
        fn any_order_of_overlapping_pieces_gives_the_message(
            pieces in prop::collection::vec((0usize..300, 1usize..80, any::<bool>()), 0..60)
        ) {
            let whole: Vec<u8> = (0..300u32).map(|i| (i * 31 + 7) as u8).collect();
            let mut message = incoming(300);
            let mut seen = [false; 300];
            for (start, length, lands) in pieces {
                let end = (start + length).min(300);
                let new = seen[start..end].iter().filter(|&&byte| !byte).count() as u32;
                seen[start..end].fill(true);
                if lands && start as u32 == message.end() && start < end {
                    let receive_target = message.receive_target().expect("the highest are not here");
                    receive_target.message.extend_from_slice(&whole[start..end]);
                    prop_assert!(message.append_in_place(start as u32, (end - start) as u32));
                    continue;
                }
                let bytes = match message.add(start as u32, &whole[start..end]) {
                    Added::New { bytes, .. } => bytes,
                    Added::Duplicate => 0,
                    Added::TooManyGaps => panic!("60 pieces make fewer gaps"),
                };
                prop_assert_eq!(bytes, new);
            }
            for gap in message.missing().collect::<Vec<_>>() {
                message.add(gap.start, &whole[gap.start as usize..gap.end as usize]);
            }
            prop_assert!(message.is_complete());
            prop_assert_eq!(message.into_bytes(), whole);
        }
    }
}
