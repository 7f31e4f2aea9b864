//! ABORT: the client gives a call up (rule W41). A packet of Apus, not of Homa.

use crate::{COMMON_LEN, Header, PacketType};

/// The client no longer waits for the response; the header names the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Abort;

impl Abort {
    /// Length of the packet in bytes. The packet is a bare common header, so [`Header::parse`] parses all of it.
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet. Returns its length, [`Abort::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        header.emit_control::<{ Self::LEN }>(PacketType::Abort, buffer);
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{FROM_CLIENT, assert_lengths, emitted};

    #[test]
    fn emits_and_parses() {
        //= docs/wire.md#W41
        let packet = emitted(|buffer| Abort.emit(&FROM_CLIENT, buffer));
        assert_eq!(packet[11], 0x1C);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Abort { header: FROM_CLIENT }));
        assert_lengths(&packet, 28);
    }
}
