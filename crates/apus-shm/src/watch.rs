//! Waiting for several descriptors at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// Descriptors of which a process wants to know when they are readable. Each has a number that the process has chosen.
#[derive(Debug)]
pub struct Watch {
    epoll: Epoll,
}

impl Watch {
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)? })
    }

    /// Watches a descriptor, until [`remove`](Self::remove): a child of the process may keep it open when it is closed here.
    ///
    /// # Errors
    ///
    /// Those of the system.
    pub fn add(&self, descriptor: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        Ok(self.epoll.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, number))?)
    }

    /// Watches a descriptor no longer.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) {
        let result = self.epoll.delete(descriptor);
        debug_assert_eq!(result, Ok(()), "it is watched");
    }

    /// Numbers of descriptors that are readable, as many as `ready` has room for. Does not wait.
    #[must_use]
    pub fn look<'r>(&self, ready: &'r mut [u64]) -> &'r [u64] {
        let mut events = [EpollEvent::empty(); READY_MAX];
        let room = ready.len().min(READY_MAX);
        // A signal ends it early; the next look finds what this one did not.
        let count = self.epoll.wait(&mut events[..room], EpollTimeout::ZERO).unwrap_or(0);
        for (number, event) in ready.iter_mut().zip(&events[..count]) {
            *number = event.data();
        }
        &ready[..count]
    }

    /// Readable when one of the descriptors is.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// Descriptors found in one look.
const READY_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_readable_is_named() {
        let watch = Watch::new().unwrap();
        let (mut a, b) = UnixStream::pair().unwrap();
        watch.add(b.as_fd(), 7).unwrap();
        let mut ready = [0; 4];
        assert!(watch.look(&mut ready).is_empty());
        a.write_all(b"x").unwrap();
        assert_eq!(watch.look(&mut ready), [7]);
        watch.remove(b.as_fd());
        assert!(watch.look(&mut ready).is_empty());
    }
}
