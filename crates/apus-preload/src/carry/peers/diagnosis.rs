//! The proof that an end has a socket, and the kernel's record of the socket at the other end of a connection.
//!
//! The *proof* is an `O_PATH` descriptor of the socket's file: it cannot read, write or close the connection, so a stranger gains
//! nothing from it. Only a process that has the socket, or may look into `/proc/PID/fd` of a process that has it, can make a
//! proof. The other end compares the inode of that file with the kernel's record of the socket with the mirrored addresses:
//! `sock_diag(7)`, or `/proc/net/tcp` where netlink is not allowed.
//!
//! A process that receives a proof can pass it on. So the process that presents it must also belong to the user that made the
//! socket, and a process of this user must have the socket ([`may_have`]). A process that takes the name of a connection first
//! gains nothing from the proofs of its ends.

use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::{io, mem};

pub(crate) use apus_sockets::diagnosis::canonical;
use apus_sockets::diagnosis::{self, Found};
use libc::c_int;

use crate::carry::inner;
use crate::carry::peers::descriptors_of;
use crate::originals;

/// The established socket that is bound to `local` and connected to `peer`, if this namespace has it.
pub(crate) fn find(local: SocketAddr, peer: SocketAddr) -> Option<Found> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call creates a descriptor, which has no other owner.
    let socket = unsafe {
        let fd = originals::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG);
        if fd < 0 {
            return None;
        }
        inner::own(OwnedFd::from_raw_fd(fd))
    };
    find_by(socket.as_fd(), local, peer)
}

/// The same for the network namespace of a `sock_diag` socket that other processes may share. Ignores all messages that they have
/// sent to it or requested through it.
pub(crate) fn find_by(
    socket: BorrowedFd<'_>,
    local: SocketAddr,
    peer: SocketAddr,
) -> Option<Found> {
    let (local, peer) = (canonical(local), canonical(peer));
    let sequence = sequence()?;
    let request = diagnosis::request(local, peer, sequence);
    // SAFETY: all zeros are a valid value.
    let mut kernel: libc::sockaddr_nl = unsafe { mem::zeroed() };
    kernel.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    let size = size_of_val(&kernel) as libc::socklen_t;
    let mut part =
        libc::iovec { iov_base: request.as_ptr().cast_mut().cast(), iov_len: request.len() };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_name, message.msg_namelen) = ((&raw mut kernel).cast(), size);
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    let fd = socket.as_raw_fd();
    // SAFETY: the message, its address and its part are local variables. The kernel answers before the call returns.
    if unsafe { originals::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT) } < 0 {
        return None;
    }
    for _ in 0..ANSWERS_MAX {
        let mut answer = [0_u8; 512];
        (part.iov_base, part.iov_len) = (answer.as_mut_ptr().cast(), answer.len());
        kernel.nl_pid = 1;
        (message.msg_name, message.msg_namelen) = ((&raw mut kernel).cast(), size);
        message.msg_iov = &raw mut part;
        // SAFETY: as above; the buffer has room for the answer.
        let length = unsafe { originals::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) };
        let answer = &answer[..usize::try_from(length).ok()?];
        if kernel.nl_pid == 0 && diagnosis::sequence(answer) == Some(sequence) {
            return diagnosis::answer(answer);
        }
    }
    None
}

/// Upper bound on messages that are read to find the kernel's answer.
const ANSWERS_MAX: usize = 64;

/// A number that identifies an answer.
fn sequence() -> Option<u32> {
    let mut bytes = [0_u8; 4];
    // SAFETY: the buffer has room for the bytes.
    let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    (filled == 4).then_some(u32::from_ne_bytes(bytes))
}

/// A descriptor that proves that this process has a socket.
///
/// # Errors
///
/// The errors of `open`. Without `/proc` there is no proof.
pub(crate) fn proof(fd: c_int) -> io::Result<OwnedFd> {
    let path = format!("/proc/thread-self/fd/{fd}\0");
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero byte. The call creates a descriptor, which has no other owner.
    unsafe {
        match libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) {
            ..0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd as c_int)),
        }
    }
}

/// Whether a stranger's proof belongs to the other end of a connection. `fd` is this process's end, `stranger` the stranger's
/// user. Never waits for the stranger: the kernel does not ask a file server for the file's attributes.
pub(crate) fn is_other_end(
    proof: BorrowedFd<'_>,
    stranger: u32,
    fd: c_int,
    local: SocketAddr,
    peer: SocketAddr,
) -> bool {
    shown(proof, fd).is_some_and(|shown| {
        inode_and_user(peer, local)
            .is_some_and(|(inode, user)| u64::from(inode) == shown.inode && user == stranger)
    })
}

/// The file of a proof.
pub(crate) struct Shown {
    /// The inode of the socket's file.
    pub(crate) inode: u64,
    /// The user that made the socket.
    pub(crate) user: u32,
}

