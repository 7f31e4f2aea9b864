//! Connections between network namespaces of one host, such as those of containers: the place where their ends meet, and the
//! proof of an end's network namespace.
//!
//! The ends meet at a unix socket in a directory that both see (`APUS_SHM_DIR`, as for nodes of Apus). `sock_diag` covers only
//! the caller's network namespace, so each end hands over two sockets besides its [proof](crate::carry::peers::diagnosis): a UDP
//! socket at the address of its end of the connection, and a socket for `sock_diag`. The other end then checks three things
//! itself:
//!
//! 1. An unguessable number, sent to the peer's address, arrives at that UDP socket. So packets for the peer's address reach the
//!    socket's network namespace, without address translation.
//! 2. The socket for `sock_diag` is in the same network namespace (`SO_NETNS_COOKIE`).
//! 3. Through that socket, the kernel confirms that the proof belongs to the socket with the mirrored addresses.
//!
//! A process in the peer's network namespace that can create a socket with the same addresses could pass the number on and
//! present a connection there. So an end trusts only processes of its own user.

use std::ffi::c_void;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use apus_shm::{SocketFile, closer};
use apus_sockets::introduction;
use libc::c_int;
use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, UnixAddr,
};

use super::diagnosis;
use crate::carry::inner::{self, Inner};
use crate::originals::own as originals;
use crate::report;

/// The variable with the path of the directory.
const VARIABLE: &std::ffi::CStr = c"APUS_SHM_DIR";

/// Upper bound on the bytes of the directory's path, as for nodes: a unix socket's address has 107 bytes, and a name takes 41 of
/// them.
const DIRECTORY_MAX: usize = 54;

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Reads the directory in which ends of other network namespaces meet. Runs at the start of the process.
pub(crate) fn begin() {
    // SAFETY: the name ends with a zero byte. No other code changes the environment before `main`.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: a value ends with a zero byte.
    let value = unsafe { std::ffi::CStr::from_ptr(value) }.to_bytes();
    let path = Path::new(std::ffi::OsStr::from_bytes(value));
    if path.is_absolute() && value.len() <= DIRECTORY_MAX {
        let _ = DIRECTORY.set(path.to_owned());
        report::expect_containers();
    }
}

/// Whether such a directory is set.
pub(crate) fn is_wanted() -> bool {
    DIRECTORY.get().is_some()
}

/// The path at which the two ends of a connection meet.
pub(crate) fn place(client: SocketAddr, server: SocketAddr) -> Option<PathBuf> {
    DIRECTORY.get().map(|directory| directory.join(introduction::file_name(client, server)))
}

/// The file of a listening socket, removed when this value is dropped.
pub(crate) struct File {
    path: PathBuf,
    /// Device and inode of the file. Another file may have its name later.
    is: (u64, u64),
}

impl File {
    /// Binds a socket to a path. Replaces the file of an ended process.
    pub(crate) fn bind(socket: BorrowedFd<'_>, path: PathBuf) -> io::Result<Self> {
        let address = UnixAddr::new(&path)?;
        match socket::bind(socket.as_raw_fd(), &address) {
            Err(Errno::EADDRINUSE) if is_left(&address) => {
                fs::remove_file(&path)?;
                socket::bind(socket.as_raw_fd(), &address)?;
            }
            bound => bound?,
        }
        let file = SocketFile::open(&path)?; // Fails if another file has taken the path.
        file.open_to_everyone()?;
        Ok(Self { path, is: file.identity() })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let is_its = |found: &fs::Metadata| (found.dev(), found.ino()) == self.is;
        if fs::symlink_metadata(&self.path).is_ok_and(|found| is_its(&found)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether the name has no listener any more.
fn is_left(address: &UnixAddr) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).is_ok_and(|socket| {
        socket::connect(socket.as_raw_fd(), address) == Err(Errno::ECONNREFUSED)
    })
}

/// An end's evidence of its network namespace.
pub(crate) struct Ground {
    udp: Inner,
    diagnosis: Inner,
}

impl Ground {
    /// The evidence of the end with this address.
    pub(crate) fn new(local: SocketAddr) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let udp = inner::keep(socket::socket(family, SockType::Datagram, flags, None)?)?;
        let at = SocketAddr::new(local.ip(), 0);
        socket::bind(udp.as_raw_fd(), &SockaddrStorage::from(at))?;
        let protocol = SockProtocol::NetlinkSockDiag;
        let diagnosis = socket::socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        Ok(Self { udp, diagnosis: inner::keep(diagnosis)? })
    }

    /// The descriptors to hand over.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.udp.as_fd(), self.diagnosis.as_fd()]
    }
}

/// Bytes of the number that is sent to the peer's address.
const NUMBER: usize = 16;

/// Upper bound on datagrams that are read in a turn. Any process may send some.
const LOOKED_AT: usize = 64;

/// A stranger's evidence, until it is clear whether the stranger is the peer.
pub(crate) struct Claim {
    proof: Inner,
    udp: Inner,
    diagnosis: Inner,
    /// Address of the stranger's UDP socket.
    at: SocketAddr,
    number: [u8; NUMBER],
}

/// The verdict on a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Nothing,
    IsPeer,
    IsNoPeer,
}

