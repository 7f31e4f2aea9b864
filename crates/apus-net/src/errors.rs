//! Errors that the kernel reports about peers, by the error queue and by failed sends.
//!
//! Linux marks a socket with an error that arrives for *any* of its peers. The next call on the socket fails with this error,
//! whatever peer that call is for. The error queue has the error with its peer's address. A failed call therefore only means that
//! the queue must be read. A failed send is repeated once, and a second failure counts as its own.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::{io, iter};

use apus_wire::{PathError, is_native};

use crate::link::LinkCounters;
use crate::paths::Paths;
use crate::sys;

/// Upper bound on errors kept for `poll_error`. Further ones are only counted: a caller that skips a thousand will not miss one.
const PENDING_MAX: usize = 1_024;

/// Upper bound on entries read from the error queue at a time, so that a flood of them cannot delay a turn.
const DRAIN_MAX: usize = 256;

/// Reaction to a failed send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendReaction {
    /// Repeat it.
    Again,
    /// The datagram is dropped and counted.
    Lost,
    /// The datagram is dropped, and the kernel would drop all others made of segments too.
    NoGso,
}

/// Errors that wait for `poll_error`.
#[derive(Default)]
pub(crate) struct Errors {
    pending: VecDeque<(SocketAddr, PathError)>,
    /// Whether the error queue may have entries.
    suspected: bool,
}

impl Errors {
    /// Records that a call has failed in a way that points to the error queue.
    pub(crate) fn suspect(&mut self) {
        self.suspected = true;
    }

    /// Adds an error, unless it repeats the previous one.
    pub(crate) fn push(&mut self, peer: SocketAddr, error: PathError, counters: &mut LinkCounters) {
        if self.pending.back() == Some(&(peer, error)) {
            return;
        }
        if self.pending.len() >= PENDING_MAX {
            counters.errors_discarded += 1;
            return;
        }
        self.pending.push_back((peer, error));
    }

    /// Returns the oldest error. Reads the error queue only if a call has failed since the last one.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        sockets: &[RawFd],
        paths: &Paths,
        counters: &mut LinkCounters,
    ) -> Option<(SocketAddr, PathError)> {
        if self.suspected && self.pending.is_empty() {
            self.drain(sockets, paths, counters);
        }
        self.pending.pop_front()
    }

    /// Reads the error queues, which also clears the marks of the sockets. Returns the number of entries.
    pub(crate) fn drain(
        &mut self,
        sockets: &[RawFd],
        paths: &Paths,
        counters: &mut LinkCounters,
    ) -> usize {
        let open = sockets.iter().filter(|&&socket| socket >= 0);
        let mut queue = open.flat_map(|&it| iter::from_fn(move || sys::next_queued_error(it)));
        for taken in 0..DRAIN_MAX {
            let Some(entry) = queue.next() else {
                self.suspected = false;
                return taken;
            };
            let Some(peer) = entry.to else { continue };
            if entry.errno == libc::EMSGSIZE {
                counters.path_shrunk +=
                    u64::from(paths.correct(peer, usize::try_from(entry.info).ok()));
                continue;
            }
            let Some(error) = meaning(entry.errno) else { continue };
            let error = match (error, entry.port) {
                (PathError::PortUnreachable, Some(port)) if is_native(peer) => {
                    PathError::NoService(port)
                }
                _ => error,
            };
            *match error {
                PathError::HostUnreachable => &mut counters.host_unreachable,
                PathError::ProtocolUnreachable => &mut counters.protocol_unreachable,
                PathError::PermissionDenied => &mut counters.permission_denied,
                _ => &mut counters.port_unreachable,
            } += 1;
            self.push(peer, error, counters);
        }
        // There may be more, so the queue stays suspected.
        self.suspected = true;
        DRAIN_MAX
    }

    /// Judges a failed send of a datagram to `peer`. `tried` means that the send was repeated already, and `segmented` that the
    /// datagram is made of segments.
    #[cold]
    pub(crate) fn judge(
        &mut self,
        error: &io::Error,
        peer: SocketAddr,
        tried: bool,
        segmented: bool,
        (sockets, paths): (&[RawFd], &Paths),
        counters: &mut LinkCounters,
    ) -> SendReaction {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        if errno == libc::EINTR {
            return SendReaction::Again;
        }
        if !tried {
            if !is_lack_of_room(errno) {
                self.drain(sockets, paths, counters);
            }
            counters.send_retries += 1;
            return SendReaction::Again;
        }
        if is_lack_of_room(errno) {
            counters.send_blocked += 1;
            return SendReaction::Lost;
        }
        // A packet refused for its length also has an entry in the queue, which keeps the descriptor ready.
        self.suspect();
        if errno == libc::EMSGSIZE || (segmented && errno == libc::EINVAL) {
            let shrunk = paths.correct(peer, None);
            counters.path_shrunk += u64::from(shrunk);
            counters.send_too_big += 1;
            return if segmented && !shrunk && errno == libc::EINVAL {
                SendReaction::NoGso
            } else {
                SendReaction::Lost
            };
        }
        let meaning = meaning(errno);
        match meaning {
            Some(PathError::HostUnreachable) => counters.send_unreachable += 1,
            Some(PathError::PermissionDenied) => counters.send_denied += 1,
            _ => counters.send_errors += 1,
        }
        if let Some(error @ (PathError::HostUnreachable | PathError::PermissionDenied)) = meaning {
            self.push(peer, error, counters);
        }
        // A device that cannot compute checksums refuses segments with EIO.
        if segmented && errno == libc::EIO { SendReaction::NoGso } else { SendReaction::Lost }
    }
}

