//! An outgoing message, and the order of transmission.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use apus_wire::{DataFlags, Priority};

use crate::body::Body;
use crate::flight::SrptKey;
use crate::slab::RpcKey;
use crate::time::Time;

/// Length in bytes below which a message waits neither for longer ones nor for the pacer (`defer_min_bytes`).
pub(crate) const SHORT: u32 = 1000;

/// Upper bound on the ranges to retransmit that one message keeps. The peer must request further ones again.
const RESENDS_MAX: usize = 64;

/// Upper bound on the credit of the oldest message, in thousandths of bytes. While it is the shortest as well, it must not save up
/// turns for later.
const FIFO_CREDIT_MAX: u64 = 1000 * (1 << 20);

/// Payload that fits a path of 1,280 bytes, with any IP version and encapsulation. Some paths swallow longer packets.
const BASE_PAYLOAD: u32 = 1_176;

/// Payload that fits every path: 576 bytes less headers.
pub(crate) const SAFE_PAYLOAD: u32 = 492;

/// Number of consecutive losses of the first packet after which it counts as too long for the path.
const FIRSTS_LOST: u8 = 3;

/// Time in which a message is not retransmitted more than twice over, whatever the peer requests.
const RESEND_LIMIT: Duration = Duration::from_millis(1);

/// Times at which long packets were last known to have reached a peer.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Carried {
    /// Time of packets with a payload above [`BASE_PAYLOAD`].
    long: Time,
    /// Time of packets with a payload above [`SAFE_PAYLOAD`].
    middle: Time,
}

impl Carried {
    /// Records that the peer has the beginning of this message.
    #[inline]
    pub(crate) fn note(&mut self, now: Time, message: &Outgoing) {
        if message.length() > SAFE_PAYLOAD {
            self.note_payload(now, message.carried());
        }
    }

    fn note_payload(&mut self, now: Time, payload: u32) {
        if payload > SAFE_PAYLOAD {
            self.middle = now;
        }
        if payload > BASE_PAYLOAD {
            self.long = now;
        }
    }

    /// Returns whether a packet of about this payload arrived after `since`.
    fn since(&self, payload: u32, since: Time) -> bool {
        let at = if payload > BASE_PAYLOAD { self.long } else { self.middle };
        at > since
    }
}

/// Retransmissions that the path to a peer allows: `window` bytes per round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) window: u64,
    pub(crate) round_trip: Duration,
}

#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The transmitted bytes: one byte for an empty message.
    pub(crate) body: Body,
    /// [`DataFlags::EMPTY`] if the message is empty.
    pub(crate) marks: DataFlags,
    /// Offset of the first byte that was not transmitted yet.
    pub(crate) next: u32,
    /// Offset below which everything may be transmitted.
    pub(crate) granted: u32,
    /// Offset below which everything goes without a grant, at the unscheduled priority.
    pub(crate) unscheduled: u32,
    pub(crate) unscheduled_priority: Priority,
    pub(crate) scheduled_priority: Priority,
    /// Payload of a full packet; 0 before the first transmission. Packets keep these boundaries.
    pub(crate) packet_payload: u32,
    /// Payload of the smallest packets that the path has allowed since: pieces of the original ones.
    piece_payload: u32,
    pub(crate) birth: u64,
    /// Mark of the message in the peer's flight.
    pub(crate) mark: u64,
    /// Place of the message in the sending order.
    position: QueuePosition,
    /// Whether the message was ever deferred, and so examined less often.
    pub(crate) was_deferred: bool,
    /// Time of the first transmission of its last byte.
    pub(crate) sent: Time,
    /// Time of the transmission of its first byte.
    pub(crate) began: Time,
    /// Most messages are one packet that is transmitted once, and never need it.
    long: Option<Box<Long>>,
}

/// State of a message of several packets, or one that is retransmitted.
#[derive(Debug, Default)]
struct Long {
    /// Time since which, and offset from which on, everything was transmitted.
    recent: (Time, u32),
    /// Time and offset of the first grant, for measuring the rate.
    first_grant: Option<(Time, u32)>,
    /// Number of retransmissions of the first packet.
    firsts_again: u8,
    /// Time since which these count.
    firsts_since: Option<Time>,
    /// Ranges that the peer requested again.
    resends: Option<Resends>,
}

