//! ABORT: the client has given a call up (rule W41). A packet of Apus, not of Homa.

use crate::{COMMON_LEN, Header, PacketType};

/// The client no longer waits for the response; the header names the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Abort;

impl Abort {
    /// Bytes of the packet, which is a common header and nothing else. There is nothing to parse beyond
    /// [`Header::parse`].
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet and gives its length, [`Abort::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than that.
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
