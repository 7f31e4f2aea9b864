//! The format of benchmark messages, common to all transports.
//!
//! A message starts with a [`MessageHeader`]; the rest is a fixed pattern. A request has the length of the wanted reply. A reply echoes
//! the request's tag and has the request's length. So every reply proves that the whole request arrived.

use std::hint::black_box;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};

/// Upper bound on a benchmark message, in bytes: Apus' default limit.
pub const MESSAGE_MAX: u32 = 64 << 20;

/// Length of a reply if only requests carry data (`--one-way`), as in the kernel module's cp_node.
pub const SHORT_REPLY: u32 = 100;

/// The first bytes of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// Chosen by the client, echoed by the server.
    pub tag: u64,
    /// Length of the whole message in bytes, including the header; 0 if the transport keeps message boundaries.
    pub length: u32,
    /// In a request, the length of the wanted reply, or 0 for the request's length; in a reply, the request's length.
    pub other_length: u32,
}

impl MessageHeader {
    /// Bytes of a header, which is the smallest message.
    pub const LEN: usize = 16;

    /// The header's encoding, little-endian.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..].copy_from_slice(&self.other_length.to_le_bytes());
        bytes
    }

    /// Parses the header at the start of `bytes`; `None` if there are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (other_length, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            tag: u64::from_le_bytes(*tag),
            length: u32::from_le_bytes(*length),
            other_length: u32::from_le_bytes(*other_length),
        })
    }

    /// The header of the reply to a request with this header and an actual length of `length` bytes.
    pub fn answer(self, length: u32) -> Self {
        let reply = if self.other_length == 0 { length } else { self.other_length };
        Self { tag: self.tag, length: reply.max(Self::LEN as u32), other_length: length }
    }
}

/// Period of the pattern. Any range of a long message is a slice of [`FILLER`].
const PERIOD: usize = 1 << 16;

/// Upper bound on a slice of [`filler`].
pub const FILLER_MAX: usize = 1 << 20;

static FILLER: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..FILLER_MAX + PERIOD).map(pattern).collect());

/// The byte at `offset` of any benchmark message, except the header.
fn pattern(offset: usize) -> u8 {
    ((offset % PERIOD).wrapping_mul(40503) >> 8) as u8
}

/// The pattern from `offset`, `length` bytes but at most [`FILLER_MAX`].
pub fn filler(offset: usize, length: usize) -> &'static [u8] {
    let start = offset % PERIOD;
    &FILLER[start..start + length.min(FILLER_MAX)]
}

/// A message of `length` bytes with `header` in front.
pub fn build(header: MessageHeader, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&header.to_bytes());
    while bytes.len() < length {
        bytes.extend_from_slice(filler(bytes.len(), length - bytes.len()));
    }
    bytes
}

/// Whether this process reads every byte that it receives.
static READS_ALL: AtomicBool = AtomicBool::new(false);

/// Makes this process read every byte of the messages that it receives, as a program that uses them does, or the last byte only,
/// as at first.
pub fn read_every_byte(all: bool) {
    READS_ALL.store(all, Ordering::Relaxed);
}

/// Whether this process reads every byte of the messages that it receives.
pub fn reads_every_byte() -> bool {
    READS_ALL.load(Ordering::Relaxed)
}

/// Reads every byte, if this process does.
#[inline]
pub fn read(stretch: &[u8]) {
    if reads_every_byte() {
        let (words, rest) = stretch.as_chunks::<8>();
        let sum =
            words.iter().fold(0, |sum: u64, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        black_box(rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte))));
    }
}

/// Checks the last byte of a range of message body that ends before `end`, and [reads](read) the others. The check is cheap enough
/// for every read, and detects lost, doubled and shifted bytes.
///
/// # Errors
/// If the byte is not the pattern's.
pub fn check_last(stretch: &[u8], end: usize) -> Result<()> {
    read(stretch);
    if let Some(&last) = stretch.last() {
        let expected = pattern(end - 1);
        ensure!(
            last == expected,
            "wrong data at offset {}: {last:#04x} instead of {expected:#04x}",
            end - 1
        );
    }
    Ok(())
}

/// Whether a range of message body that begins at `offset` equals the pattern in every byte.
pub fn check(stretch: &[u8], offset: usize) -> bool {
    let starts = (offset..).step_by(FILLER_MAX);
    stretch.chunks(FILLER_MAX).zip(starts).all(|(part, start)| part == filler(start, part.len()))
}

/// The reply length to request: 0 for the request's length, or a short one.
pub fn reply_length(one_way: bool) -> u32 {
    if one_way { SHORT_REPLY } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_trip() {
        let header =
            MessageHeader { tag: 0x0102_0304_0506_0708, length: 500_000, other_length: 100 };
        assert_eq!(MessageHeader::from_bytes(&header.to_bytes()), Some(header));
        assert_eq!(MessageHeader::from_bytes(&header.to_bytes()[..15]), None);
    }

    #[test]
    fn an_answer_echoes_the_tag_and_has_the_wanted_length() {
        let echo = MessageHeader { tag: 9, length: 0, other_length: 0 };
        assert_eq!(echo.answer(777), MessageHeader { tag: 9, length: 777, other_length: 777 });
        let short = MessageHeader { tag: 9, length: 777, other_length: SHORT_REPLY };
        assert_eq!(
            short.answer(777),
            MessageHeader { tag: 9, length: SHORT_REPLY, other_length: 777 }
        );
    }

    #[test]
    fn every_stretch_of_a_long_message_follows_the_pattern() {
        let message = build(MessageHeader { tag: 1, length: 0, other_length: 0 }, 3_000_000);
        assert_eq!(message.len(), 3_000_000);
        for end in [17, 65_536, 65_537, 1_048_577, 3_000_000] {
            check_last(&message[16..end], end).unwrap();
        }
        assert!(check_last(&message[16..1000], 1001).is_err());
        assert!(check(&message[16..], 16) && !check(&message[17..], 16));
        let mut wrong = message;
        wrong[2_000_000] ^= 1;
        assert!(!check(&wrong[16..], 16));
    }
}
