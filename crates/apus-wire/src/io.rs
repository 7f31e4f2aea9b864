//! What the protocol core and a link agree on: how packets leave, and what the kernel says of a path.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

use bytes::Bytes;

use crate::{DATA_HEADER_LEN, PathId, Priority};

static NO_BODY: Bytes = Bytes::new();

/// One packet on its way out: a complete header, then `body[range]`.
///
/// A sink that must keep the payload longer than the call clones `body`, which counts references and copies no byte.
#[derive(Clone, Debug)]
pub struct Transmit<'a> {
    /// The way to the peer's node.
    pub path: PathId,
    /// For the network; see [`Priority::tos`].
    pub priority: Priority,
    /// The Homa header, whole; all of a control packet.
    pub header: &'a [u8],
    /// The message the payload is part of; empty for a control packet.
    pub body: &'a Bytes,
    /// The payload within `body`; empty for a control packet.
    pub range: Range<usize>,
}

impl<'a> Transmit<'a> {
    /// A packet that is all header.
    #[inline]
    #[must_use]
    pub fn control(path: PathId, priority: Priority, header: &'a [u8]) -> Self {
        Self { path, priority, header, body: &NO_BODY, range: 0..0 }
    }

    /// The bytes after the header.
    ///
    /// # Panics
    ///
    /// When `range` does not lie within `body`.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.body[self.range.clone()]
    }

    /// Bytes of the Homa packet: header and payload.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a packet has at least its header")]
    pub fn len(&self) -> usize {
        self.header.len() + self.range.len()
    }
}

/// Whether a node's address is that of a peer of a native link (IP protocol 146), which has no UDP port: port 0 says so.
///
/// Such a peer may be the Linux module, so it is spoken to in the module's words only.
#[inline]
#[must_use]
pub const fn is_native(node: SocketAddr) -> bool {
    node.port() == 0
}

/// Where the core puts packets: a link, or a test's end of a simulated wire.
pub trait PacketSink {
    /// Takes one packet. Never blocks; what cannot be sent is counted by the sink and lost, as on a network.
    fn send(&mut self, packet: Transmit<'_>);

    /// Largest Homa packet, header and payload in bytes, that fits one datagram on this path at this moment. May shrink or
    /// grow.
    fn max_packet(&self, path: PathId) -> usize;

    /// Packets by `path` that are as long as [`max_packet`](Self::max_packet) allows were lost again and again, while the peer answered
    /// shorter ones: the path may be a black hole for them. The sink may allow less from now on. By default nothing is done.
    fn swallowed(&mut self, path: PathId) {
        let _ = path;
    }

    /// Answers a packet that came by `path` for a port nobody serves in the network's own way, ICMP port unreachable. `packet` is its first
    /// 8 bytes. Links of peers that would not understand do nothing.
    fn refuse(&mut self, path: PathId, packet: [u8; 8]) {
        let _ = (path, packet);
    }

    /// A peer is known by this path: it stays valid until it was released as often as it was held. By default nothing is done.
    fn hold(&mut self, path: PathId) {
        let _ = path;
    }

    /// A peer that was known by this path is known by it no more.
    fn release(&mut self, path: PathId) {
        let _ = path;
    }
}

impl<S: PacketSink + ?Sized> PacketSink for &mut S {
    fn send(&mut self, packet: Transmit<'_>) {
        (**self).send(packet);
    }

    fn max_packet(&self, path: PathId) -> usize {
        (**self).max_packet(path)
    }

    fn swallowed(&mut self, path: PathId) {
        (**self).swallowed(path);
    }

    fn refuse(&mut self, path: PathId, packet: [u8; 8]) {
        (**self).refuse(path, packet);
    }

    fn hold(&mut self, path: PathId) {
        (**self).hold(path);
    }

    fn release(&mut self, path: PathId) {
        (**self).release(path);
    }
}

impl<S: PacketSink + ?Sized> PacketSink for Box<S> {
    fn send(&mut self, packet: Transmit<'_>) {
        (**self).send(packet);
    }

    fn max_packet(&self, path: PathId) -> usize {
        (**self).max_packet(path)
    }

    fn swallowed(&mut self, path: PathId) {
        (**self).swallowed(path);
    }

