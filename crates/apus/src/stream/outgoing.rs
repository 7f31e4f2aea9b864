//! The outgoing half of a stream: written and unacknowledged bytes, cut into segments.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::stream::incoming::Violation;
use crate::stream::message::HEADER;

/// Written and unacknowledged bytes, at most a window.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Upper bound on the bytes of one message.
    segment_max: usize,
    /// Upper bound on waiting bytes.
    capacity: u64,
    /// Number of bytes acknowledged without a gap.
    acked: u64,
    /// Offset of the first byte that was never sent.
    next: u64,
    /// Limit up to which the peer accepts bytes.
    limit: u64,
    /// Sent and unacknowledged segments, by offset.
    unacked: VecDeque<(u64, Bytes)>,
    /// Segments to be sent again.
    again: VecDeque<(u64, Bytes)>,
    /// Unsent segments: bodies of messages, with room for a header each, and at least a byte of payload.
    unsent: VecDeque<Vec<u8>>,
    unsent_bytes: u64,
    /// Whether the end of the written bytes is known.
    finished: bool,
    /// Whether the end must be sent, for the first time or again.
    fin_due: bool,
    fin_sent: bool,
    fin_acked: bool,
}

/// A part of the stream, as the body of a message whose header is still empty.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) body: Vec<u8>,
    /// Whether the stream ends with this segment.
    pub(crate) fin: bool,
}

impl Outgoing {
    /// `segment_max`: upper bound on the bytes of one message. `capacity`: upper bound on waiting bytes.
    pub(crate) fn new(segment_max: usize, capacity: u64) -> Self {
        Self {
            segment_max,
            capacity,
            acked: 0,
            next: 0,
            limit: 0,
            unacked: VecDeque::new(),
            again: VecDeque::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            finished: false,
            fin_due: false,
            fin_sent: false,
            fin_acked: false,
        }
    }

