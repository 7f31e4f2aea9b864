//! Descriptors of this library in the program's table: high numbers, which the program does not use, and cannot close.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{descriptors, originals};

/// `select` knows descriptors below this one only.
const FD_SETSIZE: u64 = 1_024;

/// Moves a descriptor to a high number.
pub(crate) fn keep(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the limit.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let least = if limit.rlim_cur > 2 * FD_SETSIZE { FD_SETSIZE } else { limit.rlim_cur / 2 };
    // SAFETY: the command makes a descriptor, which nobody else has.
    let high = unsafe {
        let fd = originals::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    descriptors::set(high.as_raw_fd(), descriptors::INNER, 0);
    Ok(high)
}

/// Closes a descriptor that was kept.
pub(crate) fn close(descriptor: OwnedFd) {
    descriptors::set(descriptor.as_raw_fd(), 0, descriptors::INNER);
    drop(descriptor);
}

/// In a child of fork: closes all of them. The parent has its own.
pub(crate) fn close_all() {
    for fd in descriptors::used_in(0..=u32::MAX) {
        if descriptors::word(fd) & descriptors::INNER != 0 {
            descriptors::set(fd, 0, descriptors::INNER);
            // SAFETY: the descriptor is this library's, and nobody uses it in the child.
            let _ = unsafe { originals::close(fd) };
        }
    }
}
