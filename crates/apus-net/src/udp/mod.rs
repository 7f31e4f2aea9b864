//! Homa over UDP: one unprivileged socket for all peers.
//!
//! | part | |
//! |---|---|
//! | `config` | what can be asked for; why opening fails |
//! | `socket` | opening and probing |
//! | `outbox` | what `send` has queued: bundles and large packets |
//! | `send` | from the outbox into the kernel |
//! | `sender` | connected sockets for peers on this machine |
//! | `recv` | from the kernel to the handler |
//! | `shards` | several links at one address |

mod config;
mod outbox;
mod recv;
mod send;
mod sender;
mod shards;
mod socket;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use apus_wire::{PacketReceiver, PacketSink, PathError, Transmit};
use socket2::Socket;

pub use self::config::{LinkError, MAX_DATAGRAM, UdpConfig};
pub(crate) use self::config::{check_buffers, check_setting};
use self::outbox::Outbox;
use self::send::Sending;
pub use self::shards::{SHARDS_MAX, shard_of};
use crate::errors::Errors;
use crate::link::{Capabilities, Link, LinkCounters, Path};
use crate::paths::Paths;
use crate::sources::Sources;
use crate::sys::{self, BatchStorage, Slots};

/// Datagrams received by one system call at most. 16 buffers of 64 KiB fit the second-level cache of a processor of today.
const SLOTS: usize = 16;

/// A link over UDP, for IPv4 or IPv6 or, bound to `[::]`, both.
///
/// The encapsulation is described in `docs/wire.md`, what is probed and measured in `docs/links.md`. A link holds one descriptor,
/// 1 MiB of receive buffers and, in the kernel, what [`UdpConfig`] asks for.
pub struct UdpLink {
    socket: Socket,
    /// Of `socket`.
    descriptor: RawFd,
    local: SocketAddr,
    capabilities: Capabilities,
    paths: Paths,
    outbox: Outbox,
    storage: BatchStorage,
    sendings: Vec<Sending>,
    /// Segments are sent: the kernel can, the configuration wants it and no device has refused.
    gso: bool,
    slots: Slots,
    /// Arriving packets may be joined.
    gro: bool,
    /// Kept when the link is bound to all addresses and at a port that others call.
    sources: Option<Sources>,
    /// Datagrams the next receive call asks for.
    ask: usize,
    /// The last datagrams were long: the next one may be worth putting in its place at once.
    long: bool,
    /// And the most it may.
    ask_max: usize,
    errors: Errors,
    counters: LinkCounters,
}

impl UdpLink {
    /// Opens a socket at `addr`; port 0 lets the kernel choose one. An IPv6 link bound to `[::]` also reaches and is reached by
    /// IPv4 peers, which appear with their IPv4 addresses.
    pub fn bind(addr: SocketAddr, config: &UdpConfig) -> Result<Self, LinkError> {
        Self::bind_one(addr, config, false)
    }

    /// `shared`: others may have the same address.
    fn bind_one(addr: SocketAddr, config: &UdpConfig, shared: bool) -> Result<Self, LinkError> {
        config.check()?;
        let opened = socket::open(addr, config, shared)?;
        let socket::Opened { socket, local, family, capabilities, tells_destination } = opened;
        let mut link = Self {
            descriptor: socket.as_raw_fd(),
            socket,
            local,
            paths: Paths::new(config.encapsulation()),
            outbox: Outbox::new(family, config.bundles),
            storage: BatchStorage::default(),
            sendings: Vec::new(),
            gso: capabilities.gso,
            slots: Slots::new(SLOTS),
            gro: false,
            sources: tells_destination.then(Sources::default),
            ask: 1,
            long: false,
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

    /// Lets the kernel join arriving packets, from now on. On loopback, where packets are as long as they can be, there is
    /// nothing to join and being ready for it costs 0.1 µs for each; so this waits for the first packet from another machine,
    /// unless packets are kept short on purpose.
    fn join_arriving(&mut self) {
        self.gro = self.capabilities.gro && socket::set_gro(self.descriptor, true);
    }
}

impl PacketSink for UdpLink {
    #[inline]
    fn send(&mut self, packet: Transmit<'_>) {
        if self.outbox.is_full() {
            self.send_queued();
        }
        let mut pushed = self.outbox.push(&packet, &self.paths);
        if pushed == Err(outbox::Refused::NoRoom) {
            self.send_queued();
            pushed = self.outbox.push(&packet, &self.paths);
        }
        match pushed {
            Ok(()) => self.counters.packets_sent += 1,
            Err(_) => {
                self.counters.wrong_family += 1;
                self.errors.push(packet.to, PathError::NoLink, &mut self.counters);
            }
        }
    }

    #[inline]
    fn max_packet(&self, to: SocketAddr) -> usize {
        self.paths.to(to).max_packet
    }

    fn swallowed(&mut self, to: SocketAddr) {
        let shorter = self.paths.swallowed(to, Instant::now());
        self.counters.black_holes += u64::from(shorter);
    }
}

impl Link for UdpLink {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    #[inline]
    fn recv(&mut self, handler: &mut dyn FnMut(SocketAddr, &[u8])) -> usize {
        self.receive(handler)
    }

    #[inline]
    fn recv_into(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        if self.long
            && !self.gro
            && let Some(receive_target) = receiver.receive_target()
        {
            let before = receive_target.message.len();
            let in_place = self.slots.receive_behind(self.descriptor, receive_target);
            return self.receive_in_place(in_place, before, receiver);
        }
        self.receive(&mut |from, packet| receiver.packet(from, packet))
    }

    #[inline]
    fn flush(&mut self) {
        self.send_queued();
    }

    #[inline]
    fn poll_error(&mut self) -> Option<(SocketAddr, PathError)> {
        self.errors.poll(self.descriptor, &self.paths, &mut self.counters)
    }

    fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn set_receive_budget(&mut self, datagrams: usize) {
        self.ask_max = datagrams.clamp(1, SLOTS);
        self.ask = self.ask.min(self.ask_max);
    }

    /// Half of what the kernel accounts with: it charges a packet of 1,472 bytes with 2,304, one that a driver has put into a page
    /// with more than 4,000, and gives back what was read only when that is a quarter of the buffer.
    fn receive_capacity(&self) -> usize {
        self.capabilities.receive_buffer / 2
    }

    fn path(&self, to: SocketAddr) -> Path {
        self.paths.at(to, Instant::now())
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        counters.receive_buffer_drops = sys::dropped(self.descriptor).map_or(0, u64::from);
        counters
    }
}
