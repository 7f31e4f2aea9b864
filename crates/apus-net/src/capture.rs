//! A wrapper of a link that writes its packets to a file for Wireshark and similar programs.
//!
//! The file is pcapng with one interface of raw IP packets and nanosecond time stamps. Each Homa packet appears as a UDP datagram
//! of its own, as `docs/wire.md` describes it without bundles and offloads, with generated IP and UDP headers. A packet of a native
//! link follows its IP header. Each packet has a [`comment`].
//!
//! Every section of a file is the same except for its packets, and bytes reach the output in whole blocks. So several links, also
//! of several processes, may append to one file at the same time.

mod comment;

use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apus_wire::checksum::{folded, sum};
use apus_wire::compact::{AckRange, Entries, Envelope};
use apus_wire::{
    DATA_HEADER_LEN, Header, IP_PROTOCOL, PacketReceiver, PacketSink, PathError, PathId, Priority,
    ReceiveTarget, ShortTransmit, Transmit, is_native, packets_of_entries, send_acks_as_packets,
};

use self::comment::{Comments, Direction};
use crate::link::{
    Capabilities, Link, LinkCounters, delegate_link, delegate_paths, delegate_sockets,
};
use crate::packet_file::writer::{interface_description, put_option, section_header};
use crate::path::Path;
use crate::paths::{Examination, Examined};
use crate::sleeper::Descriptors;

/// `LINKTYPE_RAW`: packets begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u16 = 101;

/// Upper bound on the delay before a captured packet reaches the file, if the link is turned when [`Link::due_in`] says so.
const FLUSH_EVERY: Duration = Duration::from_millis(200);

const UDP: u8 = 17;
const UDP_HEADER: usize = 8;

/// A link that writes every Homa packet it sends and receives to a pcapng file.
///
/// Packets are written when they are queued or delivered, so a packet that the inner link then loses is in the file as well.
/// Packets that cannot be written are counted ([`LinkCounters::capture_errors`]). After the first error, nothing more is written,
/// because a file with gaps would mislead. The link itself keeps working.
pub struct CaptureLink<L> {
    link: L,
    file: Pcapng,
    comments: Comments,
    /// Received packets that are not yet written; empty between calls.
    copies: Vec<(PathId, Vec<u8>)>,
}

impl<L: Link> CaptureLink<L> {
    /// Wraps a link and writes the file's header at once. Fails if the write fails. `output` need not be buffered.
    pub fn new(link: L, output: impl Write + Send + 'static) -> io::Result<Self> {
        let file = Pcapng::new(Box::new(output))?;
        Ok(Self { link, file, comments: Comments::default(), copies: Vec::new() })
    }

    /// Returns the inner link.
    pub fn inner(&self) -> &L {
        &self.link
    }

    /// Writes out buffered bytes. Returns the first error so far. Dropping the link does the same, but reports no error.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Some(error) = self.file.error.take() {
            return Err(error);
        }
        self.file.output.flush()
    }
}

/// Writes the packets that the link is to send.
struct Outbound<'a, L> {
    link: &'a L,
    file: &'a mut Pcapng,
    comments: &'a mut Comments,
}

impl<L: Link> PacketSink for Outbound<'_, L> {
    fn send(&mut self, packet: Transmit<'_>) {
        let Some(to) = self.link.address(packet.path) else { return };
        let from = source_towards(self.link.local_addr(), to);
        let parts = [packet.header, packet.payload()];
        let (direction, priority) = (Direction::Outbound, packet.priority);
        let comment = self.comments.of(direction, packet.path, Some(priority), parts);
        let tos = priority.tos();
        self.file.packet(PacketDescription { direction, from, to, tos, comment }, parts);
    }

    fn max_packet(&self, path: PathId) -> usize {
        self.link.max_packet(path)
    }
}

impl<L: Link> CaptureLink<L> {
    fn outbound(&mut self) -> Outbound<'_, L> {
        let Self { link, file, comments, .. } = self;
        Outbound { link, file, comments }
    }
}

impl<L: Link> PacketSink for CaptureLink<L> {
    fn send(&mut self, packet: Transmit<'_>) {
        self.outbound().send(packet.clone());
        self.link.send(packet);
    }

    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        message.send_as_packets(&mut self.outbound());
        self.link.send_short(message);
    }

    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        send_acks_as_packets(&mut self.outbound(), path, priority, envelope, header, acks);
        self.link.send_acks(path, priority, envelope, header, acks);
    }

    delegate_paths!(self, self.link);
}

