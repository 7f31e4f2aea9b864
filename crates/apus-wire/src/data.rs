//! DATA: a piece of a message (rules W7 to W12).

use std::ops::Range;

use crate::ack::Acked;
use crate::field::{read_u16, read_u32, write_u16, write_u32};
use crate::header::layout::SEQUENCE;
use crate::{DATA_HEADER_LEN, Header, PacketType, ParseError};

const MESSAGE_LENGTH: Range<usize> = 28..32;
const INCOMING: Range<usize> = 32..36;
const ACK: Range<usize> = 36..46;
const CUTOFF_VERSION: Range<usize> = 46..48;
const RETRANSMIT: usize = 48;
const APUS_FLAGS: usize = 49;
const SEGMENT_OFFSET: Range<usize> = 52..56;

/// In the segment's offset: the true one is in the common header's sequence.
const USE_SEQUENCE: u32 = 0xFFFF_FFFF;

/// What Apus peers tell each other in a byte of DATA that the Linux module sends as zero and never reads (rule W12).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct DataFlags(pub u8);

impl DataFlags {
    /// Nothing to tell; what a Linux peer sends.
    pub const NONE: Self = Self(0);
    /// In a request: the client awaits many responses at once, so the server should send only a little of the response
    /// unscheduled (SIGCOMM 2018, section 3.6).
    pub const INCAST: Self = Self(1);

    /// Whether all flags of `other` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The header of a DATA packet, without its common part. The payload follows it and has no length of its own: it ends where the
/// packet does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Data {
    /// Bytes of the whole message, at least 1. No maximum here: the core decides.
    pub message_length: u32,
    /// The receiver may count on all bytes below this offset without granting again. At most `message_length` after parsing; 0
    /// from the stripped Linux module.
    pub incoming: u32,
    /// An RPC that the sender, as a client, has finished with.
    pub ack: Option<Acked>,
    /// Version of the CUTOFFS the sender last got from this receiver; 0 for none yet.
    pub cutoff_version: u16,
    /// Whether this was sent before.
    pub retransmit: bool,
    /// Flags between Apus peers.
    pub flags: DataFlags,
    /// Message offset of the first payload byte.
    pub offset: u32,
}

impl Data {
    /// Bytes before the payload.
    pub const LEN: usize = DATA_HEADER_LEN;

    /// Reads a packet whose common header said DATA, and gives its payload, which is at least one byte.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`], [`ParseError::ZeroLengthMessage`], [`ParseError::EmptyPayload`], [`ParseError::PastEnd`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let Some((fixed, payload)) = bytes.split_first_chunk::<{ Self::LEN }>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: Self::LEN });
        };
        let message_length = read_u32(fixed, MESSAGE_LENGTH);
        let offset = match read_u32(fixed, SEGMENT_OFFSET) {
            USE_SEQUENCE => read_u32(fixed, SEQUENCE),
            explicit => explicit,
        };
        if message_length == 0 {
            return Err(ParseError::ZeroLengthMessage);
        }
        if payload.is_empty() {
            return Err(ParseError::EmptyPayload);
        }
        if u64::from(offset) + payload.len() as u64 > u64::from(message_length) {
            return Err(ParseError::PastEnd { offset, payload: payload.len(), message_length });
        }
        let data = Self {
            message_length,
            incoming: read_u32(fixed, INCOMING).min(message_length),
            ack: Acked::parse(fixed[ACK].try_into().expect("the range spans one entry")),
            cutoff_version: read_u16(fixed, CUTOFF_VERSION),
            retransmit: fixed[RETRANSMIT] != 0,
            flags: DataFlags(fixed[APUS_FLAGS]),
            offset,
        };
        Ok((data, payload))
    }

    /// Writes the whole header. The offset goes into both the sequence and the segment's offset, so that any receiver finds it,
    /// with or without Linux's GRO.
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
