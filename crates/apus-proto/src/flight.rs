//! Unscheduled bytes on their way to one peer.
//!
//! Every message may send its first bytes without asking, so many of them together may overflow the
//! buffer of a receiver that pauses. That buffer is a queue: any sign about a message shows that all
//! that was begun before was read too, or lost. What was begun since counts as in flight. While that
//! is too much, no further message is begun, and the peer is asked about the one begun last: one
//! probe for all of them (rule `unsched-2`).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::receive_buffer;
use crate::slab::RpcKey;
use crate::time::Time;

/// Charged for a message beside its bytes: a short one takes a whole buffer of the receiver's kernel.
const MESSAGE: u64 = 512;

/// What the beginning of a message takes of the receive buffer: so many bytes of all its `length`, in packets with this payload.
#[inline]
pub(crate) fn takes(unscheduled: u32, packet: u32, length: u32) -> u64 {
    let packet = packet.min(length).into();
    receive_buffer::taken(unscheduled.into(), packet, length.into()) + MESSAGE
}

/// Length, age, and what makes it unique.
type Place = (u32, u64, RpcKey);

#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// What was sent takes so much of the peer's receive buffer, and so much of that is known to have arrived.
    sent: u64,
    arrived: u64,
    /// The message begun last.
    last: Option<RpcKey>,
    /// How many bytes were sent when the peer was last asked for a sign, and when that was.
    asked: (u64, Time),
    /// Messages that were not begun for this, shortest first, then oldest, and what each would take.
    deferred: BTreeMap<Place, u64>,
}

impl Flight {
    /// Whether a message that `takes` so much of the receive buffer may be begun while `most` may be in flight: the only one always may.
    #[inline]
    pub(crate) fn has_room(&self, most: u64, takes: u64) -> bool {
        let before = self.sent - self.arrived;
        before == 0 || before + takes <= most
    }

    /// A message is begun with bytes that nobody asked for. Returns its mark: a sign of the peer
    /// about it shows that everything up to there arrived.
    #[inline]
    pub(crate) fn begin(&mut self, key: RpcKey, takes: u64) -> u64 {
        self.sent += takes;
        self.last = Some(key);
        self.sent
    }

    /// The message begun last, which may have ended.
    pub(crate) fn last(&self) -> Option<RpcKey> {
        self.last
    }

    /// The peer gave a sign about the message with this mark, or it ended.
    #[inline]
    pub(crate) fn arrived(&mut self, mark: u64) {
        self.arrived = self.arrived.max(mark);
    }

    /// Whether the peer was asked for a sign since then.
    pub(crate) fn was_asked_since(&self, then: Time) -> bool {
        self.asked.1 >= then
    }

    pub(crate) fn defer(&mut self, place: Place, takes: u64) {
        self.deferred.insert(place, takes);
    }

    /// A deferred message has ended.
    pub(crate) fn forget(&mut self, place: Place) {
        self.deferred.remove(&place);
    }

    #[inline]
    pub(crate) fn defers_any(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// The deferred message that goes first.
    pub(crate) fn first_deferred(&self) -> Option<RpcKey> {
        self.deferred.first_key_value().map(|(&(_, _, key), _)| key)
    }

    /// The messages that have room now.
    pub(crate) fn release(&mut self, most: u64) -> impl Iterator<Item = RpcKey> {
        let mut in_flight = self.sent - self.arrived;
        std::iter::from_fn(move || {
            let (&(_, _, key), &takes) = self.deferred.first_key_value()?;
            if in_flight > 0 && in_flight + takes > most {
                return None;
            }
            in_flight += takes;
            self.deferred.pop_first();
            Some(key)
        })
    }

    /// The message to ask the peer about, because others wait for a sign. Not while an earlier
    /// probe may still be answered.
    #[inline]
    pub(crate) fn sign_wanted(&mut self, now: Time, most: u64, rto: Duration) -> Option<RpcKey> {
        let first = self.deferred.first_key_value();
        if first.is_none_or(|(_, &takes)| self.has_room(most, takes)) {
            return None;
        }
        let (mark, at) = self.asked;
        if self.arrived < mark && now.saturating_since(at) < rto {
            return None;
        }
        self.asked = (self.sent, now);
        self.last
    }
}
