//! The packets of a message at its sender, and the timeout.

use std::collections::{BTreeSet, VecDeque};

/// Later packets whose acknowledgement means that a packet is lost (RFC 6675 section 5).
const LATER_ACKED: u8 = 3;

/// A packet in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentPacket {
    packet: u32,
    sent: u64,
    /// Packets sent later that have been acknowledged.
    later_acked: u8,
}

/// The packets of a message: waiting, in flight, lost, acknowledged. Each packet is acknowledged on its own, so the sender knows
/// as much as with SACK.
#[derive(Debug)]
pub(super) struct Scoreboard {
    packets: u32,
    /// First packet that was never sent.
    next: u32,
    /// In order of sending.
    flight: VecDeque<SentPacket>,
    lost: BTreeSet<u32>,
    acked: Vec<bool>,
    unacked: u32,
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct AckEffect {
    /// Whether the packet was not acknowledged before.
    pub(super) is_new: bool,
    /// Time at which the last of the packets was sent that are lost.
    pub(super) lost_sent: Option<u64>,
}

impl Scoreboard {
    pub(super) fn new(packets: u32) -> Self {
        Self {
            packets,
            next: 0,
            flight: VecDeque::new(),
            lost: BTreeSet::new(),
            acked: vec![false; packets as usize],
            unacked: packets,
        }
    }

    pub(super) fn is_acked(&self) -> bool {
        self.unacked == 0
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flight.len()
    }

    pub(super) fn has_more(&self) -> bool {
        self.next < self.packets || !self.lost.is_empty()
    }

    /// The next packet to send, and whether it was sent before: lost packets first.
    pub(super) fn send_next(&mut self, now: u64) -> Option<(u32, bool)> {
        let lost = self.lost.pop_first();
        let packet = match lost {
            Some(packet) => packet,
            None if self.next < self.packets => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.flight.push_back(SentPacket { packet, sent: now, later_acked: 0 });
        Some((packet, lost.is_some()))
    }

    /// Handles the acknowledgement of a packet that was sent at `sent`.
    pub(super) fn ack(&mut self, packet: u32, sent: u64) -> AckEffect {
        let is_new = !std::mem::replace(&mut self.acked[packet as usize], true);
        self.unacked -= u32::from(is_new);
        self.lost.remove(&packet);
        let mut effect = AckEffect { is_new, lost_sent: None };
        let Some(at) = self.flight.iter().position(|other| other.packet == packet) else {
            return effect;
        };
        let found = self.flight.remove(at).expect("it was just found");
        // The acknowledgement of an earlier copy says nothing about packets that were sent before this copy.
        if found.sent != sent || at == 0 {
            return effect;
        }
        for earlier in self.flight.iter_mut().take(at) {
            earlier.later_acked += 1;
        }
        for place in (0..at).rev() {
            let SentPacket { packet, sent, later_acked } = self.flight[place];
            if later_acked >= LATER_ACKED {
                self.flight.remove(place);
                self.lost.insert(packet);
                effect.lost_sent = effect.lost_sent.max(Some(sent));
            }
        }
        effect
    }

    /// Takes all packets in flight for lost. Returns them.
    pub(super) fn give_up(&mut self) -> VecDeque<SentPacket> {
        self.lost.extend(self.flight.iter().map(|sent| sent.packet));
        std::mem::take(&mut self.flight)
    }

    /// Takes packets for in flight again that were given up, unless they were sent again or acknowledged since.
    pub(super) fn restore(&mut self, given_up: VecDeque<SentPacket>) {
        for sent in given_up.into_iter().rev() {
            if self.lost.remove(&sent.packet) {
                self.flight.push_front(sent);
            }
        }
    }
}

/// The round trip and the timeout (RFC 6298), in ps.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundTrip {
    smoothed: f64,
    deviation: f64,
    timeout_min: u64,
    /// Timeouts since the last acknowledgement.
    backoff: u32,
}

impl RoundTrip {
    pub(super) fn new(timeout_min: u64) -> Self {
        Self { smoothed: 0.0, deviation: 0.0, timeout_min, backoff: 0 }
    }

    pub(super) fn smoothed(&self) -> f64 {
        self.smoothed
    }

    pub(super) fn timeout(&self) -> u64 {
        let base = (self.smoothed + 4.0 * self.deviation) as u64;
        base.max(self.timeout_min) << self.backoff.min(6)
    }

    pub(super) fn measure(&mut self, sample: f64) {
        self.backoff = 0;
        if self.smoothed == 0.0 {
            (self.smoothed, self.deviation) = (sample, sample / 2.0);
        } else {
            self.deviation += ((self.smoothed - sample).abs() - self.deviation) / 4.0;
            self.smoothed += (sample - self.smoothed) / 8.0;
        }
    }

    pub(super) fn on_timeout(&mut self) {
        self.backoff += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of 10 packets, all sent: packet `n` at time `n`.
    fn all_sent() -> Scoreboard {
        let mut packets = Scoreboard::new(10);
        for number in 0..10 {
            assert_eq!(packets.send_next(u64::from(number)), Some((number, false)));
        }
        assert!(packets.send_next(10).is_none() && !packets.has_more());
        packets
    }

    #[test]
    fn a_packet_is_lost_after_three_later_ones_and_no_other_is_sent_again() {
        let mut packets = all_sent();
        let lost: Vec<Option<u64>> =
            [0, 2, 3, 4, 5].map(|packet| packets.ack(packet, packet.into()).lost_sent).into();
        assert_eq!(lost, [None, None, None, Some(1), None]);
        assert_eq!((packets.in_flight(), packets.send_next(20)), (4, Some((1, true))));
        assert!(!packets.has_more());
        for packet in 6..10 {
            assert_eq!(packets.ack(packet, packet.into()).lost_sent, None);
        }
        assert!(!packets.is_acked());
        assert!(packets.ack(1, 20).is_new && packets.is_acked());
    }

    #[test]
    fn given_up_packets_that_were_on_their_way_are_not_sent_again() {
        let mut packets = all_sent();
        let given_up = packets.give_up();
        assert_eq!((packets.in_flight(), packets.send_next(50)), (0, Some((0, true))));
        packets.restore(given_up);
        assert_eq!((packets.in_flight(), packets.has_more()), (10, false));
        for packet in 0..10 {
            assert_eq!(packets.ack(packet, packet.into()).lost_sent, None);
        }
        assert!(packets.is_acked() && packets.in_flight() == 0);
        assert!(!packets.ack(0, 50).is_new);
    }

    #[test]
    fn timeouts_double_until_an_acknowledgement() {
        let mut trip = RoundTrip::new(1_000);
        trip.on_timeout();
        trip.on_timeout();
        assert_eq!(trip.timeout(), 4_000);
        trip.measure(10.0);
        assert_eq!(trip.timeout(), 1_000);
        trip.measure(100_000.0);
        assert!(trip.timeout() > 100_000);
    }
}
