//! The configuration of a UDP link, and the errors of opening one.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::paths::Encapsulation;
use crate::plain_peers::PlainPeers;

/// Length of the longest datagram of a UDP link: the payload of an IPv4 packet of 65,535 bytes.
pub const MAX_DATAGRAM: usize = 65_507;

/// Minimum of the datagram limit: the 576 bytes that every IPv4 host must accept, less IP and UDP headers.
const MIN_DATAGRAM: usize = 548;

/// Configuration of a [`UdpLink`](super::UdpLink).
///
/// # Defaults
///
/// Receive buffer 8 MiB, send buffer 4 MiB, all offloads and bundles on if the kernel has them, packets as long as the path allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    pub(super) receive_buffer: usize,
    pub(super) send_buffer: usize,
    pub(super) gso: bool,
    pub(super) gro: bool,
    pub(super) bundles: bool,
    pub(super) seals: bool,
    pub(super) plain_peers: PlainPeers,
    pub(super) connected_sends: bool,
    pub(super) long_socket: bool,
    pub(super) max_packet: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            receive_buffer: 8 << 20,
            send_buffer: 4 << 20,
            gso: true,
            gro: true,
            bundles: true,
            seals: false,
            plain_peers: PlainPeers::All,
            connected_sends: true,
            long_socket: true,
            max_packet: MAX_DATAGRAM,
        }
    }
}

impl UdpConfig {
    /// Receive buffer to request, in bytes; default 8 MiB. If the kernel grants an unprivileged process less (`net.core.rmem_max`),
    /// that is not an error: [`Capabilities`](crate::Capabilities) has the granted size.
    pub fn receive_buffer(&mut self, bytes: usize) -> &mut Self {
        self.receive_buffer = bytes;
        self
    }

    /// Send buffer to request, in bytes; default 4 MiB. `net.core.wmem_max` limits it in the same way.
    pub fn send_buffer(&mut self, bytes: usize) -> &mut Self {
        self.send_buffer = bytes;
        self
    }

    /// Whether runs of equal packets are sent at once if the kernel can (`UDP_SEGMENT`, Linux 4.18); default true.
    pub fn gso(&mut self, on: bool) -> &mut Self {
        self.gso = on;
        self
    }

    /// Whether the kernel joins packets of one flow as they arrive (`UDP_GRO`, Linux 5.0); default true.
    pub fn gro(&mut self, on: bool) -> &mut Self {
        self.gro = on;
        self
    }

    /// Whether small packets for one peer may share a datagram; default true. Received bundles are split either way.
    pub fn bundles(&mut self, on: bool) -> &mut Self {
        self.bundles = on;
        self
    }

    /// Whether the link has sealed paths ([`SealedPaths`](crate::SealedPaths)); default false. Without them it drops sealed datagrams as
    /// bundles of an unknown version, and answers none.
    pub fn seals(&mut self, on: bool) -> &mut Self {
        self.seals = on;
        self
    }

    /// Hosts with which the link exchanges plain packets; default all. Plain paths to other hosts are barred
    /// ([`PathId::is_barred`](apus_wire::PathId::is_barred)).
    pub fn plain_peers(&mut self, peers: PlainPeers) -> &mut Self {
        self.plain_peers = peers;
        self
    }

    /// Whether up to 64 peers on this machine get a connected socket each for sending, which saves 0.3 µs per datagram; default
    /// true. These sockets receive nothing and hold a descriptor each.
    pub fn connected_sends(&mut self, on: bool) -> &mut Self {
        self.connected_sends = on;
        self
    }

    /// Whether a separate socket at the same port receives long DATA packets, so that short and control packets do not wait behind
    /// them in the kernel's queue; default true.
    pub fn long_socket(&mut self, on: bool) -> &mut Self {
        self.long_socket = on;
        self
    }

    /// Returns the overhead of a datagram, and the limit for packets.
    pub(crate) fn encapsulation(&self) -> Encapsulation {
        Encapsulation { header: 8, longest: self.max_packet }
    }

    /// Upper bound on a packet, header and payload in bytes, even if the path allows more; 548 to [`MAX_DATAGRAM`], the default.
    pub fn max_packet(&mut self, bytes: usize) -> &mut Self {
        self.max_packet = bytes;
        self
    }

    /// Checks the configuration before a link is opened.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        check_setting("max_packet", self.max_packet, MIN_DATAGRAM..=MAX_DATAGRAM)?;
        check_buffers(self.receive_buffer, self.send_buffer)
    }
}

/// Checks the sizes of buffers. The kernel doubles them and stores them in 32 bits.
pub(crate) fn check_buffers(receive: usize, send: usize) -> Result<(), LinkError> {
    const BUFFER_MAX: usize = (i32::MAX / 2) as usize;
    check_setting("receive_buffer", receive, 0..=BUFFER_MAX)?;
    check_setting("send_buffer", send, 0..=BUFFER_MAX)
}

pub(crate) fn check_setting(
    setting: &'static str,
    value: usize,
    allowed: RangeInclusive<usize>,
) -> Result<(), LinkError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(LinkError::Setting { setting, value, least: *allowed.start(), most: *allowed.end() })
}

/// Reason for not opening a link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A setting has a value outside its range.
    #[error("{setting} = {value}: expected a number from {least} to {most}")]
    Setting {
        /// The setter's name.
        setting: &'static str,
        /// The given value.
        value: usize,
        /// The minimum.
        least: usize,
        /// The maximum.
        most: usize,
    },
    /// Another socket has this address and port.
    #[error("{addr} is already in use")]
    AddressInUse {
        /// The requested address.
        addr: SocketAddr,
    },
    /// No interface of this machine has this address.
    #[error("{addr} is not an address of this machine")]
    AddressNotAvailable {
        /// The requested address.
        addr: SocketAddr,
    },
    /// The port is reserved (usually below 1024), or a policy forbids it.
    #[error("no permission to bind {addr}")]
    PermissionDenied {
        /// The requested address.
        addr: SocketAddr,
    },
    /// The address could not be bound for another reason.
    #[error("cannot bind {addr}: {source}")]
    Bind {
        /// The requested address.
        addr: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused the program that distributes peers' packets to several links.
    #[error("cannot share {addr} between several links: {source}")]
    Steering {
        /// The requested address.
        addr: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The process may not open raw sockets.
    #[error(
        "the raw link needs CAP_NET_RAW: run as root, or use 'sudo setcap cap_net_raw+ep {program}' once",
        program = program.display()
    )]
    Capability {
        /// The path of this program.
        program: PathBuf,
    },
    /// The socket could not be created: too many open descriptors, or no such address family.
    #[error("cannot open a socket for {addr}: {source}")]
    Socket {
        /// The requested address.
        addr: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

impl LinkError {
    pub(crate) fn from_bind(addr: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse { addr },
            io::ErrorKind::AddrNotAvailable => Self::AddressNotAvailable { addr },
            io::ErrorKind::PermissionDenied => Self::PermissionDenied { addr },
            _ => Self::Bind { addr, source },
        }
    }
}
