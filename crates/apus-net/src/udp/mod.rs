//! Homa over UDP: one unprivileged socket for all peers.
//!
//! | part | |
//! |---|---|
//! | `config` | configuration; errors of opening |
//! | `socket` | opening and probing |
//! | `peer` | the state of each path |
//! | `outbox` | packets queued by `send`: bundles and large packets |
//! | `sealing` | sealing and opening on sealed paths |
//! | `records` | memory for sealed datagrams |
//! | `keys` | the keys of sealed paths |
//! | `send` | from the outbox into the kernel |
//! | `sender` | connected sockets for peers on this machine |
//! | `recv` | from the kernel to the handler |
//! | `shards` | several links at one address |
//! | `steering` | the choice of a datagram's socket |

mod config;
mod keys;
mod outbox;
mod peer;
mod records;
mod recv;
mod sealing;
mod send;
mod sender;
mod shards;
mod socket;
mod steering;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use apus_wire::compact::{AckRange, Entry, Envelope};
use apus_wire::{
    Header, PacketReceiver, PacketSink, PathError, PathId, Priority, ShortTransmit, Transmit,
    is_native, send_acks_as_packets,
};
use socket2::Socket;

pub use self::config::{LinkError, MAX_DATAGRAM, UdpConfig};
pub(crate) use self::config::{check_buffers, check_setting};
use self::outbox::{Outbox, Sending};
use self::peer::Peer;
use self::sealing::Sealing;
pub(crate) use self::send::Bypass;
pub use self::shards::{SHARDS_MAX, shard_of};
use self::socket::Sharing;
use crate::address::{AddressFamily, RawAddress};
use crate::errors::Errors;
use crate::link::{Capabilities, Link, LinkCounters};
use crate::path::Path;
use crate::path_table::PathTable;
use crate::paths::{Examination, Examined, Paths};
use crate::sealed::SealedPaths;
use crate::sleeper::Descriptors;
use crate::sys::{self, BatchStorage, Slots};

/// Upper bound on datagrams per receive call. 16 buffers of 64 KiB fit the second-level cache of a present processor.
const SLOTS: usize = 16;

/// Number of checks of the other socket per check of the socket for long packets, while none arrive: a check costs 0.3 µs.
const LOOK_EVERY: u32 = 4;

/// A link over UDP, for IPv4 or IPv6 or, bound to `[::]`, both.
///
/// `docs/wire.md` describes the encapsulation, `docs/links.md` the probes and measurements. A link holds two descriptors (one
/// without [`UdpConfig::long_socket`]), 1 MiB of receive buffers and, in the kernel, the buffers requested by [`UdpConfig`], with
/// the receive buffer for each of the two.
pub struct UdpLink {
    /// The socket that sends, and receives short packets.
    socket: Socket,
    /// The socket that receives long DATA packets, if there are two.
    _long: Option<Socket>,
    /// Descriptor of `socket`.
    descriptor: RawFd,
    /// The receiving sockets, by [`SHORT`] and [`LONG`].
    inlets: [Inlet; 2],
    local: SocketAddr,
    family: AddressFamily,
    capabilities: Capabilities,
    peers: PathTable<Peer>,
    paths: Paths,
    outbox: Outbox,
    /// Number of peers with a socket of their own.
    senders: usize,
    storage: BatchStorage,
    sendings: Vec<Sending>,
    /// Whether segments are sent: the kernel can, the configuration allows it, and no device has refused.
    gso: bool,
    slots: Slots,
    /// Whether arriving packets may be joined.
    gro: bool,
    /// Whether the kernel reports packets' destinations: the link is bound to all addresses and at a port that peers call.
    reports_destination: bool,
    /// Whether the kernel records the arrival of datagrams.
    stamps: bool,
    /// Time of arrival of the last batch's first datagram.
    arrived: Option<u64>,
    /// Upper bound on datagrams per receive call.
    ask_max: usize,
    errors: Errors,
    sealing: Sealing,
    counters: LinkCounters,
}

/// Index of the socket for short packets, bundles and control packets.
const SHORT: usize = 0;

/// Index of the socket for long DATA packets.
const LONG: usize = 1;

/// A socket that receives datagrams.
#[derive(Clone, Copy, Debug)]
struct Inlet {
    /// Negative if there is no such socket.
    descriptor: RawFd,
    /// Number of datagrams that the next receive call asks for.
    ask: usize,
    /// Whether the last datagrams were long, so that the next one may be worth receiving in place.
    is_long: bool,
    /// Whether the last datagram was sealed.
    is_sealed: bool,
    /// Number of checks of the link since this socket had a datagram.
    idle: u32,
}