    /// Takes bytes up to the free room, and returns their number.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
        let mut rest = &bytes[..bytes.len().min(room)];
        let taken = rest.len();
        while !rest.is_empty() {
            let full = HEADER + self.segment_max;
            let body = match self.unsent.back_mut() {
                Some(body) if body.len() < full => body,
                _ => {
                    let mut body = Vec::with_capacity(HEADER + rest.len().min(self.segment_max));
                    body.resize(HEADER, 0);
                    self.unsent.push_back(body);
                    self.unsent.back_mut().expect("added a moment ago")
                }
            };
            let (now, later) = rest.split_at(rest.len().min(full - body.len()));
            body.extend_from_slice(now);
            rest = later;
        }
        self.unsent_bytes += taken as u64;
        taken
    }

    /// Number of bytes that can be written now.
    pub(crate) fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.next - self.acked + self.unsent_bytes)
    }

    /// Ends the stream: no byte follows.
    pub(crate) fn finish(&mut self) {
        self.fin_due |= !self.finished;
        self.finished = true;
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Whether the peer has received all bytes, and the end.
    pub(crate) fn is_complete(&self) -> bool {
        self.fin_acked
    }

    /// Whether all written bytes were sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.again.is_empty() && self.unsent.is_empty() && !self.fin_due
    }

    /// Whether a segment or the end may be sent.
    pub(crate) fn has_segment(&self) -> bool {
        !self.again.is_empty()
            || if self.unsent.is_empty() { self.fin_due } else { self.next < self.limit }
    }

    /// Whether a segment is ready that need not wait for more bytes: a lost one, a full one, or the last one.
    pub(crate) fn has_full_segment(&self) -> bool {
        let full =
            |body: &Vec<u8>| body.len() - HEADER >= self.segment_max || self.unsent.len() > 1;
        self.has_segment()
            && (!self.again.is_empty() || self.finished || self.unsent.front().is_some_and(full))
    }

    /// The offset of a message without payload.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The next segment to send. Its bytes are kept until they are acknowledged.
    pub(crate) fn take_segment(&mut self) -> Option<Segment> {
        if let Some((offset, payload)) = self.again.pop_front() {
            let mut body = Vec::with_capacity(HEADER + payload.len());
            body.resize(HEADER, 0);
            body.extend_from_slice(&payload);
            let at = self.unacked.partition_point(|(other, _)| *other < offset);
            let is_last = offset + payload.len() as u64 == self.next && self.unsent.is_empty();
            self.unacked.insert(at, (offset, payload));
            return Some(Segment { offset, body, fin: is_last && self.send_fin() });
        }
        if !self.has_segment() {
            return None;
        }
        let room = usize::try_from(self.limit.saturating_sub(self.next)).unwrap_or(usize::MAX);
        let offset = self.next;
        let body = match self.unsent.front_mut() {
            None => vec![0; HEADER],
            Some(front) if front.len() - HEADER <= room => {
                self.unsent.pop_front().expect("looked at a moment ago")
            }
            Some(front) => {
                let body = front[..HEADER + room].to_vec();
                front.drain(HEADER..HEADER + room);
                body
            }
        };
        let length = (body.len() - HEADER) as u64;
        self.next += length;
        self.unsent_bytes -= length;
        let fin = self.unsent.is_empty() && self.send_fin();
        Some(Segment { offset, body, fin })
    }

    /// Notes that a [taken](Self::take_segment) segment was sent with this payload.
    pub(crate) fn sent(&mut self, offset: u64, payload: Bytes) {
        let known = self.unacked.iter().any(|(at, _)| *at == offset);
        if !payload.is_empty() && !known {
            self.unacked.push_back((offset, payload));
        }
    }

    /// Notes that the message that is created now carries the end, if the bytes have an end.
    fn send_fin(&mut self) -> bool {
        self.fin_due = false;
        self.fin_sent |= self.finished;
        self.finished
    }

    /// Handles the loss of the segment at an offset.
    pub(crate) fn lost(&mut self, offset: u64) {
        let mut had_end = true; // If it was acknowledged, the end with it may not have been.
        if let Some(at) = self.unacked.iter().position(|(other, _)| *other == offset) {
            let segment = self.unacked.remove(at).expect("found a moment ago");
            had_end = offset + segment.1.len() as u64 == self.next;
            let at = self.again.partition_point(|(other, _)| *other < offset);
            self.again.insert(at, segment);
        }
        self.fin_due |= had_end && self.fin_sent && !self.fin_acked;
    }

    /// Handles the loss of all unacknowledged segments.
    pub(crate) fn all_lost(&mut self) {
        self.again.extend(self.unacked.drain(..));
        self.again.make_contiguous().sort_unstable_by_key(|(offset, _)| *offset);
        self.fin_due |= self.fin_sent && !self.fin_acked;
    }

    /// Handles an acknowledgement of received bytes, and the limit up to which the peer accepts bytes.
    ///
    /// # Errors
    ///
    /// The peer acknowledges bytes that were not sent.
    pub(crate) fn acknowledged(&mut self, received: u64, limit: u64) -> Result<(), Violation> {
        let sent = self.next + u64::from(self.fin_sent);
        if received > sent {
            return Err(Violation);
        }
        self.limit = self.limit.max(limit);
        self.fin_acked |= received > self.next;
        self.fin_due &= !self.fin_acked;
        let received = received.min(self.next);
        self.acked = self.acked.max(received);
        for segments in [&mut self.unacked, &mut self.again] {
            segments.retain(|(offset, payload)| offset + payload.len() as u64 > received);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outgoing() -> Outgoing {
        let mut outgoing = Outgoing::new(10, 100);
        outgoing.acknowledged(0, 30).unwrap();
        outgoing
    }

    /// Sends all segments that may be sent. Returns payloads, offsets, and whether the stream ends with each.
    fn send(outgoing: &mut Outgoing) -> Vec<(u64, String, bool)> {
        let mut sent = Vec::new();
        while let Some(Segment { offset, body, fin }) = outgoing.take_segment() {
            let payload = Bytes::from(body).slice(HEADER..);
            outgoing.sent(offset, payload.clone());
            sent.push((offset, String::from_utf8(payload.to_vec()).unwrap(), fin));
        }
        sent
    }

    #[test]
    fn short_writes_are_gathered_and_long_ones_cut() {
        let mut outgoing = outgoing();
        assert_eq!(outgoing.write(b"abc") + outgoing.write(b"defghijklm"), 13);
        assert!(outgoing.has_full_segment());
        assert_eq!(
            send(&mut outgoing),
            [(0, "abcdefghij".into(), false), (10, "klm".into(), false)]
        );
        outgoing.write(b"n");
        assert!(outgoing.has_segment() && !outgoing.has_full_segment());
    }

    #[test]
    fn nothing_goes_beyond_the_limit_and_nothing_is_taken_beyond_the_capacity() {
        let mut outgoing = outgoing();
        assert_eq!(outgoing.write(&[b'x'; 200]), 100);
        let sent: usize = send(&mut outgoing).iter().map(|(_, payload, _)| payload.len()).sum();
        assert_eq!((sent, outgoing.room()), (30, 0));
        outgoing.acknowledged(30, 35).unwrap();
        assert_eq!((outgoing.room(), send(&mut outgoing)), (30, vec![(30, "xxxxx".into(), false)]));
    }

    #[test]
    fn the_end_goes_with_the_last_byte_or_alone() {
        let mut outgoing = outgoing();
        outgoing.write(b"abc");
        outgoing.finish();
        assert_eq!(send(&mut outgoing), [(0, "abc".into(), true)]);
        outgoing.acknowledged(4, 30).unwrap();
        assert!(outgoing.is_complete());
        let mut empty = self::outgoing();
        empty.finish();
        assert_eq!(send(&mut empty), [(0, String::new(), true)]);
        assert!(empty.is_sent() && !empty.is_complete());
    }

    #[test]
    fn what_is_lost_is_sent_again_until_it_is_acknowledged() {
        let mut outgoing = outgoing();
        outgoing.write(b"aaaaaaaaaabbbbbbbbbbccc");
        outgoing.finish();
        let first = send(&mut outgoing);
        outgoing.lost(10);
        assert_eq!(send(&mut outgoing), first[1..2]);
        outgoing.lost(20);
        outgoing.lost(0);
        assert_eq!(send(&mut outgoing), [first[0].clone(), first[2].clone()]);
        outgoing.acknowledged(10, 30).unwrap();
        outgoing.all_lost();
        assert_eq!(send(&mut outgoing), first[1..]);
        outgoing.acknowledged(24, 30).unwrap();
        outgoing.all_lost();
        assert_eq!((send(&mut outgoing), outgoing.is_complete()), (vec![], true));
    }

    #[test]
    fn an_end_that_was_alone_is_sent_again_alone() {
        let mut outgoing = outgoing();
        outgoing.write(b"abc");
        send(&mut outgoing);
        outgoing.finish();
        assert_eq!(send(&mut outgoing), [(3, String::new(), true)]);
        outgoing.lost(3);
        assert_eq!(send(&mut outgoing), [(3, String::new(), true)]);
        outgoing.acknowledged(3, 30).unwrap();
        outgoing.all_lost();
        assert_eq!(send(&mut outgoing), [(3, String::new(), true)]);
    }

    #[test]
    fn nobody_can_have_received_what_was_not_sent() {
        let mut outgoing = outgoing();
        outgoing.write(b"abc");
        assert_eq!(outgoing.acknowledged(1, 30), Err(Violation));
        send(&mut outgoing);
        assert_eq!(outgoing.acknowledged(4, 30), Err(Violation));
        assert_eq!(outgoing.acknowledged(3, 30), Ok(()));
    }
}
