//! The data that a socket of a program reports.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, sockopt};
use serde::Serialize;

use crate::epoll::{busy_poll_usecs, incoming_napi};

/// An internet socket of a program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Socket {
    /// The descriptor of the socket in the program.
    pub fd: i32,
    /// Whether it is a stream, as of TCP.
    pub is_stream: bool,
    /// Whether it listens for connections, and so receives no data itself.
    pub listens: bool,
    /// Its own address, if it is bound.
    pub local: Option<SocketAddr>,
    /// The address of its peer, if it is connected.
    pub peer: Option<SocketAddr>,
    /// The NAPI instance of its last packet; `None` before the first packet, or where packets come by no instance.
    pub napi: Option<u32>,
    /// Time that a blocking receive polls, in microseconds (`SO_BUSY_POLL`).
    pub busy_poll_usecs: u32,
}

impl Socket {
    /// Reads a duplicate of a descriptor; `None` for a socket outside the internet families.
    ///
    /// # Errors
    /// When it is no socket, or was closed.
    pub(crate) fn read(fd: i32, duplicate: OwnedFd) -> io::Result<Option<Self>> {
        let family = sockopt::socket_domain(&duplicate)?;
        if family != AddressFamily::INET && family != AddressFamily::INET6 {
            return Ok(None);
        }
        let (napi, busy_poll_usecs) = (incoming_napi(&duplicate)?, busy_poll_usecs(&duplicate)?);
        let is_stream = sockopt::socket_type(&duplicate)? == SocketType::STREAM;
        let listens = sockopt::socket_acceptconn(&duplicate)?;
        // The type gives both addresses of any internet socket.
        let addresses = TcpStream::from(duplicate);
        let (local, peer) = (addresses.local_addr().ok(), addresses.peer_addr().ok());
        Ok(Some(Self { fd, is_stream, listens, local, peer, napi, busy_poll_usecs }))
    }

    /// Whether the socket receives packets of this host itself, which do not pass through a device.
    pub fn is_of_loopback(&self) -> bool {
        let ip = |address: Option<SocketAddr>| address.map(|it| it.ip().to_canonical());
        let (local, peer) = (ip(self.local), ip(self.peer));
        local.is_some_and(|ip| ip.is_loopback()) || peer.is_some() && peer == local
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn sockets_of_the_internet_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let stream = TcpStream::connect(at).unwrap();
        let read = |fd: OwnedFd| Socket::read(9, fd).unwrap().unwrap();
        let socket = read(listener.try_clone().unwrap().into());
        assert!(socket.listens && socket.is_stream && socket.is_of_loopback());
        assert_eq!((socket.local, socket.peer, socket.napi), (Some(at), None, None));
        let socket = read(stream.into());
        assert!(!socket.listens && socket.is_of_loopback());
        assert_eq!(socket.peer, Some(at));
        let socket = read(UdpSocket::bind("0.0.0.0:0").unwrap().into());
        assert!(!socket.is_stream && !socket.is_of_loopback());
        let unix = UnixDatagram::unbound().unwrap();
        assert_eq!(Socket::read(9, unix.into()).unwrap(), None);
    }
}
