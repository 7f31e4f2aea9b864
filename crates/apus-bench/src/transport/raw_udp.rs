//! The floor: the cost of UDP on this kernel without a protocol.
//!
//! A message is cut into datagrams, each with the message's tag and length. The receiver counts bytes and drops the data. Nothing
//! is ordered, acknowledged or retransmitted. A datagram's own header counts as message bytes, so 100 bytes are one datagram of 100
//! bytes.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use apus_node::message::{MessageHeader, filler, read};
use apus_node::transport::interface::{Client, Ended, Failed, Request, Server};

/// A floor's use of UDP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Upper bound on bytes of one packet.
    packet: usize,
    /// Packets handed to the kernel in one call, by segmentation offload if there are several.
    packets_per_call: usize,
    /// Whether to spin on the socket instead of sleeping in `recv`.
    spin: bool,
    /// Whether short messages that are ready at the same time share a datagram.
    share: bool,
}

impl Shape {
    /// Packets of 64 KB, like Apus' on the loopback interface; both sides spin.
    pub(crate) const SPINNING: Self =
        Self { packet: 65_000, packets_per_call: 1, spin: true, share: false };
    /// Like `SPINNING`, but both sides sleep while idle.
    pub(crate) const BLOCKING: Self = Self { spin: false, ..Self::SPINNING };
    /// Packets that fit an Ethernet frame, 44 per call, merged again by the kernel on receipt.
    pub(crate) const SEGMENTED: Self =
        Self { packet: 1472, packets_per_call: 44, ..Self::SPINNING };
    /// Like `SPINNING`, with many short messages per datagram, like Apus.
    pub(crate) const SHARED: Self = Self { share: true, ..Self::SPINNING };
}

/// Upper bound on messages that share a datagram.
const SHARED_MAX: usize = 1_400;

/// Requested size of both socket buffers. The kernel grants as much as its limits allow.
const SOCKET_BUFFER: usize = 8 << 20;

/// Upper bound on bytes taken in one `receive` before the caller may answer.
const RECEIVE_BYTES: usize = 1 << 16;

/// Spins between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 64;

/// Bytes in front of each packet: the message's header and the packet's offset in it.
const PACKET_HEADER: usize = MessageHeader::LEN + 4;

/// The client's side.
pub(crate) struct RawClient {
    pipe: Pipe,
}

impl RawClient {
    /// Opens a socket connected to the server at `server`.
    ///
    /// # Errors
    /// If the kernel refuses the socket or one of its options.
    pub(crate) fn connect(server: SocketAddr, shape: Shape) -> Result<Self> {
        let pipe = Pipe::new(shape)?;
        pipe.socket.connect(server).with_context(|| format!("UDP connect to {server}"))?;
        Ok(Self { pipe })
    }
}

impl Client for RawClient {
    fn send(&mut self, _: usize, request: Request) -> Result<(), Failed> {
        self.pipe.send(request.header()).map_err(|why| Failed::connection_lost(request.tag, why))
    }

    fn receive(&mut self, timeout: Duration, ended: &mut Vec<Ended>) -> Result<()> {
        self.pipe.receive(timeout, |header| {
            ended.push(Ok(header.into()));
        })
    }
}

/// The server's side, for one client.
pub(crate) struct RawServer {
    pipe: Pipe,
    address: SocketAddr,
}

impl RawServer {
    /// Opens a socket on the loopback interface.
    ///
    /// # Errors
    /// If the kernel refuses the socket or one of its options.
    pub(crate) fn bind(shape: Shape) -> Result<Self> {
        let pipe = Pipe::new(shape)?;
        let address = pipe.socket.local_addr().context("UDP local address")?;
        Ok(Self { pipe, address })
    }
}

impl Server for RawServer {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn run(mut self: Box<Self>) -> Result<Infallible> {
        self.pipe.connect_to_first_sender()?;
        let mut answers = Vec::new();
        loop {
            self.pipe.receive(Duration::from_secs(1), |header| {
                answers.push(header.answer(header.length))
            })?;
            for answer in answers.drain(..) {
                self.pipe.send(answer)?;
            }
        }
    }
}

/// A connected UDP socket with the state of segmentation and reassembly.
struct Pipe {
    socket: UdpSocket,
    shape: Shape,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Short messages that share the next datagram.
    shared: Vec<u8>,
    /// Outgoing messages, with the number of bytes sent.
    unsent: VecDeque<(MessageHeader, usize)>,
    /// Received bytes of each incomplete message.
    partial: HashMap<u64, u32>,
    read_timeout: Duration,
}

