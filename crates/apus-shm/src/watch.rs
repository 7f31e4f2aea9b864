//! Waiting for several descriptors at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// A set of descriptors to watch for input. Each has a number that the process has chosen.
#[derive(Debug)]
pub struct Watch {
    epoll: Epoll,
}

impl Watch {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// If no descriptor is left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)? })
    }

    /// Watches a descriptor until [`remove`](Self::remove). A child of the process may keep it open after it is closed here.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn add(&self, descriptor: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        Ok(self.epoll.add(descriptor, EpollEvent::new(EpollFlags::EPOLLIN, number))?)
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) {
        let result = self.epoll.delete(descriptor);
        debug_assert_eq!(result, Ok(()), "it is watched");
    }

    /// Returns the numbers of readable descriptors, as many as fit `ready`. Does not wait.
    #[must_use]
    pub fn look<'r>(&self, ready: &'r mut [u64]) -> &'r [u64] {
        let mut events = [EpollEvent::empty(); READY_MAX];
        let room = ready.len().min(READY_MAX);
        // A signal ends the call early; the next one finds the rest.
        let count = self.epoll.wait(&mut events[..room], EpollTimeout::ZERO).unwrap_or(0);
        for (number, event) in ready.iter_mut().zip(&events[..count]) {
            *number = event.data();
        }
        &ready[..count]
    }

    /// Returns the descriptor, which is readable when one of the watched ones is.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

/// Upper bound on the descriptors found by one call.
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
