//! RESEND: the receiver of a message requests a missing part of it (rules W14 to W16).

use std::ops::Range;

use crate::field::{read_u32, write_u32};
use crate::{Header, PacketType, ParseError, Priority};

const OFFSET: Range<usize> = 28..32;
const LENGTH: Range<usize> = 32..36;
const PRIORITY: usize = 36;

/// Length of the RESEND of the stripped Linux module, which has no priorities.
const WITHOUT_PRIORITY: usize = 36;
/// Value of the length that means that nothing has arrived yet.
const EVERYTHING: i32 = -1;

/// The body of a RESEND.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Resend {
    /// Message offset of the first requested byte.
    pub offset: u32,
    /// Number of requested bytes. `None`: no byte of the message has arrived, so the receiver requests all transmitted bytes. The
    /// field has 31 bits on the wire.
    pub length: Option<u32>,
    /// The priority of the retransmitted packets.
    pub priority: Priority,
}

impl Resend {
    /// Length of the packet as sent, in bytes.
    pub const LEN: usize = 37;

    /// Parses a packet whose common header has type RESEND. A packet of 36 bytes has no priority and means the highest.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`], [`ParseError::NegativeLength`], [`ParseError::BadPriority`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk::<WITHOUT_PRIORITY>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: WITHOUT_PRIORITY });
        };
        //= docs/wire.md#W15
        let length = match read_u32(fixed, LENGTH).cast_signed() {
            EVERYTHING => None,
            length => match u32::try_from(length) {
                Ok(length) => Some(length),
                Err(_) => return Err(ParseError::NegativeLength(length)),
            },
        };
        //= docs/wire.md#W14
        let level = bytes.get(PRIORITY).copied().unwrap_or(Priority::HIGHEST.get());
        //= docs/wire.md#W16
        let Some(priority) = Priority::new(level) else {
            return Err(ParseError::BadPriority(level));
        };
        Ok(Self { offset: read_u32(fixed, OFFSET), length, priority })
    }

    /// Writes the whole packet. Returns its length, [`Resend::LEN`]. Sends a length of 2 GiB or more as 2,147,483,647, the maximum
    /// of the field.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{
        FROM_CLIENT, SPEC_RESEND, assert_lengths, bytes, emitted, without_checksum,
    };

    const ALL: Resend = Resend { offset: 0, length: None, priority: Priority::HIGHEST };

    #[test]
    fn parses_the_spec_packet() {
        //= docs/wire.md#W15
        let packet = bytes(SPEC_RESEND);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Resend { header: FROM_CLIENT, resend: ALL }));
        assert_lengths(&packet, 36);
    }

    #[test]
    fn emits_the_spec_packet() {
        //= docs/wire.md#W14
        let packet = emitted(|buffer| ALL.emit(&FROM_CLIENT, buffer));
        assert_eq!(packet, without_checksum(SPEC_RESEND));
    }

    #[test]
    fn a_packet_without_priority_has_the_highest() {
        //= docs/wire.md#W14
        let mut packet = bytes(SPEC_RESEND);
        packet[PRIORITY] = 3;
        assert_eq!(Resend::parse(&packet).unwrap().priority, Priority::clamped(3));
        assert_eq!(Resend::parse(&packet[..36]), Ok(ALL));
    }

    #[test]
    fn names_a_range() {
        let resend = Resend { offset: 1424, length: Some(2848), priority: Priority::clamped(5) };
        let packet = emitted(|buffer| resend.emit(&FROM_CLIENT, buffer));
        assert_eq!(packet[28..], bytes("00 00 05 90 00 00 0b 20 05"));
        assert_eq!(Resend::parse(&packet), Ok(resend));
    }

    #[test]
    fn a_length_ends_below_two_gibibytes() {
        //= docs/wire.md#W15
        let most = Resend { length: Some(u32::MAX), ..ALL };
        let packet = emitted(|buffer| most.emit(&FROM_CLIENT, buffer));
        assert_eq!(Resend::parse(&packet).unwrap().length, Some(0x7FFF_FFFF));
        let mut negative = packet;
        for length in [-2, i32::MIN] {
            write_u32(&mut negative, LENGTH, length.cast_unsigned());
            assert_eq!(Resend::parse(&negative), Err(ParseError::NegativeLength(length)));
        }
    }

    #[test]
    fn refuses_a_priority_above_seven() {
        //= docs/wire.md#W16
        let mut packet = bytes(SPEC_RESEND);
        packet[PRIORITY] = 0xFF;
        assert_eq!(Resend::parse(&packet), Err(ParseError::BadPriority(0xFF)));
    }
}
