//! What is known of the way to each host: how long packets may be, whether it is this machine, the interface's rate.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use crate::interfaces::Interfaces;
use crate::link::Path;
use crate::recent::Recent;
use crate::search::{BELIEVED_MAX, Search};
use crate::sys;

/// Hosts remembered.
const PATHS_MAX: usize = 4_096;

/// Assumed where the kernel does not say: Ethernet.
pub(crate) const FALLBACK_MTU: usize = 1_500;

/// Longest packet for a host of which nothing is known: what every IPv4 host must take (576 bytes), less IP and UDP headers.
pub(crate) const ANY_PATH: usize = 548;

/// What a packet of one kind of link costs beside the Homa packet in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Encapsulation {
    /// Bytes between the IP header and the Homa packet.
    pub(crate) header: usize,
    /// Longest Homa packet, whatever the path takes.
    pub(crate) longest: usize,
}

/// What is known of a host.
struct Known {
    path: Path,
    /// The address of this machine that the route prefers.
    source: Option<IpAddr>,
    search: Search,
    /// The kernel is asked again after a while: routes and interfaces change.
    asked: Instant,
}

/// A cache of paths, by host. A host is looked up when more than a few bytes are to be sent to it, never because it sends: anybody
/// can send.
pub(crate) struct Paths {
    /// Its `longest` may be less than the link could.
    encapsulation: Encapsulation,
    known: RefCell<Recent<IpAddr, Known>>,
    interfaces: RefCell<Interfaces>,
    last: Cell<Option<(IpAddr, Path)>>,
    /// Grows when a path changes or becomes known, so that copies of it can be told to be outdated.
    version: Cell<u64>,
}

impl Paths {
    pub(crate) fn new(encapsulation: Encapsulation) -> Self {
        Self {
            encapsulation,
            known: RefCell::new(Recent::new(PATHS_MAX)),
            interfaces: RefCell::default(),
            last: Cell::new(None),
            version: Cell::new(0),
        }
    }

    /// Grows whenever a path may have changed.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.get()
    }

    /// The path to a host; probed when it is not known.
    #[inline]
    pub(crate) fn to(&self, peer: SocketAddr) -> Path {
        match self.last.get() {
            Some((ip, path)) if ip == peer.ip() => path,
            _ => self.with(peer, |known| known.path),
        }
    }

    /// The path to a host as far as it is known, and the address of this machine that its route prefers. Asks nobody.
    pub(crate) fn peek(&self, peer: SocketAddr) -> Option<(Path, Option<IpAddr>)> {
        let known = self.known.borrow();
        known.peek(&peer.ip()).map(|known| (known.path, known.source))
    }

    fn with<T>(&self, peer: SocketAddr, act: impl FnOnce(&mut Known) -> T) -> T {
        let mut table = self.known.borrow_mut();
        if table.place(&peer.ip()).is_none() {
            table.insert(peer.ip(), self.ask(peer, Instant::now()));
            self.outdate();
        }
        let known = table.use_of(&peer.ip()).expect("it was inserted");
        let result = act(known);
        self.last.set(Some((peer.ip(), known.path)));
        result
    }

    /// Copies of paths are outdated.
    fn outdate(&self) {
        self.last.set(None);
        self.version.set(self.version.get() + 1);
    }

    fn ask(&self, peer: SocketAddr, now: Instant) -> Known {
        let asked = Asked::of(peer, &mut self.interfaces.borrow_mut());
        let search = Search::new(asked.mtu, asked.device, peer.is_ipv4(), now);
        let path = Path {
            max_packet: self.payload_of(search.mtu(), peer.ip()),
            loopback: asked.loopback,
            link_mbps: asked.mbps,
        };
        Known { path, source: asked.source, search, asked: now }
    }

    /// [`to`](Self::to), with time taken into account: limits that were learnt do not last. For who asks once in a while.
    pub(crate) fn at(&self, peer: SocketAddr, now: Instant) -> Path {
        let changed = self.with(peer, |known| {
            if known.search.is_due(now) || now.duration_since(known.asked) >= BELIEVED_MAX {
                self.raise(known, peer, now)
            } else {
                false
            }
        });
        if changed {
            self.outdate();
        }
        self.to(peer)
    }

    /// The next step of the search, from what the kernel says now. True when the path has changed.
    fn raise(&self, known: &mut Known, peer: SocketAddr, now: Instant) -> bool {
        let before = (known.path, known.source);
        let asked = Asked::of(peer, &mut self.interfaces.borrow_mut());
        known.asked = now;
        if known.search.is_due(now) || !known.search.is_limited() {
            known.search.raise(asked.device, now);
        }
        known.source = asked.source;
        known.path = Path {
            max_packet: self.payload_of(known.search.mtu(), peer.ip()),
            loopback: asked.loopback,
            link_mbps: asked.mbps,
        };
        (known.path, known.source) != before
    }

    /// Corrects the path to a host after the kernel has refused a packet as too long. `mtu` is what the error said; where it said
    /// nothing the interface refused it, which is asked. True when the path really takes less than was known.
    pub(crate) fn correct(&self, peer: SocketAddr, mtu: Option<usize>) -> bool {
        let now = Instant::now();
        let mtu = mtu.unwrap_or_else(|| Asked::of(peer, &mut self.interfaces.borrow_mut()).mtu);
        self.shorten(peer, |search| search.told(mtu, now))
    }

    /// Long packets to a host vanish, and short ones arrive. True when the path takes less from now on.
    pub(crate) fn swallowed(&self, peer: SocketAddr, now: Instant) -> bool {
        !self.to(peer).loopback && self.shorten(peer, |search| search.swallowed(now))
    }

    fn shorten(&self, peer: SocketAddr, change: impl FnOnce(&mut Search) -> bool) -> bool {
        let shorter = self.with(peer, |known| {
            let before = known.path.max_packet;
            let changed = change(&mut known.search);
            known.path.max_packet = self.payload_of(known.search.mtu(), peer.ip());
            changed && known.path.max_packet < before
        });
        if shorter {
            self.outdate();
        }
        shorter
    }

    /// Longest Homa packet that fits an IP packet of `mtu` bytes.
    fn payload_of(&self, mtu: usize, ip: IpAddr) -> usize {
        let header = if ip.is_ipv4() { 20 } else { 40 };
        (mtu - header - self.encapsulation.header).min(self.encapsulation.longest)
    }
}