impl Claim {
    /// The claim of a process of `user` to be the end `peer`: its proof and its [`Ground`]. Returns `None` for an invalid claim.
    /// Descriptors whose close may sleep are closed by another thread.
    pub(crate) fn new(
        [proof, udp, diagnosis]: [OwnedFd; 3],
        user: u32,
        peer: SocketAddr,
        number: u128,
    ) -> Option<Self> {
        // SAFETY: the call takes no arguments and cannot fail.
        let own = unsafe { libc::geteuid() };
        let at = bound_to(udp.as_fd()).map(diagnosis::canonical);
        let kind = |fd: &OwnedFd| {
            let option = |name| socket_option::<c_int>(fd.as_fd(), name);
            (option(libc::SO_DOMAIN), option(libc::SO_TYPE), option(libc::SO_PROTOCOL))
        };
        let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let is_udp = kind(&udp) == (Some(family), Some(libc::SOCK_DGRAM), Some(libc::IPPROTO_UDP));
        let is_diagnosis = kind(&diagnosis)
            == (Some(libc::AF_NETLINK), Some(libc::SOCK_RAW), Some(libc::NETLINK_SOCK_DIAG));
        let namespace = |fd: &OwnedFd| socket_option::<u64>(fd.as_fd(), SO_NETNS_COOKIE);
        let is_claim = is_udp
            && is_diagnosis
            && diagnosis::is_path(proof.as_fd())
            && user == own
            && user != diagnosis::NOBODY
            && at.is_some_and(|at| at.ip() == peer.ip())
            && namespace(&udp).is_some()
            && namespace(&udp) == namespace(&diagnosis);
        if !is_claim {
            [proof, udp, diagnosis].into_iter().for_each(closer::close_elsewhere);
            return None;
        }
        // Closing these never sleeps.
        let [proof, udp, diagnosis] = [proof, udp, diagnosis].map(inner::keep);
        Some(Self {
            proof: proof.ok()?,
            udp: udp.ok()?,
            diagnosis: diagnosis.ok()?,
            at: at?,
            number: number.to_ne_bytes(),
        })
    }

    /// Readable when the number may have arrived.
    pub(crate) fn descriptor(&self) -> c_int {
        self.udp.as_raw_fd()
    }

    /// Sends the number to the peer's address. It may be lost.
    pub(crate) fn send_number(&self, own: &Ground) {
        let to = SockaddrStorage::from(self.at);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = socket::sendto(own.udp.as_raw_fd(), &self.number, &to, flags);
    }

    /// The verdict so far. `fd` is this process's end.
    pub(crate) fn look(&self, fd: c_int, local: SocketAddr, peer: SocketAddr) -> Known {
        if !self.number_has_come() {
            return Known::Nothing;
        }
        let found = diagnosis::find_by(self.diagnosis.as_fd(), peer, local);
        let shown = diagnosis::shown(self.proof.as_fd(), fd);
        // SAFETY: the call takes no arguments and cannot fail.
        let own = unsafe { libc::geteuid() };
        let is_peer = matches!((found, shown), (Some(found), Some(shown))
            if u64::from(found.inode) == shown.inode && shown.user == own);
        if is_peer { Known::IsPeer } else { Known::IsNoPeer }
    }

    /// Whether the process that makes the claim has the socket, as far as this process can see.
    pub(crate) fn may_have(&self, process: libc::pid_t, user: u32) -> bool {
        diagnosis::may_have(process, user, self.proof.as_fd())
    }

    fn number_has_come(&self) -> bool {
        for _ in 0..LOOKED_AT {
            let mut bytes = [0_u8; NUMBER + 1];
            let room: *mut c_void = bytes.as_mut_ptr().cast();
            // SAFETY: the buffer has room for the bytes. The call does not block, whatever the stranger has set.
            let length = unsafe {
                originals::recv(self.udp.as_raw_fd(), room, bytes.len(), libc::MSG_DONTWAIT)
            };
            match usize::try_from(length) {
                Ok(NUMBER) if bytes[..NUMBER] == self.number => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    }
}

/// The address to which an IP socket is bound.
fn bound_to(socket: BorrowedFd<'_>) -> Option<SocketAddr> {
    let at: SockaddrStorage = socket::getsockname(socket.as_raw_fd()).ok()?;
    let v4 = || at.as_sockaddr_in().map(|&at| SocketAddr::V4(at.into()));
    let v6 = || at.as_sockaddr_in6().map(|&at| SocketAddr::V6(at.into()));
    v4().or_else(v6)
}

/// `SO_NETNS_COOKIE` (Linux 5.14).
const SO_NETNS_COOKIE: c_int = 71;

/// The value of a socket option. `None` if the descriptor is not a socket.
fn socket_option<T: Default>(fd: BorrowedFd<'_>, name: c_int) -> Option<T> {
    let mut value = T::default();
    let mut size = size_of::<T>() as libc::socklen_t;
    let place: *mut c_void = (&raw mut value).cast();
    // SAFETY: the value has room for `size` bytes, and any bytes are a number.
    let result = unsafe {
        originals::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, place, &raw mut size)
    };
    (result == 0 && size as usize == size_of::<T>()).then_some(value)
}
