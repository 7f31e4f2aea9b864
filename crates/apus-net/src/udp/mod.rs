//! Homa over UDP: one unprivileged socket for all peers.
//!
//! | part | |
//! |---|---|
//! | `config` | what can be asked for; why opening fails |
//! | `socket` | opening and probing |
//! | `peer` | what is kept ready for each path |
//! | `outbox` | what `send` has queued: bundles and large packets |
//! | `send` | from the outbox into the kernel |
//! | `sender` | connected sockets for peers on this machine |
//! | `recv` | from the kernel to the handler |
//! | `shards` | several links at one address |
//! | `steering` | which socket gets a datagram |

mod config;
mod outbox;
mod peer;
mod recv;
mod send;
mod sender;
mod shards;
mod socket;
mod steering;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit, is_native};
use socket2::Socket;

pub use self::config::{LinkError, MAX_DATAGRAM, UdpConfig};
pub(crate) use self::config::{check_buffers, check_setting};
use self::outbox::{Outbox, Sending};
use self::peer::Peer;
pub use self::shards::{SHARDS_MAX, shard_of};
use self::socket::Sharing;
use crate::address::{Family, RawAddress};
use crate::errors::Errors;
use crate::link::{Capabilities, Link, LinkCounters};
use crate::path::Path;
use crate::path_table::PathTable;
use crate::paths::{Examination, Examined, Paths};
use crate::sleeper::Descriptors;
use crate::sys::{self, BatchStorage, Slots};

/// Datagrams received by one system call at most. 16 buffers of 64 KiB fit the second-level cache of a processor of today.
const SLOTS: usize = 16;

/// While no long packets come, the socket for them is looked at each time that so many others were: a look costs 0.3 µs.
const LOOK_EVERY: u32 = 4;

/// A link over UDP, for IPv4 or IPv6 or, bound to `[::]`, both.
///
/// The encapsulation is described in `docs/wire.md`, what is probed and measured in `docs/links.md`. A link holds two descriptors (one
/// without [`UdpConfig::long_socket`]), 1 MiB of receive buffers and, in the kernel, what [`UdpConfig`] asks for, the receive buffer
/// for each of the two.
pub struct UdpLink {
    /// The one that sends, and receives what is short.
    socket: Socket,
    /// The one that receives long DATA packets, if there are two.
    _long: Option<Socket>,
    /// Of `socket`.
    descriptor: RawFd,
    /// By [`SHORT`] and [`LONG`].
    inlets: [Inlet; 2],
    local: SocketAddr,
    family: Family,
    capabilities: Capabilities,
    peers: PathTable<Peer>,
    paths: Paths,
    outbox: Outbox,
    /// Peers that have a socket of their own.
    senders: usize,
    storage: BatchStorage,
    sendings: Vec<Sending>,
    /// Segments are sent: the kernel can, the configuration wants it and no device has refused.
    gso: bool,
    slots: Slots,
    /// Arriving packets may be joined.
    gro: bool,
    /// The kernel says where packets came to: the link is bound to all addresses and at a port that others call.
    tells_destination: bool,
    /// The kernel notes when datagrams arrive.
    stamps: bool,
    /// When the first one of the last batch did.
    arrived: Option<u64>,
    /// Datagrams one receive call may ask for at most.
    ask_max: usize,
    errors: Errors,
    counters: LinkCounters,
}

/// The place of the socket for short packets, bundles and control packets.
const SHORT: usize = 0;

/// The place of the socket for long DATA packets.
const LONG: usize = 1;

/// A socket that datagrams come to.
#[derive(Clone, Copy, Debug)]
struct Inlet {
    /// Negative if there is no such socket.
    descriptor: RawFd,
    /// Datagrams the next receive call asks for.
    ask: usize,
    /// The last datagrams were long: the next one may be worth putting in its place at once.
    is_long: bool,
    /// Looks at the link since something was found here.
    idle: u32,
}

impl Inlet {
    fn new(socket: Option<&Socket>) -> Self {
        let descriptor = socket.map_or(-1, AsRawFd::as_raw_fd);
        Self { descriptor, ask: 1, is_long: false, idle: 0 }
    }