/// Copies received packets until the link can look up the senders' addresses.
struct Copying<'a> {
    receiver: &'a mut dyn PacketReceiver,
    copies: &'a mut Vec<(PathId, Vec<u8>)>,
}

impl PacketReceiver for Copying<'_> {
    fn packet(&mut self, from: PathId, packet: &[u8]) {
        self.copies.push((from, packet.to_vec()));
        self.receiver.packet(from, packet);
    }

    fn entries(&mut self, from: PathId, sender: SocketAddr, entries: &mut Entries<'_>) {
        packets_of_entries(&mut entries.clone(), |packet| {
            self.copies.push((from, packet.to_vec()))
        });
        self.receiver.entries(from, sender, entries);
    }

    fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        self.receiver.receive_target()
    }

    fn received_in_place(
        &mut self,
        from: PathId,
        header: &[u8; DATA_HEADER_LEN],
        length: usize,
    ) -> bool {
        let Some(ReceiveTarget { message, .. }) = self.receiver.receive_target() else {
            return false;
        };
        let packet = [&header[..], &message[message.len() - length..]].concat();
        let taken = self.receiver.received_in_place(from, header, length);
        if taken {
            self.copies.push((from, packet));
        }
        taken
    }
}

impl<L: Link> Link for CaptureLink<L> {
    delegate_link!(self, self.link);
    delegate_sockets!(self, self.link);

    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        let Self { link, file, comments, copies } = self;
        let taken = link.recv(&mut Copying { receiver, copies });
        for (path, packet) in copies.drain(..) {
            let Some(from) = link.address(path) else { continue };
            let to = source_towards(link.local_addr(), from);
            let (direction, parts) = (Direction::Inbound, [&packet[..], &[]]);
            let comment = comments.of(direction, path, None, parts);
            file.packet(PacketDescription { direction, from, to, tos: 0, comment }, parts);
        }
        file.flush_if_due();
        taken
    }

    fn flush(&mut self) {
        self.link.flush();
        self.file.flush_if_due();
    }

    fn due_in(&self) -> Option<Duration> {
        [self.link.due_in(), self.file.due_in()].into_iter().flatten().min()
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.link.counters();
        counters.captured += self.file.written;
        counters.capture_errors += self.file.failed;
        counters
    }
}

/// Returns the local address to show. A link bound to all addresses does not know the address that a packet uses: on loopback the
/// peer's address stands for it, elsewhere the unspecified address of the peer's family.
fn source_towards(local: SocketAddr, peer: SocketAddr) -> SocketAddr {
    if !local.ip().is_unspecified() && local.is_ipv4() == peer.is_ipv4() {
        return local;
    }
    let ip: IpAddr = match peer.ip() {
        ip if ip.is_loopback() => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, local.port())
}

/// The description of a packet without its bytes.
struct PacketDescription<'a> {
    direction: Direction,
    from: SocketAddr,
    to: SocketAddr,
    /// TOS byte of the IP header; 0 for a received packet, whose TOS is unknown.
    tos: u8,
    comment: Option<&'a str>,
}

/// The pcapng file.
struct Pcapng {
    output: BufWriter<Box<dyn Write + Send>>,
    /// Buffer in which one block is built before it is written.
    block: Vec<u8>,
    /// The wall clock and a steady clock at the start. The steady clock continues from there.
    started: (Duration, Instant),
    flushed: Instant,
    error: Option<io::Error>,
    stopped: bool,
    written: u64,
    failed: u64,
}

