//! What is left of a link when its node has stopped, while sockets are still held.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use apus_net::{Capabilities, Link, LinkCounters, Path};
use apus_wire::{PacketSink, PathError, Transmit};

/// A link that carries nothing: the real one is closed when its node stops, so that its port is
/// free and peers learn that nobody is there.
pub(crate) struct NoLink {
    pub(crate) local_addr: SocketAddr,
    pub(crate) capabilities: Capabilities,
    pub(crate) counters: LinkCounters,
}

impl PacketSink for NoLink {
    fn send(&mut self, _packet: Transmit<'_>) {}

    fn max_packet(&self, _to: SocketAddr) -> usize {
        apus_net::MAX_DATAGRAM
    }
}

impl Link for NoLink {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn recv(&mut self, _handler: &mut dyn FnMut(SocketAddr, &[u8])) -> usize {
        0
    }

    fn flush(&mut self) {}

    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        None
    }

    fn descriptor(&self) -> RawFd {
        -1
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive_capacity(&self) -> usize {
        0
    }

    fn path(&self, _to: SocketAddr) -> Path {
        Path { max_packet: apus_net::MAX_DATAGRAM, loopback: false, link_mbps: None }
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
