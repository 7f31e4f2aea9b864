//! Opening the sockets, and probing the kernel's features.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use apus_wire::IP_PROTOCOL;
use socket2::{Domain, Protocol, Socket, Type};

use super::RawConfig;
use super::filter;
use super::unreachable::Unreachable;
use crate::address::AddressFamily;
use crate::link::Capabilities;
use crate::sys::IpVersion;
use crate::udp::LinkError;
use crate::{options, sys};

/// Sockets of one IP version, and their properties.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) unreachable: Unreachable,
    pub(super) claim: UnixDatagram,
    pub(super) family: AddressFamily,
    pub(super) capabilities: Capabilities,
}

pub(super) fn open(ip: IpAddr, config: &RawConfig) -> Result<Opened, LinkError> {
    let addr = SocketAddr::new(ip, 0);
    let (domain, family, version) = match ip {
        IpAddr::V4(_) => (Domain::IPV4, AddressFamily::V4, IpVersion::V4),
        IpAddr::V6(_) => (Domain::IPV6, AddressFamily::V6, IpVersion::V6),
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => LinkError::Capability {
            program: std::env::current_exe().unwrap_or_else(|_| "PROGRAM".into()),
        },
        _ => LinkError::Socket { addr, source },
    };
    let protocol = Protocol::from(i32::from(IP_PROTOCOL));
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let unreachable = Unreachable::open(domain).map_err(failed)?;
    let descriptor = socket.as_raw_fd();
    // Attached before the bind, so that no packet bypasses it. Without the filter, the core drops the same packets later.
    let _ = sys::filter(descriptor, &filter::program(version));
    if family == AddressFamily::V6 && ip.is_unspecified() {
        // An IPv4 packet contains its destination; without this option, an IPv6 one is answered from the route's address.
        let _ = sys::set_option(descriptor, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1);
    }
    let capabilities = Capabilities {
        kind: "raw",
        error_queue: options::report_errors(descriptor, family),
        path_mtu: options::never_fragment(descriptor, family),
        drop_counter: sys::dropped(descriptor).is_some(),
        receive_buffer_wanted: config.receive_buffer,
        receive_buffer: options::receive_buffer(descriptor, config.receive_buffer),
        send_buffer: options::send_buffer(descriptor, config.send_buffer),
        ..Capabilities::default()
    };
    let claim = claim(addr)?;
    socket.bind(&addr.into()).map_err(|source| LinkError::from_bind(addr, source))?;
    Ok(Opened { socket, unreachable, claim, family, capabilities })
}

/// Claims the address. Two raw links at one address would both receive every packet, and both would answer. The kernel permits
/// that, so a name that only one process of a network namespace can have, and that ends with the process, excludes it.
fn claim(addr: SocketAddr) -> Result<UnixDatagram, LinkError> {
    let name = UnixAddr::from_abstract_name(format!("apus-raw-{}", addr.ip()));
    name.and_then(|name| UnixDatagram::bind_addr(&name)).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => LinkError::AddressInUse { addr },
        _ => LinkError::Socket { addr, source },
    })
}
