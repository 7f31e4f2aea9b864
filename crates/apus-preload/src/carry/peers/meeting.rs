//! The search of the two ends of a connection for each other, and the proof that they are its ends.
//!
//! The end that accepted the connection listens on a unix socket whose abstract name is the connection's addresses. The end that
//! made the connection connects there twice, for the channel and for the bell. Abstract names are per network namespace, and so
//! are the addresses. There is a name per connection rather than per port, so that each of several processes that share a port
//! can be found.
//!
//! Any process may listen at a name or connect to it. So each end proves that it has the socket at the other end of the
//! connection ([`diagnosis::proof`]) before any of its messages is trusted. Strangers are handled alongside the peer, so they
//! cannot keep it away.
//!
//! If the other end is in another network namespace of this host, the unix socket is in a directory that both see, and an end
//! must prove more ([`containers`]).
//!
//! If the other end is at another host, the carrier of this host takes its place ([`carrier`]): a process of the same user, which
//! shows the other end's segment with a delay. The carrier checks the other end.

use std::io;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use apus_shm::{Channel, Memory, Parcel, PeerProcess, PeerSegment, Segment, closer};
use apus_sockets::introduction::{Hello, Introduction, carrier_name};
use apus_sockets::layout;
use libc::c_int;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};

use super::containers::{self, Claim, File, Ground, Known};
use super::diagnosis;
use crate::carry::connection::holders::Holders;
use crate::carry::connection::side::Side;
use crate::carry::inner;
use crate::carry::inner::{Inner, InnerChannel};
use crate::report;

/// Upper bound on connected sockets that have not stated their purpose. The oldest one makes room.
const STRANGERS_MAX: usize = 8;

/// The addresses of a connection, as one of its ends sees them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Addresses {
    pub(crate) fn of(fd: c_int) -> Option<Self> {
        let (local, peer) = report::addresses(fd)?;
        Some(Self { local: diagnosis::canonical(local), peer: diagnosis::canonical(peer) })
    }

    /// Whether both ends are on this host.
    pub(crate) fn are_here(&self) -> bool {
        let (local, peer) = (self.local.ip(), self.peer.ip());
        local == peer || local.is_loopback() && peer.is_loopback()
    }

    /// Whether a carrier could reach the other end. Link-local addresses have no meaning without their interface.
    pub(crate) fn are_reachable(&self) -> bool {
        let ends = [self.local.ip(), self.peer.ip()];
        let is_of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !self.peer.ip().is_loopback() && !ends.iter().any(is_of_link)
    }

    /// The addresses of the end that made the connection and of the end that accepted it.
    fn ends(&self, accepted: bool) -> (SocketAddr, SocketAddr) {
        if accepted { (self.peer, self.local) } else { (self.local, self.peer) }
    }

    fn name(&self, accepted: bool) -> nix::Result<UnixAddr> {
        let (client, server) = self.ends(accepted);
        UnixAddr::new_abstract(format!("apus-tcp/{client}/{server}").as_bytes())
    }

    /// The file at which the ends of two network namespaces meet.
    fn place(&self, accepted: bool) -> io::Result<PathBuf> {
        let (client, server) = self.ends(accepted);
        containers::place(client, server).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn socket() -> io::Result<Inner> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    inner::keep(socket)
}

/// Whether a connecting TCP socket uses this host's loopback address.
pub(crate) fn is_local(fd: c_int) -> bool {
    report::local_address(fd).is_some_and(|local| local.ip().to_canonical().is_loopback())
}

/// The place where the ends of a connection meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Where {
    /// In the network namespace of both ends.
    Here,
    /// In a directory that several network namespaces share.
    Directory,
}

/// Connects to the end that accepted the connection, if it listens: the channel and the bell.
pub(crate) fn connect(addresses: &Addresses, at: Where) -> io::Result<[Inner; 2]> {
    let name = match at {
        Where::Here => addresses.name(false)?,
        Where::Directory => UnixAddr::new(&addresses.place(false)?)?,
    };
    let connected = || {
        let socket = socket()?;
        socket::connect(socket.as_raw_fd(), &name)?;
        Ok::<_, io::Error>(socket)
    };
    Ok([connected()?, connected()?])
}

