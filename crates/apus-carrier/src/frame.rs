//! Frames of carriers about a connection, over its stream.
//!
//! A frame has the changed words of a segment, and the bytes that the program has written into its ring since the last frame.
//! Numbers are in network byte order.
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0 | flags | ASK 1: the program asks its peer to follow. DIED 2: the program has exited, and this is the last frame |
//! | 1 | – | 0 |
//! | 2–3 | changed | one bit for each word that follows, in the order of [`ORDER`](crate::words::ORDER) |
//! | 4–7 | length | bytes of the ring, 0 to 130,560; they end at the position in WRITTEN |
//! | 8– | words | 8 bytes each |
//! | | bytes | bytes of the ring |

use apus_sockets::layout;

use crate::words::{COUNT, WRITTEN, Words};

const HEADER: usize = 8;
const ASK: u8 = 1;
const DIED: u8 = 2;

/// Upper bound on the length of a frame.
pub(crate) const FRAME_MAX: usize = HEADER + 8 * COUNT + layout::FAR_CAPACITY;

/// A frame without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Frame {
    /// Whether the program asks its peer to follow.
    pub(crate) asks: bool,
    /// Whether the program has exited.
    pub(crate) died: bool,
    /// One bit for each changed word.
    pub(crate) changed: u16,
    /// Values of the changed words; other words have no meaning.
    pub(crate) words: Words,
    /// Number of bytes of the ring.
    pub(crate) length: usize,
}

impl Frame {
    /// Whether the frame has no content.
    pub(crate) fn is_empty(&self) -> bool {
        !self.asks && !self.died && self.changed == 0 && self.length == 0
    }

    /// Whether the word at this place has changed.
    pub(crate) fn has(&self, place: usize) -> bool {
        self.changed >> place & 1 == 1
    }

    /// Appends the frame without its bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let flags = if self.asks { ASK } else { 0 } | if self.died { DIED } else { 0 };
        out.extend([flags, 0]);
        out.extend(self.changed.to_be_bytes());
        out.extend((self.length as u32).to_be_bytes());
        for place in (0..COUNT).filter(|place| self.has(*place)) {
            out.extend(self.words[place].to_be_bytes());
        }
    }

    /// Parses the frame at the start of `bytes`. Returns it with the offset of its bytes, or `None` if it is incomplete.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let [flags, zero, mask @ .., _, _, _, _] = header;
        let changed = u16::from_be_bytes(*mask);
        let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let is_known = flags & !(ASK | DIED) == 0 && *zero == 0 && changed >> COUNT == 0;
        let has_place = length == 0 || changed >> WRITTEN & 1 == 1;
        if !is_known || !has_place || length > layout::FAR_CAPACITY {
            return Err(Malformed);
        }
        let start = HEADER + 8 * changed.count_ones() as usize;
        if bytes.len() < start + length {
            return Ok(None);
        }
        let mut frame = Self {
            asks: flags & ASK != 0,
            died: flags & DIED != 0,
            changed,
            length,
            ..Self::default()
        };
        let mut values = bytes[HEADER..start].chunks_exact(8);
        for place in (0..COUNT).filter(|place| changed >> place & 1 == 1) {
            let value = values.next().expect("there is one for each bit");
            frame.words[place] = u64::from_be_bytes(value.try_into().expect("it has 8 bytes"));
        }
        if length > 0 && frame.words[WRITTEN] < length as u64 {
            return Err(Malformed);
        }
        Ok(Some((frame, start)))
    }
}

/// A frame that no carrier of this version sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the other carrier sent a malformed frame")]
pub(crate) struct Malformed;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::READ;

    fn encoded(frame: &Frame, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame.encode(&mut out);
        out.extend(bytes);
        out
    }

    #[test]
    fn a_frame_has_these_bytes() {
        let mut frame = Frame { asks: true, length: 3, ..Frame::default() };
        frame.changed = 1 << WRITTEN | 1 << READ;
        (frame.words[WRITTEN], frame.words[READ]) = (0x0102, 7);
        let bytes = encoded(&frame, b"abc");
        let expected = [
            &[1, 0, 0x08, 0x40, 0, 0, 0, 3][..],
            &[0, 0, 0, 0, 0, 0, 1, 2],
            &[0, 0, 0, 0, 0, 0, 0, 7],
            b"abc",
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(Frame::decode(&bytes), Ok(Some((frame, 24))));
        for part in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..part]), Ok(None));
        }
    }

    #[test]
    fn all_words_and_a_full_ring_fit() {
        let mut frame = Frame { died: true, changed: 0xfff, ..Frame::default() };
        frame.length = layout::FAR_CAPACITY;
        frame.words = std::array::from_fn(|place| u64::MAX - place as u64);
        let bytes = encoded(&frame, &vec![9; layout::FAR_CAPACITY]);
        assert_eq!(bytes.len(), FRAME_MAX);
        assert_eq!(Frame::decode(&bytes), Ok(Some((frame, FRAME_MAX - layout::FAR_CAPACITY))));
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let too_long = (layout::FAR_CAPACITY as u32 + 1).to_be_bytes();
        let cases: [[u8; 8]; 5] = [
            [4, 0, 0, 0, 0, 0, 0, 0],
            [0, 1, 0, 0, 0, 0, 0, 0],
            [0, 0, 0x10, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 1], // Bytes without a position.
            [0, 0, 0, 0x40, too_long[0], too_long[1], too_long[2], too_long[3]],
        ];
        for case in cases {
            assert_eq!(Frame::decode(&case), Err(Malformed), "{case:?}");
        }
        let mut before = Frame { length: 3, changed: 1 << WRITTEN, ..Frame::default() };
        before.words[WRITTEN] = 2; // They would begin before the ring.
        assert_eq!(Frame::decode(&encoded(&before, b"abc")), Err(Malformed));
    }

    /// Any bytes are a frame, a malformed frame, or an incomplete one.
    #[test]
    fn no_bytes_are_too_strange() {
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..64)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) as u8 & (state >> 50) as u8
                })
                .collect();
            if let Ok(Some((frame, start))) = Frame::decode(&bytes) {
                assert!(start + frame.length <= bytes.len());
            }
        }
    }
}
