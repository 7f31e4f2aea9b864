//! Where the processes of a host meet: a unix socket by the address of a node.
//!
//! The name is in the abstract namespace, which each network namespace has for itself, as it has its ports. Anyone in the namespace
//! can bind a name, so a connection proves nothing about the address: whoever meets here proves it in another way.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};

/// Connections that wait to be accepted; more are refused.
const BACKLOG: i32 = 128;

/// Where a node is met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the network namespace, by the node's UDP address.
    Namespace(SocketAddr),
    /// In a directory that containers of different network namespaces share.
    Directory(PathBuf, SocketAddr),
}

impl Place {
    fn address(&self) -> io::Result<UnixAddr> {
        Ok(match self {
            Self::Namespace(node) => UnixAddr::new_abstract(format!("apus/1/{node}").as_bytes())?,
            Self::Directory(directory, node) => UnixAddr::new(&path(directory, *node))?,
        })
    }
}

fn path(directory: &Path, node: SocketAddr) -> PathBuf {
    directory.join(format!("apus-{node}"))
}

/// Takes connections of other processes.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// To be removed at the end.
    path: Option<PathBuf>,
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

impl Listener {
    /// Listens at a place.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] if another process does.
    pub fn bind(place: &Place) -> io::Result<Self> {
        let socket = new_socket()?;
        bind(socket.as_raw_fd(), &place.address()?)?;
        listen(&socket, Backlog::new(BACKLOG)?)?;
        let path = match place {
            Place::Namespace(_) => None,
            Place::Directory(directory, node) => Some(path(directory, *node)),
        };
        Ok(Self { socket, path })
    }

    /// The next connection, if there is one.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        let accepted = accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
        Ok(unsafe { OwnedFd::from_raw_fd(accepted) })
    }

    /// Readable when a connection waits.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path); // It may have been removed already.
        }
    }
}

/// Connects to whoever listens at a place. Never blocks.
///
/// # Errors
///
/// [`io::ErrorKind::ConnectionRefused`] or [`io::ErrorKind::NotFound`] if nobody does, [`io::ErrorKind::WouldBlock`] if too many
/// connections wait there.
pub fn meet(place: &Place) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(socket.as_raw_fd(), &place.address()?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(place: &Place) {
        assert!(meet(place).is_err(), "nobody is there");
        let listener = Listener::bind(place).unwrap();
        assert_eq!(Listener::bind(place).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let socket = meet(place).unwrap();
        let accepted = listener.accept().unwrap();
        nix::unistd::write(&socket, b"x").unwrap();
        assert_eq!(nix::unistd::read(&accepted, &mut [0; 4]), Ok(1));
        drop(listener);
        assert!(meet(place).is_err(), "it is gone");
    }

    /// An address that no node has: the port belongs to a socket of this test.
    #[test]
    fn processes_meet_by_an_address() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let node = socket.local_addr().unwrap();
        exchange(&Place::Namespace(node));
        let directory = std::env::temp_dir().join(format!("apus-meeting-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        exchange(&Place::Directory(directory.clone(), node));
        std::fs::remove_dir(&directory).unwrap();
    }
}
