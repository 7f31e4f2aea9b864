//! The stamp, which Apus adds to the common header over UDP: the version of the wire format and the receiver's token (rules W30 and
//! W31).

use std::fmt;
use std::ops::Range;

use crate::COMMON_LEN;
use crate::field::{read_u32, write_u32};

/// The upper half of the token, in the place of DATA's sequence on a native link.
const TOKEN_HIGH: Range<usize> = 4..8;
const VERSION: usize = 8;
/// The lower half of the token, in the place of TCP's window and checksum.
const TOKEN_LOW: Range<usize> = 14..18;

/// A 64-bit number by which a node recognises the packets of one peer. The node chooses it and reveals it to the peer alone, which
/// sends it in every packet. A host that does not see the traffic between the two cannot guess it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Token(pub u64);

impl Token {
    /// No token. No node chooses this value.
    pub const NONE: Self = Self(0);
}

impl fmt::Debug for Token {
    /// Tokens are secrets, so a log shows only enough of a token to distinguish it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:04x}…)", self.0 >> 48)
    }
}

/// Version and token of one packet over UDP. Packets of native links have neither: there, these bytes belong to the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp {
    /// Version of the sender's wire format.
    pub version: u8,
    /// The receiver's token for the sender; in OPEN, the sender's for the receiver.
    pub token: Token,
}

impl Stamp {
    /// The version that this crate reads and writes.
    pub const VERSION: u8 = 1;

    /// Creates a stamp of this version.
    #[inline]
    #[must_use]
    pub const fn new(token: Token) -> Self {
        Self { version: Self::VERSION, token }
    }

    /// Reads the stamp of a packet. Returns `None` if the packet is shorter than a common header.
    #[inline]
    #[must_use]
    pub fn read(packet: &[u8]) -> Option<Self> {
        let common = packet.first_chunk::<COMMON_LEN>()?;
        let high = u64::from(read_u32(common, TOKEN_HIGH));
        let low = u64::from(read_u32(common, TOKEN_LOW));
        Some(Self { version: common[VERSION], token: Token(high << 32 | low) })
    }

    /// Writes the stamp over an otherwise complete packet.
    ///
    /// # Panics
    ///
    /// If the packet is shorter than a common header.
    #[inline]
    pub fn write(self, packet: &mut [u8]) {
        //= docs/wire.md#W30
        let common =
            packet.first_chunk_mut::<COMMON_LEN>().expect("every packet has a common header");
        write_u32(common, TOKEN_HIGH, (self.token.0 >> 32) as u32);
        common[VERSION] = self.version;
        //= docs/wire.md#W31
        write_u32(common, TOKEN_LOW, self.token.0 as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{FROM_SERVER, SPEC_DATA, SPEC_NEED_ACK, bytes};
    use crate::{Header, Packet, PacketType};

    const TOKEN: Token = Token(0x0102_0304_0506_0708);

    //= docs/wire.md#W30
    //= docs/wire.md#W31
    #[test]
    fn the_stamp_lies_in_bytes_the_module_ignores() {
        let mut packet = bytes(SPEC_NEED_ACK);
        Stamp::new(TOKEN).write(&mut packet);
        let expected = bytes(
            "0f a0 80 00 01 02 03 04 01 00 00 17 50 06 05 06 07 08 b9 7d 00 00 00 00 00 00 00 03",
        );
        assert_eq!(packet, expected);
        assert_eq!(Stamp::read(&packet), Some(Stamp { version: 1, token: TOKEN }));
        assert_eq!(Header::parse(&packet), Ok((PacketType::NeedAck, FROM_SERVER)));
        assert_eq!(Stamp::read(&packet[..27]), None);
    }

    #[test]
    fn data_with_an_explicit_offset_reads_the_same_with_and_without_a_stamp() {
        let mut plain = bytes(SPEC_DATA);
        plain[52..56].fill(0);
        let mut stamped = plain.clone();
        Stamp::new(TOKEN).write(&mut stamped);
        assert_eq!(Packet::parse(&stamped), Packet::parse(&plain));
    }

    #[test]
    fn a_log_does_not_show_a_token() {
        assert_eq!(format!("{TOKEN:?}"), "Token(0102…)");
    }
}