/// What the kernel says of the way to a host.
struct Asked {
    /// Of the route; the kernel counts in what routers told it.
    mtu: usize,
    /// What the interface takes.
    device: usize,
    loopback: bool,
    source: Option<IpAddr>,
    mbps: Option<u64>,
}

impl Asked {
    /// Asks by way of a socket connected to the host, which sends nothing.
    fn of(peer: SocketAddr, interfaces: &mut Interfaces) -> Self {
        let socket = connect(peer);
        let source = socket.as_ref().and_then(|it| Some(it.local_addr().ok()?.ip()));
        let mtu = socket.as_ref().and_then(|socket| path_mtu(socket, peer.ip()));
        let mtu = mtu.unwrap_or(FALLBACK_MTU);
        // To reach an address of its own, a machine uses that address.
        let loopback = peer.ip().is_loopback() || source == Some(peer.ip());
        let interface = match (source, &socket) {
            (Some(source), Some(socket)) if !loopback => interfaces.of(source, socket.as_raw_fd()),
            _ => None,
        };
        let (device, mbps) = interface.map_or((mtu, None), |(device, mbps)| (device, mbps));
        Self { mtu, device: device.max(mtu), loopback, source, mbps }
    }
}

/// The address of this machine that the route to a peer prefers.
pub(crate) fn source(peer: SocketAddr) -> Option<IpAddr> {
    Some(connect(peer)?.local_addr().ok()?.ip())
}

/// A socket connected to the peer the usual way, to see what the kernel makes of it.
pub(crate) fn connect(peer: SocketAddr) -> Option<UdpSocket> {
    let any: IpAddr = match peer.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
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
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let paths = paths(MAX_DATAGRAM);
        for host in 0..u32::try_from(PATHS_MAX).unwrap() + 10 {
            paths.to(SocketAddr::from(((0x7F00_0001 + host).to_be_bytes(), 1)));
            paths.last.set(None);
            paths.to(address("127.0.0.1:1"));
        }
        assert_eq!(paths.known.borrow().len(), PATHS_MAX);
        assert!(paths.peek(address("127.0.0.1:1")).is_some());
    }

    #[test]
    fn a_limit_does_not_last() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        assert!(paths.correct(peer, Some(1_400)));
        let now = Instant::now();
        assert_eq!(paths.at(peer, now).max_packet, 1_400 - 28);
        assert_eq!(paths.at(peer, now + BELIEVED_MAX).max_packet, MAX_DATAGRAM);
        assert_eq!(paths.to(peer).max_packet, MAX_DATAGRAM);
    }

    #[test]
    fn this_machine_swallows_nothing() {
        let paths = paths(MAX_DATAGRAM);
        assert!(!paths.swallowed(address("127.0.0.1:1"), Instant::now()));
    }

    #[test]
    fn a_host_is_known_once_it_is_asked_for() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        assert_eq!(paths.peek(peer), None);
        let version = paths.version();
        let path = paths.to(peer);
        assert_eq!(paths.peek(peer), Some((path, Some(peer.ip()))));
        assert!(paths.version() > version);
    }
}