fn is_lack_of_room(errno: i32) -> bool {
    errno == libc::EAGAIN || errno == libc::ENOBUFS || errno == libc::ENOMEM
}

/// Converts an error number to the error of a path; `None` if it concerns no path.
fn meaning(errno: i32) -> Option<PathError> {
    match errno {
        libc::ECONNREFUSED => Some(PathError::PortUnreachable),
        libc::EHOSTUNREACH
        | libc::ENETUNREACH
        | libc::EHOSTDOWN
        | libc::ENETDOWN
        | libc::ENONET
        | libc::EADDRNOTAVAIL
        | libc::EAFNOSUPPORT => Some(PathError::HostUnreachable),
        libc::EPROTO | libc::ENOPROTOOPT => Some(PathError::ProtocolUnreachable),
        libc::EPERM | libc::EACCES => Some(PathError::PermissionDenied),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Encapsulation;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn repetitions_are_joined_and_the_queue_is_bounded() {
        let (mut errors, mut counters) = (Errors::default(), LinkCounters::default());
        errors.push(peer(1), PathError::PortUnreachable, &mut counters);
        errors.push(peer(1), PathError::PortUnreachable, &mut counters);
        assert_eq!(errors.pending.len(), 1);
        for port in 0..2_000 {
            errors.push(peer(port), PathError::PortUnreachable, &mut counters);
        }
        assert_eq!(errors.pending.len(), PENDING_MAX);
        assert_eq!(counters.errors_discarded, 2_001 - PENDING_MAX as u64);
    }

    #[test]
    fn icmp_errors_have_a_meaning_and_others_have_none() {
        assert_eq!(meaning(libc::ECONNREFUSED), Some(PathError::PortUnreachable));
        assert_eq!(meaning(libc::EHOSTUNREACH), Some(PathError::HostUnreachable));
        assert_eq!(meaning(libc::ENOPROTOOPT), Some(PathError::ProtocolUnreachable));
        assert_eq!(meaning(libc::EACCES), Some(PathError::PermissionDenied));
        assert_eq!(meaning(libc::EMSGSIZE), None);
    }

    #[test]
    fn a_failure_is_repeated_once_and_then_believed() {
        let (mut errors, mut counters) = (Errors::default(), LinkCounters::default());
        let paths = Paths::new(Encapsulation { header: 8, longest: 1_472 });
        let no_socket = (&[][..], &paths);
        for (errno, lost) in [
            (libc::EAGAIN, SendReaction::Lost),
            (libc::EMSGSIZE, SendReaction::Lost),
            (libc::ENETUNREACH, SendReaction::Lost),
            (libc::EPERM, SendReaction::Lost),
            (libc::EIO, SendReaction::NoGso),
            (libc::EINVAL, SendReaction::NoGso),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            let mut judge =
                |tried| errors.judge(&error, peer(1), tried, true, no_socket, &mut counters);
            assert_eq!(judge(false), SendReaction::Again, "{errno}");
            assert_eq!(judge(true), lost, "{errno}");
        }
        assert_eq!((counters.send_blocked, counters.send_too_big), (1, 2));
        assert_eq!(
            (counters.send_unreachable, counters.send_denied, counters.send_errors),
            (1, 1, 1)
        );
        assert_eq!(
            errors.poll(&[], &paths, &mut counters),
            Some((peer(1), PathError::HostUnreachable))
        );
        assert_eq!(
            errors.poll(&[], &paths, &mut counters),
            Some((peer(1), PathError::PermissionDenied))
        );
        assert_eq!(errors.poll(&[], &paths, &mut counters), None);
    }
}
