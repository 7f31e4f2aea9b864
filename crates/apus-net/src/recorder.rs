//! A link for tests of wrappers: keeps sent packets, and receives the packets that a test provides.

use std::collections::VecDeque;
use std::net::SocketAddr;

use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit};

use crate::link::{Capabilities, Link, LinkCounters};
use crate::path::Path;
use crate::sleeper::{Descriptors, only};

pub(crate) const HERE: &str = "10.0.0.1:20146";
pub(crate) const THERE: &str = "10.0.0.2:20146";

/// The only path.
pub(crate) const PEER: PathId = PathId::new(0, 0);

#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) local: Option<SocketAddr>,
    /// Address of the path; [`THERE`] if not set.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) sent: Vec<Vec<u8>>,
    pub(crate) arriving: VecDeque<Vec<u8>>,
    pub(crate) flushes: usize,
    pub(crate) capabilities: Capabilities,
}

impl PacketSink for Recorder {
    fn send(&mut self, packet: Transmit<'_>) {
        self.sent.push([packet.header, packet.payload()].concat());
    }

    fn max_packet(&self, _: PathId) -> usize {
        1_472
    }
}

impl Link for Recorder {
    fn local_addr(&self) -> SocketAddr {
        self.local.unwrap_or_else(|| HERE.parse().unwrap())
    }

    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        let Some(packet) = self.arriving.pop_front() else { return 0 };
        receiver.packet(PEER, &packet);
        1
    }

    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        self.find(to)
    }

    fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        (address == THERE.parse().unwrap()).then_some(PEER)
    }

    fn address(&self, _: PathId) -> Option<SocketAddr> {
        Some(self.peer.unwrap_or_else(|| THERE.parse().unwrap()))
    }

    fn flush(&mut self) {
        self.flushes += 1;
    }

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
        1 << 20
    }

    fn path(&self, path: PathId) -> Path {
        Path { max_packet: self.max_packet(path), ..Path::UNKNOWN }
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}
