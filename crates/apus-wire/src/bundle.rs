//! Several small packets for one peer in one UDP datagram (rules W23 to W29). Native links have no bundles.
//!
//! ```text
//! 0      2      3      4        6                6 + length
//! | 0 0  |  1   | count | length | packet ...     | length | packet ... |
//! ```
//!
//! The first two bytes are the source port of a Homa packet, which is never 0, so a bundle is never mistaken for a packet.

use std::error::Error;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Range;

use crate::field::read_u16;

const MARK: Range<usize> = 0..2;
const VERSION: usize = 2;
const COUNT: usize = 3;

/// The only version of the frame.
const VERSION_1: u8 = 1;

/// Length of the bundle's header in bytes.
pub const HEADER_LEN: usize = 4;

/// Length in bytes of an entry's own header, the length field.
pub const ENTRY_LEN: usize = 2;

/// Upper bound on packets in one bundle.
pub const MAX_PACKETS: usize = u8::MAX as usize;

/// Returns whether this datagram is a bundle, valid or not, rather than a packet.
#[inline]
#[must_use]
pub fn is_bundle(datagram: &[u8]) -> bool {
    datagram.get(MARK).is_some_and(|mark| mark == [0, 0])
}

/// Clears `buffer` and starts a bundle in it. The bundle must not be sent before the first [`push`].
#[inline]
pub fn start(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.extend_from_slice(&[0, 0, VERSION_1, 0]);
}

/// Appends a packet, given in two parts, to a bundle that [`start`] began. `limit` is the longest datagram allowed for this peer.
/// Returns `false`, and leaves the bundle unchanged, if the packet exceeds the limit, if the bundle has [`MAX_PACKETS`], or if the
/// packet is empty or longer than 65,535 bytes.
///
/// # Panics
///
/// If `buffer` holds no bundle begun by [`start`].
#[inline]
#[must_use]
pub fn push(buffer: &mut Vec<u8>, limit: usize, header: &[u8], payload: &[u8]) -> bool {
    let length = header.len() + payload.len();
    let Ok(length_field) = u16::try_from(length) else { return false };
    if length == 0 || buffer[COUNT] == u8::MAX || buffer.len() + ENTRY_LEN + length > limit {
        return false;
    }
    buffer[COUNT] += 1;
    buffer.extend_from_slice(&length_field.to_be_bytes());
    buffer.extend_from_slice(header);
    buffer.extend_from_slice(payload);
    true
}

/// Returns the number of packets pushed since [`start`].
///
/// # Panics
///
/// If `buffer` holds no bundle begun by [`start`].
#[inline]
#[must_use]
pub fn count(buffer: &[u8]) -> usize {
    usize::from(buffer[COUNT])
}

/// Returns the datagram to send for a bundle with at least one packet. A single packet travels bare, which saves six bytes and the
/// peer's work.
///
/// # Panics
///
/// If `buffer` holds no bundle begun by [`start`].
#[inline]
#[must_use]
pub fn datagram(buffer: &[u8]) -> &[u8] {
    //= docs/wire.md#W29
    if count(buffer) == 1 { &buffer[HEADER_LEN + ENTRY_LEN..] } else { buffer }
}

/// Returns the packets of a bundle, in the order of the pushes. The iterator ends after the first error; the packets before an
/// error are valid.
#[inline]
#[must_use]
pub fn packets(datagram: &[u8]) -> Packets<'_> {
    Packets(match open(datagram) {
        Ok((left, rest)) => Cursor::Entries { left, rest },
        Err(error) => Cursor::Failed(error),
    })
}

