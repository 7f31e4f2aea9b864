//! From the kernel to the handler.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use super::RawLink;
use crate::address::Family;
use crate::link::LinkCounters;
use crate::sources::Sources;
use crate::sys::Received;

/// A call asks for this many times what the last one found.
const GROWTH: usize = 4;

type Handler<'a> = dyn FnMut(SocketAddr, &[u8]) + 'a;

impl RawLink {
    /// One batch; the number of datagrams in it.
    pub(super) fn receive(&mut self, handler: &mut Handler<'_>) -> usize {
        let filled = match self.receive_slots() {
            Ok(filled) => filled,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                self.counters.empty_receive_calls += 1;
                self.ask = 1;
                return 0;
            }
            // Usually the error of a peer, for which `poll_error` is the place: what has arrived comes at the second try.
            Err(error) => {
                self.note_failure(&error);
                self.receive_slots().unwrap_or(0)
            }
        };
        self.counters.receive_calls += u64::from(filled > 0);
        for index in 0..filled {
            let received = self.slots.received(index);
            take(&received, self.family, &mut self.sources, &mut self.counters, handler);
        }
        self.ask = (GROWTH * filled.max(1)).min(self.ask_max);
        filled
    }

    fn receive_slots(&mut self) -> io::Result<usize> {
        // Only an IPv6 socket bound to all addresses needs to be told what the packet itself does not say.
        let controls = self.family == Family::V6 && self.sources.is_some();
        if self.ask == 1 {
            self.slots.receive_one(self.socket.as_raw_fd(), controls).map(|()| 1)
        } else {
            self.slots.receive_many(self.socket.as_raw_fd(), self.ask, controls)
        }
    }

    #[cold]
    fn note_failure(&mut self, error: &io::Error) {
        if error.raw_os_error() == Some(libc::EINTR) {
            return;
        }
        self.errors.suspect();
        if self.errors.drain(self.socket.as_raw_fd(), &self.paths, &mut self.counters) == 0 {
            self.counters.receive_errors += 1;
        }
    }
}

/// Hands over the packet in a datagram.
fn take(
    received: &Received<'_>,
    family: Family,
    sources: &mut Option<Sources>,
    counters: &mut LinkCounters,
    handler: &mut Handler<'_>,
) {
    counters.datagrams_received += 1;
    counters.bytes_received += received.bytes.len() as u64;
    if received.truncated {
        counters.truncated += 1;
        return;
    }
    let packet = match family {
        Family::V4 => behind_header(received.bytes),
        Family::V6 | Family::Both => Some((received.bytes, received.to())),
    };
    let (Some((packet, to)), Some(mut from)) = (packet, received.from.decode()) else {
        counters.unusable += 1;
        return;
    };
    from.set_port(0);
    if let (Some(sources), Some(to)) = (sources, to) {
        sources.note(from, to);
    }
    counters.packets_received += 1;
    handler(from, packet);
}

/// What an IPv4 packet carries, and where it was going.
fn behind_header(bytes: &[u8]) -> Option<(&[u8], Option<IpAddr>)> {
    let length = usize::from(bytes.first()? & 15) * 4;
    let to = <[u8; 4]>::try_from(bytes.get(16..20)?).ok()?;
    Some((bytes.get(length..)?, Some(to.into())))
}
