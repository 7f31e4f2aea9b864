//! What is known of the way to each host: MTU, whether it is this machine, the interface's rate.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::link::Path;
use crate::sys;

/// Hosts remembered; when there are more, all are forgotten and probed anew as they are needed.
const PATHS_MAX: usize = 4_096;

/// Assumed where the kernel does not say: Ethernet.
pub(crate) const FALLBACK_MTU: usize = 1_500;

/// Smallest MTU believed: what IPv4 hosts must take. Smaller ones are only announced by mistake or malice.
const MIN_MTU: usize = 576;

/// What a packet of one kind of link costs beside the Homa packet in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Encapsulation {
    /// Bytes between the IP header and the Homa packet.
    pub(crate) header: usize,
    /// Longest Homa packet, whatever the path takes.
    pub(crate) longest: usize,
}

/// A cache of paths, by host.
pub(crate) struct Paths {
    /// Its `longest` may be less than the link could.
    encapsulation: Encapsulation,
    known: RefCell<HashMap<IpAddr, Path>>,
    last: Cell<Option<(IpAddr, Path)>>,
    /// Grows when a path changes, so that copies of it can be told to be outdated.
    version: Cell<u64>,
}

impl Paths {
    pub(crate) fn new(encapsulation: Encapsulation) -> Self {
        Self {
            encapsulation,
            known: RefCell::default(),
            last: Cell::new(None),
            version: Cell::new(0),
        }
    }

    /// Grows whenever a path returned before may have changed.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.get()
    }

    /// The path to a host; probed when it is not known.
    #[inline]
    pub(crate) fn to(&self, peer: SocketAddr) -> Path {
        match self.last.get() {
            Some((ip, path)) if ip == peer.ip() => path,
            _ => self.look_up(peer),
        }
    }

    fn look_up(&self, peer: SocketAddr) -> Path {
        let mut known = self.known.borrow_mut();
        if known.len() >= PATHS_MAX {
            known.clear();
        }
        let path = *known.entry(peer.ip()).or_insert_with(|| probe(peer, self.encapsulation));
        self.last.set(Some((peer.ip(), path)));
        path
    }

    /// Corrects the path to a host after the kernel has refused a packet as too long. `mtu` is what the error said; the kernel,
    /// which has learnt it too, is asked as well. True when the path really takes less than was known.
    pub(crate) fn correct(&self, peer: SocketAddr, mtu: Option<usize>) -> bool {
        let before = self.to(peer).max_packet;
        let told = mtu
            .filter(|&mtu| mtu >= MIN_MTU)
            .map(|mtu| payload_of(mtu, peer.ip(), self.encapsulation));
        if told.is_some_and(|told| before <= told) {
            return false; // one of many errors about packets sent before the first of them arrived
        }
        let mut path = probe(peer, self.encapsulation);
        path.max_packet = path.max_packet.min(told.unwrap_or(usize::MAX));
        self.known.borrow_mut().insert(peer.ip(), path);
        self.last.set(None);
        self.version.set(self.version.get() + 1);
        path.max_packet < before
    }
}

/// Longest Homa packet that fits an IP packet of `mtu` bytes.
fn payload_of(mtu: usize, ip: IpAddr, encapsulation: Encapsulation) -> usize {
    let header = if ip.is_ipv4() { 20 } else { 40 };
    (mtu.max(MIN_MTU) - header - encapsulation.header).min(encapsulation.longest)
}

/// Asks the kernel by way of a socket connected to the host, which sends nothing.
fn probe(peer: SocketAddr, encapsulation: Encapsulation) -> Path {
    let probed = connect(peer);
    let source =
        probed.as_ref().and_then(|socket| socket.local_addr().ok()).map(|address| address.ip());
    let mtu = probed.and_then(|socket| path_mtu(&socket, peer.ip())).unwrap_or(FALLBACK_MTU);
    // To reach an address of its own, a machine uses that address.
    let loopback = peer.ip().is_loopback() || source == Some(peer.ip());
    let link_mbps = match source {
        Some(source) if !loopback => {
            sys::interface_of(source).and_then(|name| interface_mbps(&name))
        }
        _ => None,
    };
    Path { max_packet: payload_of(mtu, peer.ip(), encapsulation), loopback, link_mbps }
}

/// The address of this machine that the route to a peer prefers.
pub(crate) fn source(peer: SocketAddr) -> Option<IpAddr> {
    Some(connect(peer)?.local_addr().ok()?.ip())
}

/// A socket connected to the peer the usual way, to see what the kernel makes of it.
pub(crate) fn connect(peer: SocketAddr) -> Option<UdpSocket> {
    let any: IpAddr = if peer.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Port 0 cannot be connected to; any other will do.
    let port = if peer.port() == 0 { 9 } else { peer.port() };
    let mut to = peer;
    to.set_port(port);
    socket.connect(to).ok()?;
    Some(socket)
}

fn path_mtu(socket: &UdpSocket, ip: IpAddr) -> Option<usize> {
    let (level, name) = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = sys::option(socket.as_raw_fd(), level, name).ok()?;
    usize::try_from(mtu).ok()
}

/// The rate the driver reports. Virtual interfaces report nothing, or -1.
fn interface_mbps(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    text.trim().parse().ok().filter(|&mbps: &u64| mbps > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::MAX_DATAGRAM;

    fn paths(longest: usize) -> Paths {
        Paths::new(Encapsulation { header: 8, longest })
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn this_machine_takes_the_longest_packets() {
        let paths = paths(MAX_DATAGRAM);
        for peer in ["127.0.0.1:1", "127.0.0.2:7", "127.0.0.1:0"] {
            let path = paths.to(address(peer));
            assert!(path.loopback, "{peer}");
            assert_eq!(path.max_packet, MAX_DATAGRAM, "{peer}");
            assert_eq!(path.link_mbps, None, "{peer}");
        }
    }

    #[test]
    fn the_limit_holds_everywhere() {
        assert_eq!(paths(1_472).to(address("127.0.0.1:1")).max_packet, 1_472);
    }

    #[test]
    fn a_reported_mtu_shrinks_the_path_and_outdates_copies() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        assert_eq!(paths.to(peer).max_packet, MAX_DATAGRAM);
        let version = paths.version();
        assert!(paths.correct(peer, Some(1_400)));
        assert_eq!(paths.to(peer).max_packet, 1_400 - 28);
        assert!(paths.version() > version);
    }

    #[test]
    fn an_absurd_mtu_is_not_believed() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        assert!(!paths.correct(peer, Some(68)));
        assert_eq!(paths.to(peer).max_packet, MAX_DATAGRAM);
    }

    #[test]
    fn the_cache_is_bounded() {
        let paths = paths(MAX_DATAGRAM);
        for host in 0..u32::try_from(PATHS_MAX).unwrap() + 10 {
            paths.known.borrow_mut().insert(
                IpAddr::V4(host.into()),
                Path { max_packet: 1, loopback: false, link_mbps: None },
            );
        }
        paths.to(address("127.0.0.1:1"));
        assert_eq!(paths.known.borrow().len(), 1);
    }
}