/// Parses the bundle's header. Returns the announced number of entries and the bytes that hold them.
fn open(datagram: &[u8]) -> Result<(u8, &[u8]), BundleError> {
    let Some((header, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else {
        return Err(BundleError::Truncated);
    };
    if header[MARK] != [0, 0] {
        return Err(BundleError::NotABundle);
    }
    //= docs/wire.md#W23
    if header[VERSION] != VERSION_1 {
        return Err(BundleError::UnknownVersion(header[VERSION]));
    }
    //= docs/wire.md#W24
    if header[COUNT] == 0 {
        return Err(BundleError::Empty);
    }
    Ok((header[COUNT], rest))
}

/// Iterator over a bundle, made by [`packets`]. Bounded: at most [`MAX_PACKETS`] items and one error.
#[derive(Clone, Debug)]
pub struct Packets<'a>(Cursor<'a>);

#[derive(Clone, Debug)]
enum Cursor<'a> {
    /// `left` entries remain, in the bytes `rest`.
    Entries {
        left: u8,
        rest: &'a [u8],
    },
    /// The iterator reports this error once.
    Failed(BundleError),
    Ended,
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<&'a [u8], BundleError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (left, rest) = match std::mem::replace(&mut self.0, Cursor::Ended) {
            Cursor::Entries { left: 0, rest: [] } | Cursor::Ended => return None,
            //= docs/wire.md#W28
            Cursor::Entries { left: 0, rest } => {
                return Some(Err(BundleError::TrailingBytes(rest.len())));
            }
            Cursor::Entries { left, rest } => (left, rest),
            Cursor::Failed(error) => return Some(Err(error)),
        };
        Some(entry(rest).map(|(packet, rest)| {
            self.0 = Cursor::Entries { left: left - 1, rest };
            packet
        }))
    }
}

impl FusedIterator for Packets<'_> {}

/// Splits the first packet off these bytes. Returns the packet and the remaining bytes.
#[inline]
fn entry(bytes: &[u8]) -> Result<(&[u8], &[u8]), BundleError> {
    let Some((prefix, bytes)) = bytes.split_first_chunk::<ENTRY_LEN>() else {
        return Err(BundleError::Truncated);
    };
    let length = usize::from(read_u16(prefix, 0..ENTRY_LEN));
    //= docs/wire.md#W25
    if length == 0 {
        return Err(BundleError::ZeroLength);
    }
    //= docs/wire.md#W26
    let Some((packet, rest)) = bytes.split_at_checked(length) else {
        return Err(BundleError::Truncated);
    };
    //= docs/wire.md#W27
    if is_bundle(packet) {
        return Err(BundleError::Nested);
    }
    Ok((packet, rest))
}

/// Reason for refusing the rest of a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BundleError {
    /// The datagram does not start with two zero bytes.
    NotABundle,
    /// A version that this program does not support.
    UnknownVersion(u8),
    /// A bundle of no packets.
    Empty,
    /// The datagram ends before the bundle does.
    Truncated,
    /// An entry of no bytes.
    ZeroLength,
    /// An entry is a bundle itself.
    Nested,
    /// An entry of a compact bundle with this length: no byte, or too many acknowledgements.
    BadLength(u16),
    /// This number of bytes follows the last entry.
    TrailingBytes(usize),
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotABundle => f.write_str("not a bundle"),
            Self::UnknownVersion(version) => write!(f, "bundle of unknown version {version}"),
            Self::Empty => f.write_str("bundle of no packets"),
            Self::Truncated => f.write_str("bundle ends too early"),
            Self::ZeroLength => f.write_str("bundle holds a packet of no bytes"),
            Self::BadLength(length) => write!(f, "entry of length {length}"),
            Self::Nested => f.write_str("bundle within a bundle"),
            Self::TrailingBytes(bytes) => {
                write!(f, "{bytes} bytes after the last packet of a bundle")
            }
        }
    }
}

