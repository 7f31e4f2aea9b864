//! BUSY: the answer to a RESEND if the sender has nothing to transmit yet (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

/// The sender is alive and has nothing to transmit yet: the RPC is in service, or more urgent messages go first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Busy;

impl Busy {
    /// Length of the packet in bytes. The packet is a bare common header, so [`Header::parse`] parses all of it.
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet. Returns its length, [`Busy::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
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
