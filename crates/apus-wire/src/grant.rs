//! GRANT: the receiver of a message permits its sender to transmit more (rules W13 and W16).

use std::ops::Range;

use crate::field::{read_u32, write_u32};
use crate::{Header, PacketType, ParseError, Priority};

const OFFSET: Range<usize> = 28..32;
const PRIORITY: usize = 32;

/// Length of the shortest GRANT in use, sent by the Linux module since July 2025.
const SHORTEST: usize = 33;

/// The body of a GRANT.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// Offset below which the sender may transmit all bytes. It may lie beyond the end of the message, or below an earlier grant;
    /// neither is an error.
    pub offset: u32,
    /// Priority of the message's scheduled packets until the next GRANT.
    pub priority: Priority,
}

impl Grant {
    /// Length of the packet as sent, in bytes. It is one more than the module sends, because modules up to April 2025 drop shorter
    /// packets, and later modules ignore the surplus.
    pub const LEN: usize = 34;

    /// Parses a packet whose common header has type GRANT, of 33 bytes or more.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`], [`ParseError::BadPriority`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk::<SHORTEST>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: SHORTEST });
        };
        //= docs/wire.md#W16
        let level = fixed[PRIORITY];
        let Some(priority) = Priority::new(level) else {
            return Err(ParseError::BadPriority(level));
        };
        Ok(Self { offset: read_u32(fixed, OFFSET), priority })
    }

    /// Writes the whole packet. Returns its length, [`Grant::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        let packet = header.emit_control::<{ Self::LEN }>(PacketType::Grant, buffer);
        write_u32(packet, OFFSET, self.offset);
        packet[PRIORITY] = self.priority.get();
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{
        FROM_SERVER, LINUX_GRANT, SPEC_GRANT, assert_lengths, bytes, emitted, without_checksum,
    };

    const GRANT: Grant = Grant { offset: 90_000, priority: Priority::clamped(2) };

    #[test]
    fn parses_the_spec_packet() {
        //= docs/wire.md#W13
        let packet = bytes(SPEC_GRANT);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Grant { header: FROM_SERVER, grant: GRANT }));
        assert_lengths(&packet, 33);
    }

    #[test]
    fn parses_a_packet_of_linux() {
        let grant = Grant { offset: 60_000, priority: Priority::LOWEST };
        assert_eq!(Grant::parse(&bytes(LINUX_GRANT)), Ok(grant));
    }

    #[test]
    fn emits_one_byte_more_than_linux() {
        //= docs/wire.md#W13
        let mut expected = without_checksum(SPEC_GRANT);
        expected.push(0);
        let packet = emitted(|buffer| GRANT.emit(&FROM_SERVER, buffer));
        assert_eq!(packet, expected);
        assert_eq!(Grant::parse(&packet), Ok(GRANT));
    }

    #[test]
    fn refuses_a_priority_above_seven() {
        //= docs/wire.md#W16
        let mut packet = bytes(SPEC_GRANT);
        packet[PRIORITY] = 8;
        assert_eq!(Grant::parse(&packet), Err(ParseError::BadPriority(8)));
    }
}
