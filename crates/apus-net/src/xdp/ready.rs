//! One descriptor for all XSKs of a link: a node asks for its descriptors once, and XSKs are opened later.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An epoll set.
pub(super) struct Ready(OwnedFd);

impl Ready {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: takes an integer.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so only this function owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(set) }))
    }

    /// Adds a descriptor, which leaves the set when it is closed.
    pub(super) fn add(&self, member: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let set = self.0.as_raw_fd();
        // SAFETY: the event lives during the call.
        let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, member, &raw mut event) };
        if added < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns a descriptor that is ready while one of the members is.
    pub(super) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
