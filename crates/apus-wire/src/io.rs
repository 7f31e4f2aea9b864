//! The contract between the protocol core and a link: packets to transmit, received packets, and errors that the kernel reports
//! about a path.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

use bytes::Bytes;

use crate::compact::{AckRange, Entries, Entry, Envelope, Message};
use crate::{
    Ack, Acked, DATA_HEADER_LEN, Data, DataFlags, Extension, Header, PathId, Priority, Stamp,
};

static NO_BODY: Bytes = Bytes::new();

/// One packet to transmit: a complete header, then `body[range]`. If the payload begins in another part of the message than it
/// ends, its bytes in the first part follow the header.
///
/// A sink that keeps the payload beyond the call clones `body`, which increments a reference count and copies no byte.
#[derive(Clone, Debug)]
pub struct Transmit<'a> {
    /// The path to the peer's node.
    pub path: PathId,
    /// The priority in the network; see [`Priority::tos`].
    pub priority: Priority,
    /// The complete Homa header, which is the whole packet for control packets, and the payload before `range`, if there is some.
    pub header: &'a [u8],
    /// The message, or the part of it, that contains the payload; empty for a control packet.
    pub body: &'a Bytes,
    /// The payload within `body`; empty for a control packet.
    pub range: Range<usize>,
}

impl<'a> Transmit<'a> {
    /// Creates a packet without payload.
    #[inline]
    #[must_use]
    pub fn control(path: PathId, priority: Priority, header: &'a [u8]) -> Self {
        Self { path, priority, header, body: &NO_BODY, range: 0..0 }
    }

    /// Returns the bytes after `header`.
    ///
    /// # Panics
    ///
    /// If `range` does not lie within `body`.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.body[self.range.clone()]
    }

    /// Returns the length of the Homa packet in bytes: header and payload.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a packet has at least its header")]
    pub fn len(&self) -> usize {
        self.header.len() + self.range.len()
    }
}

/// A message of one packet that is transmitted for the first time, to a peer that reads compact bundles.
#[derive(Clone, Debug)]
pub struct ShortTransmit<'a> {
    /// The path to the peer's node.
    pub path: PathId,
    /// The priority in the network.
    pub priority: Priority,
    /// Token and cutoff version.
    pub envelope: Envelope,
    /// Ports and id.
    pub header: Header,
    /// The flags of DATA.
    pub flags: DataFlags,
    /// The extension of DATA, if it has any item.
    pub extension: Option<Extension>,
    /// Acknowledgements that go with the message.
    pub acks: Option<AckRange>,
    /// The message, at least 1 byte.
    pub body: &'a Bytes,
}

impl ShortTransmit<'_> {
    /// Returns the message as it is in a compact bundle, with an extension in `words`.
    #[inline]
    #[must_use]
    pub fn message<'w>(&'w self, words: &'w mut [u8; Extension::LEN_MAX]) -> Message<'w> {
        let words = match &self.extension {
            None => &[][..],
            Some(extension) => {
                words.fill(0);
                extension.emit(words);
                &words[..extension.len()]
            }
        };
        Message { header: self.header, flags: self.flags, words, body: self.body }
    }

    /// Passes the message to `sink` as DATA, and its acknowledgements as DATA or an ACK carries them.
    pub fn send_as_packets<S: PacketSink + ?Sized>(&self, sink: &mut S) {
        let Self { path, priority, envelope, header, extension, acks, body, .. } = self;
        let single = acks.filter(|acks| acks.count == 1);
        if let Some(acks) = acks.filter(|_| single.is_none()) {
            send_acks_as_packets(sink, *path, *priority, envelope, header, acks);
        }
        let ack = single.map(|acks| acked(acks.first, header.dest_port));
        let message = Message { header: *header, flags: self.flags, words: &[], body };
        let mut buffer = [0; Data::LEN_MAX];
        let extension = extension.unwrap_or_default();
        let data = message.data(envelope, ack);
        let length = data.emit_extended(header, &extension, &mut buffer);
        Stamp::new(envelope.token).write(&mut buffer);
        let (header, range) = (&buffer[..length], 0..body.len());
        sink.send(Transmit { path: *path, priority: *priority, header, body, range });
    }
}

/// Returns an acknowledgement as DATA and ACK carry it.
fn acked(client_id: crate::RpcId, server_port: u16) -> Acked {
    Acked { client_id, server_port }
}

/// Passes acknowledgements to `sink` as ACK packets, between the ports of `header`.
pub fn send_acks_as_packets<S: PacketSink + ?Sized>(
    sink: &mut S,
    path: PathId,
    priority: Priority,
    envelope: &Envelope,
    header: &Header,
    acks: AckRange,
) {
    ack_packets(envelope, header, acks, |packet| {
        sink.send(Transmit::control(path, priority, packet));
    });
}

/// Passes ACK packets for these acknowledgements to `each`, between the ports of `header`.
fn ack_packets(envelope: &Envelope, header: &Header, acks: AckRange, mut each: impl FnMut(&[u8])) {
    let mut ids = acks.ids();
    while let Some(sender_id) = ids.next() {
        let entries: Vec<_> =
            ids.by_ref().take(Ack::MAX).map(|id| acked(id, header.dest_port)).collect();
        let mut buffer = [0; Ack::LEN];
        Ack::new(&entries).emit(&Header { sender_id, ..*header }, &mut buffer);
        Stamp::new(envelope.token).write(&mut buffer);
        each(&buffer);
    }
}

