//! What is left of a link when its node has stopped, while sockets are still held; and what a node has that uses the engine of
//! another process.

use std::net::SocketAddr;

use apus_net::{Capabilities, Descriptors, Link, LinkCounters, Path, only};
use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit};

/// A link that carries nothing: the real one is closed when its node stops, so that its port is
/// free and peers learn that nobody is there.
#[derive(Debug)]
pub(crate) struct NoLink {
    pub(crate) local_addr: SocketAddr,
    pub(crate) capabilities: Capabilities,
    pub(crate) counters: LinkCounters,
}

impl Default for NoLink {
    /// For a node that uses the engine of another process.
    fn default() -> Self {
        let local_addr = SocketAddr::from(([0, 0, 0, 0], 0));
        Self {
            local_addr,
            capabilities: Capabilities::default(),
            counters: LinkCounters::default(),
        }
    }
}

impl PacketSink for NoLink {
    fn send(&mut self, _packet: Transmit<'_>) {}

    fn max_packet(&self, _: PathId) -> usize {
        apus_net::MAX_DATAGRAM
    }
}

impl Link for NoLink {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn recv(&mut self, _receiver: &mut dyn PacketReceiver) -> usize {
        0
    }

    fn resolve(&mut self, _to: SocketAddr) -> Option<PathId> {
        None
    }

    fn find(&mut self, _address: SocketAddr) -> Option<PathId> {
        None
    }

    fn address(&self, _path: PathId) -> Option<SocketAddr> {
        None
    }

    fn flush(&mut self) {}

    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        None
    }

    fn descriptors(&self) -> Descriptors {
        only(-1)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive_capacity(&self) -> usize {
        0
    }

    fn path(&self, _: PathId) -> Path {
        Path::UNKNOWN
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