#[derive(Debug)]
struct Resends {
    ranges: VecDeque<Range<u32>>,
    priority: Priority,
    /// Start of the period of `bytes`.
    since: Time,
    /// Bytes requested in this period, as a limit against floods.
    bytes: u64,
}

impl Resends {
    /// Returns the period in which requested bytes count, and the limit for them.
    fn limit(length: u32, path: Again) -> (Duration, u64) {
        //= docs/protocol.md#loss-7
        let span = RESEND_LIMIT.max(path.round_trip);
        let round_trips = span.as_nanos() / path.round_trip.as_nanos().max(1);
        let round_trips = u64::try_from(round_trips).unwrap_or(u64::MAX).max(1);
        (span, path.window.saturating_mul(round_trips).min(2 * u64::from(length)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum QueuePosition {
    /// Nothing to transmit: everything was transmitted, or the message waits for a grant.
    None,
    Short,
    /// In the SRPT order, under this number of remaining bytes.
    Ranked(u32),
    /// Blocked until the peer is confirmed.
    Blocked,
    /// Deferred until fewer bytes are in flight to the peer.
    Deferred,
}

impl Outgoing {
    /// Creates a message. At least one byte is unscheduled: a receiver grants only messages of which it has received a packet.
    pub(crate) fn new(body: Body, unscheduled: u32, priority: Priority, birth: u64) -> Self {
        //= docs/wire.md#W12
        let (mut body, mut marks) = (body, DataFlags::NONE);
        if body.is_empty() {
            (body, marks) = (Body::from(&[0_u8][..]), DataFlags::EMPTY);
        }
        let length = u32::try_from(body.len()).expect("length was checked against the limit");
        //= docs/protocol.md#unsched-1
        let unscheduled = unscheduled.clamp(1, length);
        Self {
            body,
            marks,
            next: 0,
            granted: unscheduled,
            unscheduled,
            unscheduled_priority: priority,
            scheduled_priority: Priority::LOWEST,
            packet_payload: 0,
            piece_payload: u32::MAX,
            birth,
            mark: 0,
            position: QueuePosition::None,
            was_deferred: false,
            sent: Time::ZERO,
            began: Time::ZERO,
            long: None,
        }
    }

    /// Returns the message as the application gave it.
    pub(crate) fn message(&self) -> Body {
        if self.marks == DataFlags::NONE { self.body.clone() } else { Body::default() }
    }

    #[inline]
    pub(crate) fn length(&self) -> u32 {
        self.body.len() as u32
    }

    /// Returns its key among deferred messages: shortest first, then oldest.
    pub(crate) fn srpt_key(&self, key: RpcKey) -> SrptKey {
        (self.length(), self.birth, key)
    }

    /// Returns whether a part of it was transmitted.
    pub(crate) fn has_begun(&self) -> bool {
        self.next > 0
    }

    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        self.next == self.length()
    }

    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.next < self.granted
    }

    #[inline]
    pub(crate) fn is_blocked(&self) -> bool {
        self.position == QueuePosition::Blocked
    }

    #[inline]
    pub(crate) fn is_deferred(&self) -> bool {
        self.position == QueuePosition::Deferred
    }

    /// Adopts the packet size of the path at the first transmission. Rounds the unscheduled bytes up to whole packets, so that no
    /// short packet occurs in the middle of a message.
    pub(crate) fn begin(&mut self, now: Time, packet_payload: u32, limit_unscheduled: bool) {
        self.began = now;
        self.packet_payload = packet_payload;
        //= docs/protocol.md#send-1
        if !limit_unscheduled && self.unscheduled < self.length() {
            let packets = self.unscheduled.div_ceil(packet_payload);
            self.unscheduled = packets.saturating_mul(packet_payload).min(self.length());
            self.granted = self.granted.max(self.unscheduled);
        }
    }

    /// Returns whether it was transmitted once, in one packet, and nothing of it waits.
    #[inline]
    pub(crate) fn is_sent_once(&self) -> bool {
        self.position == QueuePosition::None && self.is_sent() && self.long.is_none()
    }

    /// Records that the message is in the order of [short](Order::push_short) ones.
    #[inline]
    pub(crate) fn note_short(&mut self) {
        self.position = QueuePosition::Short;
    }

    /// Returns the length of a short message of which nothing was transmitted and all may go without a grant.
    #[inline]
    pub(crate) fn whole_short(&self) -> Option<u32> {
        let length = self.length();
        let is_whole = self.position == QueuePosition::Short
            && self.packet_payload == 0
            && self.unscheduled == length
            && !self.was_deferred;
        is_whole.then_some(length)
    }

    /// Records that all of a message is transmitted, in one packet of a path with this payload.
    #[inline]
    pub(crate) fn begin_whole(&mut self, now: Time, packet_payload: u32) {
        self.began = now;
        self.packet_payload = packet_payload;
        self.next = self.length();
        self.sent = now;
    }

    /// Returns the original packet that contains `offset`.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the offset is behind the base, and whole packets before it are no longer than it"
    )]
    pub(crate) fn packet_around(&self, offset: u32) -> Range<u32> {
        if self.unscheduled == self.length() && self.is_one_packet() {
            return 0..self.length();
        }
        let (base, limit) = if offset < self.unscheduled {
            (0, self.unscheduled)
        } else {
            (self.unscheduled, self.length())
        };
        //= docs/protocol.md#send-5
        let start = base + (offset - base) / self.packet_payload * self.packet_payload;
        start..start.saturating_add(self.packet_payload).min(limit)
    }

