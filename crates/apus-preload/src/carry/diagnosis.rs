//! What the kernel says about the socket at the other end of a connection (`sock_diag(7)`): whose it is, and which one.

use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_int;

use crate::originals;

/// A TCP socket of this network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) uid: u32,
    /// The number that no other socket of this host ever has.
    pub(crate) cookie: u64,
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const HEADER: usize = 16;
/// Where the cookie lies in an `inet_diag_sockid`.
const COOKIE: usize = 40;
const ID: usize = 48;

/// The established socket that is bound to `local` and connected to `peer`, if this namespace has it.
pub(crate) fn find(local: SocketAddr, peer: SocketAddr) -> Option<Found> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call makes a descriptor, which nobody else has.
    let socket = unsafe {
        let fd = originals::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG);
        if fd < 0 {
            return None;
        }
        OwnedFd::from_raw_fd(fd)
    };
    let (local, peer) = (canonical(local), canonical(peer));
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut request = Vec::with_capacity(HEADER + 8 + ID);
    request.extend(((HEADER + 8 + ID) as u32).to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([0; 8]); // Sequence and sender.
    request.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes()); // In any state.
    request.extend(local.port().to_be_bytes());
    request.extend(peer.port().to_be_bytes());
    for ip in [local.ip(), peer.ip()] {
        match ip {
            IpAddr::V4(ip) => request.extend(ip.octets().into_iter().chain([0; 12])),
            IpAddr::V6(ip) => request.extend(ip.octets()),
        }
    }
    request.extend([0; 4]); // At any interface.
    request.extend([0xff; 8]); // With any cookie.
    let mut answer = [0_u8; 512];
    let fd = socket.as_raw_fd();
    let (bytes, room): (*const c_void, *mut c_void) =
        (request.as_ptr().cast(), answer.as_mut_ptr().cast());
    // SAFETY: the buffers have those lengths. The kernel answers before the call returns.
    let length = unsafe {
        if originals::send(fd, bytes, request.len(), 0) < 0 {
            return None;
        }
        originals::recv(fd, room, answer.len(), libc::MSG_DONTWAIT)
    };
    parse(answer.get(..usize::try_from(length).ok()?)?)
}

/// What an answer says.
fn parse(answer: &[u8]) -> Option<Found> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let message = answer.get(HEADER..).filter(|_| kind == SOCK_DIAG_BY_FAMILY)?;
    let word = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    // `struct inet_diag_msg`: four bytes, the id, and the times, queues, user and inode.
    let cookie = [word(4 + COOKIE)?, word(4 + COOKIE + 4)?];
    let uid = word(4 + ID + 12)?;
    Some(Found { uid, cookie: u64::from(cookie[1]) << 32 | u64::from(cookie[0]) })
}

/// IPv4 addresses that IPv6 sockets have are IPv4 addresses.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// `SO_COOKIE` of a socket.
pub(crate) fn cookie(fd: c_int) -> Option<u64> {
    let mut cookie = 0_u64;
    let mut size = size_of::<u64>() as libc::socklen_t;
    let value: *mut c_void = (&raw mut cookie).cast();
    // SAFETY: the value has room for `size` bytes.
    let result = unsafe {
        originals::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, value, &raw mut size)
    };
    (result == 0).then_some(cookie)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let found = find(client.local_addr().unwrap(), client.peer_addr().unwrap()).unwrap();
            assert_eq!(Some(found.cookie), cookie(client.as_raw_fd()));
            assert_ne!(Some(found.cookie), cookie(server.as_raw_fd()));
            // SAFETY: the call has no arguments and cannot fail.
            assert_eq!(found.uid, unsafe { libc::geteuid() });
            assert_eq!(find("127.0.0.1:1".parse().unwrap(), client.local_addr().unwrap()), None);
        }
    }
}