/// The file of a stranger's proof, if it is a socket. `fd` is any socket.
pub(crate) fn shown(proof: BorrowedFd<'_>, fd: c_int) -> Option<Shown> {
    let status = |fd: c_int| {
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // SAFETY: all zeros are a valid value.
        let mut status: libc::statx = unsafe { mem::zeroed() };
        let wanted = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_UID;
        // SAFETY: the path is empty and ends with a zero byte, and the buffer has room for the status.
        let result = unsafe { libc::statx(fd, c"".as_ptr(), flags, wanted, &raw mut status) };
        (result == 0).then_some(status)
    };
    if !is_path(proof) {
        return None;
    }
    let (theirs, own) = (status(proof.as_raw_fd())?, status(fd)?);
    let device = |status: &libc::statx| (status.stx_dev_major, status.stx_dev_minor);
    let is_socket = u32::from(theirs.stx_mode) & libc::S_IFMT == libc::S_IFSOCK;
    // All sockets are on one file system, which cannot be mounted.
    (is_socket && device(&theirs) == device(&own))
        .then_some(Shown { inode: theirs.stx_ino, user: theirs.stx_uid })
}

/// Whether a descriptor is an `O_PATH` one. Closing it never sleeps.
pub(crate) fn is_path(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the command takes no argument.
    let flags = unsafe { originals::fcntl(fd.as_raw_fd(), libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_PATH != 0
}

/// The uid that stands for all users without a number in this user namespace.
pub(crate) const NOBODY: u32 = 65_534;

/// Whether a process of the own user, or of an unmapped one, has the socket that it shows rather than passing on a proof that it
/// received. The kernel distinguishes other users. For a process in another PID namespace, which is invisible, this cannot be
/// known.
pub(crate) fn may_have(process: libc::pid_t, user: u32, proof: BorrowedFd<'_>) -> bool {
    // SAFETY: the call takes no arguments and cannot fail.
    let own = unsafe { libc::geteuid() };
    if user != NOBODY && (user != own || process == 0) {
        return true;
    }
    let shown = format!("/proc/thread-self/fd/{}", proof.as_raw_fd());
    descriptors_of::socket_named(&shown).is_some_and(|socket| descriptors_of::have(process, socket))
}

/// The inode and user of the socket that is bound to `local` and connected to `peer`, in this network namespace.
fn inode_and_user(local: SocketAddr, peer: SocketAddr) -> Option<(u32, u32)> {
    find(local, peer).map(|found| (found.inode, found.uid)).or_else(|| {
        let file = if local.is_ipv4() {
            "/proc/thread-self/net/tcp"
        } else {
            "/proc/thread-self/net/tcp6"
        };
        let named = |file: &str| {
            diagnosis::inode_and_user_in(&std::fs::read_to_string(file).ok()?, local, peer)
        };
        // An IPv6 socket may have IPv4 addresses.
        named(file).or_else(|| named("/proc/thread-self/net/tcp6"))
    })
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
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
            // SAFETY: the call takes no arguments and cannot fail.
            let user = unsafe { libc::geteuid() };
            if has_netlink() {
                let found = find(local, peer).unwrap();
                assert_eq!(Some(found.cookie), cookie(client.as_raw_fd()));
                assert_ne!(Some(found.cookie), cookie(server.as_raw_fd()));
                assert_eq!(found.uid, user);
                assert_eq!(find("127.0.0.1:1".parse().unwrap(), local), None);
            }
            let proof = proof(server.as_raw_fd()).unwrap();
            assert!(is_other_end(proof.as_fd(), user, client.as_raw_fd(), local, peer));
            assert!(!is_other_end(proof.as_fd(), user + 1, client.as_raw_fd(), local, peer));
            assert!(!is_other_end(proof.as_fd(), user, server.as_raw_fd(), peer, local));
            let text = std::fs::read_to_string(format!(
                "/proc/thread-self/net/tcp{}",
                if local.is_ipv4() { "" } else { "6" }
            ));
            let named = diagnosis::inode_and_user_in(&text.unwrap(), peer, local);
            assert_eq!(named, inode_and_user(peer, local));
            assert!(named.is_some());
            let own = std::process::id() as libc::pid_t;
            assert!(may_have(own, user, proof.as_fd()));
            assert!(!may_have(1 << 30, user, proof.as_fd()), "there is no such process");
            assert!(may_have(0, user, proof.as_fd()), "it is not seen");
            let no_socket = std::fs::File::open("/proc/self/stat").unwrap();
            assert!(!is_other_end(no_socket.as_fd(), user, client.as_raw_fd(), local, peer));
        }
    }

    /// Sandboxes may lack netlink, and so does qemu, which runs these tests for other architectures. The kernel's record is in
    /// files then.
    fn has_netlink() -> bool {
        // SAFETY: the call creates a descriptor, which has no other owner.
        unsafe {
            let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd)).is_some()
        }
    }
}
