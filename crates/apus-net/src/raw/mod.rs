//! Homa as the Linux module sends it: IP protocol 146, no encapsulation.
//!
//! | part | |
//! |---|---|
//! | `config` | configuration |
//! | `socket` | opening and probing |
//! | `filter` | packets that the kernel drops |
//! | `outbox` | packets queued by `send` |
//! | `send` | from the outbox into the kernel |
//! | `recv` | from the kernel to the handler |
//! | `unreachable` | ICMP for ports that are not served |

mod config;
mod filter;
mod outbox;
mod recv;
mod send;
mod socket;
mod unreachable;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use apus_wire::{PacketReceiver, PacketSink, PathError, PathId, Transmit, is_native};
use socket2::Socket;

pub use self::config::{MAX_NATIVE, RawConfig};
use self::outbox::Outbox;
use self::unreachable::Unreachable;
use crate::address::{AddressFamily, RawAddress};
use crate::errors::Errors;
use crate::interfaces::Interfaces;
use crate::link::{Capabilities, Link, LinkCounters};
use crate::path::Path;
use crate::path_table::PathTable;
use crate::paths::{self, Examination, Examined, Paths};
use crate::sleeper::{Descriptors, only};
use crate::sys::{self, BatchStorage, Slots};
use crate::udp::LinkError;

/// Upper bound on datagrams per receive call, as for UDP.
const SLOTS: usize = 16;

/// A link over IP protocol 146, for IPv4 or IPv6, compatible byte for byte with the Linux Homa module.
///
/// Needs `CAP_NET_RAW`. Addresses have port 0, because the protocol has no port of its own ([`is_native`]). One link owns an IP
/// address: a second one in the same network namespace is refused. Beside the module, the two would answer each other's packets
/// (`docs/linux-homa.md`). While the link is open, the kernel does not answer the protocol with ICMP *protocol unreachable*, which
/// would end all calls of the module to this host; so open it before the first call.
pub struct RawLink {
    socket: Socket,
    local: SocketAddr,
    family: AddressFamily,
    capabilities: Capabilities,
    peers: PathTable<Destination>,
    paths: Paths,
    outbox: Outbox,
    storage: BatchStorage,
    slots: Slots,
    /// Number of datagrams that the next receive call asks for.
    ask: usize,
    /// Upper bound on `ask`.
    ask_max: usize,
    interfaces: Interfaces,
    unreachable: Unreachable,
    errors: Errors,
    counters: LinkCounters,
    /// Excludes other raw links from the address.
    _claim: UnixDatagram,
}

impl RawLink {
    /// Opens sockets at `ip`; the unspecified address stands for all addresses of its version.
    ///
    /// # Errors
    ///
    /// [`LinkError::Capability`] without `CAP_NET_RAW`, [`LinkError::AddressInUse`] if another raw link of this library has the
    /// address, [`LinkError::AddressNotAvailable`] if no interface has it, [`LinkError::Setting`] for a value outside its range,
    /// and other errors of the kernel.
    pub fn bind(ip: IpAddr, config: &RawConfig) -> Result<Self, LinkError> {
        config.check()?;
        let socket::Opened { socket, unreachable, claim, family, capabilities } =
            socket::open(ip, config)?;
        Ok(Self {
            socket,
            local: SocketAddr::new(ip, 0),
            family,
            capabilities,
            peers: PathTable::new(number_of(family)).with_plain_peers(config.plain_peers.clone()),
            paths: Paths::new(config.encapsulation()),
            outbox: Outbox::default(),
            storage: BatchStorage::default(),
            slots: Slots::new(SLOTS),
            ask: 1,
            ask_max: SLOTS,
            interfaces: Interfaces::default(),
            unreachable,
            errors: Errors::default(),
            counters: LinkCounters::default(),
            _claim: claim,
        })
    }

    /// Returns the number of this link among those of its node: UDP's is 0.
    pub(crate) fn number(&self) -> usize {
        number_of(self.family) as usize
    }

    /// Returns the local address that the peer knows.
    fn address_towards(&self, path: PathId) -> Option<IpAddr> {
        if !self.local.ip().is_unspecified() {
            return Some(self.local.ip());
        }
        self.peers.get(path)?.called.or_else(|| paths::source(self.peers.address(path)?))
    }
}

/// The destination of a path.
struct Destination {
    raw: RawAddress,
    /// The local address that the peer called last, if the link is bound to all addresses.
    called: Option<IpAddr>,
}

fn number_of(family: AddressFamily) -> u32 {
    if family == AddressFamily::V4 { 1 } else { 2 }
}

impl PacketSink for RawLink {
    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        if self.outbox.is_full() {
            self.send_queued();
        }
        self.queue(&packet);
    }

    #[inline]
    fn max_packet(&self, path: PathId) -> usize {
        self.path(path).max_packet
    }

    fn swallowed(&mut self, path: PathId) {
        let Some(to) = self.peers.address(path) else { return };
        let shorter = self.paths.swallowed(to, Instant::now());
        self.counters.black_holes += u64::from(shorter);
    }

    fn refuse(&mut self, path: PathId, packet: [u8; 8]) {
        if let Some(to) = self.peers.address(path)
            && let Some(local) = self.address_towards(path)
            && self.unreachable.send(to, local, packet)
        {
            self.counters.refusals_sent += 1;
        }
    }

    fn hold(&mut self, path: PathId) {
        self.peers.hold(path);
    }

    fn release(&mut self, path: PathId) {
        self.peers.release(path);
    }
}

impl Link for RawLink {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    #[inline]
    fn recv(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        self.receive(receiver)
    }

    #[inline]
    fn resolve(&mut self, to: SocketAddr) -> Option<PathId> {
        self.peers.find(to).or_else(|| {
            let raw = RawAddress::encode(to, self.family).filter(|_| is_native(to))?;
            Some(self.peers.insert(to, Destination { raw, called: None }, drop))
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
        self.errors.poll(&[self.socket.as_raw_fd()], &self.paths, &mut self.counters)
    }

    fn descriptors(&self) -> Descriptors {
        only(self.socket.as_raw_fd())
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn set_receive_budget(&mut self, datagrams: usize) {
        self.ask_max = datagrams.clamp(1, SLOTS);
        self.ask = self.ask.min(self.ask_max);
    }

    /// Returns half of the size that the kernel accounts with, as for UDP.
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
        counters.receive_buffer_drops = sys::dropped(self.socket.as_raw_fd()).map_or(0, u64::from);
        counters
    }

    fn own_counters(&self) -> LinkCounters {
        self.counters
    }
}