    /// Adopts a smaller payload of the path. Packets that were transmitted in pieces stay in pieces.
    #[inline]
    pub(crate) fn narrow(&mut self, payload_max: u32) {
        self.piece_payload = self.piece_payload.min(payload_max);
    }

    /// Returns the end of the piece of an original packet that begins at `start`. A packet is halved until its pieces fit. So the
    /// pieces for a path that becomes narrower still lie within earlier ones, and none straddles a gap left by a lost one.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a piece is halved, so its middle is within it"
    )]
    pub(crate) fn piece_end(&self, packet: &Range<u32>, start: u32) -> u32 {
        //= docs/protocol.md#send-5
        let mut piece = packet.clone();
        while piece.end - piece.start > self.piece_payload {
            let middle = piece.start + (piece.end - piece.start) / 2;
            if start < middle {
                piece.end = middle;
            } else {
                piece.start = middle;
            }
        }
        piece.end
    }

    /// Takes a grant up to `offset`. Returns whether it allowed anything new.
    pub(crate) fn grant(&mut self, offset: u32, priority: Priority) -> bool {
        self.scheduled_priority = priority;
        let granted = offset.min(self.length());
        let new = granted > self.granted;
        self.granted = self.granted.max(granted);
        new
    }

    #[inline]
    pub(crate) fn is_one_packet(&self) -> bool {
        self.length() <= self.packet_payload
    }

    /// Records that the following bytes are transmitted now; `under_way` is the longest time for them to arrive.
    #[inline]
    pub(crate) fn note_sending(&mut self, now: Time, under_way: Duration) {
        let next = self.next;
        let long = self.long.get_or_insert_default();
        if now.saturating_since(long.recent.0) > under_way {
            long.recent = (now, next);
        }
    }

    /// Returns the end offset of the bytes transmitted at least `under_way` ago, which must have arrived.
    pub(crate) fn arrived(&self, now: Time, under_way: Duration) -> u32 {
        let (since, from) = match &self.long {
            Some(long) if !self.is_one_packet() => long.recent,
            _ => (self.sent, 0),
        };
        if now.saturating_since(since) < under_way { from } else { self.next }
    }

    /// Records a range to retransmit, cut at the limit. Returns `false` if the rest is empty, or if none of it was ever
    /// transmitted.
    pub(crate) fn request_again(
        &mut self,
        now: Time,
        range: Range<u32>,
        priority: Priority,
        path: Again,
    ) -> bool {
        let (span, most) = Resends::limit(self.length(), path);
        let mut range = range.start..range.end.min(self.next);
        if range.is_empty() {
            return false;
        }
        // A request for part of a packet retransmits all of it, or a whole piece.
        let least = self.packet_payload.min(self.piece_payload);
        let resends = self.long.get_or_insert_default().resends.get_or_insert_with(|| Resends {
            ranges: VecDeque::new(),
            priority,
            since: now,
            bytes: 0,
        });
        if now.saturating_since(resends.since) > span {
            resends.since = now;
            resends.bytes = 0;
        }
        let left = u32::try_from(most.saturating_sub(resends.bytes)).unwrap_or(u32::MAX);
        range.end = range.end.min(range.start.saturating_add(left));
        let meets_last = resends
            .ranges
            .back()
            .is_some_and(|last| last.start <= range.end && range.start <= last.end);
        if left == 0 || (resends.ranges.len() >= RESENDS_MAX && !meets_last) {
            return false;
        }
        resends.bytes += u64::from(range.end.saturating_sub(range.start).max(least));
        resends.priority = priority;
        match resends.ranges.back_mut() {
            Some(last) if meets_last => {
                *last = last.start.min(range.start)..last.end.max(range.end);
            }
            _ => resends.ranges.push_back(range),
        }
        true
    }

    /// Returns the next packet to retransmit, the requested part of it, and its priority. It is an original packet, because pieces
    /// of two packets might straddle a gap of the receiver, which the module refuses.
    pub(crate) fn pop_resend(&mut self) -> Option<(Range<u32>, Range<u32>, Priority)> {
        let first = self.resends()?.ranges.front()?.start;
        let packet = self.packet_around(first);
        let resends = self.long.as_mut()?.resends.as_mut()?;
        let range = resends.ranges.front_mut()?;
        let asked = range.start..range.end.min(packet.end);
        range.start = packet.end;
        if range.start >= range.end {
            resends.ranges.pop_front();
        }
        Some((packet.start..packet.end.min(self.next), asked, resends.priority))
    }

    /// Records a retransmission. Returns true if the peer has requested a long first packet often enough to suspect the path, and
    /// no packet of that length is known to have arrived.
    pub(crate) fn is_swallowed(
        &mut self,
        now: Time,
        packet: &Range<u32>,
        carried: &Carried,
    ) -> bool {
        let length = packet.end.saturating_sub(packet.start);
        let long =
            length > BASE_PAYLOAD || (length == self.packet_payload && length > SAFE_PAYLOAD);
        if packet.start > 0 || !long {
            return false;
        }
        let long = self.long.get_or_insert_default();
        long.firsts_again = long.firsts_again.wrapping_add(1);
        //= docs/protocol.md#path-1
        if !long.firsts_again.is_multiple_of(FIRSTS_LOST) {
            return false;
        }
        let since = long.firsts_since.replace(now).unwrap_or(self.began);
        !carried.since(length, since)
    }

    /// Returns the payload of the longest packets of this message that may have arrived. All messages begin with full packets.
    fn carried(&self) -> u32 {
        let full = self.packet_payload.min(self.piece_payload);
        // In an incast, the first packet may be short.
        if self.unscheduled < full.min(self.length()) { 0 } else { full.min(self.length()) }
    }

    /// Drops the ranges that the peer requested; the peer will request them again.
    pub(crate) fn forget_resends(&mut self) {
        if let Some(long) = &mut self.long {
            long.resends = None;
        }
    }

    #[inline]
    pub(crate) fn has_resends(&self) -> bool {
        self.resends().is_some_and(|resends| !resends.ranges.is_empty())
    }

    #[inline]
    fn resends(&self) -> Option<&Resends> {
        self.long.as_ref()?.resends.as_ref()
    }

    /// Returns the time and the offset of the first grant.
    pub(crate) fn first_grant(&self) -> Option<(Time, u32)> {
        self.long.as_ref()?.first_grant
    }

    pub(crate) fn note_first_grant(&mut self, now: Time, offset: u32) {
        self.long.get_or_insert_default().first_grant = Some((now, offset));
    }

    /// Returns the bytes to transmit, including requested retransmissions.
    #[inline]
    fn left(&self) -> u32 {
        let ranges = self.resends().into_iter().flat_map(|resends| &resends.ranges);
        // The ranges may overlap, so their sum may exceed the length of any message.
        let rest = self.length().saturating_sub(self.next);
        ranges.fold(rest, |left, range| left.saturating_add(range.end.saturating_sub(range.start)))
    }
}