impl Error for BundleError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{self, bytes};

    fn bundle_of(packets: &[&[u8]]) -> Vec<u8> {
        let mut buffer = vec![0xA5; 3];
        start(&mut buffer);
        for packet in packets {
            let (header, payload) = packet.split_at(packet.len() / 2);
            assert!(push(&mut buffer, usize::MAX, header, payload));
        }
        buffer
    }

    fn unpack(datagram: &[u8]) -> Vec<Result<&[u8], BundleError>> {
        packets(datagram).collect()
    }

    #[test]
    fn lays_packets_one_after_another() {
        //= docs/wire.md#W23
        let bundle = bundle_of(&[b"one", b"second"]);
        assert_eq!(bundle, b"\x00\x00\x01\x02\x00\x03one\x00\x06second");
        assert!(is_bundle(&bundle));
        assert_eq!(unpack(&bundle), [Ok(&b"one"[..]), Ok(b"second")]);
    }

    #[test]
    fn is_not_a_packet_nor_a_packet_a_bundle() {
        //= docs/wire.md#W4
        let mut bundle = bundle_of(&[&bytes(samples::SPEC_ACK)]);
        bundle[11] = crate::PacketType::Data as u8;
        assert_eq!(crate::Packet::parse(&bundle), Err(crate::ParseError::SourcePortZero));
        let packet = bytes(samples::SPEC_ACK);
        assert!(!is_bundle(&packet) && !is_bundle(&[]) && !is_bundle(&[0]));
        assert_eq!(unpack(&packet), [Err(BundleError::NotABundle)]);
    }

    #[test]
    fn takes_no_more_than_the_datagram_holds() {
        //= docs/wire.md#W29
        let mut buffer = Vec::new();
        start(&mut buffer);
        let limit = HEADER_LEN + ENTRY_LEN + 5;
        assert!(!push(&mut buffer, limit, b"123", b"456"));
        assert_eq!((count(&buffer), buffer.len()), (0, HEADER_LEN));
        assert!(push(&mut buffer, limit, b"123", b"45"));
        assert!(!push(&mut buffer, limit, b"1", b""));
        assert_eq!((count(&buffer), buffer.len()), (1, limit));
    }

    #[test]
    fn takes_no_packet_without_bytes_or_too_long() {
        //= docs/wire.md#W25
        let mut buffer = Vec::new();
        start(&mut buffer);
        assert!(!push(&mut buffer, usize::MAX, b"", b""));
        assert!(!push(&mut buffer, usize::MAX, b"1", &[0; 0xFFFF]));
        assert_eq!(buffer.len(), HEADER_LEN);
        assert!(push(&mut buffer, usize::MAX, b"1", &[0; 0xFFFE]));
    }

    #[test]
    fn takes_255_packets() {
        //= docs/wire.md#W24
        let mut buffer = bundle_of(&[&b"x"[..]; MAX_PACKETS]);
        assert!(!push(&mut buffer, usize::MAX, b"x", b""));
        assert_eq!(unpack(&buffer), [Ok(&b"x"[..]); MAX_PACKETS]);
    }

    #[test]
    fn one_packet_goes_bare() {
        //= docs/wire.md#W29
        let one = bundle_of(&[b"packet"]);
        assert_eq!(datagram(&one), b"packet");
        let two = bundle_of(&[b"packet", b"other"]);
        assert_eq!(datagram(&two), two);
    }

    #[test]
    fn refuses_other_versions_and_none() {
        //= docs/wire.md#W23
        let mut bundle = bundle_of(&[b"one"]);
        bundle[VERSION] = 2;
        assert_eq!(unpack(&bundle), [Err(BundleError::UnknownVersion(2))]);
        //= docs/wire.md#W24
        assert_eq!(unpack(&bundle_of(&[])), [Err(BundleError::Empty)]);
    }

    #[test]
    fn refuses_what_ends_too_early() {
        //= docs/wire.md#W26
        let bundle = bundle_of(&[b"one", b"second"]);
        let after_first = HEADER_LEN + ENTRY_LEN + 3;
        for end in 0..bundle.len() {
            let found = unpack(&bundle[..end]);
            if end < 2 {
                assert!(!is_bundle(&bundle[..end]));
            }
            if end < after_first {
                assert_eq!(found, [Err(BundleError::Truncated)], "ends at {end}");
            } else {
                assert_eq!(found, [Ok(&b"one"[..]), Err(BundleError::Truncated)], "ends at {end}");
            }
        }
    }

    #[test]
    fn refuses_an_entry_of_no_bytes() {
        //= docs/wire.md#W25
        assert_eq!(unpack(b"\x00\x00\x01\x01\x00\x00"), [Err(BundleError::ZeroLength)]);
    }

    #[test]
    fn refuses_bundles_in_bundles() {
        //= docs/wire.md#W27
        let inner = bundle_of(&[b"one"]);
        let found = bundle_of(&[b"first", &inner, b"never seen"]);
        assert_eq!(unpack(&found), [Ok(&b"first"[..]), Err(BundleError::Nested)]);
    }

    #[test]
    fn refuses_bytes_after_the_last_entry() {
        //= docs/wire.md#W28
        let mut bundle = bundle_of(&[b"one"]);
        bundle.extend_from_slice(b"more");
        assert_eq!(unpack(&bundle), [Ok(&b"one"[..]), Err(BundleError::TrailingBytes(4))]);
    }
}
