//! Asks the kernel for the socket of a connection in this network namespace.

use std::io;
use std::os::fd::AsRawFd;

use apus_sockets::diagnosis::{self, Found};
use apus_sockets::introduction::Introduction;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// Whether the socket with these addresses has this cookie and was created by this user.
pub(crate) fn is_socket_of(introduction: &Introduction, uid: u32) -> bool {
    let found = find(introduction).ok().flatten();
    found.is_some_and(|found| (found.uid, found.cookie) == (uid, introduction.cookie))
}

fn find(introduction: &Introduction) -> io::Result<Option<Found>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let protocol = SockProtocol::NetlinkSockDiag;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
    let request = diagnosis::request(introduction.local, introduction.peer, 0);
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut answer = [0; 512];
    // The kernel answers before `send` returns.
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
    Ok(diagnosis::answer(&answer[..length]))
}
