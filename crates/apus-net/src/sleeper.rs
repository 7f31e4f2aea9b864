//! Sleeping until a link has input or another thread calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The descriptors of a link; negative entries are empty.
pub type Descriptors = [RawFd; 4];

/// Returns the descriptors of a link with only one.
#[must_use]
pub const fn only(descriptor: RawFd) -> Descriptors {
    [descriptor, -1, -1, -1]
}

/// Reason for which [`Sleeper::sleep`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Woken {
    /// One of the link's descriptors is ready.
    Link,
    /// [`Sleeper::wake`] was called, before or during the sleep. The link may be ready as well.
    Waker,
    /// The time has passed, or a signal arrived.
    Timeout,
}

/// A place where one thread at a time sleeps until a link is ready, a timeout passes, or another thread calls [`wake`](Self::wake).
///
/// A call without a sleeper is not lost: the next sleep returns at once. Several calls before a wake-up cause one wake-up. Two
/// threads may sleep on one `Sleeper`, but a call then wakes an arbitrary one of them.
#[derive(Debug)]
pub struct Sleeper {
    event: OwnedFd,
    /// Whether the event was written to and not yet read.
    called: AtomicBool,
}

impl Sleeper {
    /// Creates a sleeper. Fails if the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes two integers and touches no memory of this process.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and valid, and has no other owner.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        Ok(Self { event, called: AtomicBool::new(false) })
    }

    /// Sleeps until one of `links` is readable or has an error, until a call of `wake`, or until `timeout` has passed; `None` means
    /// for ever. Costs one system call, two after a call of `wake`.
    ///
    /// The kernel adds up to 50 µs to a timeout unless the thread has called
    /// [`cpu::sleep_precisely`](crate::cpu::sleep_precisely).
    pub fn sleep(&self, links: Descriptors, timeout: Option<Duration>) -> Woken {
        let [a, b, c, d] = links;
        let mut watched = [self.event.as_raw_fd(), a, b, c, d].map(watch);
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).into(),
            tv_nsec: libc::c_long::from(timeout.subsec_nanos().cast_signed()),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the array is live with the given length, the time is null or points at a live value, and the signal mask may be
        // null.
        let ready = unsafe {
            libc::ppoll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, time, std::ptr::null())
        };
        // Only a signal can cause a failure (EINTR): the descriptors belong to this process and the time is valid.
        if ready <= 0 {
            return Woken::Timeout;
        }
        if watched[0].revents == 0 {
            return Woken::Link;
        }
        self.take_call();
        Woken::Waker
    }

    /// Ends the current sleep, or the next one if no thread sleeps. Costs one write to a descriptor, or none if an earlier call has
    /// not woken a thread yet. The woken thread sees all memory written before the call.
    pub fn wake(&self) {
        if self.called.swap(true, Ordering::AcqRel) {
            return;
        }
        let one = 1u64;
        // SAFETY: the pointer is to a live u64, the size of an event.
        let written = unsafe {
            libc::write(self.event.as_raw_fd(), (&raw const one).cast(), size_of::<u64>())
        };
        debug_assert_eq!(written, 8, "the count is 0 or 1, far from where a write would block");
    }

    /// Discards a call of [`wake`](Self::wake) that has ended no sleep. The descriptor is no longer readable afterwards. Costs a system
    /// call if there was a call.
    pub fn discard_wake(&self) {
        if self.called.load(Ordering::Acquire) {
            self.take_call();
        }
    }

    /// Consumes the call. The event is read before the flag is cleared. In the opposite order, a call between the two would set the
    /// flag, the read would empty its event, and later calls would write nothing. A call between the read and the clearing writes
    /// nothing, but its thread's memory is visible here, and this thread is awake.
    fn take_call(&self) {
        let mut count = 0u64;
        // SAFETY: the pointer is to a live u64, the size of an event. The read may fail if another sleeper was first.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        self.called.swap(false, Ordering::AcqRel);
    }
}

/// Readable from a call of [`Sleeper::wake`] until it is consumed.
impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

fn watch(descriptor: RawFd) -> libc::pollfd {
    libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::Arc;

    use super::*;

    const NO_LINK: Descriptors = only(-1);
    const LONG: Option<Duration> = Some(Duration::from_secs(30));

    #[test]
    fn a_call_before_the_sleep_is_not_lost_and_calls_come_together() {
        let sleeper = Sleeper::new().unwrap();
        sleeper.wake();
        sleeper.wake();
        assert_eq!(sleeper.sleep(NO_LINK, LONG), Woken::Waker);
        assert_eq!(sleeper.sleep(NO_LINK, Some(Duration::ZERO)), Woken::Timeout);
        sleeper.wake();
        assert_eq!(sleeper.sleep(NO_LINK, LONG), Woken::Waker);
    }

    #[test]
    fn a_short_timeout_ends() {
        let sleeper = Sleeper::new().unwrap();
        assert_eq!(sleeper.sleep(NO_LINK, Some(Duration::from_nanos(1))), Woken::Timeout);
    }

    #[test]
    fn a_ready_socket_ends_the_sleep_again_and_again() {
        let sleeper = Sleeper::new().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        assert_eq!(sleeper.sleep(only(socket.as_raw_fd()), LONG), Woken::Link);
        sleeper.wake();
        assert_eq!(sleeper.sleep(only(socket.as_raw_fd()), LONG), Woken::Waker);
        assert_eq!(sleeper.sleep(only(socket.as_raw_fd()), LONG), Woken::Link);
    }

    #[test]
    fn no_call_is_lost_between_two_threads() {
        const ROUNDS: usize = 20_000;
        let here = Arc::new(Sleeper::new().unwrap());
        let there = Arc::new(Sleeper::new().unwrap());
        let turn = Arc::new(AtomicBool::new(false));
        let other = {
            let (here, there, turn) = (Arc::clone(&here), Arc::clone(&there), Arc::clone(&turn));
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    while !turn.load(Ordering::Acquire) {
                        assert_ne!(there.sleep(NO_LINK, LONG), Woken::Timeout);
                    }
                    turn.store(false, Ordering::Release);
                    here.wake();
                }
            })
        };
        for _ in 0..ROUNDS {
            turn.store(true, Ordering::Release);
            there.wake();
            while turn.load(Ordering::Acquire) {
                assert_ne!(here.sleep(NO_LINK, LONG), Woken::Timeout);
            }
        }
        other.join().unwrap();
    }
}
