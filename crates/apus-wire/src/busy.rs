//! BUSY: the answer to a RESEND when there is nothing to send yet (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

/// The sender lives and has nothing to send at the moment: the RPC is in service, or more urgent messages go first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Busy;

impl Busy {
    /// Bytes of the packet, which is a common header and nothing else. There is nothing to parse beyond
    /// [`Header::parse`].
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet and gives its length, [`Busy::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than that.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        header.emit_control::<{ Self::LEN }>(PacketType::Busy, buffer);
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{FROM_SERVER, assert_lengths, bytes, emitted};

    #[test]
    fn emits_and_parses() {
        //= docs/wire.md#W19
        let packet = emitted(|buffer| Busy.emit(&FROM_SERVER, buffer));
        let expected = bytes(
            "0f a0 80 00 00 00 00 00 00 00 00 14 50 06 00 00 00 00 b9 7d 00 00 00 00 00 00 00 03",
        );
        assert_eq!(packet, expected);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Busy { header: FROM_SERVER }));
        assert_lengths(&packet, 28);
    }
}