/// Connects to this user's carrier at a UDP port, if it runs.
pub(crate) fn carrier(port: u16) -> io::Result<Inner> {
    // SAFETY: the call takes no arguments and cannot fail.
    let uid = unsafe { libc::geteuid() };
    let socket = socket()?;
    let name = UnixAddr::new_abstract(carrier_name(uid, port).as_bytes())?;
    socket::connect(socket.as_raw_fd(), &name)?;
    if PeerProcess::of(socket.as_fd())?.uid() != uid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(socket)
}

/// This end's parts of a carried connection.
struct Own {
    segment: Segment,
    nudge: Inner,
    proof: OwnedFd,
}

impl Own {
    fn new(fd: c_int, size: usize) -> io::Result<Self> {
        let segment = Segment::create_inherited(size)?;
        segment.memory().word(layout::START).store(layout::MAGIC, Ordering::Release);
        Ok(Self { segment, nudge: nudge()?, proof: diagnosis::proof(fd)? })
    }

    fn send(
        self,
        channel: &Channel,
        message: &[u8],
        ground: Option<&Ground>,
    ) -> io::Result<(Memory, Inner)> {
        let mut descriptors = vec![self.segment.descriptor(), self.proof.as_fd()];
        descriptors.extend(ground.into_iter().flat_map(Ground::descriptors));
        channel.send(message, &descriptors)?;
        // The segment's descriptor has a low number, which the program may close.
        Ok((self.segment.into_memory(), self.nudge))
    }
}

fn refused() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The peer's segment, if the peer has proved that it has the socket at the other end. Without `addresses` the peer is a carrier.
fn segment_of_peer(
    channel: &Channel,
    parcel: Parcel,
    fd: c_int,
    addresses: Option<&Addresses>,
) -> io::Result<PeerSegment> {
    let mut descriptors = parcel.descriptors.into_iter();
    let (segment, proof) = (descriptors.next(), descriptors.next());
    descriptors.for_each(closer::close_elsewhere);
    let is_peer = match (addresses, &proof) {
        (Some(addresses), Some(proof)) => {
            let credentials = socket::getsockopt(&channel.descriptor(), PeerCredentials);
            credentials.is_ok_and(|its| {
                let Addresses { local, peer } = *addresses;
                diagnosis::is_other_end(proof.as_fd(), its.uid(), fd, local, peer)
                    && diagnosis::may_have(its.pid(), its.uid(), proof.as_fd())
            })
        }
        (Some(_), None) => false,
        (None, _) => true,
    };
    // The peer's socket, and memory, close without a wait.
    if !is_peer {
        proof.into_iter().chain(segment).for_each(closer::close_elsewhere);
        return Err(refused());
    }
    let size = if addresses.is_some() { layout::SIZE } else { layout::FAR_SIZE };
    open(segment.ok_or_else(refused)?, size)
}

/// A stranger in another network namespace, which must prove that it is the peer.
struct Stranger {
    channel: InnerChannel,
    segment: PeerSegment,
    claim: Claim,
    /// The number that its bell must send.
    number: u128,
}

impl Stranger {
    /// The process that has sent a message over a channel. Sends a number to its address at once.
    fn new(
        channel: InnerChannel,
        parcel: Parcel,
        addresses: &Addresses,
        ground: &Ground,
        number: u128,
    ) -> io::Result<Self> {
        let four: [OwnedFd; 4] = parcel.descriptors.try_into().map_err(|all: Vec<_>| {
            all.into_iter().for_each(closer::close_elsewhere);
            refused()
        })?;
        let [segment, claimed @ ..] = four;
        let credentials = socket::getsockopt(&channel.descriptor(), PeerCredentials)?;
        let claim = Claim::new(claimed, credentials.uid(), addresses.peer, random()?)
            .filter(|claim| claim.may_have(credentials.pid(), credentials.uid()));
        let Some(claim) = claim else {
            closer::close_elsewhere(segment);
            return Err(refused());
        };
        let segment = open(segment, layout::SIZE)?;
        claim.send_number(ground);
        Ok(Self { channel, segment, claim, number })
    }

