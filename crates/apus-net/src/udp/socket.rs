//! Opening the socket, and finding out what the kernel offers on it.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, SOL_UDP};
use socket2::{Domain, Protocol, Socket, Type};

use super::config::{LinkError, UdpConfig};
use super::sender;
use crate::address::Family;
use crate::link::Capabilities;
use crate::sys;

/// A bound socket and what is known of it.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) local: SocketAddr,
    pub(super) family: Family,
    pub(super) capabilities: Capabilities,
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
        error_queue: for_each_version(
            descriptor,
            family,
            [libc::IP_RECVERR, libc::IPV6_RECVERR],
            [1, 1],
        ),
        path_mtu: for_each_version(
            descriptor,
            family,
            [libc::IP_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER],
            [libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO],
        ),
        drop_counter: sys::dropped(descriptor).is_some(),
        connected_sends: config.connected_sends && sender::works(),
        dual_stack: family == Family::Both,
        receive_buffer_wanted: config.receive_buffer,
        receive_buffer: grow(
            descriptor,
            config.receive_buffer,
            [libc::SO_RCVBUFFORCE, libc::SO_RCVBUF],
        ),
        send_buffer: grow(descriptor, config.send_buffer, [libc::SO_SNDBUFFORCE, libc::SO_SNDBUF]),
    };
    socket.bind(&addr.into()).map_err(|source| LinkError::from_bind(addr, source))?;
    let local = socket.local_addr().map_err(failed)?;
    let local = local.as_socket().unwrap_or(addr);
    Ok(Opened { socket, local, family, capabilities })
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

/// Sets one option at the IPv4 and IPv6 levels that the family needs; false if one was refused.
fn for_each_version(descriptor: RawFd, family: Family, names: [i32; 2], values: [i32; 2]) -> bool {
    let v4 = family == Family::V6
        || sys::set_option(descriptor, IPPROTO_IP, names[0], values[0]).is_ok();
    let v6 = family == Family::V4
        || sys::set_option(descriptor, IPPROTO_IPV6, names[1], values[1]).is_ok();
    v4 && v6
}

/// Asks for a buffer size, first with the option that only privilege may use, and returns what is accounted with now. The kernel
/// cuts the request without privilege down to its limit rather than refusing it.
fn grow(descriptor: RawFd, bytes: usize, [force, ask]: [i32; 2]) -> usize {
    // The kernel doubles the value, so that larger ones would overflow.
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX).min(i32::MAX / 2);
    let forced = sys::set_option(descriptor, SOL_SOCKET, force, wanted);
    if forced.is_err() {
        // A refusal leaves the default, which the next line reports.
        let _ = sys::set_option(descriptor, SOL_SOCKET, ask, wanted);
    }
    sys::option(descriptor, SOL_SOCKET, ask)
        .map_or(0, |actual| usize::try_from(actual).unwrap_or(0))
}
