//! Passes datagrams from the kernel to the handler.
//!
//! `recvmmsg` detects the lack of a further datagram by another attempt, which costs about as much as a system call. So the first
//! datagram after a pause is received alone, and so are datagrams that fill a buffer anyhow. While packets keep arriving, each call
//! asks for several times as many as the last one found.

use std::io;
use std::net::{IpAddr, SocketAddr};

use apus_seal::{AssociationId, Kept, VERSION_HINT, VERSION_SEALED};
use apus_wire::compact::{self, Entries};
use apus_wire::{DATA_HEADER_LEN, PacketReceiver, PathId, bundle};

use super::peer::{self, Peer};
use super::sealing::{Origin, Sealing};
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
    sealing: &'a mut Sealing,
    counters: &'a mut LinkCounters,
}

impl Senders<'_> {
    #[inline]
    fn path(&mut self, address: SocketAddr) -> Option<PathId> {
        self.peers.find(address).or_else(|| {
            let raw = RawAddress::encode(address, self.family)?;
            Some(peer::add(self.peers, self.connected, address, raw))
        })
    }

    /// Notes the local address that a peer called.
    #[inline]
    fn note_called(&mut self, path: PathId, called: Option<IpAddr>) {
        if called.is_some()
            && let Some(peer) = self.peers.get_mut(path)
        {
            peer.called = called;
        }
    }

    #[cold]
    fn take_hint(&mut self, from: SocketAddr, datagram: &[u8]) {
        let mut paths = self.peers.sealed_at(from);
        let keys = paths.find_map(|path| {
            let keys = self.peers.get(path)?.keys?;
            self.sealing.is_about(datagram, keys).then_some((path, keys))
        });
        drop(paths);
        match keys {
            Some((path, id)) => self.sealing.take_hint(path, id, datagram),
            None => self.counters.hints_ignored += 1,
        }
    }
}

impl UdpLink {
    /// Receives one batch. Returns the number of datagrams.
    #[inline]
    pub(super) fn receive(&mut self, at: usize, receiver: &mut dyn PacketReceiver) -> usize {
        let Inlet { descriptor, is_long, is_sealed, .. } = self.inlets[at];
        // Sealed bytes would have to be moved out of the message again.
        if is_long
            && !is_sealed
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
        self.sealing.begin_batch();
        let mut datagrams = 0;
        let mut bytes = 0;
        let mut is_sealed = false;
        let mut senders = Senders {
            peers: &mut self.peers,
            connected: &mut self.senders,
            family: self.family,
            sealing: &mut self.sealing,
            counters: &mut self.counters,
        };
        for index in 0..filled {
            let received = self.slots.received(index);
            bytes += received.bytes.len();
            is_sealed = received.bytes.starts_with(&[0, 0, VERSION_SEALED]);
            datagrams += take(received, &mut senders, receiver);
        }
        let inlet = &mut self.inlets[at];
        inlet.idle = 0;
        inlet.is_long = bytes >= ALONE * filled;
        inlet.is_sealed = is_sealed;
        inlet.ask = if inlet.is_long { 1 } else { (GROWTH * filled).min(self.ask_max) };
        if !self.gro && self.capabilities.gro && !self.slots.received(0).from.is_loopback() {
            self.join_arriving();
        }
        if self.sealing.has_hints() {
            self.send_hints();
        }
        datagrams
    }

    //= docs/protocol.md#seal-2
    /// Handles the datagrams that came before their keys. Returns their number.
    #[cold]
    pub(super) fn receive_kept(&mut self, receiver: &mut dyn PacketReceiver) -> usize {
        let kept = self.sealing.take_kept();
        let count = kept.len();
        let mut senders = self.senders();
        for Kept { from, mut datagram } in kept {
            let origin = DatagramOrigin { from, called: None };
            sealed_datagram(origin, &mut datagram, &mut senders, receiver);
        }
        count
    }

    /// Begins a batch of datagrams that did not come by the sockets.
    pub(crate) fn begin_datagrams(&mut self) {
        self.arrived = None;
        self.sealing.begin_batch();
    }

    /// Handles a datagram of such a batch, with its addresses of both ends.
    pub(crate) fn take_datagram(
        &mut self,
        (from, to): (SocketAddr, IpAddr),
        bytes: &mut [u8],
        receiver: &mut dyn PacketReceiver,
    ) {
        self.counters.datagrams_received += 1;
        self.counters.xsk_received += 1;
        self.counters.bytes_received += bytes.len() as u64;
        if bytes.is_empty() {
            self.counters.unusable += 1;
            return;
        }
        let called = self.reports_destination.then_some(to);
        datagram(DatagramOrigin { from, called }, bytes, &mut self.senders(), receiver);
        if self.sealing.has_hints() {
            self.send_hints();
        }
    }