/// The order of transmission: short messages, then the shortest rest first with a share for the oldest (rules `send-2` to
/// `send-4`). All steps are O(log messages) or better.
#[derive(Debug, Default)]
pub(crate) struct Order {
    short: VecDeque<RpcKey>,
    shortest: BTreeSet<(u32, u64, RpcKey)>,
    oldest: BTreeSet<(u64, RpcKey)>,
    /// Credit of the oldest message, in thousandths of bytes.
    fifo_credit: u64,
}

/// The queue that a message was chosen from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Short,
    Shortest,
    Oldest,
}

impl Order {
    /// Returns whether a message waits that the pacer does not hold back.
    pub(crate) fn has_urgent(&self) -> bool {
        !self.short.is_empty()
    }

    /// Returns whether a message waits for the pacer.
    pub(crate) fn has_paced(&self) -> bool {
        !self.shortest.is_empty()
    }

    /// Moves a message to its present position; harmless if it is there.
    #[inline]
    pub(crate) fn update(&mut self, key: RpcKey, message: &mut Outgoing) {
        let position = if message.is_blocked() || message.is_deferred() {
            message.position
        } else if !message.may_send() && !message.has_resends() {
            QueuePosition::None
        } else if message.length() < SHORT {
            QueuePosition::Short
        } else {
            QueuePosition::Ranked(message.left())
        };
        if position == message.position {
            return;
        }
        self.unrank(key, message);
        match position {
            QueuePosition::None | QueuePosition::Blocked | QueuePosition::Deferred => {}
            QueuePosition::Short => self.short.push_back(key),
            QueuePosition::Ranked(left) => {
                self.shortest.insert((left, message.birth, key));
                self.oldest.insert((message.birth, key));
            }
        }
        message.position = position;
    }

