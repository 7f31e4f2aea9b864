//! Processes and connections of this host's programs, limited by the descriptors of the carrier.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io, thread};

use apus_shm::closer::close_elsewhere;
use rustix::io::{DupFlags, dup3};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::program::ProgramChannel;

/// Upper bound on processes and connections at a time. Further ones are not served, and stay with TCP.
const GUESTS_MAX: usize = 8_192;

/// Upper bound on descriptors of a connection besides its unix sockets: the segments of both sides, and those that arrive with a
/// message.
const CONNECTION: usize = 3;

/// Descriptors reserved for other purposes, unless the limit is lower than four times this number: one message of a program may
/// bring 253.
const SPARE: usize = 300;

/// Raises the limit of open descriptors to the maximum, and returns it.
pub(crate) fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // The system may refuse, which leaves the lower limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let now = getrlimit(Resource::Nofile).current;
    now.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Counts guests and their descriptors.
#[derive(Debug)]
pub(crate) struct Guests {
    count: AtomicUsize,
    /// Descriptors in use by guests.
    used: AtomicUsize,
    /// Upper bound on `used`.
    room: usize,
}

impl Guests {
    /// For a process with a limit of `limit` descriptors, which has opened those for its own use.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let open = fs::read_dir("/proc/self/fd").map_or(SPARE, Iterator::count);
        let room = limit.saturating_sub(open).saturating_sub(SPARE.min(limit / 4));
        Arc::new(Self { count: AtomicUsize::new(0), used: AtomicUsize::new(0), room })
    }

    /// Number of processes and connections.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Number of descriptors left for further guests.
    pub(crate) fn descriptors_left(&self) -> usize {
        self.room.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    fn take(&self, descriptors: usize) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            Some(used + descriptors).filter(|used| *used <= self.room)
        });
        taken.is_ok()
    }
}

/// A process, or a connection that it introduces, while it exists.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Arc<Guests>,
    descriptors: usize,
}

impl Guest {
    /// Adds a process. `None` if there is no room for it.
    pub(crate) fn come(guests: &Arc<Guests>) -> Option<Self> {
        if !guests.take(1) {
            return None;
        }
        let before = guests.count.fetch_add(1, Ordering::AcqRel);
        let guest = Self { guests: Arc::clone(guests), descriptors: 1 };
        (before < GUESTS_MAX).then_some(guest)
    }

    /// Adds a connection that the guest introduces. Returns `false` if there is no room for it.
    pub(crate) fn introduces(&mut self) -> bool {
        let taken = self.guests.take(CONNECTION);
        self.descriptors += if taken { CONNECTION } else { 0 };
        taken
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.guests.used.fetch_sub(self.descriptors, Ordering::Relaxed);
        self.guests.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A descriptor that is closed when no other one is free, so that a waiting process can be accepted and refused.
///
/// The socket of the refused process may hold descriptors whose `close` blocks. A thread replaces that socket by the reserved
/// descriptor under the same number, so that the number is never free for others.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// The reserved descriptors are its duplicates.
    of: Arc<OwnedFd>,
    reserved: Arc<Mutex<Option<OwnedFd>>>,
}

impl Reserve {
    /// Reserves a duplicate of a descriptor.
    pub(crate) fn new(of: &impl AsFd) -> io::Result<Self> {
        let of = Arc::new(of.as_fd().try_clone_to_owned()?);
        let reserve = Self { of, reserved: Arc::default() };
        reserve.refill();
        Ok(reserve)
    }

    /// Closes the reserved descriptor.
    pub(crate) fn give_up(&self) {
        *lock(&self.reserved) = None;
    }

    /// Reserves a descriptor again, if one is free.
    pub(crate) fn refill(&self) {
        let mut reserved = lock(&self.reserved);
        if reserved.is_none() {
            *reserved = self.of.try_clone().ok();
        }
    }

    /// Closes the socket of a refused process, and reserves its number.
    pub(crate) fn take(&self, refused: ProgramChannel) {
        let (of, reserved) = (Arc::clone(&self.of), Arc::clone(&self.reserved));
        let replace = move || {
            let mut socket = refused.into_socket();
            match dup3(&of, &mut socket, DupFlags::CLOEXEC) {
                Ok(()) => *lock(&reserved) = Some(socket),
                Err(_) => close_elsewhere(socket),
            }
        };
        // Without a thread, the value is dropped, which closes the socket elsewhere.
        let _ = thread::Builder::new().name("apus-refuse".into()).stack_size(STACK).spawn(replace);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Size of the stack of a thread that replaces a socket, in bytes.
const STACK: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(room: usize) -> Arc<Guests> {
        Arc::new(Guests { count: AtomicUsize::new(0), used: AtomicUsize::new(0), room })
    }

    #[test]
    fn guests_have_no_more_descriptors_than_there_are() {
        let guests = guests(2 + CONNECTION);
        let mut first = Guest::come(&guests).expect("there is room");
        assert!(first.introduces());
        let mut second = Guest::come(&guests).expect("there is room for a process");
        assert!(!second.introduces());
        assert!(Guest::come(&guests).is_none());
        drop(first);
        assert!(second.introduces());
        drop(second);
        assert_eq!((guests.count(), guests.descriptors_left()), (0, 2 + CONNECTION));
    }

    #[test]
    fn there_are_so_many_guests_at_most() {
        let guests = guests(usize::MAX);
        let all: Vec<Guest> = (0..GUESTS_MAX).map_while(|_| Guest::come(&guests)).collect();
        assert_eq!(all.len(), GUESTS_MAX);
        assert!(Guest::come(&guests).is_none());
        assert_eq!(guests.count(), GUESTS_MAX);
    }
}
