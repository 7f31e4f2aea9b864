//! FREEZE: a debugging aid of the Linux module, which stops its time trace (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

/// Stop recording. Apus never sends it and ignores it; it may carry destination port 0 and id 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Freeze;

impl Freeze {
    /// Bytes of the packet, which is a common header and nothing else. There is nothing to parse beyond
    /// [`Header::parse`].
    pub const LEN: usize = COMMON_LEN;

    /// Writes the whole packet and gives its length, [`Freeze::LEN`].
    ///
    /// # Panics
    ///
    /// When the buffer is shorter than that.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        header.emit_control::<{ Self::LEN }>(PacketType::Freeze, buffer);
        Self::LEN
    }
}
