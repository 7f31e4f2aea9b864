//! Processes and connections of programs of this host, and how many there may be: as many as the process has descriptors for.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Processes and connections that a carrier has at a time. Further ones are not served, and stay with TCP.
const GUESTS_MAX: usize = 8_192;

/// Descriptors of a connection beside its unix sockets, for a moment: the segments of both sides, and what comes with a message.
const CONNECTION: usize = 3;

/// Descriptors that no guest gets, if the limit is not lower than four times that: one message of a program may bring 253.
const SPARE: usize = 300;

/// Raises the limit of open descriptors as far as this process may, and returns it.
pub(crate) fn raise_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // The system may refuse; then there is the lower one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let now = getrlimit(Resource::Nofile).current;
    now.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Counts guests.
#[derive(Debug)]
pub(crate) struct Guests {
    count: AtomicUsize,
    /// Descriptors that guests have.
    used: AtomicUsize,
    /// Descriptors that guests may have.
    room: usize,
}

impl Guests {
    /// For a process that may open `limit` descriptors, and has opened those that it needs for itself.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        let open = fs::read_dir("/proc/self/fd").map_or(SPARE, Iterator::count);
        let room = limit.saturating_sub(open).saturating_sub(SPARE.min(limit / 4));
        Arc::new(Self { count: AtomicUsize::new(0), used: AtomicUsize::new(0), room })
    }

    /// Processes and connections that are there.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Descriptors that further guests may have.
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

/// A process, or a connection that it introduces, as long as it is there.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Arc<Guests>,
    descriptors: usize,
}

impl Guest {
    /// A process has come. `None` if there is no room for it.
    pub(crate) fn come(guests: &Arc<Guests>) -> Option<Self> {
        if !guests.take(1) {
            return None;
        }
        let before = guests.count.fetch_add(1, Ordering::AcqRel);
        let guest = Self { guests: Arc::clone(guests), descriptors: 1 };
        (before < GUESTS_MAX).then_some(guest)
    }

    /// It introduces a connection. False if there is no room for that.
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

/// A descriptor that is given up when there is no other one, so that whoever waits to be accepted can be turned away.
#[derive(Debug)]
pub(crate) struct Reserve(Option<OwnedFd>);

impl Reserve {
    /// A duplicate of a descriptor.
    pub(crate) fn new(of: &impl AsFd) -> Self {
        let mut reserve = Self(None);
        reserve.refill(of);
        reserve
    }

    /// Frees a descriptor for a moment.
    pub(crate) fn give_up(&mut self) {
        self.0 = None;
    }

    /// Takes a descriptor again, if there is one.
    pub(crate) fn refill(&mut self, of: &impl AsFd) {
        if self.0.is_none() {
            self.0 = of.as_fd().try_clone_to_owned().ok();
        }
    }
}

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