    fn look(&self, fd: c_int, addresses: &Addresses) -> Known {
        self.claim.look(fd, addresses.local, addresses.peer)
    }
}

fn open(segment: OwnedFd, size: usize) -> io::Result<PeerSegment> {
    let peer = match PeerSegment::open(segment.as_fd(), size) {
        Ok(peer) => peer,
        Err(error) => {
            closer::close_elsewhere(segment);
            return Err(io::Error::other(error));
        }
    };
    let is_segment = peer.load(layout::START, Ordering::Acquire) == layout::MAGIC;
    if is_segment { Ok(peer) } else { Err(refused()) }
}

/// The next message of a socket. `Ok(None)` if none has arrived.
fn message(channel: &Channel) -> io::Result<Option<(Hello, Parcel)>> {
    let mut bytes = [0; Hello::BYTES];
    let parcel = match channel.receive(&mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    };
    match Hello::parse(&bytes[..parcel.length]) {
        Some(hello) => Ok(Some((hello, parcel))),
        None => {
            parcel.descriptors.into_iter().for_each(closer::close_elsewhere);
            Err(refused())
        }
    }
}

/// The end that accepted the connection and waits for the other end.
pub(crate) struct Listener {
    /// The listening socket. Closing it also closes connections that were never accepted, with any descriptors that strangers
    /// have passed.
    socket: ManuallyDrop<Inner>,
    /// Connected sockets that have sent no message.
    strangers: Vec<InnerChannel>,
    /// Future bells, each with the number of its connection.
    bells: Vec<(InnerChannel, u128)>,
    /// Strangers of other network namespaces that have not proved to be the peer.
    claims: Vec<Stranger>,
    /// The proven peer, and the number that its bell must send.
    peer: Option<(Met, u128)>,
    /// For a peer in another network namespace: this end's evidence, and the file of the socket.
    directory: Option<(Ground, File)>,
}

/// The parts of both ends.
struct Met {
    own: Memory,
    nudge: Inner,
    peer: PeerSegment,
    channel: InnerChannel,
}

impl Met {
    fn side(self, holders: Holders, bell: InnerChannel, accepted: bool) -> Side {
        for socket in [&bell, &self.channel] {
            socket.refuse_descriptors();
            let _ = socket.check();
        }
        Side::new(self.own, self.peer, holders, self.nudge, bell, self.channel, accepted)
    }
}