    fn refuse(&mut self, path: PathId, packet: [u8; 8]) {
        (**self).refuse(path, packet);
    }

    fn hold(&mut self, path: PathId) {
        (**self).hold(path);
    }

    fn release(&mut self, path: PathId) {
        (**self).release(path);
    }
}

/// Who takes what a link has received.
pub trait PacketReceiver {
    /// Takes one packet, whose bytes are only valid during the call.
    fn packet(&mut self, from: PathId, packet: &[u8]);

    /// A message that is half here and whose next bytes are likely to come next, so that a link can have the kernel write them
    /// where they belong instead of to a buffer they are copied from. `None`, the default: nothing is expected.
    fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        None
    }

    /// A packet's payload was appended to what [`receive_target`](Self::receive_target) gave; its header is `header`. True: it is the
    /// message's next piece, and taken. False: it belongs elsewhere, nothing has changed, and the link takes the bytes back from
    /// the end and hands the packet to [`packet`](Self::packet).
    fn received_in_place(
        &mut self,
        _from: PathId,
        _header: &[u8; DATA_HEADER_LEN],
        _length: usize,
    ) -> bool {
        false
    }
}

/// A function that takes each packet.
impl<F: FnMut(PathId, &[u8])> PacketReceiver for F {
    #[inline]
    fn packet(&mut self, from: PathId, packet: &[u8]) {
        self(from, packet);
    }
}

/// The end of a message that is half here.
#[derive(Debug)]
pub struct ReceiveTarget<'a> {
    /// The message as far as it is here, with capacity for `room` bytes more.
    pub message: &'a mut Vec<u8>,
    /// Bytes the message has to go.
    pub room: usize,
}

/// What the kernel has learnt about a peer, from ICMP or its own routing, and put on the socket's error queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PathError {
    /// Nobody listens at the peer's port.
    PortUnreachable,
    /// Nobody serves this Homa port at the peer; other ports may be served. Said of peers of a native link only.
    NoService(u16),
    /// No way to the peer's host or network.
    HostUnreachable,
    /// The peer's host does not know the protocol; on a native link, that it has no Homa.
    ProtocolUnreachable,
    /// A local rule or a firewall on the way forbids it.
    PermissionDenied,
    /// This node has no link to such an address: a link of the other IP version, or a native one, would be needed.
    NoLink,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoService(port) => return write!(f, "nobody serves port {port}"),
            Self::PortUnreachable => "nobody listens at that port",
            Self::HostUnreachable => "no route to the host",
            Self::ProtocolUnreachable => "the host does not know the protocol",
            Self::PermissionDenied => "sending there is forbidden",
            Self::NoLink => "this node has no link to such an address",
        })
    }
}

impl Error for PathError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> PathId {
        PathId::new(0, 7)
    }

    #[test]
    fn a_control_packet_is_all_header() {
        let packet = Transmit::control(path(), Priority::HIGHEST, &[1, 2, 3]);
        assert_eq!(packet.payload(), []);
        assert_eq!(packet.len(), 3);
    }

    #[test]
    fn the_payload_is_a_part_of_the_message() {
        let body = Bytes::from_static(b"a message");
        let packet = Transmit {
            path: path(),
            priority: Priority::LOWEST,
            header: &[0; 56],
            body: &body,
            range: 2..6,
        };
        assert_eq!(packet.payload(), b"mess");
        assert_eq!(packet.len(), 60);
    }

    #[test]
    fn borrowed_and_boxed_sinks_are_sinks() {
        struct Count(usize);
        impl PacketSink for Count {
            fn send(&mut self, packet: Transmit<'_>) {
                self.0 += packet.len();
            }

            fn max_packet(&self, _: PathId) -> usize {
                self.0
            }
        }
        fn send_three(mut sink: impl PacketSink) -> usize {
            sink.send(Transmit::control(path(), Priority::HIGHEST, &[1, 2, 3]));
            sink.max_packet(path())
        }
        let mut count = Count(0);
        assert_eq!(send_three(&mut count), 3);
        let boxed: Box<dyn PacketSink> = Box::new(count);
        assert_eq!(send_three(boxed), 6);
    }
}
