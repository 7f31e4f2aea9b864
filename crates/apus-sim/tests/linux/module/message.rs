//! Segmentation and reassembly of messages.

use super::settings::{MESSAGE_MAX, Settings};

/// An outgoing message.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) body: Vec<u8>,
    /// Start and end of every packet, fixed at the start: full packets, with a boundary at the unscheduled limit.
    packets: Vec<(u32, u32)>,
    next: usize,
    pub(super) granted: u32,
    pub(super) unscheduled: u32,
    pub(super) scheduled_priority: u8,
}

impl Outgoing {
    pub(super) fn new(body: Vec<u8>, settings: &Settings) -> Self {
        assert!((1..=MESSAGE_MAX).contains(&body.len()), "EINVAL: {} bytes", body.len());
        let length = body.len() as u32;
        let unscheduled = if settings.stripped { length } else { settings.unscheduled.min(length) };
        let cut = |from: u32, to: u32| {
            (from..to)
                .step_by(settings.packet_payload as usize)
                .map(move |start| (start, (start + settings.packet_payload).min(to)))
        };
        let packets = cut(0, unscheduled).chain(cut(unscheduled, length)).collect();
        Self { body, packets, next: 0, granted: unscheduled, unscheduled, scheduled_priority: 0 }
    }

    pub(super) fn length(&self) -> u32 {
        self.body.len() as u32
    }

    /// Bytes sent so far.
    pub(super) fn sent(&self) -> u32 {
        self.packets.get(self.next).map_or_else(|| self.length(), |&(start, _)| start)
    }

    pub(super) fn is_sent(&self) -> bool {
        self.next == self.packets.len()
    }

    /// The next packet that may be sent. The comparison uses its start, so the last packet may go beyond the grant.
    pub(super) fn next(&mut self) -> Option<(u32, u32)> {
        let packet = *self.packets.get(self.next).filter(|&&(start, _)| start < self.granted)?;
        self.next += 1;
        Some(packet)
    }

    /// Whether an unsent packet may be sent.
    pub(super) fn may_send(&self) -> bool {
        !self.is_sent() && self.sent() < self.granted
    }

    /// Sent packets that overlap a range.
    pub(super) fn overlapping(&self, (from, to): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
        let sent = self.packets[..self.next].iter().copied();
        sent.filter(move |&(start, end)| start < to && end > from)
    }
}

/// The result of receiving a piece of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// The piece was new.
    New,
    /// All of the piece had arrived before.
    Duplicate,
    /// A part of the piece had arrived before. The piece is dropped.
    Overlap,
    /// The piece goes beyond the end of the message. The piece is dropped.
    PastEnd,
}

/// An incoming message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// One byte beyond the highest received byte.
    end: u32,
    /// Missing ranges below `end`.
    gaps: Vec<(u32, u32)>,
    /// Offset up to which the sender may send.
    pub(super) granted: u32,
    pub(super) birth: u64,
}

impl Incoming {
    /// A message of this length with `granted` unscheduled bytes.
    #[must_use]
    pub(crate) fn new(length: u32, granted: u32, birth: u64) -> Self {
        let bytes = vec![0; length as usize];
        Self { bytes, end: 0, gaps: Vec::new(), granted: granted.min(length), birth }
    }

    pub(super) fn length(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Number of missing bytes.
    pub(super) fn remaining(&self) -> u32 {
        let gaps: u32 = self.gaps.iter().map(|(start, end)| end - start).sum();
        self.length() - self.end + gaps
    }

    /// Takes a piece only if it continues the message, leaves a gap before it, or lies within one gap.
    pub(crate) fn take(&mut self, offset: u32, payload: &[u8]) -> Taken {
        let Some(stop) =
            offset.checked_add(payload.len() as u32).filter(|&end| end <= self.length())
        else {
            return Taken::PastEnd;
        };
        if offset >= self.end {
            if offset > self.end {
                self.gaps.push((self.end, offset));
            }
            self.end = stop;
        } else {
            let touches = |&(start, end): &(u32, u32)| offset < end && stop > start;
            let Some(place) = self.gaps.iter().position(touches) else {
                return if stop <= self.end { Taken::Duplicate } else { Taken::Overlap };
            };
            let (start, end) = self.gaps[place];
            if offset < start || stop > end {
                return Taken::Overlap;
            }
            let left = [(start, offset), (stop, end)];
            self.gaps.splice(place..=place, left.into_iter().filter(|(start, end)| start < end));
        }
        self.bytes[offset as usize..stop as usize].copy_from_slice(payload);
        Taken::New
    }

    /// The gaps, and the rest of the granted range.
    pub(super) fn missing(&self) -> Vec<(u32, u32)> {
        let tail = (self.end < self.granted).then_some((self.end, self.granted));
        self.gaps.iter().copied().chain(tail).collect()
    }

    /// Whether all bytes have arrived.
    #[must_use]
    pub(crate) fn is_complete(&self) -> bool {
        self.remaining() == 0
    }

    /// The bytes of the message.
    #[must_use]
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_end_at_the_unscheduled_limit() {
        let mut message = Outgoing::new(vec![0; 100_000], &Settings::default());
        let unscheduled: Vec<_> = std::iter::from_fn(|| message.next()).collect();
        assert_eq!((unscheduled.len(), unscheduled[28]), (29, (39_872, 40_000)));
        message.granted = 40_001;
        assert_eq!((message.next(), message.next()), (Some((40_000, 41_424)), None));
    }

    #[test]
    fn what_straddles_a_gap_is_dropped() {
        let mut message = Incoming::new(50, 50, 0);
        assert_eq!(message.take(0, &[1; 10]), Taken::New);
        assert_eq!(message.take(20, &[1; 10]), Taken::New);
        assert_eq!(message.take(5, &[1; 10]), Taken::Overlap, "the start of the gap");
        assert_eq!(message.take(15, &[1; 10]), Taken::Overlap, "its end");
        assert_eq!(message.take(25, &[1; 10]), Taken::Overlap, "the end of the received bytes");
        assert_eq!(message.take(0, &[1; 10]), Taken::Duplicate);
        assert_eq!(message.take(45, &[1; 6]), Taken::PastEnd);
        assert_eq!(message.take(12, &[1; 3]), Taken::New);
        assert_eq!(message.missing(), [(10, 12), (15, 20), (30, 50)]);
        assert_eq!(message.remaining(), 27);
    }
}
