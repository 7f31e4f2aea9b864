//! NEED_ACK: the server asks whether the client has the whole response (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

/// The server would like to forget the RPC: acknowledge it, or ask for what is missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NeedAck;

impl NeedAck {
    /// Bytes of the packet, which is a common header and nothing else. There is nothing to parse beyond
    /// [`Header::parse`].
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet and gives its length, [`NeedAck::LEN`].
    ///
    /// # Panics
    ///
    /// When the buffer is shorter than that.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        header.emit_control::<{ Self::LEN }>(PacketType::NeedAck, buffer);
        Self::LEN
    }
}
