//! How the two ends of a connection find each other, and show that they are its two ends.
//!
//! The end that accepted the connection listens at a unix socket whose abstract name is the connection's addresses; the end that made it
//! connects there. Abstract names are per network namespace, and so are the addresses. Anyone may listen at a name. Therefore each end
//! demands that the other one says the cookie of the socket at the other end of the connection, and that the kernel says of that socket
//! that the user of the other process made it. A name for each connection, and not for each port, lets processes that share a port each
//! be found.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use apus_shm::{PeerProcess, PeerSegment, Segment};
use libc::c_int;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};

use super::inner::{Inner, InnerChannel};
use super::side::Side;
use super::{diagnosis, inner, layout};
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

/// An end that has said what it has, and waits for the other one.
pub(crate) struct Offer {
    channel: InnerChannel,
    segment: Segment,
    bells: [Inner; 2],
    /// Whose process the other end is.
    uid: u32,
    addresses: Addresses,
}

impl Offer {
    /// Says what this end has.
    pub(crate) fn send(socket: Inner, fd: c_int, addresses: Addresses) -> io::Result<Self> {
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
        let hello = [layout::MAGIC.to_ne_bytes(), cookie.to_ne_bytes()].concat();
        let descriptors = [segment.descriptor(), bells[0].as_fd(), bells[1].as_fd()];
        channel.send(&hello, &descriptors)?;
        Ok(Self { channel, segment, bells, addresses, uid })
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
        let found = diagnosis::find(self.addresses.peer, self.addresses.local);
        let is_it = found.is_some_and(|found| found.cookie == cookie && found.uid == self.uid);
        if parcel.length != HELLO || magic != layout::MAGIC || !is_it {
            return Err(refused());
        }
        let peer = PeerSegment::open(segment.as_fd(), layout::SIZE).map_err(io::Error::other)?;
        if peer.load(layout::START, Ordering::Acquire) != layout::MAGIC {
            return Err(refused());
        }
        let peer_bells = [inner::keep(bytes)?, inner::keep(room)?];
        Ok(Ok(Side::new(self.segment.into_memory(), peer, self.bells, peer_bells, self.channel)))
    }
}

fn bell() -> io::Result<Inner> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    inner::keep(EventFd::from_value_and_flags(0, flags)?.into())
}