impl Pipe {
    fn new(shape: Shape) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).context("UDP socket")?;
        // The kernel silently caps the size by its own limit. A smaller buffer only means more losses.
        socket.set_recv_buffer_size(SOCKET_BUFFER).context("UDP receive buffer")?;
        socket.set_send_buffer_size(SOCKET_BUFFER).context("UDP send buffer")?;
        socket
            .bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())
            .context("UDP bind on 127.0.0.1")?;
        if shape.packets_per_call > 1 {
            setsockopt(&socket, sockopt::UdpGsoSegment, &(shape.packet as i32))
                .context("UDP_SEGMENT")?;
            setsockopt(&socket, sockopt::UdpGroSegment, &true).context("UDP_GRO")?;
        }
        let call = shape.packet * shape.packets_per_call;
        Ok(Self {
            socket: socket.into(),
            shape,
            outgoing: filler(0, call).to_vec(),
            incoming: vec![0; 1 << 16],
            shared: Vec::new(),
            unsent: VecDeque::new(),
            partial: HashMap::new(),
            read_timeout: Duration::ZERO,
        })
    }

    /// Waits for the first datagram without receiving it, and connects to its sender.
    fn connect_to_first_sender(&self) -> Result<()> {
        let (_, client) = self.socket.peek_from(&mut [0; PACKET_HEADER]).context("UDP receive")?;
        self.socket.connect(client).with_context(|| format!("UDP connect to {client}"))
    }

    /// Sends a message of one call at once. A longer one is sent call by call in `receive`, so that it delays no short one.
    fn send(&mut self, header: MessageHeader) -> Result<()> {
        if self.is_shared(header) {
            return self.send_shared(header);
        }
        self.unsent.push_front((header, 0));
        if header.length as usize <= self.shape.packet * self.shape.packets_per_call {
            return self.send_next();
        }
        self.unsent.rotate_left(1);
        Ok(())
    }

    fn is_shared(&self, header: MessageHeader) -> bool {
        self.shape.share && (PACKET_HEADER..=SHARED_MAX).contains(&(header.length as usize))
    }

    /// Adds a message to the datagram that the next [`receive`](Self::receive) sends.
    fn send_shared(&mut self, header: MessageHeader) -> Result<()> {
        let length = header.length as usize;
        if self.shared.len() + length > self.shape.packet {
            self.send_shared_now()?;
        }
        self.shared.extend_from_slice(&header.to_bytes());
        self.shared.extend_from_slice(&[0; PACKET_HEADER - MessageHeader::LEN]);
        self.shared.extend_from_slice(&self.outgoing[PACKET_HEADER..length]);
        Ok(())
    }

    fn send_shared_now(&mut self) -> Result<()> {
        if !self.shared.is_empty() {
            self.send_once(&self.shared)?;
            self.shared.clear();
        }
        Ok(())
    }

    /// Makes the next call for the first message in the queue.
    fn send_next(&mut self) -> Result<()> {
        let Some((header, offset)) = self.unsent.front_mut() else { return Ok(()) };
        let bytes = call_length(header.length as usize - *offset, self.shape);
        for packet in self.outgoing[..bytes].chunks_mut(self.shape.packet) {
            packet[..MessageHeader::LEN].copy_from_slice(&header.to_bytes());
            packet[MessageHeader::LEN..PACKET_HEADER]
                .copy_from_slice(&(*offset as u32).to_le_bytes());
            *offset += packet.len();
        }
        if *offset >= header.length as usize {
            self.unsent.pop_front();
        }
        self.send_once(&self.outgoing[..bytes])
    }

    fn send_once(&self, datagram: &[u8]) -> Result<()> {
        loop {
            match self.socket.send(datagram) {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                // The other side is gone, as an earlier ICMP error says. Nothing was sent, as if the message were lost.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => return Ok(()),
                Err(e) => return Err(e).context("UDP send"),
            }
        }
    }

    /// Calls `complete` for each message whose last byte has arrived, and continues to send.
    fn receive(
        &mut self,
        timeout: Duration,
        mut complete: impl FnMut(MessageHeader),
    ) -> Result<()> {
        self.send_shared_now()?;
        let mut arrived = None;
        while arrived.is_none() && !self.unsent.is_empty() {
            self.send_next()?;
            if self.shape.spin {
                arrived = self.first_datagram(Duration::ZERO)?;
                if timeout.is_zero() {
                    break;
                }
            }
        }
        if arrived.is_none() {
            arrived = self.first_datagram(timeout)?;
        }
        let mut taken = 0;
        while let Some(bytes) = arrived {
            self.take(bytes, &mut complete)?;
            taken += bytes;
            let full = taken >= RECEIVE_BYTES || !self.shape.spin;
            arrived = if full { None } else { self.first_datagram(Duration::ZERO)? };
        }
        Ok(())
    }

    fn first_datagram(&mut self, timeout: Duration) -> Result<Option<usize>> {
        self.prepare_wait(timeout)?;
        let mut deadline = None;
        let mut spins = 0;
        loop {
            match self.socket.recv(&mut self.incoming) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(e) if !is_silence(&e) => return Err(e).context("UDP receive"),
                Err(_) if timeout.is_zero() || !self.shape.spin => return Ok(None),
                Err(_) => spins += 1,
            }
            if spins % SPINS_PER_CLOCK == 0 {
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + timeout) {
                    return Ok(None);
                }
            }
        }
    }

    /// Sets the socket's way of waiting, only if it changes, because that costs a system call.
    fn prepare_wait(&mut self, timeout: Duration) -> Result<()> {
        if self.shape.spin && self.read_timeout.is_zero() {
            self.socket.set_nonblocking(true).context("UDP non-blocking mode")?;
            self.read_timeout = Duration::MAX;
        } else if !self.shape.spin && timeout != self.read_timeout && !timeout.is_zero() {
            self.socket.set_read_timeout(Some(timeout)).context("UDP receive timeout")?;
            self.read_timeout = timeout;
        }
        Ok(())
    }

    /// Counts the packets of one datagram, which are several if the kernel merged them.
    fn take(&mut self, bytes: usize, complete: &mut impl FnMut(MessageHeader)) -> Result<()> {
        let mut datagram = &self.incoming[..bytes];
        while !datagram.is_empty() {
            let header =
                MessageHeader::from_bytes(datagram).context("a packet too short for its header")?;
            let length =
                if self.is_shared(header) { header.length as usize } else { self.shape.packet };
            let (packet, rest) = datagram.split_at(length.min(datagram.len()));
            datagram = rest;
            read(packet);
            let arrived = packet.len() as u32;
            if arrived >= header.length {
                complete(header);
                continue;
            }
            let total = self.partial.entry(header.tag).or_default();
            *total += arrived;
            if *total >= header.length {
                self.partial.remove(&header.tag);
                complete(header);
            }
        }
        ensure!(
            self.partial.len() < 100_000,
            "too many incomplete messages: datagrams are being lost"
        );
        Ok(())
    }
}