impl Inlet {
    fn new(socket: Option<&Socket>) -> Self {
        let descriptor = socket.map_or(-1, AsRawFd::as_raw_fd);
        Self { descriptor, ask: 1, is_long: false, is_sealed: false, idle: 0 }
    }

    /// Returns whether to check the socket for long packets now: every time while they arrive, otherwise now and then.
    fn is_due(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        self.descriptor >= 0 && (self.idle == 1 || self.idle.is_multiple_of(LOOK_EVERY))
    }
}

impl UdpLink {
    /// Opens a socket at `addr`; for port 0 the kernel chooses one. An IPv6 link bound to `[::]` also serves IPv4 peers, which
    /// appear with their IPv4 addresses.
    pub fn bind(addr: SocketAddr, config: &UdpConfig) -> Result<Self, LinkError> {
        Self::bind_one(addr, config, Sharing::None)
    }

    fn bind_one(addr: SocketAddr, config: &UdpConfig, sharing: Sharing) -> Result<Self, LinkError> {
        config.check()?;
        let opened = socket::open(addr, config, sharing)?;
        let socket::Opened { socket, long, local, family, capabilities, reports_destination } =
            opened;
        let mut link = Self {
            descriptor: socket.as_raw_fd(),
            inlets: [Inlet::new(Some(&socket)), Inlet::new(long.as_ref())],
            socket,
            _long: long,
            local,
            family,
            peers: PathTable::new(0).with_plain_peers(config.plain_peers.clone()),
            paths: Paths::new(config.encapsulation()),
            outbox: Outbox::new(config.bundles),
            senders: 0,
            storage: BatchStorage::default(),
            sendings: Vec::new(),
            gso: capabilities.gso,
            slots: Slots::new(SLOTS),
            gro: false,
            reports_destination,
            stamps: false,
            arrived: None,
            ask_max: SLOTS,
            errors: Errors::default(),
            sealing: Sealing::new(config.seals),
            counters: LinkCounters::default(),
            capabilities,
        };
        if config.max_packet < MAX_DATAGRAM {
            link.join_arriving();
        }
        Ok(link)
    }

    /// Returns the descriptors of both sockets; a negative one means that there is no socket.
    #[inline]
    fn watched(&self) -> [RawFd; 2] {
        self.inlets.each_ref().map(|inlet| inlet.descriptor)
    }

    fn open_descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.watched().into_iter().filter(|&descriptor| descriptor >= 0)
    }

    /// Lets the kernel join arriving packets from now on. On loopback, where packets are as long as possible, there is nothing to
    /// join, and the option costs 0.1 µs per packet. So the link waits for the first packet from another machine, unless packets
    /// are kept short on purpose.
    fn join_arriving(&mut self) {
        self.gro = self.capabilities.gro
            && self.open_descriptors().all(|descriptor| socket::set_gro(descriptor, true));
    }
}

impl UdpLink {
    /// Assigns a path to an address. Queued packets name peers by their places, one of which may be reassigned here, so they are
    /// sent first.
    #[cold]
    fn add_peer(&mut self, address: SocketAddr, raw: RawAddress) -> PathId {
        if !self.outbox.is_empty() {
            self.send_queued();
        }
        peer::add(&mut self.peers, &mut self.senders, address, raw)
    }
}

impl UdpLink {
    /// Returns the place of a path on which something can be sent now, and makes room in the queue. `None`: the packet is counted as
    /// dropped.
    #[inline]
    fn place_to_queue(&mut self, path: PathId) -> Option<usize> {
        let Some(place) = self.peers.place(path) else {
            self.counters.path_forgotten += 1;
            return None;
        };
        if path.is_sealed() && !self.has_keys(place, path) {
            self.counters.waiting_for_keys += 1;
            return None;
        }
        if self.outbox.is_full() {
            self.send_queued();
        }
        Some(place)
    }
}

