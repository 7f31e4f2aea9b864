//! Features of this kernel's epoll sets, for diagnosis. Links do not sleep in an epoll set.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Returns whether an epoll set has parameters of its own for busy polling (`EPIOCSPARAMS`, Linux 6.9).
///
/// Fails if the process has no descriptor left.
pub fn has_busy_poll_parameters() -> io::Result<bool> {
    // SAFETY: takes an integer and touches no memory of this process.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and valid, and has no other owner.
    let set = unsafe { OwnedFd::from_raw_fd(set) };
    // SAFETY: a block of integers, for which all zeroes are valid.
    let mut parameters: libc::epoll_params = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live block whose size the number of the request states.
    let result = unsafe { libc::ioctl(set.as_raw_fd(), libc::EPIOCGPARAMS, &raw mut parameters) };
    // An older kernel has no requests for epoll sets.
    Ok(result == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        assert!(has_busy_poll_parameters().is_ok());
    }
}
