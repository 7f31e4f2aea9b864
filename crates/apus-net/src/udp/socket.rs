//! Opening the socket, and probing the kernel's features.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use libc::SOL_UDP;
use socket2::{Domain, Protocol, Socket, Type};

use super::config::{LinkError, UdpConfig};
use super::{sender, steering};
use crate::address::AddressFamily;
use crate::link::Capabilities;
use crate::{options, sys};

/// Bound sockets and their properties.
pub(super) struct Opened {
    pub(super) socket: Socket,
    /// The socket for long packets at the same address.
    pub(super) long: Option<Socket>,
    pub(super) local: SocketAddr,
    pub(super) family: AddressFamily,
    pub(super) capabilities: Capabilities,
    /// Whether the kernel reports packets' destinations.
    pub(super) reports_destination: bool,
}

/// Whether several links share one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    /// One link owns the address.
    None,
    /// The first of several.
    First,
    /// A link that joins the first.
    Joins,
}

/// Opens the sockets of a link. Only a link that joins others may bind to a port in use; for others that is an error.
pub(super) fn open(
    addr: SocketAddr,
    config: &UdpConfig,
    sharing: Sharing,
) -> Result<Opened, LinkError> {
    let failed = |source| LinkError::Socket { addr, source };
    let socket =
        Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    socket.set_reuse_port(sharing == Sharing::Joins).map_err(failed)?;
    let family = choose_family(&socket, addr);
    let descriptor = socket.as_raw_fd();
    let capabilities = Capabilities {
        kind: "udp",
        gso: config.gso && sys::option(descriptor, SOL_UDP, libc::UDP_SEGMENT).is_ok(),
        gro: config.gro && set_gro(descriptor, true) && set_gro(descriptor, false),
        bundles: config.bundles,
        error_queue: options::report_errors(descriptor, family),
        path_mtu: options::never_fragment(descriptor, family),
        drop_counter: sys::dropped(descriptor).is_some(),
        connected_sends: config.connected_sends && sender::works(),
        long_socket: false,
        dual_stack: family == AddressFamily::Both,
        receive_buffer_wanted: config.receive_buffer,
        receive_buffer: options::receive_buffer(descriptor, config.receive_buffer),
        send_buffer: options::send_buffer(descriptor, config.send_buffer),
    };
    // A node with a port of its own must answer from the address that was called. A node that only calls is answered at the address
    // of its calls, and is spared the 0.1 µs.
    let reports_destination =
        addr.ip().is_unspecified() && addr.port() != 0 && report_destination(descriptor, family);
    socket.bind(&addr.into()).map_err(|source| LinkError::from_bind(addr, source))?;
    let local = socket.local_addr().map_err(failed)?;
    let local = local.as_socket().unwrap_or(addr);
    let mut opened =
        Opened { socket, long: None, local, family, capabilities, reports_destination };
    let shares = sharing != Sharing::None;
    opened.long = config.long_socket.then(|| open_long(&opened, config, shares).ok()).flatten();
    // No socket may join without the program.
    opened.socket.set_reuse_port(shares || opened.long.is_some()).map_err(failed)?;
    opened.capabilities.long_socket = opened.long.is_some();
    Ok(opened)
}

/// Opens a second socket at the address of the first.
///
/// `shares`: the group has one program for all links.
fn open_long(first: &Opened, config: &UdpConfig, shares: bool) -> io::Result<Socket> {
    // The first was bound alone, so that a port in use is an error. From now on, another process of this user that also shares the
    // port could join; the program gives it nothing, unless it attaches another one.
    first.socket.set_reuse_port(true)?;
    let socket = Socket::new(Domain::for_address(first.local), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_port(true)?;
    choose_family(&socket, first.local);
    let descriptor = socket.as_raw_fd();
    options::report_errors(descriptor, first.family);
    options::receive_buffer(descriptor, config.receive_buffer);
    if first.reports_destination {
        report_destination(descriptor, first.family);
    }
    socket.bind(&first.local.into())?;
    if !shares {
        sys::steer(descriptor, &steering::by_length())?;
    }
    Ok(socket)
}

/// Makes the kernel report packets' destinations.
fn report_destination(descriptor: RawFd, family: AddressFamily) -> bool {
    let names = [libc::IP_PKTINFO, libc::IPV6_RECVPKTINFO];
    options::for_each_version(descriptor, family, names, [1, 1])
}

/// Switches the joining of arriving packets on or off. Returns `false` if the kernel does not support it.
pub(super) fn set_gro(descriptor: RawFd, on: bool) -> bool {
    sys::set_option(descriptor, SOL_UDP, libc::UDP_GRO, i32::from(on)).is_ok()
}

/// Chooses the family. An IPv6 socket bound to all addresses also serves IPv4, if the kernel permits it.
fn choose_family(socket: &Socket, addr: SocketAddr) -> AddressFamily {
    match addr {
        SocketAddr::V4(_) => AddressFamily::V4,
        SocketAddr::V6(addr) if addr.ip().is_unspecified() && socket.set_only_v6(false).is_ok() => {
            AddressFamily::Both
        }
        SocketAddr::V6(_) => AddressFamily::V6,
    }
}
