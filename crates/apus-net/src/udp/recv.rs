//! From the kernel to the handler.
//!
//! `recvmmsg` finds out that there is no further datagram by looking for it, which costs about as much as a system call of its
//! own. So the first datagram after a pause is taken by itself, and so are those that fill a buffer anyhow. While packets keep
//! coming, each call asks for several times as many as the last one found.

use std::io;
use std::net::SocketAddr;

use apus_wire::{DATA_HEADER_LEN, PacketReceiver, bundle};

use super::UdpLink;
use crate::link::LinkCounters;
use crate::sources::Sources;
use crate::sys::Received;

/// Datagrams of at least this length are taken one at a time: the call costs little beside copying them, and one buffer stays in
/// the cache where sixteen would not.
const LONG: usize = 16_384;

/// A call asks for this many times what the last one found. More would be prepared in vain, less would take long to get going.
const GROWTH: usize = 4;

type Handler<'a> = dyn FnMut(SocketAddr, &[u8]) + 'a;

impl UdpLink {
    /// One batch; the number of datagrams in it.
    #[inline]
    pub(super) fn receive(&mut self, handler: &mut Handler<'_>) -> usize {
        let filled = self.receive_slots();
        self.received(filled, handler)
    }

    /// A datagram is partly in the first slot, partly at the end of a message.
    pub(super) fn receive_in_place(
        &mut self,
        appended: io::Result<usize>,
        before: usize,
        receiver: &mut dyn PacketReceiver,
    ) -> usize {
        if let Ok(appended) = appended {
            let received = self.slots.received(0);
            if received.bytes.len() == DATA_HEADER_LEN + appended
                && appended > 0
                && let Some(from) = received.from.decode()
                && receiver.received_in_place(from, self.slots.header(), appended)
            {
                self.counters.receive_calls += 1;
                self.counters.datagrams_received += 1;
                self.counters.packets_received += 1;
                self.counters.received_in_place += 1;
                self.counters.bytes_received += (DATA_HEADER_LEN + appended) as u64;
                return 1;
            }
            let receive_target =
                receiver.receive_target().expect("nothing has changed since it was asked for");
            self.slots.bring_back(&receive_target.message[before..]);
            receive_target.message.truncate(before);
        }
        self.received(appended.map(|_| 1), &mut |from, packet| receiver.packet(from, packet))
    }

    #[inline]
    fn received(&mut self, filled: io::Result<usize>, handler: &mut Handler<'_>) -> usize {
        let filled = match filled {
            Ok(filled) => filled,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                self.counters.empty_receive_calls += 1;
                self.ask = 1;
                return 0;
            }
            Err(error) => return self.receive_after(&error, handler),
        };
        self.counters.receive_calls += 1;
        let mut datagrams = 0;
        let mut bytes = 0;
        for index in 0..filled {
            let received = self.slots.received(index);
            bytes += received.bytes.len();
            datagrams += take(&received, &mut self.sources, &mut self.counters, handler);
        }
        self.long = bytes >= LONG * filled;
        self.ask = if self.long { 1 } else { (GROWTH * filled).min(self.ask_max) };
        if !self.gro && self.capabilities.gro && !self.slots.received(0).from.is_loopback() {
            self.join_arriving();
        }
        datagrams
    }

    #[inline]
    fn receive_slots(&mut self) -> io::Result<usize> {
        let controls = self.gro || self.sources.is_some();
        if self.ask == 1 {
            self.slots.receive_one(self.descriptor, controls).map(|()| 1)
        } else {
            self.slots.receive_many(self.descriptor, self.ask, controls)
        }
    }

    /// A call that failed took nothing, although something may be there: usually it only reported the error of a peer, for which
    /// `poll_error` is the place. Tries again, once.
    #[cold]
    fn receive_after(&mut self, error: &io::Error, handler: &mut Handler<'_>) -> usize {
        if error.raw_os_error() != Some(libc::EINTR) {
            self.errors.suspect();
            let reported = self.errors.drain(self.descriptor, &self.paths, &mut self.counters);
            self.counters.receive_errors += u64::from(reported == 0);
        }
        match self.receive_slots() {
            Ok(filled) => {
                self.counters.receive_calls += 1;
                (0..filled)
                    .map(|index| {
                        take(
                            &self.slots.received(index),
                            &mut self.sources,
                            &mut self.counters,
                            handler,
                        )
                    })
                    .sum()
            }
            Err(_) => 0,
        }
    }
}

/// Hands over the packets of what was received; returns the number of datagrams it was.
#[inline]
fn take(
    received: &Received<'_>,
    sources: &mut Option<Sources>,
    counters: &mut LinkCounters,
    handler: &mut Handler<'_>,
) -> usize {
    counters.bytes_received += received.bytes.len() as u64;
    let from = match received.from.decode() {
        Some(from) if !received.bytes.is_empty() => from,
        _ => {
            counters.datagrams_received += 1;
            counters.unusable += 1;
            return 1;
        }
    };
    if let Some(sources) = sources
        && let Some(local) = received.to()
    {
        sources.note(from, local);
    }
    if received.truncated {
        counters.datagrams_received += 1;
        counters.truncated += 1;
        return 1;
    }
    let Some(segment) = received.segment else {
        counters.datagrams_received += 1;
        datagram(from, received.bytes, counters, handler);
        return 1;
    };
    let mut segments = 0;
    for segment in received.bytes.chunks(segment) {
        segments += 1;
        datagram(from, segment, counters, handler);
    }
    counters.datagrams_received += segments as u64;
    counters.gro_segments += segments as u64;
    segments
}

#[inline]
fn datagram(
    from: SocketAddr,
    bytes: &[u8],
    counters: &mut LinkCounters,
    handler: &mut Handler<'_>,
) {
    if !bundle::is_bundle(bytes) {
        counters.packets_received += 1;
        handler(from, bytes);
        return;
    }
    counters.bundles_received += 1;
    for packet in bundle::packets(bytes) {
        match packet {
            Ok(packet) => {
                counters.packets_received += 1;
                handler(from, packet);
            }
            Err(_) => counters.malformed_bundles += 1,
        }
    }
}
