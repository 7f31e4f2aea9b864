//! FREEZE: a debugging aid that stops the time trace of the peer (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

/// Asks the peer to stop recording, because a call was slow. Apus sends the ports and the id of the call; the Linux module sends
/// destination port 0 and id 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Freeze;

impl Freeze {
    /// Length of the packet in bytes. The packet is a bare common header, so [`Header::parse`] parses all of it.
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet. Returns its length, [`Freeze::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        header.emit_control::<{ Self::LEN }>(PacketType::Freeze, buffer);
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{assert_lengths, bytes, emitted};
    use crate::{Packet, RpcId};

    #[test]
    fn emits_and_parses() {
        //= docs/wire.md#W19
        let header = Header { source_port: 4000, dest_port: 0, sender_id: RpcId(0) };
        let packet = emitted(|buffer| Freeze.emit(&header, buffer));
        let expected = bytes(
            "0f a0 00 00 00 00 00 00 00 00 00 16 50 06 00 00 00 00 b9 7d 00 00 00 00 00 00 00 00",
        );
        assert_eq!(packet, expected);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Freeze { header }));
        assert_lengths(&packet, 28);
    }
}
