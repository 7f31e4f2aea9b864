//! RESEND: the receiver of a message misses a part of it (rules W14 to W16).

use std::ops::Range;

use crate::field::{read_u32, write_u32};
use crate::{Header, PacketType, ParseError, Priority};

const OFFSET: Range<usize> = 28..32;
const LENGTH: Range<usize> = 32..36;
const PRIORITY: usize = 36;

/// Length of the RESEND of the stripped Linux module, which has no priorities.
const WITHOUT_PRIORITY: usize = 36;
/// As a length: nothing has arrived yet.
const EVERYTHING: i32 = -1;

/// The body of a RESEND.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Resend {
    /// Message offset of the first byte wanted.
    pub offset: u32,
    /// Bytes wanted. `None`: nothing of the message has arrived, send again whatever was sent. The wire has 31 bits for it.
    pub length: Option<u32>,
    /// For the retransmitted packets.
    pub priority: Priority,
}

impl Resend {
    /// Bytes of the packet as sent.
    pub const LEN: usize = 37;

    /// Reads a packet whose common header said RESEND. One of 36 bytes has no priority and gets the highest.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`], [`ParseError::NegativeLength`], [`ParseError::BadPriority`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk::<WITHOUT_PRIORITY>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: WITHOUT_PRIORITY });
        };
        let length = match read_u32(fixed, LENGTH).cast_signed() {
            EVERYTHING => None,
            length => match u32::try_from(length) {
                Ok(length) => Some(length),
                Err(_) => return Err(ParseError::NegativeLength(length)),
            },
        };
        let level = bytes.get(PRIORITY).copied().unwrap_or(Priority::HIGHEST.get());
        let Some(priority) = Priority::new(level) else {
            return Err(ParseError::BadPriority(level));
        };
        Ok(Self { offset: read_u32(fixed, OFFSET), length, priority })
    }

    /// Writes the whole packet and gives its length, [`Resend::LEN`]. A length of 2 GiB or more is sent as one byte less than
    /// 2 GiB, the most the field can say.
    ///
    /// # Panics
    ///
    /// When the buffer is shorter than that.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        let packet = header.emit_control::<{ Self::LEN }>(PacketType::Resend, buffer);
        let length = match self.length {
            Some(length) => i32::try_from(length).unwrap_or(i32::MAX),
            None => EVERYTHING,
        };
        write_u32(packet, OFFSET, self.offset);
        write_u32(packet, LENGTH, length.cast_unsigned());
        packet[PRIORITY] = self.priority.get();
        Self::LEN
    }
}