    /// Whether to look at the socket for long packets now: each time while they come, else now and then.
    fn is_due(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        self.descriptor >= 0 && (self.idle == 1 || self.idle.is_multiple_of(LOOK_EVERY))
    }
}

impl UdpLink {
    /// Opens a socket at `addr`; port 0 lets the kernel choose one. An IPv6 link bound to `[::]` also reaches and is reached by
    /// IPv4 peers, which appear with their IPv4 addresses.
    pub fn bind(addr: SocketAddr, config: &UdpConfig) -> Result<Self, LinkError> {
        Self::bind_one(addr, config, Sharing::None)
    }

    fn bind_one(addr: SocketAddr, config: &UdpConfig, sharing: Sharing) -> Result<Self, LinkError> {
        config.check()?;
        let opened = socket::open(addr, config, sharing)?;
        let socket::Opened { socket, long, local, family, capabilities, tells_destination } =
            opened;
        let mut link = Self {
            descriptor: socket.as_raw_fd(),
            inlets: [Inlet::new(Some(&socket)), Inlet::new(long.as_ref())],
            socket,
            _long: long,
            local,
            family,
            peers: PathTable::new(0),
            paths: Paths::new(config.encapsulation()),
            outbox: Outbox::new(config.bundles),
            senders: 0,
            storage: BatchStorage::default(),
            sendings: Vec::new(),
            gso: capabilities.gso,
            slots: Slots::new(SLOTS),
            gro: false,
            tells_destination,
            stamps: false,
            arrived: None,
            ask_max: SLOTS,
            errors: Errors::default(),
            counters: LinkCounters::default(),
            capabilities,
        };
        if config.max_packet < MAX_DATAGRAM {
            link.join_arriving();
        }
        Ok(link)
    }

    /// The descriptors of both sockets; a negative one is none.
    #[inline]
    fn watched(&self) -> [RawFd; 2] {
        self.inlets.each_ref().map(|inlet| inlet.descriptor)
    }

    fn open_descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.watched().into_iter().filter(|&descriptor| descriptor >= 0)
    }

    /// Lets the kernel join arriving packets, from now on. On loopback, where packets are as long as they can be, there is
    /// nothing to join and being ready for it costs 0.1 µs for each; so this waits for the first packet from another machine,
    /// unless packets are kept short on purpose.
    fn join_arriving(&mut self) {
        self.gro = self.capabilities.gro
            && self.open_descriptors().all(|descriptor| socket::set_gro(descriptor, true));
    }
}

impl UdpLink {
    /// Gives an address a path. What is queued names peers by their places, one of which may be given away here.
    #[cold]
    fn add_peer(&mut self, address: SocketAddr, raw: RawAddress) -> PathId {
        if !self.outbox.is_empty() {
            self.send_queued();
        }
        peer::add(&mut self.peers, &mut self.senders, address, raw)
    }
}

impl PacketSink for UdpLink {
    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        let Some(place) = self.peers.place(packet.path) else {
            self.counters.path_forgotten += 1;
            return;
        };
        if self.outbox.is_full() {
            self.send_queued();
        }
        self.outbox.push(place, &packet, &mut self.peers, &self.paths);
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
        // What is queued names peers by their places, one of which may be given to a new peer.
        if !self.outbox.is_empty() {
            self.send_queued();
        }
        self.arrived = None;
        let short = self.receive(SHORT, receiver);
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

    /// Half of what the kernel accounts with: it charges a packet of 1,472 bytes with 2,304, one that a driver has put into a page
    /// with more than 4,000, and gives back what was read only when that is a quarter of the buffer.
    fn receive_capacity(&self) -> usize {
        self.capabilities.receive_buffer / 2
    }

    fn path(&self, path: PathId) -> Path {
        self.peers.address(path).map_or(Path::UNKNOWN, |to| self.paths.to(to))
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
        let mut counters = self.counters;
        let dropped = self.open_descriptors().filter_map(sys::dropped);
        counters.receive_buffer_drops = dropped.map(u64::from).sum();
        counters
    }

    fn own_counters(&self) -> LinkCounters {
        self.counters
    }
}
