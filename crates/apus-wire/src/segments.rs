//! Several segments of a message in one DATA packet, as the Linux module passes them to a device for segmentation (rule W40).
//!
//! The device repeats the first 52 bytes before each segment. The segments follow these bytes, each after a segment offset of its
//! own. On a path without such a device, mostly between virtual machines of one host, the packet arrives unsegmented, and the
//! offsets between the segments look like payload.
//!
//! ```text
//! 0            52       56            56 + n                 60 + 2 n
//! +------------+--------+-------------+--------+-------------+--------+- - -
//! | header     | offset | n bytes     | offset | n bytes     | offset | at most n bytes
//! +------------+--------+-------------+--------+-------------+--------+- - -
//! ```
//!
//! The packet does not state the length of a segment: only one length makes all offsets right.

use std::ops::Range;

use crate::field::read_u32;
use crate::header::layout::{DOFF, SEQUENCE, TYPE};
use crate::{DATA_HEADER_LEN, PacketType};

const MESSAGE_LENGTH: Range<usize> = 28..32;
const RETRANSMIT: usize = 48;
const SEGMENT_OFFSET: Range<usize> = 52..56;
/// Value of the segment offset that refers to the sequence of the common header instead.
const USE_SEQUENCE: u32 = 0xFFFF_FFFF;

/// TCP's data offset of a packet whose first 52 bytes a device may repeat: 13 words.
const WORDS_REPEATED: u8 = 13;
/// Length of the header that all segments share, in bytes.
const SHARED: usize = 52;
/// Length of a segment's own header in bytes: its offset.
const OWN: usize = DATA_HEADER_LEN - SHARED;

/// Payload of the shortest segments, in bytes: an IPv4 path with an MTU of 576.
const SEGMENT_MIN: usize = 576 - 20 - DATA_HEADER_LEN;
/// Payload of the longest segments, in bytes: Ethernet frames of 9,216 bytes, the largest in use.
const SEGMENT_MAX: usize = 9_216 - 20 - DATA_HEADER_LEN;

/// The structure of a DATA packet's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segmentation {
    /// One segment, as far as the packet shows.
    One,
    /// Several segments.
    Several(Segments),
    /// Ambiguous: segments of more than one length would fit.
    Unclear,
}

impl Segmentation {
    /// Examines a packet of the Linux module. Only a packet whose header may be repeated and that is no retransmission can have
    /// several segments. Reads each of up to 8,640 possible places of a second segment; allocates nothing.
    #[must_use]
    pub fn of(packet: &[u8]) -> Self {
        //= docs/wire.md#W40
        let payload = packet.len().saturating_sub(DATA_HEADER_LEN);
        if !may_be_cut(packet) || packet[RETRANSMIT] != 0 || payload <= SEGMENT_MIN + OWN {
            return Self::One;
        }
        let longest = SEGMENT_MAX.min(payload - OWN - 1);
        let mut fitting =
            (SEGMENT_MIN..=longest).map(|bytes| Segments { bytes }).filter(|it| it.fit(packet));
        match (fitting.next(), fitting.next()) {
            (None, _) => Self::One,
            (Some(segments), None) => Self::Several(segments),
            (Some(_), Some(_)) => Self::Unclear,
        }
    }
}

/// Returns whether the packet is DATA whose header a device may repeat before parts of its payload. Other packets have one segment.
#[inline]
#[must_use]
pub fn may_be_cut(packet: &[u8]) -> bool {
    packet.len() > DATA_HEADER_LEN
        && packet[TYPE] == PacketType::Data as u8
        && packet[DOFF] >> 4 == WORDS_REPEATED
}

/// Segments of one length, except for a shorter last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segments {
    /// Payload bytes of each segment.
    bytes: usize,
}

impl Segments {
    /// Returns whether each segment begins with the right offset, and none extends past the end of the message.
    fn fit(self, packet: &[u8]) -> bool {
        let offset = |at: usize| u64::from(read_u32(packet, at..at + OWN));
        let first = match read_u32(packet, SEGMENT_OFFSET) {
            USE_SEQUENCE => read_u32(packet, SEQUENCE),
            explicit => explicit,
        };
        let first = u64::from(first);
        let step = self.bytes + OWN;
        // The cheapest check comes first: it fails for nearly all lengths.
        if offset(SHARED + step) != first + self.bytes as u64 {
            return false;
        }
        let (mut at, mut expected) = (SHARED, first);
        while packet.len() - at > step {
            at += step;
            expected += self.bytes as u64;
            if packet.len() - at <= OWN || offset(at) != expected {
                return false;
            }
        }
        let end = expected + (packet.len() - at - OWN) as u64;
        end <= u64::from(read_u32(packet, MESSAGE_LENGTH))
    }

    /// Passes each segment as a packet of its own, in order. Writes the headers into `packet`, over payload that was passed before;
    /// copies no payload.
    ///
    /// # Panics
    ///
    /// If the packet is not the examined one.
    pub fn each(self, packet: &mut [u8], mut handler: impl FnMut(&[u8])) {
        let header: [u8; SHARED] = *packet.first_chunk().expect("it was looked at");
        let mut at = SHARED;
        while at < packet.len() {
            let end = packet.len().min(at + self.bytes + OWN);
            packet[at - SHARED..at].copy_from_slice(&header);
            handler(&packet[at - SHARED..end]);
            at = end;
        }
    }

