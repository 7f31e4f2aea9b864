//! What a UDP link can be asked for, and why opening one can fail.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::paths::Encapsulation;

/// Longest datagram a UDP link sends: what fits an IPv4 packet of 65,535 bytes.
pub const MAX_DATAGRAM: usize = 65_507;

/// Shortest datagram limit that makes sense: what every IPv4 host must take (576 bytes), less IP and UDP headers.
const MIN_DATAGRAM: usize = 548;

/// How a [`UdpLink`](super::UdpLink) is opened.
///
/// # Defaults
///
/// Receive buffer 8 MiB, send buffer 4 MiB, all offloads and bundles on where the kernel has them, packets as long as the path
/// takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    pub(super) receive_buffer: usize,
    pub(super) send_buffer: usize,
    pub(super) gso: bool,
    pub(super) gro: bool,
    pub(super) bundles: bool,
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
            connected_sends: true,
            long_socket: true,
            max_packet: MAX_DATAGRAM,
        }
    }
}

impl UdpConfig {
    /// Receive buffer to ask for, in bytes; default 8 MiB. What the kernel refuses to a process without privilege
    /// (`net.core.rmem_max`) is not an error: [`Capabilities`](crate::Capabilities) tells what was granted.
    pub fn receive_buffer(&mut self, bytes: usize) -> &mut Self {
        self.receive_buffer = bytes;
        self
    }

    /// Send buffer to ask for, in bytes; default 4 MiB. As for the receive buffer, `net.core.wmem_max` limits it.
    pub fn send_buffer(&mut self, bytes: usize) -> &mut Self {
        self.send_buffer = bytes;
        self
    }

    /// Send runs of equal packets in one go where the kernel can (`UDP_SEGMENT`, Linux 4.18); default true.
    pub fn gso(&mut self, on: bool) -> &mut Self {
        self.gso = on;
        self
    }

    /// Let the kernel join packets of one flow as they arrive (`UDP_GRO`, Linux 5.0); default true.
    pub fn gro(&mut self, on: bool) -> &mut Self {
        self.gro = on;
        self
    }

    /// Let small packets for one peer share a datagram; default true. Bundles that arrive are taken apart either way.
    pub fn bundles(&mut self, on: bool) -> &mut Self {
        self.bundles = on;
        self
    }

    /// Give up to 64 peers on this machine a connected socket each to send by, which saves 0.3 µs a datagram; default true.
    /// They receive nothing, and hold a descriptor each.
    pub fn connected_sends(&mut self, on: bool) -> &mut Self {
        self.connected_sends = on;
        self
    }

    /// Receive long DATA packets by a socket of their own at the same port, so that short and control packets do not wait behind
    /// them in the kernel's queue; default true.
    pub fn long_socket(&mut self, on: bool) -> &mut Self {
        self.long_socket = on;
        self
    }

    /// What a datagram costs beside its packet, and the limit for packets.
    pub(crate) fn encapsulation(&self) -> Encapsulation {
        Encapsulation { header: 8, longest: self.max_packet }
    }

    /// Upper limit for a packet, header and payload in bytes, even where the path takes more; 548 to [`MAX_DATAGRAM`], which is
    /// the default.
    pub fn max_packet(&mut self, bytes: usize) -> &mut Self {
        self.max_packet = bytes;
        self
    }

    /// What opening a link does first.
    pub(super) fn check(&self) -> Result<(), LinkError> {
        check_setting("max_packet", self.max_packet, MIN_DATAGRAM..=MAX_DATAGRAM)?;
        check_buffers(self.receive_buffer, self.send_buffer)
    }
}

/// The kernel doubles the size of a buffer, which it keeps in 32 bits.
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

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A setting has a value outside its range.
    #[error("{setting} = {value}: expected a number from {least} to {most}")]
    Setting {
        /// The setter's name.
        setting: &'static str,
        /// The value given.
        value: usize,
        /// The least value allowed.
        least: usize,
        /// The greatest value allowed.
        most: usize,
    },
    /// Somebody else has this address and port.
    #[error("{addr} is already in use")]
    AddressInUse {
        /// The address asked for.
        addr: SocketAddr,
    },
    /// No interface of this machine has this address.
    #[error("{addr} is not an address of this machine")]
    AddressNotAvailable {
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The port is reserved (usually below 1024), or a policy forbids it.
    #[error("no permission to bind {addr}")]
    PermissionDenied {
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The address could not be bound for another reason.
    #[error("cannot bind {addr}: {source}")]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel did not take the program that gives each peer's packets to one of several links.
    #[error("cannot share {addr} between several links: {source}")]
    Steering {
        /// The address.
        addr: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process may not open raw sockets.
    #[error(
        "the raw link needs CAP_NET_RAW: run as root, or give it to the program once with 'sudo setcap cap_net_raw+ep {program}'",
        program = program.display()
    )]
    Capability {
        /// This program.
        program: PathBuf,
    },
    /// No socket could be made: too many open descriptors, or no such address family.
    #[error("cannot open a socket for {addr}: {source}")]
    Socket {
        /// The address asked for.
        addr: SocketAddr,
        /// What the kernel said.
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
