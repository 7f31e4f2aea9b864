//! Sockets for sending only, each connected to one peer on this machine.
//!
//! On a connected socket, the kernel keeps the route, which saves 0.3 µs per datagram: a fifteenth of a round trip on loopback. But
//! a socket connected in the usual way also *receives* the peer's datagrams, and checking one more socket per peer would cost more
//! than that.
//!
//! Linux keeps two local addresses for a socket: one to receive at and one to send from. Binding to a multicast address sets only
//! the first; connecting then sets the second, from the route. So a socket bound to a multicast address and the link's own port,
//! and connected to the peer, sends from the link's address and port and receives nothing: both the peer's datagrams and the errors
//! about its own go to the link's socket. It needs no privilege and joins no group. [`works`] verifies all that before the first
//! use.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::paths;
use crate::sleeper::{Sleeper, Woken, only};
use crate::sys;

/// Number of flushes for one peer alone before it gets a sender. Opening one costs about 20 µs.
const FLUSHES_BEFORE: u32 = 64;

/// A multicast group of the site-local scope, which routers keep in; no host joins it.
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 201, 46);
/// The group for IPv6.
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x5146);

/// State of a peer's sender.
#[derive(Debug)]
pub(super) enum Sender {
    /// No sender yet; this number of flushes was for the peer alone.
    Counting(u32),
    Open(Socket),
    /// No sender is possible.
    Never,
}

impl Default for Sender {
    fn default() -> Self {
        Self::Counting(0)
    }
}

impl Sender {
    pub(super) fn open(link: &Socket, local: SocketAddr, to: SocketAddr) -> Self {
        open(link, local, to).map_or(Self::Never, Self::Open)
    }

    /// Returns the descriptor of the socket, by which to send without an address.
    #[inline]
    pub(super) fn descriptor(&self) -> Option<RawFd> {
        match self {
            Self::Open(socket) => Some(socket.as_raw_fd()),
            Self::Counting(_) | Self::Never => None,
        }
    }

    /// Counts a flush for this peer alone. Returns whether it is time to open the socket.
    pub(super) fn is_due(&mut self) -> bool {
        let Self::Counting(flushes) = self else { return false };
        *flushes += 1;
        *flushes > FLUSHES_BEFORE
    }
}

/// Opens a sender. Returns `None` if that is impossible, for instance because the link is bound to an address that the route would
/// not send from.
fn open(link: &Socket, local: SocketAddr, to: SocketAddr) -> Option<Socket> {
    let source = paths::connect(to)?.local_addr().ok()?.ip();
    if !local.ip().is_unspecified() && local.ip() != source {
        return None;
    }
    connected(link, local, to).ok()
}

fn connected(link: &Socket, local: SocketAddr, to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // Only datagrams for the group would arrive here, and no code reads them.
    socket.set_recv_buffer_size(0)?;
    socket.set_send_buffer_size(link.send_buffer_size()? / 2)?;
    let descriptor = socket.as_raw_fd();
    let group: IpAddr = if to.is_ipv4() {
        sys::set_option(
            descriptor,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        )?;
        GROUP_V4.into()
    } else {
        sys::set_option(
            descriptor,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        )?;
        GROUP_V6.into()
    };
    socket.set_reuse_address(true)?;
    // A link bound to all addresses has the group's as well, and must share the port, if only for a moment: afterwards, no other
    // socket can bind it. A link with two sockets, or one of several at an address, keeps sharing the port, with the senders as
    // well.
    let shared = link.reuse_port()?;
    socket.set_reuse_port(shared)?;
    link.set_reuse_address(true)?;
    let bound = socket.bind(&SocketAddr::new(group, local.port()).into());
    link.set_reuse_address(false)?;
    bound?;
    socket.connect(&to.into())?;
    Ok(socket)
}

/// Returns whether such a socket works as intended on this machine. The check runs once per process, with two sockets on loopback.
pub(super) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| try_out().unwrap_or(false))
}

fn try_out() -> io::Result<bool> {
    let link = Socket::from(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
    link.set_nonblocking(true)?;
    let local = link.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    // The link is its own peer, so that both ends' datagrams are the same.
    let sender = connected(&link, local, local)?;
    let link = UdpSocket::from(link);
    sender.send(b"out")?;
    let out = arrival(&link)?;
    link.send_to(b"in", local)?;
    let back = arrival(&link)?;
    let diverted = UdpSocket::from(sender).recv(&mut [0; 8]).is_ok();
    Ok(out == (3, local) && back == (2, local) && !diverted)
}

/// Waits for a datagram. On loopback it has arrived when its send returns, unless the kernel is busy; then it may take a moment.
fn arrival(socket: &UdpSocket) -> io::Result<(usize, SocketAddr)> {
    match Sleeper::new()?.sleep(only(socket.as_raw_fd()), Some(Duration::from_millis(100))) {
        Woken::Link => socket.recv_from(&mut [0; 8]),
        _ => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_sends_from_the_links_address_and_takes_nothing_from_it() {
        assert!(works());
        for (bound, to) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("0.0.0.0:0", "127.0.0.1:0"),
            ("[::1]:0", "[::1]:0"),
            ("[::]:0", "[::1]:0"),
            ("[::]:0", "127.0.0.1:0"),
        ] {
            let Ok(link) = UdpSocket::bind(bound) else {
                crate::skipped::skipped(format_args!("this machine has no {bound}"));
                continue;
            };
            let peer = UdpSocket::bind(to).unwrap();
            let local = link.local_addr().unwrap();
            let link = Socket::from(link);
            let sender = open(&link, local, peer.local_addr().unwrap()).unwrap();
            let second = open(&link, local, peer.local_addr().unwrap());
            assert!(second.is_some(), "several peers may have one each");
            sender.send(b"ping").unwrap();
            let (len, from) = peer.recv_from(&mut [0; 8]).unwrap();
            assert_eq!((len, from.port()), (4, local.port()), "{bound} to {to}");
            assert!(from.ip().is_loopback());
            peer.send_to(b"pong", from).unwrap();
            assert_eq!(UdpSocket::from(link).recv(&mut [0; 8]).unwrap(), 4, "{bound} to {to}");
        }
    }

    #[test]
    fn nobody_else_can_have_the_port_afterwards() {
        let link = UdpSocket::bind("0.0.0.0:0").unwrap();
        let local = link.local_addr().unwrap();
        let link = Socket::from(link);
        assert!(open(&link, local, "127.0.0.1:9".parse().unwrap()).is_some());
        let other = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        other.set_reuse_address(true).unwrap();
        assert!(other.bind(&local.into()).is_err());
    }

    #[test]
    fn a_link_at_another_address_than_the_routes_has_no_sender() {
        let link = UdpSocket::bind("127.0.0.5:0").unwrap();
        let local = link.local_addr().unwrap();
        assert!(open(&Socket::from(link), local, "127.0.0.1:9".parse().unwrap()).is_none());
    }
}
