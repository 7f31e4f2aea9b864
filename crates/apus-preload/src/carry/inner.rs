//! Descriptors of this library in the program's table: high numbers, which the program does not use, and cannot close.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use apus_shm::{Channel, closer};

use crate::descriptors;
use crate::originals::own as originals;

/// `select` knows descriptors below this one only.
const FD_SETSIZE: u64 = 1_024;

/// A descriptor of this library. `close`, as the program and `OwnedFd` call it, leaves it open.
pub(crate) struct Inner(ManuallyDrop<OwnedFd>);

impl AsFd for Inner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Inner {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        close(self.as_raw_fd());
    }
}

/// A channel whose socket is a descriptor of this library.
pub(crate) struct InnerChannel(ManuallyDrop<Channel>);

impl InnerChannel {
    pub(crate) fn new(socket: Inner) -> Self {
        let socket = ManuallyDrop::new(socket);
        // SAFETY: the descriptor is closed by the channel that is made of it, and not by `socket`.
        let owned = unsafe { OwnedFd::from_raw_fd(socket.as_raw_fd()) };
        Self(ManuallyDrop::new(Channel::new(owned)))
    }
}

impl Deref for InnerChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.0
    }
}

impl AsRawFd for InnerChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor().as_raw_fd()
    }
}

impl Drop for InnerChannel {
    /// Descriptors of a stranger may lie unread in the socket, and closing those may sleep.
    fn drop(&mut self) {
        let fd = self.as_raw_fd();
        descriptors::set(fd, 0, descriptors::OF_SIDE);
        // SAFETY: the descriptor is this value's, which goes.
        closer::close_elsewhere(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// Closes a descriptor of this library, whose owner is being dropped or has forgotten it.
pub(super) fn close(fd: RawFd) {
    descriptors::set(fd, 0, descriptors::OF_SIDE);
    // SAFETY: the descriptor is this library's, and nobody uses it any more.
    let _ = unsafe { originals::close(fd) };
}

/// A child of fork keeps a descriptor of this library, since it has the connection.
pub(super) fn is_of_side(fd: RawFd) {
    descriptors::set(fd, descriptors::OF_SIDE, 0);
}

/// Moves a descriptor to a high number.
pub(crate) fn keep(descriptor: OwnedFd) -> io::Result<Inner> {
    // A program that closes all numbers must not close this one, and `OwnedFd` aborts the process if it did.
    let low = own(descriptor);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the limit.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let least = if limit.rlim_cur > 2 * FD_SETSIZE { FD_SETSIZE } else { limit.rlim_cur / 2 };
    // SAFETY: the command makes a descriptor, which nobody else has.
    unsafe {
        let high = originals::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least);
        if high < 0 { Err(io::Error::last_os_error()) } else { Ok(own(OwnedFd::from_raw_fd(high))) }
    }
}

/// Whether the program may need the descriptors that one more connection would take.
pub(crate) fn is_short() -> bool {
    false
}

/// Keeps the program from closing a descriptor.
pub(super) fn own(descriptor: OwnedFd) -> Inner {
    descriptors::set(descriptor.as_raw_fd(), descriptors::INNER, 0);
    Inner(ManuallyDrop::new(descriptor))
}

/// In a child of fork: closes all of them but those of connections that the child has as well, and those by which parents learn that it
/// ends. The parent has its own.
pub(crate) fn close_all() {
    for fd in descriptors::used_in(0..=u32::MAX) {
        let word = descriptors::word(fd);
        let kept = descriptors::WITNESS | descriptors::OF_SIDE;
        if word & kept == descriptors::INNER {
            descriptors::set(fd, 0, descriptors::INNER);
            // SAFETY: the descriptor is this library's, and nobody uses it in the child.
            let _ = unsafe { originals::close(fd) };
        }
    }
}