/// Passes the entries of a compact bundle to `each` as packets. The ports of an ACK have no meaning, so they are those of the last
/// message, or 1.
pub fn packets_of_entries(entries: &mut Entries<'_>, mut each: impl FnMut(&[u8])) {
    let envelope = entries.envelope();
    let mut header = Header { source_port: 1, dest_port: 1, sender_id: crate::RpcId(0) };
    let mut packet = Vec::new();
    for entry in entries {
        match entry {
            Entry::Acks(acks) => ack_packets(&envelope, &header, acks, &mut each),
            Entry::Message(message) => {
                header = message.header;
                message.to_packet(&envelope, &mut packet);
                each(&packet);
            }
        }
    }
}

/// Returns whether the address belongs to a peer of a native link (IP protocol 146). Such addresses have port 0, because the link
/// has no UDP port.
///
/// The peer may be the Linux module, so Apus sends it only packets that the module knows.
#[inline]
#[must_use]
pub const fn is_native(node: SocketAddr) -> bool {
    node.port() == 0
}

/// The destination of the core's packets: a link, or a simulated wire in tests.
pub trait PacketSink {
    /// Takes one packet. Never blocks. The sink counts and drops a packet that it cannot send, as a network would.
    fn send(&mut self, packet: Transmit<'_>);

    /// Takes a short message for a peer that reads compact bundles. Passes it to [`send`](Self::send) as DATA by default.
    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        message.send_as_packets(self);
    }

    /// Takes acknowledgements for a peer that reads compact bundles. `header` has the ports of an ACK. Passes them to
    /// [`send`](Self::send) as ACK packets by default.
    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        send_acks_as_packets(self, path, priority, envelope, header, acks);
    }

    /// Returns the length in bytes, header and payload, of the longest Homa packet that fits one datagram on this path at present.
    /// The length may shrink or grow.
    fn max_packet(&self, path: PathId) -> usize;

    /// Reports that packets on `path` with the length of [`max_packet`](Self::max_packet) were lost repeatedly while the peer
    /// answered shorter ones: the path may be a black hole for long packets. The sink may allow less from then on. Does nothing by
    /// default.
    fn swallowed(&mut self, path: PathId) {
        let _ = path;
    }

    /// Answers a packet that arrived on `path` for an unserved port by an ICMP port unreachable. `packet` is its first 8 bytes.
    /// Links whose peers would not understand the answer do nothing.
    fn refuse(&mut self, path: PathId, packet: [u8; 8]) {
        let _ = (path, packet);
    }

    /// Notifies the sink that the core knows a peer by this path. The path stays valid until it is released as often as it was held.
    /// Does nothing by default.
    fn hold(&mut self, path: PathId) {
        let _ = path;
    }

    /// Notifies the sink that the core no longer knows a peer by this path.
    fn release(&mut self, path: PathId) {
        let _ = path;
    }
}

impl<S: PacketSink + ?Sized> PacketSink for &mut S {
    fn send(&mut self, packet: Transmit<'_>) {
        (**self).send(packet);
    }

    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        (**self).send_short(message);
    }

    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        (**self).send_acks(path, priority, envelope, header, acks);
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

    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        (**self).send_short(message);
    }

    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        (**self).send_acks(path, priority, envelope, header, acks);
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

/// The receiver of a link's packets.
pub trait PacketReceiver {
    /// Takes one packet. Its bytes are valid only during the call.
    fn packet(&mut self, from: PathId, packet: &[u8]);

    /// Takes the entries of a compact bundle; `sender` is the address that the path leads to. Passes them to
    /// [`packet`](Self::packet) as packets by default.
    fn entries(&mut self, from: PathId, sender: SocketAddr, entries: &mut Entries<'_>) {
        let _ = sender;
        packets_of_entries(entries, |packet| self.packet(from, packet));
    }

    /// Returns a partly received message whose next bytes are likely to arrive next, so that the kernel can write them into the
    /// message instead of a buffer. `None`, the default: no bytes are expected.
    fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        None
    }

    /// Accepts a packet whose payload the link has appended to the message of [`receive_target`](Self::receive_target). `header` is
    /// the packet's header. Returns `true` if the payload is the next part of that message. Returns `false`, with nothing changed,
    /// if it belongs elsewhere; the link then removes the bytes from the message and passes the packet to [`packet`](Self::packet).
    fn received_in_place(
        &mut self,
        _from: PathId,
        _header: &[u8; DATA_HEADER_LEN],
        _length: usize,
    ) -> bool {
        false
    }
}

/// A closure that takes each packet.
impl<F: FnMut(PathId, &[u8])> PacketReceiver for F {
    #[inline]
    fn packet(&mut self, from: PathId, packet: &[u8]) {
        self(from, packet);
    }
}

/// The end of a partly received message.
#[derive(Debug)]
pub struct ReceiveTarget<'a> {
    /// The received part of the message, with capacity for `room` more bytes.
    pub message: &'a mut Vec<u8>,
    /// Number of bytes missing at the end of the message.
    pub room: usize,
}

/// An error about a peer that the kernel reports by the socket's error queue, from ICMP or its own routing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum PathError {
    /// No socket is open at the peer's port.
    PortUnreachable,
    /// The peer does not serve this Homa port; it may serve others. Reported for peers of a native link only.
    NoService(u16),
    /// The peer's host or network is unreachable.
    HostUnreachable,
    /// The peer's host does not know the protocol; on a native link, it has no Homa.
    ProtocolUnreachable,
    /// A local rule or a firewall on the path forbids the packet.
    PermissionDenied,
    /// This node has no link to the address: it would need a link of the other IP version, or a native link.
    NoLink,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoService(port) => return write!(f, "port {port} is not served"),
            Self::PortUnreachable => "no socket listens at the port",
            Self::HostUnreachable => "no route to the host",
            Self::ProtocolUnreachable => "the host does not support the protocol",
            Self::PermissionDenied => "a firewall or a missing permission forbids it",
            Self::NoLink => "this node has no link for such an address",
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