    /// Adds a short message that [says so](Outgoing::note_short).
    #[inline]
    pub(crate) fn push_short(&mut self, key: RpcKey) {
        self.short.push_back(key);
    }

    /// Removes a message. Entries of short messages expire by themselves.
    pub(crate) fn unrank(&mut self, key: RpcKey, message: &mut Outgoing) {
        if let QueuePosition::Ranked(left) = message.position {
            self.shortest.remove(&(left, message.birth, key));
            self.oldest.remove(&(message.birth, key));
        }
        message.position = QueuePosition::None;
    }

    /// Blocks a message until [`Order::unblock`].
    pub(crate) fn block(&mut self, key: RpcKey, message: &mut Outgoing) {
        self.unrank(key, message);
        message.position = QueuePosition::Blocked;
    }

    /// Defers a message until [`Order::release`].
    pub(crate) fn defer(&mut self, key: RpcKey, message: &mut Outgoing) {
        self.unrank(key, message);
        message.position = QueuePosition::Deferred;
        message.was_deferred = true;
    }

    /// Lets a deferred message begin.
    pub(crate) fn release(&mut self, key: RpcKey, message: &mut Outgoing) {
        if message.is_deferred() {
            message.position = QueuePosition::None;
            self.update(key, message);
        }
    }

    /// Lets a blocked message continue.
    pub(crate) fn unblock(&mut self, key: RpcKey, message: &mut Outgoing) {
        if message.is_blocked() {
            message.position = QueuePosition::None;
            self.update(key, message);
        }
    }

    /// Returns the next message and its queue. `paced` holds back all but short messages.
    #[inline]
    pub(crate) fn choose(&self, paced: bool, packet: u64) -> Option<(RpcKey, Turn)> {
        //= docs/protocol.md#send-2
        if let Some(&key) = self.short.front() {
            return Some((key, Turn::Short));
        }
        if paced {
            return None;
        }
        //= docs/protocol.md#send-3
        let &(_, _, shortest) = self.shortest.first()?;
        match self.oldest.first() {
            //= docs/protocol.md#send-4
            Some(&(_, oldest)) if self.fifo_credit >= 1000 * packet && oldest != shortest => {
                Some((oldest, Turn::Oldest))
            }
            _ => Some((shortest, Turn::Shortest)),
        }
    }

    pub(crate) fn pop_short(&mut self) {
        self.short.pop_front();
    }

    /// Accounts for the bytes of a turn; `share` is in thousandths.
    pub(crate) fn sent(&mut self, turn: Turn, bytes: u64, share: u64) {
        match turn {
            Turn::Short => {}
            Turn::Shortest if self.oldest.len() > 1 => {
                self.fifo_credit = (self.fifo_credit + bytes * share).min(FIFO_CREDIT_MAX);
            }
            Turn::Shortest => self.fifo_credit = 0,
            Turn::Oldest => self.fifo_credit = self.fifo_credit.saturating_sub(1000 * bytes),
        }
    }
}
