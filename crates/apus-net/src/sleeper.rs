//! Sleeping until a link has something or another thread calls.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The descriptors of a link; negative ones are none.
pub type Descriptors = [RawFd; 4];

/// Of a link with one descriptor.
#[must_use]
pub const fn only(descriptor: RawFd) -> Descriptors {
    [descriptor, -1, -1, -1]
}

/// Why [`Sleeper::sleep`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Woken {
    /// One of the link's descriptors is ready.
    Link,
    /// [`Sleeper::wake`] was called, before or during the sleep. The link may be ready as well.
    Waker,
    /// The time is over, or a signal arrived.
    Timeout,
}

/// A place for one thread at a time to sleep until a link is ready, a timeout passes or another thread calls
/// [`wake`](Self::wake).
///
/// A call that comes while nobody sleeps is not lost: the next sleep returns at once. Calls that come together wake once. Two
/// threads may sleep on one `Sleeper`, but which of them a call wakes is then not defined.
#[derive(Debug)]
pub struct Sleeper {
    event: OwnedFd,
    /// The event has been written to and not yet been read.
    called: AtomicBool,
}

impl Sleeper {
    /// Fails when the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes two integers and touches no memory of ours.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, valid, and nobody else's.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        Ok(Self { event, called: AtomicBool::new(false) })
    }

    /// Sleeps until one of `links` is ready to be read or has an error, until `wake` is called, or until `timeout` has passed;
    /// `None` is for ever. Costs one system call, two when woken by `wake`.
    ///
    /// The kernel adds up to 50 µs to a timeout unless the thread has called
    /// [`cpu::sleep_precisely`](crate::cpu::sleep_precisely).
    pub fn sleep(&self, links: Descriptors, timeout: Option<Duration>) -> Woken {
        let [a, b, c, d] = links;
        let mut watched = [self.event.as_raw_fd(), a, b, c, d].map(watch);
        let time = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(timeout.subsec_nanos().cast_signed()),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the array is live and its length given, the time is null or points at a live value, and the signal mask may
        // be null.
        let ready = unsafe {
            libc::ppoll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, time, std::ptr::null())
        };
        // A failure can only be a signal (EINTR): the descriptors are ours and the time is valid.
        if ready <= 0 {
            return Woken::Timeout;
        }
        if watched[0].revents == 0 {
            return Woken::Link;
        }
        self.take_call();
        Woken::Waker
    }

    /// Ends the current sleep, or the next one if nobody sleeps. One write to a descriptor, or none if it has been called
    /// already and nobody has woken yet. What was written to memory before the call is seen by the woken thread.
    pub fn wake(&self) {
        if self.called.swap(true, Ordering::AcqRel) {
            return;
        }
        let one = 1u64;
        // SAFETY: the pointer is to a live u64, the size an event wants.
        let written = unsafe {
            libc::write(self.event.as_raw_fd(), (&raw const one).cast(), size_of::<u64>())
        };
        debug_assert_eq!(written, 8, "the count is 0 or 1, far from where a write would block");
    }

    /// Takes the call back. The event is read before the flag falls: the other way round, a call between the two would raise
    /// the flag over an event that the read then empties, and no later call would get through. A call between the read and
    /// the fall of the flag writes nothing, but its thread's memory is seen here, and we are awake.
    fn take_call(&self) {
        let mut count = 0u64;
        // SAFETY: the pointer is to a live u64, the size an event gives. It may fail when another sleeper has read it first.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        self.called.swap(false, Ordering::AcqRel);
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
