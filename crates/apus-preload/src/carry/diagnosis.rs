//! What the kernel says about the socket at the other end of a connection (`sock_diag(7)`): whose it is, and which one.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(crate) use apus_sockets::diagnosis::canonical;
use apus_sockets::diagnosis::{self, Found};
use libc::c_int;

use super::inner;
use crate::originals;

/// The established socket that is bound to `local` and connected to `peer`, if this namespace has it.
pub(crate) fn find(local: SocketAddr, peer: SocketAddr) -> Option<Found> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call makes a descriptor, which nobody else has.
    let socket = unsafe {
        let fd = originals::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG);
        if fd < 0 {
            return None;
        }
        inner::own(OwnedFd::from_raw_fd(fd))
    };
    let (local, peer) = (canonical(local), canonical(peer));
    let request = diagnosis::request(local, peer);
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
    diagnosis::answer(answer.get(..usize::try_from(length).ok()?)?)
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