    fn senders(&mut self) -> Senders<'_> {
        Senders {
            peers: &mut self.peers,
            connected: &mut self.senders,
            family: self.family,
            sealing: &mut self.sealing,
            counters: &mut self.counters,
        }
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
            sealing: &mut self.sealing,
            counters: &mut self.counters,
        };
        (0..filled).map(|index| take(self.slots.received(index), &mut senders, receiver)).sum()
    }
}

/// Passes on the packets of a received buffer. Returns the number of datagrams.
#[inline]
fn take(
    received: Received<'_>,
    senders: &mut Senders<'_>,
    receiver: &mut dyn PacketReceiver,
) -> usize {
    senders.counters.bytes_received += received.bytes.len() as u64;
    let Some(from) = received.from.decode().filter(|_| !received.bytes.is_empty()) else {
        senders.counters.datagrams_received += 1;
        senders.counters.unusable += 1;
        return 1;
    };
    if received.truncated {
        senders.counters.datagrams_received += 1;
        senders.counters.truncated += 1;
        return 1;
    }
    let origin = DatagramOrigin { from, called: received.to() };
    let Some(segment) = received.segment else {
        senders.counters.datagrams_received += 1;
        datagram(origin, received.bytes, senders, receiver);
        return 1;
    };
    let mut segments = 0;
    for segment in received.bytes.chunks_mut(segment) {
        segments += 1;
        datagram(origin, segment, senders, receiver);
    }
    senders.counters.datagrams_received += segments as u64;
    senders.counters.gro_segments += segments as u64;
    segments
}

/// The addresses of a datagram.
#[derive(Clone, Copy)]
struct DatagramOrigin {
    from: SocketAddr,
    /// The local address, if the kernel reports it.
    called: Option<IpAddr>,
}

#[inline]
fn datagram(
    origin: DatagramOrigin,
    bytes: &mut [u8],
    senders: &mut Senders<'_>,
    receiver: &mut dyn PacketReceiver,
) {
    //= docs/wire.md#W43
    if senders.sealing.is_on
        && let [0, 0, VERSION_SEALED | VERSION_HINT, ..] = *bytes
    {
        return sealed_datagram(origin, bytes, senders, receiver);
    }
    let Some(path) = senders.path(origin.from) else {
        senders.counters.unusable += 1;
        return;
    };
    senders.note_called(path, origin.called);
    pass_on((path, origin.from), bytes, senders.counters, receiver);
}

/// Passes on the packets of a sealed datagram.
fn sealed_datagram(
    DatagramOrigin { from, called }: DatagramOrigin,
    bytes: &mut [u8],
    senders: &mut Senders<'_>,
    receiver: &mut dyn PacketReceiver,
) {
    if bytes[2] == VERSION_HINT {
        return senders.take_hint(from, bytes);
    }
    let mut packet = std::mem::take(&mut senders.sealing.packet);
    match senders.sealing.open(from, bytes, &mut packet) {
        Ok(record) => {
            if let Some(path) = path_of(senders, record.origin, from) {
                senders.note_called(path, called);
                pass_on((path, from), record.content, senders.counters, receiver);
            }
        }
        Err(error) => {
            if let Some(hint) = error.hint() {
                senders.sealing.want_hint(hint, from);
            }
        }
    }
    senders.sealing.packet = packet;
}

/// Returns the path of an opened record. A path with keys is held.
#[inline]
fn path_of(senders: &mut Senders<'_>, origin: Origin, from: SocketAddr) -> Option<PathId> {
    origin.home.or_else(|| foreign_path_of(senders, origin.id, from))
}

//= docs/protocol.md#seal-10
/// Returns the path of a record that came from another address than that of its keys. The address may be forged, so the path takes
/// the place of no other one.
#[cold]
fn foreign_path_of(
    senders: &mut Senders<'_>,
    id: AssociationId,
    from: SocketAddr,
) -> Option<PathId> {
    let Senders { peers, connected, family, sealing, .. } = senders;
    let known = peers.sealed_at(from).chain(sealing.foreign).find(|&path| {
        let keys = peers.get(path).and_then(|peer| peer.keys);
        keys == Some(id) && peers.address(path) == Some(from)
    });
    if known.is_some() {
        return known;
    }
    let raw = RawAddress::encode(from, *family)?;
    let home = sealing.associations.path(id)?;
    let path = peer::add_foreign(peers, connected, from, raw, (home, id));
    sealing.foreign = Some(path);
    Some(path)
}

/// Passes on a packet, or the packets of a bundle.
#[inline]
fn pass_on(
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
