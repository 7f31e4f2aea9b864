//! The configuration of a raw link.

use crate::paths::Encapsulation;
use crate::plain_peers::PlainPeers;
use crate::udp::{LinkError, check_buffers, check_setting};

/// Length of the longest Homa packet of a raw link: the payload of an IPv4 packet of 65,535 bytes.
pub const MAX_NATIVE: usize = 65_515;

/// Configuration of a [`RawLink`](super::RawLink).
///
/// # Defaults
///
/// Receive buffer 8 MiB, send buffer 4 MiB, packets as long as the path allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawConfig {
    pub(super) receive_buffer: usize,
    pub(super) send_buffer: usize,
    pub(super) max_packet: usize,
    pub(super) plain_peers: PlainPeers,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            receive_buffer: 8 << 20,
            send_buffer: 4 << 20,
            max_packet: MAX_NATIVE,
            plain_peers: PlainPeers::All,
        }
    }
}

impl RawConfig {
    /// Minimum of the packet limit: the 576 bytes that every IPv4 host must accept, less the IP header.
    pub const MAX_PACKET_MIN: usize = 556;

    /// Receive buffer to request, in bytes; default 8 MiB. If the kernel grants less, that is not an error:
    /// [`Capabilities`](crate::Capabilities) has the granted size.
    pub fn receive_buffer(&mut self, bytes: usize) -> &mut Self {
        self.receive_buffer = bytes;
        self
    }

    /// Send buffer to request, in bytes; default 4 MiB.
    pub fn send_buffer(&mut self, bytes: usize) -> &mut Self {
        self.send_buffer = bytes;
        self
    }

    /// Upper bound on a packet, header and payload in bytes, even if the path allows more; [`MAX_PACKET_MIN`](Self::MAX_PACKET_MIN)
    /// to [`MAX_NATIVE`], the default.
    pub fn max_packet(&mut self, bytes: usize) -> &mut Self {
        self.max_packet = bytes;
        self
    }

    /// Hosts with which the link exchanges packets, none of which is encrypted; default all. Paths to other hosts are barred
    /// ([`PathId::is_barred`](apus_wire::PathId::is_barred)).
    pub fn plain_peers(&mut self, peers: PlainPeers) -> &mut Self {
        self.plain_peers = peers;
        self
    }

    /// Checks the configuration before a link is opened.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        check_setting("max_packet", self.max_packet, Self::MAX_PACKET_MIN..=MAX_NATIVE)?;
        check_buffers(self.receive_buffer, self.send_buffer)
    }

    /// Returns the overhead: none, because the Homa packet follows the IP header.
    pub(super) fn encapsulation(&self) -> Encapsulation {
        Encapsulation { header: 0, longest: self.max_packet }
    }
}