impl Pcapng {
    fn new(output: Box<dyn Write + Send>) -> io::Result<Self> {
        let mut output = BufWriter::with_capacity(1 << 18, output);
        output.write_all(&file_header())?;
        output.flush()?;
        let now = Instant::now();
        Ok(Self {
            output,
            block: Vec::new(),
            started: (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), now),
            flushed: now,
            error: None,
            stopped: false,
            written: 0,
            failed: 0,
        })
    }

    /// Writes an Enhanced Packet Block (pcapng draft, section 4.3).
    fn packet(&mut self, seen: PacketDescription<'_>, parts: [&[u8]; 2]) {
        if self.stopped {
            self.failed += 1;
            return;
        }
        let (epoch, start) = self.started;
        let time = u64::try_from((epoch + start.elapsed()).as_nanos()).unwrap_or(u64::MAX);
        let block = &mut self.block;
        block.clear();
        block.extend_from_slice(&[0; 28]); // filled in below
        encapsulated(block, seen.from, seen.to, seen.tos, parts);
        let captured = block.len() - 28;
        block.resize(28 + captured.next_multiple_of(4), 0);
        if let Some(comment) = seen.comment {
            put_option(block, 1, comment.as_bytes()); // opt_comment
        }
        put_option(block, 2, &(seen.direction as u32).to_le_bytes()); // epb_flags
        put_option(block, 0, &[]);
        let total = u32::try_from(block.len() + 4)
            .expect("a packet is shorter than 64 KiB and its frame and comment than 300 bytes");
        let captured = u32::try_from(captured).expect("less than the total");
        block.extend_from_slice(&total.to_le_bytes());
        let words = [6, total, 0, (time >> 32) as u32, time as u32, captured, captured];
        for (at, word) in words.into_iter().enumerate() {
            block[4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        match self.output.write_all(block) {
            Ok(()) => self.written += 1,
            Err(error) => self.stop(error),
        }
    }

    /// Returns the time until the buffered packets should be written; `None` if there are none.
    fn due_in(&self) -> Option<Duration> {
        let nothing = self.stopped || self.output.buffer().is_empty();
        (!nothing).then(|| FLUSH_EVERY.saturating_sub(self.flushed.elapsed()))
    }

    fn flush_if_due(&mut self) {
        if self.due_in() != Some(Duration::ZERO) {
            return;
        }
        self.flushed = Instant::now();
        if let Err(error) = self.output.flush() {
            self.stop(error);
        }
    }

    fn stop(&mut self, error: io::Error) {
        self.failed += 1;
        self.stopped = true;
        self.error = Some(error);
    }
}

/// Returns the blocks before the first packet.
fn file_header() -> Vec<u8> {
    [section_header(), interface_description(LINKTYPE_RAW, Some("apus"))].concat()
}

/// Appends the packet with generated headers: IP and, unless it belongs to a native link, UDP.
fn encapsulated(
    out: &mut Vec<u8>,
    from: SocketAddr,
    to: SocketAddr,
    tos: u8,
    [head, tail]: [&[u8]; 2],
) {
    let native = is_native(from) || is_native(to);
    let (protocol, header) = if native { (IP_PROTOCOL, 0) } else { (UDP, UDP_HEADER) };
    // The length is right for every packet that fits a datagram; a longer one has a wrong length.
    let length = u16::try_from(header + head.len() + tail.len()).unwrap_or(u16::MAX);
    let pseudo = put_ip(out, (from.ip(), to.ip()), tos, protocol, length);
    let start = out.len();
    if !native {
        for field in [from.port(), to.port(), length, 0] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    if !native {
        let checksum = !folded(pseudo + u64::from(UDP) + u64::from(length) + sum(&out[start..]));
        let checksum = if checksum == 0 { 0xFFFF } else { checksum };
        out[start + 6..start + 8].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Appends an IP header for `length` bytes. Returns the sum of its addresses for pseudo-headers.
fn put_ip(
    out: &mut Vec<u8>,
    addresses: (IpAddr, IpAddr),
    tos: u8,
    protocol: u8,
    length: u16,
) -> u64 {
    match addresses {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let start = out.len();
            out.extend_from_slice(&[0x45, tos]);
            out.extend_from_slice(&length.saturating_add(20).to_be_bytes());
            out.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]); // not to be fragmented, 64 hops
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
            let checksum = !folded(sum(&out[start..]));
            out[start + 10..start + 12].copy_from_slice(&checksum.to_be_bytes());
            sum(&from.octets()) + sum(&to.octets())
        }
        (from, to) => {
            let (from, to) = (v6(from), v6(to));
            out.extend_from_slice(&[0x60 | tos >> 4, tos << 4, 0, 0]);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&[protocol, 64]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
            sum(&from.octets()) + sum(&to.octets())
        }
    }
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod wireshark;
