//! Finds a socket among the descriptors of another process.
//!
//! A process with a thousand connections has thousands of descriptors. Reading all of them for each connection would take longer
//! than the search for a peer may. So the sockets of the last process with many descriptors are cached with their numbers. A
//! cached number is checked before it is used.

use std::cell::RefCell;

use libc::pid_t;

/// Upper bound on descriptors of a process that are looked at.
const DESCRIPTORS_MAX: usize = 16_384;

/// A process with fewer descriptors is not cached.
const FEW: usize = 64;

/// Numbers after the last found socket that are tried first, because a program creates its sockets one after the other.
const NEXT: u32 = 8;

/// The cached sockets of a process.
#[derive(Default)]
struct Seen {
    process: pid_t,
    /// Inode and descriptor number of each socket, sorted.
    sockets: Vec<(u64, u32)>,
    /// The descriptor that was found last.
    last: u32,
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

impl Seen {
    /// Whether the process has the socket. `socket_at` returns the socket that a descriptor is now; `all` returns all
    /// descriptors.
    fn has<I: Iterator<Item = u32>>(
        &mut self,
        process: pid_t,
        socket: u64,
        socket_at: impl Fn(u32) -> Option<u64>,
        all: impl FnOnce() -> I,
    ) -> bool {
        if self.process == process {
            let known = self.sockets.binary_search_by_key(&socket, |(socket, _)| *socket);
            let known = known.ok().map(|place| self.sockets[place].1);
            let next = (1..=NEXT).filter_map(|more| self.last.checked_add(more));
            if let Some(number) =
                known.into_iter().chain(next).find(|it| socket_at(*it) == Some(socket))
            {
                self.last = number;
                return true;
            }
        }
        let numbers = all().take(DESCRIPTORS_MAX);
        let mut sockets: Vec<_> = numbers.filter_map(|it| Some((socket_at(it)?, it))).collect();
        sockets.sort_unstable();
        let found = sockets.binary_search_by_key(&socket, |(socket, _)| *socket);
        let found = found.ok().map(|place| sockets[place].1);
        if sockets.len() >= FEW {
            *self = Self { process, sockets, last: found.unwrap_or(0) };
        }
        found.is_some()
    }
}

/// Whether a process has the socket with this inode.
pub(super) fn have(process: pid_t, socket: u64) -> bool {
    let all = || {
        let entries = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
    };
    let socket_at = |number: u32| socket_named(&format!("/proc/{process}/fd/{number}"));
    SEEN.with_borrow_mut(|seen| seen.has(process, socket, socket_at, all))
}

/// The inode of the socket that a link names.
pub(super) fn socket_named(link: &str) -> Option<u64> {
    let to = std::fs::read_link(link).ok()?;
    to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Looks for a socket of a process whose descriptor `n` is socket `1000 + n`. Returns the number of descriptors looked at if
    /// it is found.
    fn looks(seen: &mut Seen, process: pid_t, socket: u64, count: u32) -> Option<usize> {
        let looks = Cell::new(0);
        let socket_at = |number: u32| {
            looks.set(looks.get() + 1);
            (number < count).then_some(1_000 + u64::from(number))
        };
        seen.has(process, socket, socket_at, || 0..count).then_some(looks.get())
    }

    #[test]
    fn descriptors_of_a_process_with_many_connections_are_read_once() {
        let mut seen = Seen::default();
        assert_eq!(looks(&mut seen, 7, 1_500, 2_000), Some(2_000));
        for socket in [1_000, 2_999, 1_700] {
            assert_eq!(looks(&mut seen, 7, socket, 2_000), Some(1));
        }
        // The process creates more sockets: cached ones are looked at first, then the next numbers.
        assert_eq!(looks(&mut seen, 7, 2_999, 2_001), Some(1));
        assert_eq!(looks(&mut seen, 7, 3_000, 2_001), Some(1));
        // A process with few descriptors does not evict the cache.
        assert_eq!(looks(&mut seen, 8, 1_003, 5), Some(5));
        assert_eq!(looks(&mut seen, 7, 1_001, 2_001), Some(1));
    }

    #[test]
    fn what_is_remembered_is_not_believed() {
        let mut seen = Seen::default();
        assert_eq!(looks(&mut seen, 7, 1_500, 2_000), Some(2_000));
        assert_eq!(looks(&mut seen, 7, 1_500, 400), None, "it was closed");
        assert_eq!(looks(&mut seen, 9, 1_500, 10), None, "it is another process's");
    }
}
