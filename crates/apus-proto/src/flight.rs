//! Unscheduled bytes on their way to one peer.
//!
//! Every message may send its first bytes without a grant, so many messages together may overflow the buffer of a receiver that
//! pauses. That buffer is a queue: any packet from the peer about a message shows that all earlier messages were read too, or lost.
//! All later messages count as in flight. While too much is in flight, no further message begins, and the peer is probed about the
//! message begun last: one probe for all of them (rule `unsched-2`).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::receive_buffer;
use crate::slab::RpcKey;
use crate::time::Time;

/// Charge for a message beside its bytes: a short message takes a whole buffer of the receiver's kernel.
const MESSAGE: u64 = 512;

/// Returns the part of the receive buffer that the beginning of a message takes: `unscheduled` of its `length` bytes, in packets
/// with the payload `packet`.
#[inline]
pub(crate) fn takes(unscheduled: u32, packet: u32, length: u32) -> u64 {
    let packet = packet.min(length).into();
    receive_buffer::taken(unscheduled.into(), packet, length.into()) + MESSAGE
}

/// Key of a deferred message in SRPT order: length, then age, then a unique key.
pub(crate) type SrptKey = (u32, u64, RpcKey);

#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// Bytes of the peer's receive buffer taken by everything sent so far.
    sent: u64,
    /// Part of `sent` that is known to have arrived.
    arrived: u64,
    /// The message begun last.
    last: Option<RpcKey>,
    /// Value of `sent` at the last probe of the peer, and the time of that probe.
    last_probe: (u64, Time),
    /// Deferred messages, shortest first, then oldest, with the bytes of the receive buffer that each would take.
    deferred: BTreeMap<SrptKey, u64>,
    /// Whether messages are deferred until the peer has answered a doubt about its token, and not only until there is room.
    pub(crate) awaits_answer: bool,
}

impl Flight {
    /// Returns whether a message that takes `takes` bytes of the receive buffer may begin while `most` may be in flight. If nothing
    /// is in flight, every message may begin.
    #[inline]
    pub(crate) fn has_room(&self, most: u64, takes: u64) -> bool {
        let before = self.sent - self.arrived;
        before == 0 || before + takes <= most
    }

    /// Records a message that begins with unscheduled bytes. Returns its mark: a packet from the peer about this message shows that
    /// everything up to the mark arrived.
    #[inline]
    pub(crate) fn begin(&mut self, key: RpcKey, takes: u64) -> u64 {
        self.sent += takes;
        self.last = Some(key);
        self.sent
    }

    /// Returns the message begun last, which may have ended.
    pub(crate) fn last(&self) -> Option<RpcKey> {
        self.last
    }

    /// Records a packet from the peer about the message with this mark, or the message's end.
    #[inline]
    pub(crate) fn arrived(&mut self, mark: u64) {
        self.arrived = self.arrived.max(mark);
    }

    /// Returns whether the peer was probed at `then` or later.
    pub(crate) fn was_probed_since(&self, then: Time) -> bool {
        self.last_probe.1 >= then
    }

    pub(crate) fn defer(&mut self, key: SrptKey, takes: u64) {
        self.deferred.insert(key, takes);
    }

    /// Removes a deferred message that has ended.
    pub(crate) fn forget(&mut self, key: SrptKey) {
        self.deferred.remove(&key);
    }

    #[inline]
    pub(crate) fn defers_any(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns the first deferred message in order.
    pub(crate) fn first_deferred(&self) -> Option<RpcKey> {
        self.deferred.first_key_value().map(|(&(_, _, key), _)| key)
    }

    /// Removes and returns the deferred messages that are chosen. They stay deferred until they end.
    pub(crate) fn take_deferred(&mut self, chosen: impl Fn(RpcKey) -> bool) -> Vec<RpcKey> {
        let mut taken = Vec::new();
        self.deferred.retain(|&(_, _, key), _| {
            let is_chosen = chosen(key);
            if is_chosen {
                taken.push(key);
            }
            !is_chosen
        });
        taken
    }

    /// Returns the deferred messages that have room now.
    pub(crate) fn release(&mut self, most: u64) -> impl Iterator<Item = RpcKey> {
        let mut in_flight = self.sent - self.arrived;
        self.awaits_answer = false;
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

    /// Returns the message about which the peer must be probed, because deferred messages wait for its progress. Returns `None`
    /// while an earlier probe may still be answered.
    #[inline]
    pub(crate) fn progress_report_due(
        &mut self,
        now: Time,
        most: u64,
        rto: Duration,
    ) -> Option<RpcKey> {
        let first = self.deferred.first_key_value();
        if first.is_none_or(|(_, &takes)| self.has_room(most, takes)) {
            return None;
        }
        let (mark, at) = self.last_probe;
        if self.arrived < mark && now.saturating_since(at) < rto {
            return None;
        }
        self.last_probe = (self.sent, now);
        self.last
    }
}
