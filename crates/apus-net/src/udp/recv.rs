//! Passes datagrams from the kernel to the handler.
//!
//! `recvmmsg` detects the lack of a further datagram by another attempt, which costs about as much as a system call. So the first
//! datagram after a pause is received alone, and so are datagrams that fill a buffer anyhow. While packets keep arriving, each call
//! asks for several times as many as the last one found.

use std::io;
use std::net::SocketAddr;

use apus_wire::compact::{self, Entries};
use apus_wire::{DATA_HEADER_LEN, PacketReceiver, PathId, bundle};

use super::peer::{self, Peer};
use super::{Inlet, UdpLink};
use crate::address::{AddressFamily, RawAddress};
use crate::link::LinkCounters;
use crate::path_table::PathTable;
use crate::sys::Received;

/// Length from which datagrams are received one at a time: the call costs little beside the copy, and one buffer stays in the cache
/// where sixteen would not.
const ALONE: usize = 16_384;

/// Factor from the number of datagrams of one receive call to the request of the next. A larger factor would prepare slots for
/// nothing, and a smaller factor would take long to adapt.
const GROWTH: usize = 4;

/// The senders of received packets.
struct Senders<'a> {
    peers: &'a mut PathTable<Peer>,
    /// Number of peers with a socket of their own.
    connected: &'a mut usize,
    family: AddressFamily,
    counters: &'a mut LinkCounters,
}

impl Senders<'_> {
    #[inline]
    fn path(&mut self, from: &RawAddress) -> Option<(PathId, SocketAddr)> {
        let address = from.decode()?;
        let path = self.peers.find(address).or_else(|| {
            let raw = RawAddress::encode(address, self.family)?;
            Some(peer::add(self.peers, self.connected, address, raw))
        });
        path.map(|path| (path, address))
    }
}

impl UdpLink {
    /// Receives one batch. Returns the number of datagrams.
    #[inline]
    pub(super) fn receive(&mut self, at: usize, receiver: &mut dyn PacketReceiver) -> usize {
        let Inlet { descriptor, is_long, .. } = self.inlets[at];
        if is_long
            && !self.gro
            && let Some(receive_target) = receiver.receive_target()
        {
            let before = receive_target.message.len();
            let in_place = self.slots.receive_behind(descriptor, receive_target);
            return self.receive_in_place(at, in_place, before, receiver);
        }
        let filled = self.receive_slots(at);
        self.received(at, filled, receiver)
    }

