//! Passes datagrams from the kernel to the handler.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

use apus_wire::PacketReceiver;
use apus_wire::segments::{self, Segmentation};

use super::{Destination, RawLink};
use crate::address::{AddressFamily, RawAddress};
use crate::link::LinkCounters;
use crate::paths::FALLBACK_MTU;
use crate::sys::Received;

/// Factor from the number of datagrams of one receive call to the request of the next.
const GROWTH: usize = 4;

impl RawLink {
    /// Receives one batch. Returns the number of datagrams.
    pub(super) fn receive(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        let filled = match self.receive_slots() {
            Ok(filled) => filled,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                self.counters.empty_receive_calls += 1;
                self.ask = 1;
                return 0;
            }
            // Usually a peer's error, which `poll_error` reports: the second attempt receives the waiting datagrams.
            Err(error) => {
                self.note_failure(&error);
                self.receive_slots().unwrap_or(0)
            }
        };
        self.counters.receive_calls += u64::from(filled > 0);
        for index in 0..filled {
            self.take(index, receiver);
        }
        self.ask = (GROWTH * filled.max(1)).min(self.ask_max);
        filled
    }

    /// Passes on the packet in a slot.
    fn take(&mut self, index: usize, receiver: &mut dyn PacketReceiver) {
        let received = self.slots.received(index);
        let Some(Arrived { from, to, start }) = arrived(&received, self.family, &mut self.counters)
        else {
            return;
        };
        let family = self.family;
        let path = self.peers.find(from).or_else(|| {
            let raw = RawAddress::encode(from, family)?;
            Some(self.peers.insert(from, Destination { raw, called: None }, drop))
        });
        let Some(path) = path else { return };
        if self.local.ip().is_unspecified()
            && let Some(peer) = self.peers.get_mut(path)
        {
            peer.called = to.or(peer.called);
        }
        let packet = &mut self.slots.bytes(index)[start..];
        if segments::may_be_cut(packet) {
            let local = to.or_else(|| Some(self.local.ip()));
            let mtu = self.interfaces.mtu_towards(local, self.socket.as_raw_fd());
            let header = if from.is_ipv4() { 20 } else { 40 };
            let longest = mtu.unwrap_or(FALLBACK_MTU).saturating_sub(header);
            let hand_over = |packet: &[u8]| receiver.packet(path, packet);
            hand_over_segments(packet, longest, &mut self.counters, hand_over);
            return;
        }
        self.counters.packets_received += 1;
        receiver.packet(path, packet);
    }

    fn receive_slots(&mut self) -> io::Result<usize> {
        // Only an IPv6 socket bound to all addresses needs the destination from the kernel; other packets contain it.
        let controls = self.family == AddressFamily::V6 && self.local.ip().is_unspecified();
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
        if self.errors.drain(&[self.socket.as_raw_fd()], &self.paths, &mut self.counters) == 0 {
            self.counters.receive_errors += 1;
        }
    }
}

/// A packet in a receive slot.
struct Arrived {
    from: SocketAddr,
    /// The local destination address, if known.
    to: Option<IpAddr>,
    /// Offset of the Homa header in the slot.
    start: usize,
}

/// Parses a datagram. Returns `None` if it is unusable.
fn arrived(
    received: &Received<'_>,
    family: AddressFamily,
    counters: &mut LinkCounters,
) -> Option<Arrived> {
    counters.datagrams_received += 1;
    counters.bytes_received += received.bytes.len() as u64;
    if received.truncated {
        counters.truncated += 1;
        return None;
    }
    let place = match family {
        AddressFamily::V4 => behind_header(received.bytes),
        AddressFamily::V6 | AddressFamily::Both => Some((0, received.to())),
    };
    let (Some((start, to)), Some(mut from)) = (place, received.from.decode()) else {
        counters.unusable += 1;
        return None;
    };
    from.set_port(0);
    Some(Arrived { from, to, start })
}

/// Returns the offset of an IPv4 packet's payload, and the packet's destination.
fn behind_header(bytes: &[u8]) -> Option<(usize, Option<IpAddr>)> {
    let length = usize::from(bytes.first()? & 15) * 4;
    let to = <[u8; 4]>::try_from(bytes.get(16..20)?).ok()?;
    bytes.get(length..)?;
    Some((length, Some(to.into())))
}

/// Passes on each segment of a packet whose header may be repeated: the packet itself, or the segments that no device has split.
#[cold]
fn hand_over_segments(
    packet: &mut [u8],
    longest: usize,
    counters: &mut LinkCounters,
    mut handler: impl FnMut(&[u8]),
) {
    //= docs/wire.md#W40
    match Segmentation::of(packet) {
        Segmentation::One if packet.len() <= longest => {
            counters.packets_received += 1;
            handler(packet);
        }
        Segmentation::Several(segments) if packet.len() > longest => {
            counters.split_packets += 1;
            segments.each(packet, |segment| {
                counters.packets_received += 1;
                handler(segment);
            });
        }
        _ => counters.bad_segments += 1,
    }
}
