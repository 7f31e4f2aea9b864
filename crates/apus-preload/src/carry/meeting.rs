//! How the two ends of a connection find each other, and show that they are its two ends.
//!
//! The end that accepted the connection listens at a unix socket whose abstract name is the connection's addresses; the end that made it
//! connects there. Abstract names are per network namespace, and so are the addresses. Anyone may listen at a name. Therefore each end
//! demands that the other one says the cookie of the socket at the other end of the connection, and that the kernel says of that socket
//! that the user of the other process made it. A name for each connection, and not for each port, lets processes that share a port each
//! be found.
//!
//! If the other end is at another host, the carrier of this host takes its place ([`carrier`]): a process of the same user, which
//! shows the segment of the other end as it was a moment ago. It checks who is there.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use apus_shm::{Memory, PeerProcess, PeerSegment, Segment};
use apus_sockets::introduction::{Introduction, carrier_name};
use apus_sockets::layout;
use libc::c_int;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};

use super::inner::{Inner, InnerChannel};
use super::side::Side;
use super::{diagnosis, inner};
use crate::report;

/// What an end says of itself.
const HELLO: usize = 16;

/// Whoever has no number in this user namespace.
const NOBODY: u32 = 65_534;

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

    /// Whether a carrier could reach the other end. Addresses of a link only mean nothing without their interface.
    pub(crate) fn are_reachable(&self) -> bool {
        let ends = [self.local.ip(), self.peer.ip()];
        let is_of_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !self.peer.ip().is_loopback() && !ends.iter().any(is_of_link)
    }

    fn name(&self, accepted: bool) -> nix::Result<UnixAddr> {
        let (client, server) =
            if accepted { (self.peer, self.local) } else { (self.local, self.peer) };
        UnixAddr::new_abstract(format!("apus-tcp/{client}/{server}").as_bytes())
    }
}

fn socket() -> io::Result<Inner> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    inner::keep(socket)
}

/// Whether a TCP socket that begins to connect does so from this host's loopback address.
pub(crate) fn is_local(fd: c_int) -> bool {
    report::local_address(fd).is_some_and(|local| local.ip().to_canonical().is_loopback())
}

/// Listens for the end that made the connection.
pub(crate) fn listen(addresses: &Addresses) -> io::Result<Inner> {
    let listener = socket()?;
    socket::bind(listener.as_raw_fd(), &addresses.name(true)?)?;
    socket::listen(&listener, Backlog::new(1)?)?;
    Ok(listener)
}

/// Accepts whoever came.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<Inner> {
    use std::os::fd::FromRawFd;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket::accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the call has made the descriptor, and nobody else knows of it.
    inner::keep(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Connects to the end that accepted the connection, if it listens.
pub(crate) fn connect(addresses: &Addresses) -> io::Result<Inner> {
    let socket = socket()?;
    socket::connect(socket.as_raw_fd(), &addresses.name(false)?)?;
    Ok(socket)
}

/// Connects to the carrier that this user has at a UDP port, if it runs.
pub(crate) fn carrier(port: u16) -> io::Result<Inner> {
    // SAFETY: the call has no arguments and cannot fail.
    let uid = unsafe { libc::geteuid() };
    let socket = socket()?;
    let name = UnixAddr::new_abstract(carrier_name(uid, port).as_bytes())?;
    socket::connect(socket.as_raw_fd(), &name)?;
    if PeerProcess::of(socket.as_fd())?.uid() != uid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(socket)
}

/// An end that has said what it has, and waits for the other one.
pub(crate) struct Offer {
    channel: InnerChannel,
    own: Memory,
    bells: [Inner; 2],
    /// Whose process the other end is.
    uid: u32,
    addresses: Addresses,
    /// If the other end is at another host: whether this one accepted the connection. The carrier is to be believed.
    between_hosts: Option<bool>,
}

impl Offer {
    /// Says to the other end what this one has.
    pub(crate) fn send(socket: Inner, fd: c_int, addresses: Addresses) -> io::Result<Self> {
        Self::new(socket, fd, addresses, |cookie| {
            [layout::MAGIC.to_ne_bytes(), cookie.to_ne_bytes()].concat()
        })
    }

    /// Says to a carrier what this end has. `accepted`: this end accepted the connection.
    pub(crate) fn send_to_carrier(
        carrier: Inner,
        fd: c_int,
        addresses: Addresses,
        accepted: bool,
    ) -> io::Result<Self> {
        let Addresses { local, peer } = addresses;
        let offer = Self::new(carrier, fd, addresses, |cookie| {
            Introduction { cookie, accepted, local, peer }.to_bytes().to_vec()
        })?;
        Ok(Self { between_hosts: Some(accepted), ..offer })
    }

    fn new(
        socket: Inner,
        fd: c_int,
        addresses: Addresses,
        hello: impl FnOnce(u64) -> Vec<u8>,
    ) -> io::Result<Self> {
        let process = PeerProcess::of(socket.as_fd())?;
        let uid = process.uid();
        if uid == NOBODY {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let channel = InnerChannel::new(socket);
        let segment = Segment::create_inherited(layout::SIZE)?;
        segment.memory().word(layout::START).store(layout::MAGIC, Ordering::Release);
        let bells = [bell()?, bell()?];
        let cookie = diagnosis::cookie(fd).ok_or(io::ErrorKind::Unsupported)?;
        let descriptors = [segment.descriptor(), bells[0].as_fd(), bells[1].as_fd()];
        channel.send(&hello(cookie), &descriptors)?;
        let own = segment.into_memory(); // Its descriptor has a low number, which the program may close.
        Ok(Self { channel, own, bells, addresses, uid, between_hosts: None })
    }

    /// Readable when the other end has said what it has.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    /// The side, once the other end has said what it has. `Ok(Err(self))`: not yet.
    pub(crate) fn complete(self) -> io::Result<Result<Side, Self>> {
        let mut hello = [0; HELLO];
        let parcel = match self.channel.receive(&mut hello) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Err(self)),
            received => received?,
        };
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        let [magic, cookie] =
            [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| hello[at + byte])));
        let [segment, bytes, room] =
            <[OwnedFd; 3]>::try_from(parcel.descriptors).map_err(|_| refused())?;
        let found = || diagnosis::find(self.addresses.peer, self.addresses.local);
        let is_it = self.between_hosts.is_some()
            || found().is_some_and(|found| found.cookie == cookie && found.uid == self.uid);
        if parcel.length != HELLO || magic != layout::MAGIC || !is_it {
            return Err(refused());
        }
        let peer = PeerSegment::open(segment.as_fd(), layout::SIZE).map_err(io::Error::other)?;
        if peer.load(layout::START, Ordering::Acquire) != layout::MAGIC {
            return Err(refused());
        }
        let peer_bells = [inner::keep(bytes)?, inner::keep(room)?];
        let side = Side::new(self.own, peer, self.bells, peer_bells, self.channel);
        Ok(Ok(match self.between_hosts {
            Some(accepted) => side.between_hosts(accepted),
            None => side,
        }))
    }
}

fn bell() -> io::Result<Inner> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    inner::keep(EventFd::from_value_and_flags(0, flags)?.into())
}
