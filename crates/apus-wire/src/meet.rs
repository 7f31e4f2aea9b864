//! MEET: a process proves that it is the other end of a unix socket (rule W42). A packet of Apus, not of Homa.

use std::ops::Range;

use crate::field::{read_u64, write_u64};
use crate::{COMMON_LEN, Header, PacketType, ParseError};

const NONCE_HIGH: Range<usize> = 28..36;
const NONCE_LOW: Range<usize> = 36..44;
const PLACE: Range<usize> = 44..52;

/// A nonce from a unix socket, returned to the node that must have sent it there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Meet {
    /// The 128-bit nonce from the socket, upper half first.
    pub nonce: [u64; 2],
    /// Number of the listener by which the client connected.
    pub place: u64,
}

impl Meet {
    /// Length of the packet in bytes.
    pub const LEN: usize = COMMON_LEN + 24;

    /// Parses a packet whose common header has type MEET.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk::<{ Self::LEN }>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: Self::LEN });
        };
        let nonce = [read_u64(fixed, NONCE_HIGH), read_u64(fixed, NONCE_LOW)];
        Ok(Self { nonce, place: read_u64(fixed, PLACE) })
    }

    /// Writes the whole packet without its stamp. Returns its length, [`Meet::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        //= docs/wire.md#W42
        let packet = header.emit_control::<{ Self::LEN }>(PacketType::Meet, buffer);
        write_u64(packet, NONCE_HIGH, self.nonce[0]);
        write_u64(packet, NONCE_LOW, self.nonce[1]);
        write_u64(packet, PLACE, self.place);
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{FROM_CLIENT, assert_lengths, bytes, emitted};

    #[test]
    fn carries_a_nonce_and_a_place() {
        //= docs/wire.md#W42
        let nonce = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718];
        let meet = Meet { nonce, place: 0x2122_2324_2526_2728 };
        let packet = emitted(|buffer| meet.emit(&FROM_CLIENT, buffer));
        let expected = bytes(
            "80 00 0f a0 00 00 00 00 00 00 00 1d 50 06 00 00 00 00 b9 7d 00 00 00 00 00 00 00 02
             01 02 03 04 05 06 07 08 11 12 13 14 15 16 17 18 21 22 23 24 25 26 27 28",
        );
        assert_eq!(packet, expected);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Meet { header: FROM_CLIENT, meet }));
        assert_lengths(&packet, 52);
    }
}
