//! DATA: a piece of a message (rules W8 to W12).

use std::ops::Range;

use crate::ack::Acked;
use crate::field::{read_u16, read_u32, write_u16, write_u32};
use crate::header::layout::SEQUENCE;
use crate::{DATA_HEADER_LEN, Extension, Header, PacketType, ParseError};

const MESSAGE_LENGTH: Range<usize> = 28..32;
const INCOMING: Range<usize> = 32..36;
const ACK: Range<usize> = 36..46;
const CUTOFF_VERSION: Range<usize> = 46..48;
const RETRANSMIT: usize = 48;
const APUS_FLAGS: usize = 49;
const EXTENSION_WORDS: usize = 50;
const SEGMENT_OFFSET: Range<usize> = 52..56;

/// Value of the segment offset that refers to the sequence of the common header instead.
const USE_SEQUENCE: u32 = 0xFFFF_FFFF;

/// Flags between Apus peers, in a byte of DATA that the Linux module sends as zero and never reads (rule W12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct DataFlags(pub u8);

impl DataFlags {
    /// No flags. A Linux peer sends this value.
    pub const NONE: Self = Self(0);
    /// In a request: the client awaits many responses at once, so the server should send only a small part of the response
    /// unscheduled (SIGCOMM 2018, section 3.6).
    pub const INCAST: Self = Self(1);
    /// The message is empty and travels as one byte (rule W12). Has no meaning in a longer message.
    pub const EMPTY: Self = Self(2);
    /// An extension lies between header and payload (rule W35).
    pub const EXTENDED: Self = Self(0x80);

    /// Returns whether all flags of `other` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The header of a DATA packet, without its common part. The payload follows it up to the end of the packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Data {
    /// Length of the whole message in bytes, at least 1. The core bounds it; this crate does not.
    pub message_length: u32,
    /// Offset below which all bytes arrive without another grant. At most `message_length` after parsing; 0 from the stripped Linux
    /// module.
    pub incoming: u32,
    /// A finished RPC of the sender, which is its client.
    pub ack: Option<Acked>,
    /// Version of the last CUTOFFS that the sender received from this receiver; 0 for none.
    pub cutoff_version: u16,
    /// Whether these bytes were transmitted before.
    pub retransmit: bool,
    /// Flags between Apus peers.
    pub flags: DataFlags,
    /// Message offset of the first payload byte.
    pub offset: u32,
}

impl DataFlags {
    /// Returns the union of both sets of flags.
    #[inline]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Data {
    /// Returns whether the message is empty. The one byte on the wire does not count.
    #[inline]
    #[must_use]
    pub const fn is_of_empty_message(&self) -> bool {
        //= docs/wire.md#W12
        self.message_length == 1 && self.flags.contains(DataFlags::EMPTY)
    }

    /// Length of the header in bytes.
    pub const LEN: usize = DATA_HEADER_LEN;