impl PacketSink for UdpLink {
    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        let Some(place) = self.place_to_queue(packet.path) else { return };
        self.outbox.push(place, &packet, &mut self.peers, &self.paths);
        self.counters.packets_sent += 1;
    }

    #[inline]
    fn send_short(&mut self, message: &ShortTransmit<'_>) {
        let Some(place) = self.place_to_queue(message.path) else { return };
        if !self.outbox.push_short(place, message, &mut self.peers, &self.paths) {
            return message.send_as_packets(self);
        }
        self.counters.packets_sent += 1 + u64::from(message.acks.is_some());
    }

    fn send_acks(
        &mut self,
        path: PathId,
        priority: Priority,
        envelope: &Envelope,
        header: &Header,
        acks: AckRange,
    ) {
        let Some(place) = self.place_to_queue(path) else { return };
        let (entry, tables) = (Entry::Acks(acks), (&mut self.peers, &self.paths));
        if !self.outbox.push_acks(place, priority, envelope, &entry, tables) {
            return send_acks_as_packets(self, path, priority, envelope, header, acks);
        }
        self.counters.packets_sent += 1;
    }

    #[inline]
    fn max_packet(&self, path: PathId) -> usize {
        let known = self.peers.get(path).and_then(|peer| peer.max_packet(&self.paths));
        known.unwrap_or_else(|| self.path(path).max_packet)
    }

    fn swallowed(&mut self, path: PathId) {
        let Some(to) = self.peers.address(path) else { return };
        let shorter = self.paths.swallowed(to, Instant::now());
        self.counters.black_holes += u64::from(shorter);
    }

    fn hold(&mut self, path: PathId) {
        self.peers.hold(path);
        if path.is_sealed() {
            self.follow(path);
        }
    }

    fn release(&mut self, path: PathId) {
        self.peers.release(path);
    }
}

impl Link for UdpLink {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    #[inline]
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        // Queued packets name peers by their places, one of which may be reassigned to a new peer.
        if !self.outbox.is_empty() {
            self.send_queued();
        }
        self.arrived = None;
        let kept = if self.sealing.has_kept() { self.receive_kept(receiver) } else { 0 };
        let short = kept + self.receive(SHORT, receiver);
        if self.inlets[LONG].is_due() { short + self.receive(LONG, receiver) } else { short }
    }

    fn stamp_arrivals(&mut self) -> bool {
        let stamps = self.open_descriptors().all(|socket| sys::stamp_arrivals(socket).is_ok());
        self.stamps = stamps;
        stamps
    }

    fn arrived(&self) -> Option<u64> {
        self.arrived
    }

    #[inline]
    fn look_everywhere(&mut self) {
        self.inlets[LONG].idle = 0;
    }

    #[inline]
    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        self.peers.find(to).or_else(|| {
            let raw = RawAddress::encode(to, self.family).filter(|_| !is_native(to))?;
            Some(self.add_peer(to, raw))
        })
    }

    fn find(&mut self, address: SocketAddr) -> Option<PathId> {
        self.peers.find(address)
    }

    fn address(&self, path: PathId) -> Option<SocketAddr> {
        self.peers.address(path)
    }

    #[inline]
    fn flush(&mut self) {
        self.send_queued();
    }

    #[inline]
    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        self.errors.poll(&self.watched(), &self.paths, &mut self.counters)
    }

    fn descriptors(&self) -> Descriptors {
        let [short, long] = self.watched();
        [short, long, -1, -1]
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn set_receive_budget(&mut self, datagrams: usize) {
        self.ask_max = datagrams.clamp(1, SLOTS);
        self.inlets.iter_mut().for_each(|inlet| inlet.ask = inlet.ask.min(self.ask_max));
    }

    /// Returns half of the size that the kernel accounts with. The kernel charges a packet of 1,472 bytes with 2,304, or more than
    /// 4,000 if a driver has put it into a page, and returns the space of read packets only in quarters of the buffer.
    fn receive_capacity(&self) -> usize {
        self.capabilities.receive_buffer / 2
    }

    fn path(&self, path: PathId) -> Path {
        let Some(peer) = self.peers.get(path) else { return Path::UNKNOWN };
        let found = self.peers.address(path).map_or(Path::UNKNOWN, |to| self.paths.to(to));
        Path { max_packet: found.max_packet - peer.overhead(), ..found }
    }

    fn sealed_paths(&mut self) -> Option<&mut dyn SealedPaths> {
        if self.sealing.is_on { Some(self) } else { None }
    }

    fn examination(&self, path: PathId) -> Option<Examination> {
        self.paths.examination(self.peers.address(path)?, Instant::now())
    }

    fn wanted_examination(&mut self) -> Option<Examination> {
        self.paths.next_wanted()
    }

    fn examined(&mut self, examined: Examined) {
        self.paths.examined(examined, Instant::now());
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.own_counters();
        let dropped = self.open_descriptors().filter_map(sys::dropped);
        counters.receive_buffer_drops = dropped.map(u64::from).sum();
        counters
    }

    fn own_counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        self.sealing.count(&mut counters);
        counters
    }
}
