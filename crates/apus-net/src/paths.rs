//! Known properties of the path to each host: packet length, loopback, and the interface's rate.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::interfaces::Interfaces;
use crate::path::Path;
use crate::recent::Recent;
use crate::search::{BELIEVED_MAX, Search};
use crate::sys;
use crate::xdp::query::{FoundWay, WayQuery};

/// Upper bound on known hosts: more than a node's default number of peers.
const PATHS_MAX: usize = 16_384;

/// Upper bound on wanted examinations.
const WANTED_MAX: usize = 64;

/// Assumed MTU without an answer of the kernel: Ethernet's.
pub(crate) const FALLBACK_MTU: usize = 1_500;

/// Overhead of one kind of link beside the Homa packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Encapsulation {
    /// Bytes between the IP header and the Homa packet.
    pub(crate) header: usize,
    /// Length of the longest Homa packet, whatever the path allows.
    pub(crate) longest: usize,
}

/// State of a known host.
struct Known {
    path: Path,
    /// The local address that the route prefers.
    source: Option<IpAddr>,
    search: Search,
    /// Time of the last query. The kernel is asked again after a while, because routes and interfaces change.
    asked: Instant,
}

/// The known hosts. A host is examined before a message goes to it, never because it sends: any host can send.
pub(crate) struct Paths {
    /// Overhead of the link. Its `longest` may be less than the link's limit.
    encapsulation: Encapsulation,
    known: RefCell<Recent<IpAddr, Known>>,
    interfaces: Arc<Mutex<Interfaces>>,
    /// Unexamined hosts that more than a few bytes go to.
    wanted: RefCell<Vec<SocketAddr>>,
    /// Version, which grows when a path changes or becomes known, so that outdated copies are detected.
    version: Cell<u64>,
}

impl Paths {
    pub(crate) fn new(encapsulation: Encapsulation) -> Self {
        Self {
            encapsulation,
            known: RefCell::new(Recent::new(PATHS_MAX)),
            interfaces: Arc::default(),
            wanted: RefCell::default(),
            version: Cell::new(0),
        }
    }

    /// Returns the version, which grows whenever a path may have changed.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.get()
    }

    /// Returns the path to a host as far as it is known, and the local address that its route prefers.
    pub(crate) fn peek(&self, peer: SocketAddr) -> Option<(Path, Option<IpAddr>)> {
        let known = self.known.borrow();
        known.peek(&peer.ip()).map(|known| (known.path, known.source))
    }

    /// Returns the path to a host, or a cautious default for an unknown host.
    pub(crate) fn to(&self, peer: SocketAddr) -> Path {
        let mut known = self.known.borrow_mut();
        match known.use_of(&peer.ip()) {
            Some(known) => known.path,
            None => Path { loopback: peer.ip().is_loopback(), ..Path::UNKNOWN },
        }
    }

    /// Returns the examination that is due before messages go to a host: the first one, and again once in a while, because routes
    /// and interfaces change and learned limits expire. `None`: none is due.
    pub(crate) fn examination(&self, peer: SocketAddr, now: Instant) -> Option<Examination> {
        let known = self.known.borrow();
        let fresh = known.peek(&peer.ip()).is_some_and(|known| {
            !known.search.is_due(now) && now.duration_since(known.asked) < BELIEVED_MAX
        });
        let interfaces = &self.interfaces;
        (!fresh).then(|| Examination { peer, interfaces: Some(Arc::clone(interfaces)), way: None })
    }

    /// Records that more than a few bytes go to an unexamined host.
    pub(crate) fn want(&self, peer: SocketAddr) {
        let mut wanted = self.wanted.borrow_mut();
        if wanted.len() < WANTED_MAX && !wanted.iter().any(|other| other.ip() == peer.ip()) {
            wanted.push(peer);
        }
    }

    /// Returns the next wanted examination.
    #[inline]
    pub(crate) fn next_wanted(&self) -> Option<Examination> {
        let peer = self.wanted.borrow_mut().pop()?;
        self.examination(peer, Instant::now())
    }

    /// Takes the kernel's answers about a host.
    pub(crate) fn examined(&self, examined: Examined, now: Instant) {
        let Examined { peer, asked: Some(asked), .. } = examined else { return };
        let mut table = self.known.borrow_mut();
        let changed = match table.use_of(&peer.ip()) {
            Some(known) => self.raise(known, peer, asked, now),
            None => {
                table.insert(peer.ip(), self.first(peer, asked, now));
                true
            }
        };
        drop(table);
        if changed {
            self.outdate();
        }
    }

    /// Marks copies of paths as outdated.
    fn outdate(&self) {
        self.version.set(self.version.get() + 1);
    }

    fn first(&self, peer: SocketAddr, asked: Asked, now: Instant) -> Known {
        let search = Search::new(asked.mtu, asked.device, peer.is_ipv4(), now);
        let path = Path {
            max_packet: self.payload_of(search.mtu(), peer.ip()),
            loopback: asked.loopback,
            link_mbps: asked.mbps,
        };
        Known { path, source: asked.source, search, asked: now }
    }

    /// Takes the next step of the search, by the kernel's present answers. Returns whether the path has changed.
    fn raise(&self, known: &mut Known, peer: SocketAddr, asked: Asked, now: Instant) -> bool {
        let before = (known.path, known.source);
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

    /// Corrects the path to a host after the kernel has refused a packet as too long. `mtu` comes from the error; if it is `None`,
    /// the interface refused the packet and is queried. Returns whether the path allows less than was known.
    pub(crate) fn correct(&self, peer: SocketAddr, mtu: Option<usize>) -> bool {
        let now = Instant::now();
        let mtu = mtu.unwrap_or_else(|| Asked::of(peer, &self.interfaces).mtu);
        self.shorten(peer, |search| search.mtu_reported(mtu, now))
    }

    /// Records that long packets to a host vanish while short ones arrive. Returns whether the path allows less from now on.
    pub(crate) fn swallowed(&self, peer: SocketAddr, now: Instant) -> bool {
        !self.to(peer).loopback && self.shorten(peer, |search| search.swallowed(now))
    }

    fn shorten(&self, peer: SocketAddr, change: impl FnOnce(&mut Search) -> bool) -> bool {
        let mut table = self.known.borrow_mut();
        let Some(known) = table.use_of(&peer.ip()) else { return false };
        let before = known.path.max_packet;
        let changed = change(&mut known.search);
        known.path.max_packet = self.payload_of(known.search.mtu(), peer.ip());
        let shorter = changed && known.path.max_packet < before;
        drop(table);
        if shorter {
            self.outdate();
        }
        shorter
    }

    /// Returns the length of the longest Homa packet that fits an IP packet of `mtu` bytes.
    fn payload_of(&self, mtu: usize, ip: IpAddr) -> usize {
        let header = if ip.is_ipv4() { 20 } else { 40 };
        (mtu - header - self.encapsulation.header).min(self.encapsulation.longest)
    }
}