impl Listener {
    /// Listens for the end that made the connection.
    pub(crate) fn new(addresses: &Addresses, at: Where) -> io::Result<Self> {
        let socket = socket()?;
        let directory = match at {
            Where::Here => {
                socket::bind(socket.as_raw_fd(), &addresses.name(true)?)?;
                None
            }
            Where::Directory => {
                let ground = Ground::new(addresses.local)?;
                Some((ground, File::bind(socket.as_fd(), addresses.place(true)?)?))
            }
        };
        socket::listen(&socket, Backlog::new(STRANGERS_MAX as i32)?)?;
        let socket = ManuallyDrop::new(socket);
        let (strangers, bells, claims) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { socket, strangers, bells, claims, peer: None, directory })
    }

    /// Readable when a process has connected or sent a message.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = c_int> {
        let strangers = self.strangers.iter().map(|it| it.descriptor().as_raw_fd());
        let claims = self.claims.iter().map(|it| it.claim.descriptor());
        std::iter::once(self.socket.as_raw_fd()).chain(strangers).chain(claims)
    }

    /// Repeats messages that may have been lost.
    pub(crate) fn repeat(&self) {
        if let Some((ground, _)) = &self.directory {
            self.claims.iter().for_each(|stranger| stranger.claim.send_number(ground));
        }
    }

    /// Handles all arrivals. Returns the side once the peer is among them.
    pub(crate) fn advance(
        &mut self,
        fd: c_int,
        addresses: &Addresses,
        holders: Holders,
    ) -> Option<Side> {
        while let Ok(socket) = self.accept() {
            if self.strangers.len() == STRANGERS_MAX {
                self.strangers.remove(0);
            }
            self.strangers.push(InnerChannel::new(socket));
        }
        for stranger in std::mem::take(&mut self.strangers) {
            match message(&stranger) {
                Ok(None) => self.strangers.push(stranger),
                Ok(Some((hello, parcel))) => {
                    self.handle_hello(stranger, hello, parcel, fd, addresses)
                }
                Err(_) => {}
            }
        }
        self.believe(fd, addresses);
        let number = self.peer.as_ref()?.1;
        let index = self.bells.iter().position(|(_, its)| *its == number)?;
        let (bell, _) = self.bells.swap_remove(index);
        self.peer.take().map(|(met, _)| met.side(holders, bell, true))
    }

    /// Accepts the stranger that has proved to be the peer.
    fn believe(&mut self, fd: c_int, addresses: &Addresses) {
        for stranger in std::mem::take(&mut self.claims) {
            match stranger.look(fd, addresses) {
                Known::Nothing => self.claims.push(stranger),
                Known::IsNoPeer => {}
                Known::IsPeer => {
                    let Stranger { channel, segment, number, .. } = stranger;
                    self.answer(channel, segment, number, fd);
                }
            }
        }
    }

    /// Sends this end's parts to the peer.
    fn answer(&mut self, channel: InnerChannel, peer: PeerSegment, number: u128, fd: c_int) {
        let ground = self.directory.as_ref().map(|(ground, _)| ground);
        let hello = Hello::Channel(number).to_bytes();
        if let Ok(own) = Own::new(fd, layout::SIZE)
            && let Ok((own, nudge)) = own.send(&channel, &hello, ground)
        {
            self.peer = Some((Met { own, nudge, peer, channel }, number));
        }
    }

    fn accept(&self) -> io::Result<Inner> {
        use std::os::fd::FromRawFd;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket::accept4(self.socket.as_raw_fd(), flags)?;
        // SAFETY: the call has created the descriptor, which has no other owner.
        inner::keep(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn handle_hello(
        &mut self,
        channel: InnerChannel,
        hello: Hello,
        parcel: Parcel,
        fd: c_int,
        addresses: &Addresses,
    ) {
        match hello {
            Hello::Bell(number) => {
                parcel.descriptors.into_iter().for_each(closer::close_elsewhere);
                if self.bells.len() == STRANGERS_MAX {
                    self.bells.remove(0);
                }
                self.bells.push((channel, number));
            }
            Hello::Channel(number) => match &self.directory {
                None => {
                    if let Ok(peer) = segment_of_peer(&channel, parcel, fd, Some(addresses)) {
                        self.answer(channel, peer, number, fd);
                    }
                }
                Some((ground, _)) => {
                    if let Ok(stranger) = Stranger::new(channel, parcel, addresses, ground, number)
                    {
                        if self.claims.len() == STRANGERS_MAX {
                            self.claims.remove(0);
                        }
                        self.claims.push(stranger);
                    }
                }
            },
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        inner::close_elsewhere(self.socket.as_raw_fd());
    }
}

/// An end that has sent its parts and waits for the other end.
pub(crate) struct PendingMeeting {
    other: Other,
    bell: InnerChannel,
    own: Memory,
    nudge: Inner,
    addresses: Addresses,
    /// For a peer at another host: whether this end accepted the connection. The carrier is trusted.
    between_hosts: Option<bool>,
    /// For a peer in another network namespace: this end's evidence.
    ground: Option<Ground>,
}

/// The state of the other end.
enum Other {
    /// The peer has sent no message.
    Silent(InnerChannel),
    /// The peer has sent its parts, and must prove that it is the other end.
    Claims(Stranger),
}

impl PendingMeeting {
    /// Sends this end's parts to the other end.
    pub(crate) fn send(
        sockets: [Inner; 2],
        fd: c_int,
        addresses: Addresses,
        at: Where,
    ) -> io::Result<Self> {
        let ground = match at {
            Where::Here => None,
            Where::Directory => Some(Ground::new(addresses.local)?),
        };
        let hello = |number| Hello::Channel(number).to_bytes().to_vec();
        Self::new(sockets, fd, addresses, layout::SIZE, ground, hello)
    }

    /// Sends this end's parts to a carrier. `accepted` says that this end accepted the connection.
    pub(crate) fn send_to_carrier(
        sockets: [Inner; 2],
        fd: c_int,
        addresses: Addresses,
        accepted: bool,
    ) -> io::Result<Self> {
        let Addresses { local, peer } = addresses;
        let cookie = diagnosis::cookie(fd).ok_or(io::ErrorKind::Unsupported)?;
        let size = layout::FAR_SIZE;
        let pending = Self::new(sockets, fd, addresses, size, None, |number| {
            Introduction { cookie, number, accepted, local, peer }.to_bytes().to_vec()
        })?;
        Ok(Self { between_hosts: Some(accepted), ..pending })
    }

    fn new(
        sockets: [Inner; 2],
        fd: c_int,
        addresses: Addresses,
        size: usize,
        ground: Option<Ground>,
        hello: impl FnOnce(u128) -> Vec<u8>,
    ) -> io::Result<Self> {
        let [channel, bell] = sockets.map(InnerChannel::new);
        let number = random()?;
        let (own, nudge) = Own::new(fd, size)?.send(&channel, &hello(number), ground.as_ref())?;
        bell.send(&Hello::Bell(number).to_bytes(), &[])?;
        let other = Other::Silent(channel);
        Ok(Self { other, bell, own, nudge, addresses, between_hosts: None, ground })
    }

    /// Readable when the other end has sent its parts, or proves that it is the peer.
    pub(crate) fn descriptor(&self) -> c_int {
        match &self.other {
            Other::Silent(channel) => channel.as_raw_fd(),
            Other::Claims(stranger) => stranger.claim.descriptor(),
        }
    }

    /// Repeats messages that may have been lost.
    pub(crate) fn repeat(&self) {
        if let (Other::Claims(stranger), Some(ground)) = (&self.other, &self.ground) {
            stranger.claim.send_number(ground);
        }
    }

    /// The side, once the other end has sent its parts. `Ok(Err(self))` before that. `fd` is a descriptor of the connection.
    pub(crate) fn complete(
        mut self,
        fd: c_int,
        holders: Holders,
    ) -> io::Result<Result<Side, Self>> {
        let (channel, peer) = match self.other {
            Other::Silent(channel) => {
                let Some((_, parcel)) = message(&channel)? else {
                    self.other = Other::Silent(channel);
                    return Ok(Err(self));
                };
                if let Some(ground) = &self.ground {
                    let stranger = Stranger::new(channel, parcel, &self.addresses, ground, 0)?;
                    self.other = Other::Claims(stranger);
                    return self.complete(fd, holders);
                }
                let addresses = self.between_hosts.is_none().then_some(&self.addresses);
                let peer = segment_of_peer(&channel, parcel, fd, addresses)?;
                (channel, peer)
            }
            Other::Claims(stranger) => match stranger.look(fd, &self.addresses) {
                Known::Nothing => {
                    self.other = Other::Claims(stranger);
                    return Ok(Err(self));
                }
                Known::IsNoPeer => return Err(refused()),
                Known::IsPeer => (stranger.channel, stranger.segment),
            },
        };
        let Self { bell, own, nudge, between_hosts, .. } = self;
        let accepted = between_hosts.unwrap_or(false);
        let side = Met { own, nudge, peer, channel }.side(holders, bell, accepted);
        Ok(Ok(if between_hosts.is_some() { side.between_hosts() } else { side }))
    }
}

/// An unguessable number.
fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    // SAFETY: the buffer has room for the bytes.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if filled == 16 { Ok(u128::from_ne_bytes(bytes)) } else { Err(io::Error::last_os_error()) }
}

fn nudge() -> io::Result<Inner> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    inner::keep(EventFd::from_value_and_flags(0, flags)?.into())
}
