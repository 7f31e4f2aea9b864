//! What a raw link can be asked for.

use crate::paths::Encapsulation;
use crate::udp::{LinkError, check_buffers, check_setting};

/// Longest Homa packet a raw link sends: what fits an IPv4 packet of 65,535 bytes.
pub const MAX_NATIVE: usize = 65_515;

/// How a [`RawLink`](super::RawLink) is opened.
///
/// # Defaults
///
/// Receive buffer 8 MiB, send buffer 4 MiB, packets as long as the path takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawConfig {
    pub(super) receive_buffer: usize,
    pub(super) send_buffer: usize,
    pub(super) max_packet: usize,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self { receive_buffer: 8 << 20, send_buffer: 4 << 20, max_packet: MAX_NATIVE }
    }
}

impl RawConfig {
    /// Shortest packet limit that makes sense: what every IPv4 host must take (576 bytes), less the IP header.
    pub const MAX_PACKET_MIN: usize = 556;

    /// Receive buffer to ask for, in bytes; default 8 MiB. What the kernel refuses is not an error:
    /// [`Capabilities`](crate::Capabilities) tells what was granted.
    pub fn receive_buffer(&mut self, bytes: usize) -> &mut Self {
        self.receive_buffer = bytes;
        self
    }

    /// Send buffer to ask for, in bytes; default 4 MiB.
    pub fn send_buffer(&mut self, bytes: usize) -> &mut Self {
        self.send_buffer = bytes;
        self
    }

    /// Upper limit for a packet, header and payload in bytes, even where the path takes more;
    /// [`MAX_PACKET_MIN`](Self::MAX_PACKET_MIN) to [`MAX_NATIVE`], which is the default.
    pub fn max_packet(&mut self, bytes: usize) -> &mut Self {
        self.max_packet = bytes;
        self
    }

    /// What opening a link does first.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        check_setting("max_packet", self.max_packet, Self::MAX_PACKET_MIN..=MAX_NATIVE)?;
        check_buffers(self.receive_buffer, self.send_buffer)
    }

    /// The Homa packet follows the IP header.
    pub(super) fn encapsulation(&self) -> Encapsulation {
        Encapsulation { header: 0, longest: self.max_packet }
    }
}
