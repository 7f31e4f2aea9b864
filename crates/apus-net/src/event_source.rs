//! A descriptor that an event loop of the application watches in place of a sleeping thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::sleeper::{Descriptors, Sleeper};

/// An epoll set of a link's descriptors, a [`Sleeper`] and a timer. Its descriptor is readable while one of them is.
///
/// A descriptor that is closed leaves the set by itself, if it has no duplicate.
#[derive(Debug)]
pub struct EventSource {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl EventSource {
    /// Creates the set. The timer is not set.
    ///
    /// # Errors
    ///
    /// No descriptor or memory is left.
    pub fn new(links: Descriptors, sleeper: &Sleeper) -> io::Result<Self> {
        // SAFETY: takes an integer and touches no memory of this process.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: takes two integers and touches no memory of this process.
        let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let source = Self { epoll, timer };
        source.add(source.timer.as_raw_fd())?;
        source.add(sleeper.as_fd().as_raw_fd())?;
        links.into_iter().filter(|link| *link >= 0).try_for_each(|link| source.add(link))?;
        Ok(source)
    }

    fn add(&self, descriptor: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: the pointer is to a live event.
        let added = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event)
        };
        if added == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes the descriptor readable when this time has passed, and not because of an earlier call. `None`: never. Costs a system
    /// call.
    pub fn set_timer(&self, after: Option<Duration>) {
        // A time of zero would stop the timer.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let value = libc::timespec {
            tv_sec: i32::try_from(after.as_secs()).unwrap_or(i32::MAX).into(),
            tv_nsec: libc::c_long::from(after.subsec_nanos().cast_signed()),
        };
        let once = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: value,
        };
        // SAFETY: the first pointer is to a live value, the second may be null.
        let set = unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const once, std::ptr::null_mut())
        };
        debug_assert_eq!(set, 0, "the descriptor is a timer, and the time is valid");
    }
}

/// Readable while the engine has something to look at.
impl AsFd for EventSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn owned(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and valid, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sleeper::{Woken, only};

    fn is_readable(source: &EventSource) -> bool {
        let other = Sleeper::new().unwrap();
        other.sleep(only(source.as_fd().as_raw_fd()), Some(Duration::ZERO)) == Woken::Link
    }

    #[test]
    fn a_packet_a_call_and_the_timer_make_it_readable_until_they_are_taken() {
        let link = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sleeper = Sleeper::new().unwrap();
        let source = EventSource::new(only(link.as_raw_fd()), &sleeper).unwrap();
        assert!(!is_readable(&source));

        link.send_to(b"packet", link.local_addr().unwrap()).unwrap();
        assert!(is_readable(&source));
        link.recv(&mut [0; 9]).unwrap();
        assert!(!is_readable(&source));

        sleeper.wake();
        assert!(is_readable(&source));
        sleeper.discard_wake();
        assert!(!is_readable(&source));

        source.set_timer(Some(Duration::ZERO));
        let other = Sleeper::new().unwrap();
        let watched = only(source.as_fd().as_raw_fd());
        assert_eq!(other.sleep(watched, Some(Duration::from_secs(30))), Woken::Link);
        source.set_timer(None);
        assert!(!is_readable(&source));
    }
}