/// Queries to the kernel about the path to a host. They take a dozen system calls, so the caller runs them without a lock.
#[derive(Debug)]
#[must_use = "an examination that is not run finds out nothing"]
pub struct Examination {
    peer: SocketAddr,
    /// `None`: the path is known, and only the way is looked up.
    interfaces: Option<Arc<Mutex<Interfaces>>>,
    /// The question about the way of frames to the peer, if a link sends frames.
    way: Option<WayQuery>,
}

impl Examination {
    /// Runs the queries. The answers are for the link ([`Link::examined`](crate::Link::examined)).
    pub fn run(self) -> Examined {
        let asked = self.interfaces.map(|interfaces| Asked::of(self.peer, &interfaces));
        Examined { peer: self.peer, asked, way: self.way.map(WayQuery::run) }
    }

    /// Adds the question about a way to an examination, or makes an examination of it.
    pub(crate) fn with_query(examination: Option<Self>, peer: SocketAddr, query: WayQuery) -> Self {
        let interfaces = examination.and_then(|examination| examination.interfaces);
        Self { peer, interfaces, way: Some(query) }
    }

    /// Returns the examined address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}

/// The answers of an [`Examination`].
#[derive(Debug)]
pub struct Examined {
    peer: SocketAddr,
    asked: Option<Asked>,
    way: Option<FoundWay>,
}

impl Examined {
    /// Takes the answer about the way of frames to the peer.
    pub(crate) fn take_way(&mut self) -> Option<FoundWay> {
        self.way.take()
    }

