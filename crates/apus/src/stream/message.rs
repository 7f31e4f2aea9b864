//! Messages between the two ends of a stream: the header of each call and of each response (`docs/streams.md`).

use bytes::Bytes;

/// Bytes of a header. The payload follows.
pub(crate) const HEADER: usize = 40;

/// First bytes of every message: two letters and the version of the format.
const MAGIC: [u8; 3] = [b'S', b't', 1];

/// The call opens the stream.
pub(crate) const OPEN: u8 = 1;
/// The stream ends with the last byte of the payload.
pub(crate) const FIN: u8 = 2;
/// More bytes wait to be sent than the message has.
pub(crate) const MORE: u8 = 4;
/// Ends the stream at once, for the reason in the header.
pub(crate) const RESET: u8 = 8;

const FLAGS: u8 = OPEN | FIN | MORE | RESET;

/// The reason for which one end has ended the stream at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Reason {
    /// The listener accepts no more streams at the moment, or the port has no listener.
    Refused = 1,
    /// The answering end knows no such stream of this client.
    Unknown = 2,
    /// The application has dropped the stream and will not read the bytes that have arrived.
    Dropped = 3,
    /// The other end has violated the rules of streams.
    Violation = 4,
    /// The other end was silent for too long.
    Lost = 5,
}

/// The header of a message. All numbers are in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub(crate) flags: u8,
    /// In a call: number of calls that the accepting end may leave unanswered while it has no bytes to send.
    pub(crate) keep: u8,
    /// The reason, with [`RESET`].
    pub(crate) reason: Option<Reason>,
    /// In a call: number of failures before it. Responses to calls of an earlier epoch may be lost.
    pub(crate) epoch: u16,
    pub(crate) id: u64,
    /// Offset of the first byte of the payload in the stream.
    pub(crate) offset: u64,
    /// Bytes that the sender has received without a gap; one more if it has received the end as well.
    pub(crate) received: u64,
    /// Total number of bytes that the sender accepts: the receiver of this header sends none beyond.
    pub(crate) limit: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3] = self.flags;
        bytes[4] = self.keep;
        bytes[5] = self.reason.map_or(0, |reason| reason as u8);
        bytes[6..8].copy_from_slice(&self.epoch.to_be_bytes());
        let words = [self.id, self.offset, self.received, self.limit];
        for (word, place) in words.into_iter().zip(bytes[8..].chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// The header and the payload of a message; `None` if it is not a message of a stream.
    pub(crate) fn parse(message: &Bytes) -> Option<(Self, Bytes)> {
        let (header, _) = message.split_first_chunk::<HEADER>()?;
        let [flags, keep, reason, epoch @ ..] = *header[3..8].first_chunk::<5>()?;
        let reason = match (flags & RESET, reason) {
            (0, 0) => None,
            (RESET, 1) => Some(Reason::Refused),
            (RESET, 2) => Some(Reason::Unknown),
            (RESET, 3) => Some(Reason::Dropped),
            (RESET, 4) => Some(Reason::Violation),
            (RESET, 5) => Some(Reason::Lost),
            _ => return None,
        };
        if header[..3] != MAGIC || flags & !FLAGS != 0 {
            return None;
        }
        let word = |index: usize| {
            let bytes = header[8 + 8 * index..].first_chunk();
            u64::from_be_bytes(*bytes.expect("a header has four words"))
        };
        let [id, offset, received, limit] = std::array::from_fn(word);
        let epoch = u16::from_be_bytes(epoch);
        let header = Self { flags, keep, reason, epoch, id, offset, received, limit };
        Some((header, message.slice(HEADER..)))
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// A message without payload that ends a stream.
    pub(crate) fn reset(id: u64, reason: Reason) -> Self {
        let reason = Some(reason);
        Self { flags: RESET, keep: 0, reason, epoch: 0, id, offset: 0, received: 0, limit: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_these_bytes() {
        let header = SegmentHeader {
            flags: FIN | MORE,
            keep: 3,
            reason: None,
            epoch: 0x0a0b,
            id: 0x0102_0304_0506_0708,
            offset: 9,
            received: 10,
            limit: 11,
        };
        let mut message = header.encode().to_vec();
        assert_eq!(message[..16], [b'S', b't', 1, 6, 3, 0, 10, 11, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            message[16..],
            [0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 11]
        );
        message.extend_from_slice(b"payload");
        assert_eq!(
            SegmentHeader::parse(&message.into()),
            Some((header, Bytes::from_static(b"payload")))
        );
    }

    #[test]
    fn every_reason_comes_back() {
        use Reason::{Dropped, Lost, Refused, Unknown, Violation};
        for reason in [Refused, Unknown, Dropped, Violation, Lost] {
            let header = SegmentHeader::reset(7, reason);
            let message = Bytes::copy_from_slice(&header.encode());
            assert_eq!(SegmentHeader::parse(&message), Some((header, Bytes::new())));
        }
    }

    #[test]
    fn anything_else_is_no_message() {
        let good = SegmentHeader::reset(7, Reason::Lost).encode();
        for (at, value) in [(0, b'X'), (2, 2), (3, 16), (3, 0), (5, 0), (5, 6)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(SegmentHeader::parse(&Bytes::copy_from_slice(&bad)), None, "byte {at}");
        }
        assert_eq!(SegmentHeader::parse(&Bytes::copy_from_slice(&good[..HEADER - 1])), None);
    }
}