/// Whether an error means that nothing arrived: not yet, not within the timeout, or because the other side is gone.
fn is_silence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionRefused
    )
}

/// Bytes of the next call if `left` bytes of a message remain: as much as fits, and at least a header in the last packet.
fn call_length(left: usize, shape: Shape) -> usize {
    let bytes = left.min(shape.packet * shape.packets_per_call);
    match bytes % shape.packet {
        rest @ 1..PACKET_HEADER => bytes - rest + PACKET_HEADER,
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_packet_of_a_call_has_room_for_its_header() {
        let shape = Shape::SEGMENTED;
        assert_eq!(call_length(5, shape), PACKET_HEADER);
        assert_eq!(call_length(1472, shape), 1472);
        assert_eq!(call_length(3 * 1472 + 5, shape), 3 * 1472 + PACKET_HEADER);
        assert_eq!(call_length(3 * 1472 + 50, shape), 3 * 1472 + 50);
        assert_eq!(call_length(1_000_000, shape), 44 * 1472);
    }

    #[test]
    fn a_message_of_many_packets_is_complete_once() {
        for (shape, length) in [
            (Shape::SPINNING, 500_000),
            (Shape::SEGMENTED, 200_003),
            (Shape::BLOCKING, 100),
            (Shape::SHARED, 500_000),
        ] {
            let mut server = Pipe::new(shape).unwrap();
            let mut client =
                RawClient::connect(server.socket.local_addr().unwrap(), shape).unwrap();
            client.send(0, Request { tag: 7, length, reply: 0 }).unwrap();
            while !client.pipe.unsent.is_empty() {
                client.pipe.send_next().unwrap();
            }
            let mut seen = Vec::new();
            while seen.is_empty() {
                server.receive(Duration::from_secs(1), |header| seen.push(header)).unwrap();
            }
            assert_eq!(seen, [MessageHeader { tag: 7, length, other_length: 0 }]);
            assert!(server.partial.is_empty());
        }
    }

    #[test]
    fn short_messages_share_a_datagram_and_each_is_complete() {
        let mut server = Pipe::new(Shape::SHARED).unwrap();
        let to = server.socket.local_addr().unwrap();
        let mut client = RawClient::connect(to, Shape::SHARED).unwrap();
        for tag in 0..100 {
            client.send(0, Request { tag, length: 100, reply: 0 }).unwrap();
        }
        client.pipe.send_shared_now().unwrap();
        let mut seen = Vec::new();
        server.receive(Duration::from_secs(1), |header| seen.push(header.tag)).unwrap();
        assert!(seen.into_iter().eq(0..100), "all of one datagram");
    }
}