    /// Returns the examined address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }
}

/// The kernel's answers about the path to a host.
#[derive(Debug)]
struct Asked {
    /// MTU of the route, in which the kernel includes the reports of routers.
    mtu: usize,
    /// MTU of the interface.
    device: usize,
    loopback: bool,
    source: Option<IpAddr>,
    mbps: Option<u64>,
}

impl Asked {
    /// Queries the kernel by a socket connected to the host, which sends nothing.
    fn of(peer: SocketAddr, interfaces: &Mutex<Interfaces>) -> Self {
        let socket = connect(peer);
        let source = socket.as_ref().and_then(|it| Some(it.local_addr().ok()?.ip()));
        let mtu = socket.as_ref().and_then(|socket| path_mtu(socket, peer.ip()));
        let mtu = mtu.unwrap_or(FALLBACK_MTU);
        // To reach an address of its own, a machine sends from that address.
        let loopback = peer.ip().is_loopback() || source == Some(peer.ip());
        let interface = match (source, &socket) {
            (Some(source), Some(socket)) if !loopback => {
                let mut interfaces = interfaces.lock().unwrap_or_else(PoisonError::into_inner);
                interfaces.of(source, socket.as_raw_fd())
            }
            _ => None,
        };
        let (device, mbps) = interface.map_or((mtu, None), |(device, mbps)| (device, mbps));
        Self { mtu, device: device.max(mtu), loopback, source, mbps }
    }
}

/// Returns the local address that the route to a peer prefers.
pub(crate) fn source(peer: SocketAddr) -> Option<IpAddr> {
    Some(connect(peer)?.local_addr().ok()?.ip())
}

/// Returns a socket connected to the peer in the usual way, to query the kernel's route.
pub(crate) fn connect(peer: SocketAddr) -> Option<UdpSocket> {
    let any: IpAddr = match peer.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // A socket cannot be connected to port 0; any other port will do.
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
    use crate::path::ANY_PATH;
    use crate::udp::MAX_DATAGRAM;

    fn paths(longest: usize) -> Paths {
        Paths::new(Encapsulation { header: 8, longest })
    }

    /// Returns the path to a host, examined first if necessary.
    fn examine(paths: &Paths, peer: SocketAddr, now: Instant) -> Path {
        if let Some(examination) = paths.examination(peer, now) {
            paths.examined(examination.run(), now);
        }
        paths.to(peer)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn this_machine_takes_the_longest_packets() {
        let paths = paths(MAX_DATAGRAM);
        for peer in ["127.0.0.1:1", "127.0.0.2:7", "127.0.0.1:0"] {
            let path = examine(&paths, address(peer), Instant::now());
            assert!(path.loopback, "{peer}");
            assert_eq!(path.max_packet, MAX_DATAGRAM, "{peer}");
            assert_eq!(path.link_mbps, None, "{peer}");
        }
    }

    #[test]
    fn the_limit_holds_everywhere() {
        let path = examine(&paths(1_472), address("127.0.0.1:1"), Instant::now());
        assert_eq!(path.max_packet, 1_472);
    }

    #[test]
    fn a_reported_mtu_shrinks_the_path_and_outdates_copies() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        assert_eq!(examine(&paths, peer, Instant::now()).max_packet, MAX_DATAGRAM);
        let version = paths.version();
        assert!(paths.correct(peer, Some(1_400)));
        assert_eq!(paths.to(peer).max_packet, 1_400 - 28);
        assert!(paths.version() > version);
    }

    #[test]
    fn an_absurd_mtu_is_not_believed() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        examine(&paths, peer, Instant::now());
        assert!(!paths.correct(peer, Some(68)));
        assert_eq!(paths.to(peer).max_packet, MAX_DATAGRAM);
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let paths = paths(MAX_DATAGRAM);
        for host in 0..u32::try_from(PATHS_MAX).unwrap() + 10 {
            let peer = SocketAddr::from(((0x7F00_0001 + host).to_be_bytes(), 1));
            let asked =
                Asked { mtu: 1_500, device: 1_500, loopback: false, source: None, mbps: None };
            paths.examined(Examined { peer, asked: Some(asked), way: None }, Instant::now());
            paths.to(address("127.0.0.1:1"));
        }
        assert_eq!(paths.known.borrow().len(), PATHS_MAX);
        assert!(paths.peek(address("127.0.0.1:1")).is_some());
    }

    #[test]
    fn a_limit_does_not_last() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        let now = Instant::now();
        examine(&paths, peer, now);
        assert!(paths.correct(peer, Some(1_400)));
        assert_eq!(examine(&paths, peer, now).max_packet, 1_400 - 28);
        assert_eq!(examine(&paths, peer, now + 2 * BELIEVED_MAX).max_packet, MAX_DATAGRAM);
        assert_eq!(paths.to(peer).max_packet, MAX_DATAGRAM);
    }

    #[test]
    fn this_machine_swallows_nothing() {
        let paths = paths(MAX_DATAGRAM);
        examine(&paths, address("127.0.0.1:1"), Instant::now());
        assert!(!paths.swallowed(address("127.0.0.1:1"), Instant::now()));
    }

    #[test]
    fn a_host_is_known_once_it_was_examined() {
        let paths = paths(MAX_DATAGRAM);
        let peer = address("127.0.0.1:1");
        assert_eq!(paths.peek(peer), None);
        let version = paths.version();
        assert_eq!(paths.to(peer).max_packet, ANY_PATH);
        let path = examine(&paths, peer, Instant::now());
        assert_eq!(paths.peek(peer), Some((path, Some(peer.ip()))));
        assert!(paths.version() > version);
    }
}
