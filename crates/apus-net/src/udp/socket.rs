//! Opening the socket, and finding out what the kernel offers on it.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use libc::SOL_UDP;
use socket2::{Domain, Protocol, Socket, Type};

use super::config::{LinkError, UdpConfig};
use super::sender;
use crate::address::Family;
use crate::link::Capabilities;
use crate::{options, sys};

/// A bound socket and what is known of it.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) local: SocketAddr,
    pub(super) family: Family,
    pub(super) capabilities: Capabilities,
    /// The kernel says where packets came to.
    pub(super) tells_destination: bool,
}

/// `shared`: other sockets of this user may have the same address.
pub(super) fn open(
    addr: SocketAddr,
    config: &UdpConfig,
    shared: bool,
) -> Result<Opened, LinkError> {
    let failed = |source| LinkError::Socket { addr, source };
    let socket =
        Socket::new(Domain::for_address(addr), Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    socket.set_reuse_port(shared).map_err(failed)?;
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
        dual_stack: family == Family::Both,
        receive_buffer_wanted: config.receive_buffer,
        receive_buffer: options::receive_buffer(descriptor, config.receive_buffer),
        send_buffer: options::send_buffer(descriptor, config.send_buffer),
    };
    // A node that is called at a port of its own must answer from where it was called. One that only calls is answered where it
    // calls from, and is spared the 0.1 µs.
    let tells_destination = addr.ip().is_unspecified()
        && addr.port() != 0
        && options::for_each_version(
            descriptor,
            family,
            [libc::IP_PKTINFO, libc::IPV6_RECVPKTINFO],
            [1, 1],
        );
    socket.bind(&addr.into()).map_err(|source| LinkError::from_bind(addr, source))?;
    let local = socket.local_addr().map_err(failed)?;
    let local = local.as_socket().unwrap_or(addr);
    Ok(Opened { socket, local, family, capabilities, tells_destination })
}

/// Turns the joining of arriving packets on or off; false if the kernel does not know it.
pub(super) fn set_gro(descriptor: RawFd, on: bool) -> bool {
    sys::set_option(descriptor, SOL_UDP, libc::UDP_GRO, i32::from(on)).is_ok()
}

/// An IPv6 socket bound to all addresses also serves IPv4, if the kernel lets it.
fn choose_family(socket: &Socket, addr: SocketAddr) -> Family {
    match addr {
        SocketAddr::V4(_) => Family::V4,
        SocketAddr::V6(addr) if addr.ip().is_unspecified() && socket.set_only_v6(false).is_ok() => {
            Family::Both
        }
        SocketAddr::V6(_) => Family::V6,
    }
}