    /// Handles a datagram that is partly in the first slot and partly at the end of a message.
    fn receive_in_place(
        &mut self,
        at: usize,
        appended: io::Result<usize>,
        before: usize,
        receiver: &mut dyn PacketReceiver,
    ) -> usize {
        if let Ok(appended) = appended {
            let received = self.slots.received(0);
            if received.bytes.len() == DATA_HEADER_LEN + appended
                && appended > 0
                && let Some(from) = received.from.decode().and_then(|it| self.peers.find(it))
                && receiver.received_in_place(from, self.slots.header(), appended)
            {
                self.inlets[at].idle = 0;
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
        self.received(at, appended.map(|_| 1), receiver)
    }

    #[inline]
    fn received(
        &mut self,
        at: usize,
        filled: io::Result<usize>,
        receiver: &mut dyn PacketReceiver,
    ) -> usize {
        let filled = match filled {
            Ok(filled) => filled,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                self.counters.empty_receive_calls += 1;
                self.inlets[at].ask = 1;
                return 0;
            }
            Err(error) => return self.receive_after(at, &error, receiver),
        };
        self.counters.receive_calls += 1;
        if self.stamps && self.arrived.is_none() {
            self.arrived = self.slots.received(0).arrived();
        }
        let mut datagrams = 0;
        let mut bytes = 0;
        let mut senders = Senders {
            peers: &mut self.peers,
            connected: &mut self.senders,
            family: self.family,
            counters: &mut self.counters,
        };
        for index in 0..filled {
            let received = self.slots.received(index);
            bytes += received.bytes.len();
            datagrams += take(&received, &mut senders, receiver);
        }
        let inlet = &mut self.inlets[at];
        inlet.idle = 0;
        inlet.is_long = bytes >= ALONE * filled;
        inlet.ask = if inlet.is_long { 1 } else { (GROWTH * filled).min(self.ask_max) };
        if !self.gro && self.capabilities.gro && !self.slots.received(0).from.is_loopback() {
            self.join_arriving();
        }
        datagrams
    }

    #[inline]
    fn receive_slots(&mut self, at: usize) -> io::Result<usize> {
        let controls = self.gro || self.reports_destination || self.stamps;
        let Inlet { descriptor, ask, .. } = self.inlets[at];
        if ask == 1 {
            self.slots.receive_one(descriptor, controls).map(|()| 1)
        } else {
            self.slots.receive_many(descriptor, ask, controls)
        }
    }

    /// Retries once after a failed call, which took nothing although a datagram may wait. Usually the call only reported a peer's
    /// error, which `poll_error` handles.
    #[cold]
    fn receive_after(
        &mut self,
        at: usize,
        error: &io::Error,
        receiver: &mut dyn PacketReceiver,
    ) -> usize {
        if error.raw_os_error() != Some(libc::EINTR) {
            self.errors.suspect();
            let sockets = self.watched();
            let reported = self.errors.drain(&sockets, &self.paths, &mut self.counters);
            self.counters.receive_errors += u64::from(reported == 0);
        }
        let Ok(filled) = self.receive_slots(at) else { return 0 };
        self.counters.receive_calls += 1;
        let mut senders = Senders {
            peers: &mut self.peers,
            connected: &mut self.senders,
            family: self.family,
            counters: &mut self.counters,
        };
        (0..filled).map(|index| take(&self.slots.received(index), &mut senders, receiver)).sum()
    }
}

/// Passes on the packets of a received buffer. Returns the number of datagrams.
#[inline]
fn take(
    received: &Received<'_>,
    senders: &mut Senders<'_>,
    receiver: &mut dyn PacketReceiver,
) -> usize {
    senders.counters.bytes_received += received.bytes.len() as u64;
    let from = senders.path(received.from).filter(|_| !received.bytes.is_empty());
    let Some((from, sender)) = from else {
        senders.counters.datagrams_received += 1;
        senders.counters.unusable += 1;
        return 1;
    };
    if let Some(local) = received.to()
        && let Some(peer) = senders.peers.get_mut(from)
    {
        peer.called = Some(local);
    }
    let counters = &mut *senders.counters;
    if received.truncated {
        counters.datagrams_received += 1;
        counters.truncated += 1;
        return 1;
    }
    let Some(segment) = received.segment else {
        counters.datagrams_received += 1;
        datagram((from, sender), received.bytes, counters, receiver);
        return 1;
    };
    let mut segments = 0;
    for segment in received.bytes.chunks(segment) {
        segments += 1;
        datagram((from, sender), segment, counters, receiver);
    }
    counters.datagrams_received += segments as u64;
    counters.gro_segments += segments as u64;
    segments
}

#[inline]
fn datagram(
    (from, sender): (PathId, SocketAddr),
    bytes: &[u8],
    counters: &mut LinkCounters,
    receiver: &mut dyn PacketReceiver,
) {
    if !bundle::is_bundle(bytes) {
        counters.packets_received += 1;
        receiver.packet(from, bytes);
        return;
    }
    counters.bundles_received += 1;
    if compact::is_compact(bytes) {
        return entries((from, sender), bytes, counters, receiver);
    }
    for packet in bundle::packets(bytes) {
        match packet {
            Ok(packet) => {
                counters.packets_received += 1;
                receiver.packet(from, packet);
            }
            Err(_) => counters.malformed_bundles += 1,
        }
    }
}

/// Passes on the entries of a compact bundle.
#[inline]
fn entries(
    (from, sender): (PathId, SocketAddr),
    bytes: &[u8],
    counters: &mut LinkCounters,
    receiver: &mut dyn PacketReceiver,
) {
    let Ok(mut entries) = Entries::parse(bytes) else {
        counters.malformed_bundles += 1;
        return;
    };
    receiver.entries(from, sender, &mut entries);
    counters.packets_received += u64::from(entries.taken());
    counters.malformed_bundles += u64::from(entries.error().is_some());
}