    /// Parses a packet whose common header has type DATA. Also returns its payload of at least one byte.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`], [`ParseError::ZeroLengthMessage`], [`ParseError::EmptyPayload`], [`ParseError::PastEnd`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((fixed, payload)) = bytes.split_first_chunk() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: Self::LEN });
        };
        //= docs/wire.md#W35
        let payload = if DataFlags(fixed[APUS_FLAGS]).contains(DataFlags::EXTENDED) {
            let skipped = 4 * usize::from(fixed[EXTENSION_WORDS]);
            let needed = Self::LEN + skipped;
            payload.get(skipped..).ok_or(ParseError::TooShort { length: bytes.len(), needed })?
        } else {
            payload
        };
        Ok((Self::parse_fixed(fixed, payload.len())?, payload))
    }

    /// Parses the header of a packet without an extension, whose payload of `length` bytes is stored elsewhere.
    ///
    /// # Errors
    ///
    /// The errors of [`parse`](Self::parse).
    #[inline]
    pub fn parse_fixed(fixed: &[u8; Self::LEN], length: usize) -> Result<Self, ParseError> {
        let message_length = read_u32(fixed, MESSAGE_LENGTH);
        //= docs/wire.md#W8
        let offset = match read_u32(fixed, SEGMENT_OFFSET) {
            USE_SEQUENCE => read_u32(fixed, SEQUENCE),
            explicit => explicit,
        };
        //= docs/wire.md#W9
        if message_length == 0 {
            return Err(ParseError::ZeroLengthMessage);
        }
        if length == 0 {
            return Err(ParseError::EmptyPayload);
        }
        if u64::from(offset) + length as u64 > u64::from(message_length) {
            return Err(ParseError::PastEnd { offset, payload: length, message_length });
        }
        Ok(Self {
            message_length,
            //= docs/wire.md#W10
            incoming: read_u32(fixed, INCOMING).min(message_length),
            ack: Acked::parse(fixed[ACK].try_into().expect("the range spans one entry")),
            cutoff_version: read_u16(fixed, CUTOFF_VERSION),
            retransmit: fixed[RETRANSMIT] != 0,
            //= docs/wire.md#W12
            flags: DataFlags(fixed[APUS_FLAGS]),
            offset,
        })
    }

    /// Upper bound on the bytes before the payload of a packet that Apus sends.
    pub const LEN_MAX: usize = Self::LEN + Extension::LEN_MAX;

    /// Writes the whole header and the extension, unless that is empty. Returns the length of both.
    #[inline]
    pub fn emit_extended(
        &self,
        header: &Header,
        extension: &Extension,
        buffer: &mut [u8; Self::LEN_MAX],
    ) -> usize {
        //= docs/wire.md#W35
        let (fixed, words) =
            buffer.split_first_chunk_mut().expect("the buffer is longer than the header");
        self.emit(header, fixed);
        if extension.is_empty() {
            return Self::LEN;
        }
        let length = extension.len();
        fixed[APUS_FLAGS] |= DataFlags::EXTENDED.0;
        fixed[EXTENSION_WORDS] = (length / 4) as u8;
        words.fill(0);
        extension.emit(words);
        Self::LEN + length
    }

    /// Writes the length of the extension into a header that was [emitted](Self::emit): whole words, at most 255.
    pub(crate) fn set_extension_len(header: &mut [u8; Self::LEN], length: usize) {
        header[EXTENSION_WORDS] = (length / 4) as u8;
    }

    /// Parses the extension of a DATA packet, up to an item that does not fit. Skips items of other types or lengths, and trace
    /// contexts with an id of zeros. The first of two items of one type counts.
    #[must_use]
    pub fn extension(packet: &[u8]) -> Extension {
        Extension::parse(Self::extension_words(packet))
    }

    /// Parses the words of an extension, as [`extension`](Self::extension) does.
    #[must_use]
    pub fn parse_extension(words: &[u8]) -> Extension {
        Extension::parse(words)
    }

    /// Returns the words between header and payload; none if the packet has no extension, or ends before it does.
    #[must_use]
    pub fn extension_words(packet: &[u8]) -> &[u8] {
        let Some(&words) = packet.get(EXTENSION_WORDS) else { return &[] };
        if !DataFlags(packet[APUS_FLAGS]).contains(DataFlags::EXTENDED) {
            return &[];
        }
        packet.get(Self::LEN..Self::LEN + 4 * usize::from(words)).unwrap_or_default()
    }

    /// Writes the whole header. Both the sequence and the segment offset carry the offset, so that every receiver finds it, with or
    /// without Linux's GRO.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8; DATA_HEADER_LEN]) {
        *buffer = [0; DATA_HEADER_LEN];
        let common =
            buffer.first_chunk_mut().expect("the header of DATA starts with the common one");
        header.emit(PacketType::Data, self.offset, common);
        write_u32(buffer, MESSAGE_LENGTH, self.message_length);
        write_u32(buffer, INCOMING, self.incoming);
        if let Some(ack) = self.ack {
            ack.emit((&mut buffer[ACK]).try_into().expect("the range spans one entry"));
        }
        write_u16(buffer, CUTOFF_VERSION, self.cutoff_version);
        buffer[RETRANSMIT] = u8::from(self.retransmit);
        buffer[APUS_FLAGS] = self.flags.0;
        write_u32(buffer, SEGMENT_OFFSET, self.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{
        FROM_CLIENT, LINUX_FIRST_REQUEST, LINUX_LAST_OF_60000, LINUX_PIGGYBACKED_ACK, SPEC_DATA,
        bytes, without_checksum,
    };
    use crate::{Packet, RpcId};

    const REQUEST: Data = Data {
        message_length: 20,
        incoming: 20,
        ack: None,
        cutoff_version: 0,
        retransmit: false,
        flags: DataFlags::NONE,
        offset: 0,
    };

    fn parse(packet: &[u8]) -> Result<(Header, Data, &[u8]), ParseError> {
        match Packet::parse(packet)? {
            Packet::Data { header, data, payload } => Ok((header, data, payload)),
            other => panic!("not DATA: {other:?}"),
        }
    }

    /// Returns the payload of a captured packet. Word i of eight bytes is 31 i + 7.
    fn captured(offset: u32, length: u32) -> Vec<u8> {
        (offset..offset + length).map(|i| (31 * u64::from(i) + 7).to_le_bytes()[0]).collect()
    }

    #[test]
    fn parses_the_spec_packet() {
        let packet = bytes(SPEC_DATA);
        let payload: Vec<u8> = (1..=20).collect();
        assert_eq!(parse(&packet), Ok((FROM_CLIENT, REQUEST, &payload[..])));
    }

    #[test]
    fn parses_a_first_transmission_of_linux() {
        let packet = bytes(LINUX_FIRST_REQUEST);
        let (header, data, payload) = parse(&packet).unwrap();
        assert_eq!(header, Header { source_port: 32768, dest_port: 4100, sender_id: RpcId(2) });
        assert_eq!(data, Data { message_length: 100, incoming: 100, ..REQUEST });
        assert_eq!(payload[..8], [100, 0, 0, 0, 100, 0, 0, 0]);
        assert_eq!(payload[8..], captured(8, 92));
    }

    #[test]
    fn parses_a_piggybacked_ack_of_linux() {
        let packet = bytes(LINUX_PIGGYBACKED_ACK);
        let (header, data, payload) = parse(&packet).unwrap();
        assert_eq!(header.sender_id, RpcId(8));
        assert_eq!(data.ack, Some(Acked { client_id: RpcId(6), server_port: 4100 }));
        assert_eq!(data.cutoff_version, 1);
        assert_eq!(payload.len(), 100);
    }

    #[test]
    fn finds_the_offset_in_the_sequence() {
        //= docs/wire.md#W8
        let packet = bytes(LINUX_LAST_OF_60000);
        let (_, data, payload) = parse(&packet).unwrap();
        assert_eq!((data.offset, data.message_length, data.incoming), (59_936, 60_000, 40_000));
        assert_eq!(payload, captured(59_936, 64));
    }

    #[test]
    fn prefers_the_explicit_offset() {
        //= docs/wire.md#W8
        let mut packet = bytes(LINUX_LAST_OF_60000);
        packet[SEGMENT_OFFSET].copy_from_slice(&1000_u32.to_be_bytes());
        assert_eq!(parse(&packet).unwrap().1.offset, 1000);
    }

    #[test]
    fn emits_both_offsets() {
        //= docs/wire.md#W8
        let mut expected = without_checksum(SPEC_DATA);
        expected.truncate(DATA_HEADER_LEN);
        expected[SEGMENT_OFFSET].copy_from_slice(&16_u32.to_be_bytes());
        expected[SEQUENCE].copy_from_slice(&16_u32.to_be_bytes());
        let mut buffer = [0xA5; DATA_HEADER_LEN];
        Data { offset: 16, ..REQUEST }.emit(&FROM_CLIENT, &mut buffer);
        assert_eq!(buffer.to_vec(), expected);
    }

    #[test]
    fn emits_every_field_in_its_place() {
        let data = Data {
            message_length: 0x0102_0304,
            incoming: 0x0001_0203,
            ack: Some(Acked { client_id: RpcId(0x1112_1314_1516_1718), server_port: 0x191A }),
            cutoff_version: 0x1B1C,
            retransmit: true,
            flags: DataFlags::INCAST,
            offset: 0x0000_2122,
        };
        let mut buffer = [0xA5; DATA_HEADER_LEN];
        data.emit(&FROM_CLIENT, &mut buffer);
        let expected = bytes(
            "80 00 0f a0 00 00 21 22 00 00 00 10 e0 06 00 00 00 00 b9 7d 00 00 00 00 00 00 00 02 01 02 03 04
             00 01 02 03 11 12 13 14 15 16 17 18 19 1a 1b 1c 01 01 00 00 00 00 21 22",
        );
        assert_eq!(buffer.to_vec(), expected);
    }

    #[test]
    fn clips_incoming_to_the_message() {
        //= docs/wire.md#W10
        let mut packet = bytes(SPEC_DATA);
        packet[INCOMING].copy_from_slice(&21_u32.to_be_bytes());
        assert_eq!(parse(&packet).unwrap().1.incoming, 20);
        packet[INCOMING].fill(0);
        assert_eq!(parse(&packet).unwrap().1.incoming, 0);
    }

    #[test]
    fn takes_id_zero_for_no_ack() {
        //= docs/wire.md#W11
        let mut packet = bytes(LINUX_PIGGYBACKED_ACK);
        packet[36..44].fill(0);
        assert_eq!(parse(&packet).unwrap().1.ack, None);
    }

    #[test]
    fn keeps_the_flags_it_does_not_know() {
        //= docs/wire.md#W12
        let mut packet = bytes(SPEC_DATA);
        packet[APUS_FLAGS] = 0x43;
        packet[50..52].fill(0xFF);
        let flags = parse(&packet).unwrap().1.flags;
        assert_eq!(flags, DataFlags(0x43));
        assert!(flags.contains(DataFlags::INCAST) && flags.contains(DataFlags::NONE));
        assert!(!DataFlags::NONE.contains(DataFlags::INCAST));
        assert_eq!(DataFlags::INCAST.with(DataFlags::EMPTY), DataFlags(3));
    }

    //= docs/wire.md#W35
    #[test]
    fn skips_an_extension() {
        let plain = bytes(SPEC_DATA);
        let (header, payload) = plain.split_at(DATA_HEADER_LEN);
        let extended = |words: u8| {
            let mut header = header.to_vec();
            header[APUS_FLAGS] = DataFlags::EXTENDED.0;
            header[EXTENSION_WORDS] = words;
            [&header[..], &vec![0xEE; 4 * usize::from(words)], payload].concat()
        };
        for words in [0, 1, 9] {
            let packet = extended(words);
            let (_, data, rest) = parse(&packet).unwrap();
            assert_eq!((data.flags, rest), (DataFlags::EXTENDED, payload));
        }
        let mut short = extended(0);
        short[EXTENSION_WORDS] = 6;
        let too_short = ParseError::TooShort { length: 76, needed: 80 };
        assert_eq!(parse(&short), Err(too_short));
    }

    #[test]
    fn refuses_what_is_no_piece_of_a_message() {
        //= docs/wire.md#W9
        let packet = bytes(SPEC_DATA);
        let mut zero = packet.clone();
        zero[MESSAGE_LENGTH].fill(0);
        assert_eq!(parse(&zero), Err(ParseError::ZeroLengthMessage));
        assert_eq!(parse(&packet[..DATA_HEADER_LEN]), Err(ParseError::EmptyPayload));
        let mut longer = packet.clone();
        longer.push(0);
        let past_end = ParseError::PastEnd { offset: 0, payload: 21, message_length: 20 };
        assert_eq!(parse(&longer), Err(past_end));
        let mut far = packet.clone();
        far[SEGMENT_OFFSET].copy_from_slice(&0xFFFF_FFFE_u32.to_be_bytes());
        let past_end =
            ParseError::PastEnd { offset: u32::MAX - 1, payload: 20, message_length: 20 };
        assert_eq!(parse(&far), Err(past_end));
        //= docs/wire.md#W2
        let too_short = ParseError::TooShort { length: 55, needed: 56 };
        assert_eq!(parse(&packet[..55]), Err(too_short));
    }
}
