//! NEED_ACK: the server asks whether the client has the whole response (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

/// The server wants to forget the RPC: the client should acknowledge it, or request the missing bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NeedAck;

impl NeedAck {
    /// Length of the packet in bytes. The packet is a bare common header, so [`Header::parse`] parses all of it.
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet. Returns its length, [`NeedAck::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        header.emit_control::<{ Self::LEN }>(PacketType::NeedAck, buffer);
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{
        FROM_SERVER, LINUX_NEED_ACK, SPEC_NEED_ACK, assert_lengths, bytes, emitted,
        without_checksum,
    };
    use crate::{Packet, RpcId};

    #[test]
    fn emits_and_parses_the_spec_packet() {
        //= docs/wire.md#W19
        let packet = emitted(|buffer| NeedAck.emit(&FROM_SERVER, buffer));
        assert_eq!(packet, without_checksum(SPEC_NEED_ACK));
        assert_eq!(Packet::parse(&packet), Ok(Packet::NeedAck { header: FROM_SERVER }));
        assert_lengths(&packet, 28);
    }

    #[test]
    fn parses_a_packet_of_linux() {
        let packet = bytes(LINUX_NEED_ACK);
        let header = Header { source_port: 4100, dest_port: 32768, sender_id: RpcId(3) };
        assert_eq!(Packet::parse(&packet), Ok(Packet::NeedAck { header }));
    }
}