    /// Returns the length in bytes of the longest of these packets.
    #[must_use]
    pub fn longest(self) -> usize {
        DATA_HEADER_LEN + self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Data, Packet};

    /// Ethernet frames in a pcap file: a message of 10,000 bytes and the end of one of 60,000, from a virtual machine with
    /// `max_gso_size` 20000 to its host. Each appears as first transmitted, and as retransmitted in packets of one segment.
    const CAPTURE: &[u8] = include_bytes!("samples/segments.pcap");

    fn captured() -> Vec<Vec<u8>> {
        let mut rest = &CAPTURE[24..];
        let mut packets = Vec::new();
        while !rest.is_empty() {
            let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
            // Behind the headers of Ethernet and IPv4.
            packets.push(rest[16..16 + length][34..].to_vec());
            rest = &rest[16 + length..];
        }
        packets
    }

    fn data(packet: &[u8]) -> (Data, Vec<u8>) {
        match Packet::parse(packet).unwrap() {
            Packet::Data { data, payload, .. } => (data, payload.to_vec()),
            other => panic!("not DATA: {other:?}"),
        }
    }

    fn split(packet: &[u8]) -> Vec<Vec<u8>> {
        let Segmentation::Several(segments) = Segmentation::of(packet) else {
            panic!("no segments in {} bytes", packet.len());
        };
        let mut pieces = Vec::new();
        segments.each(&mut packet.to_vec(), |piece| pieces.push(piece.to_vec()));
        assert!(pieces.iter().all(|piece| piece.len() <= segments.longest()));
        pieces
    }

    #[test]
    fn a_captured_packet_is_split_into_what_was_sent_again_later() {
        //= docs/wire.md#W40
        let packets = captured();
        let lengths: Vec<usize> = packets.iter().map(Vec::len).collect();
        let singles = [1480; 7].into_iter().chain([88]);
        let expected: Vec<usize> =
            [10_084].into_iter().chain(singles).chain([1548, 1480, 120]).collect();
        assert_eq!(lengths, expected, "the capture is the one this test was written for");
        for (several, later) in [(0, 1..9), (9, 10..12)] {
            let pieces: Vec<_> = split(&packets[several]).iter().map(|piece| data(piece)).collect();
            let again: Vec<_> = packets[later].iter().map(|packet| data(packet)).collect();
            assert_eq!(pieces.len(), again.len());
            for ((piece, payload), (same, bytes)) in pieces.iter().zip(&again) {
                assert_eq!(
                    (piece.offset, piece.message_length),
                    (same.offset, same.message_length)
                );
                assert!(payload == bytes, "the bytes at {}", piece.offset);
            }
        }
    }

    #[test]
    fn what_was_sent_again_and_what_cannot_be_cut_is_one_segment() {
        let mut packets = captured();
        for packet in &packets[1..9] {
            assert_eq!(Segmentation::of(packet), Segmentation::One);
        }
        let several = &mut packets[0];
        several[RETRANSMIT] = 1;
        assert_eq!(Segmentation::of(several), Segmentation::One);
        several[RETRANSMIT] = 0;
        several[DOFF] = 0xE0;
        assert_eq!(Segmentation::of(several), Segmentation::One);
    }

    #[test]
    fn one_wrong_offset_is_enough() {
        let good = &captured()[0];
        for segment in 1..8 {
            let mut packet = good.clone();
            packet[SHARED + segment * 1_428 + 3] ^= 1;
            assert_eq!(Segmentation::of(&packet), Segmentation::One, "segment {segment}");
        }
        let past_the_end = {
            let mut packet = good.clone();
            packet[MESSAGE_LENGTH].copy_from_slice(&9_999u32.to_be_bytes());
            packet
        };
        assert_eq!(Segmentation::of(&past_the_end), Segmentation::One);
        // No byte behind the last offset.
        assert_eq!(Segmentation::of(&good[..good.len() - 32]), Segmentation::One);
    }

    #[test]
    fn two_lengths_that_fit_are_unclear() {
        let mut packet = captured().swap_remove(9);
        let first = read_u32(&packet, SEGMENT_OFFSET);
        packet[SHARED + 1_000..][..OWN].copy_from_slice(&(first + 996).to_be_bytes());
        assert_eq!(Segmentation::of(&packet), Segmentation::Unclear);
    }

    #[test]
    fn an_offset_in_the_sequence_counts() {
        let mut packet = captured().swap_remove(9);
        packet[SEGMENT_OFFSET].fill(0xFF);
        assert_eq!(split(&packet).len(), 2);
    }

    #[test]
    fn short_and_foreign_packets_are_one() {
        let packet = &captured()[0];
        for length in 0..700 {
            assert_eq!(Segmentation::of(&packet[..length]), Segmentation::One, "{length}");
        }
    }
}
