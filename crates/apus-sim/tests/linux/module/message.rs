//! Cutting messages up and putting them together.

use super::settings::{MESSAGE_MAX, Settings};

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) body: Vec<u8>,
    /// Start and end of every packet, fixed from the start: full ones, with a boundary at the unscheduled limit.
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

    /// Bytes that were sent.
    pub(super) fn sent(&self) -> u32 {
        self.packets.get(self.next).map_or_else(|| self.length(), |&(start, _)| start)
    }

    pub(super) fn is_sent(&self) -> bool {
        self.next == self.packets.len()
    }

    /// The next packet that may go: the comparison is made at its start, so the last one may go beyond what was granted.
    pub(super) fn next(&mut self) -> Option<(u32, u32)> {
        let packet = *self.packets.get(self.next).filter(|&&(start, _)| start < self.granted)?;
        self.next += 1;
        Some(packet)
    }

    /// Something may go that did not.
    pub(super) fn may_send(&self) -> bool {
        !self.is_sent() && self.sent() < self.granted
    }

    /// Packets that were sent and overlap a range.
    pub(super) fn overlapping(&self, (from, to): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
        let sent = self.packets[..self.next].iter().copied();
        sent.filter(move |&(start, end)| start < to && end > from)
    }
}

/// What became of a piece of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Taken {
    /// It was new.
    New,
    /// All of it was there.
    Duplicate,
    /// A part of it was there: it is dropped.
    Overlap,
    /// It goes beyond the end: it is dropped.
    PastEnd,
}

/// A message on its way in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Incoming {
    bytes: Vec<u8>,
    /// One byte beyond the highest that is there.
    end: u32,
    /// What is missing below.
    gaps: Vec<(u32, u32)>,
    /// The sender may send everything below.
    pub(super) granted: u32,
    pub(super) birth: u64,
}

impl Incoming {
    /// Of this length, with so much of it unscheduled.
    #[must_use]
    pub(crate) fn new(length: u32, granted: u32, birth: u64) -> Self {
        let bytes = vec![0; length as usize];
        Self { bytes, end: 0, gaps: Vec::new(), granted: granted.min(length), birth }
    }

    pub(super) fn length(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Bytes that are not there.
    pub(super) fn remaining(&self) -> u32 {
        let gaps: u32 = self.gaps.iter().map(|(start, end)| end - start).sum();
        self.length() - self.end + gaps
    }

    /// Takes a piece only if it is a continuation, leaves a gap before it, or lies within one gap.
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

    /// Gaps, and the rest of what was granted.
    pub(super) fn missing(&self) -> Vec<(u32, u32)> {
        let tail = (self.end < self.granted).then_some((self.end, self.granted));
        self.gaps.iter().copied().chain(tail).collect()
    }

    /// All of it is there.
    #[must_use]
    pub(crate) fn is_complete(&self) -> bool {
        self.remaining() == 0
    }

    /// What is there.
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
        assert_eq!(message.take(25, &[1; 10]), Taken::Overlap, "the end of what is there");
        assert_eq!(message.take(0, &[1; 10]), Taken::Duplicate);
        assert_eq!(message.take(45, &[1; 6]), Taken::PastEnd);
        assert_eq!(message.take(12, &[1; 3]), Taken::New);
        assert_eq!(message.missing(), [(10, 12), (15, 20), (30, 50)]);
        assert_eq!(message.remaining(), 27);
    }
}
