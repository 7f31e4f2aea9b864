//! Packets on their way to the kernel: what `send` has queued and `flush` has not yet handed over.
//!
//! A small packet is copied into a bundle for its peer; copying it is cheaper than keeping its body and giving the kernel two
//! more addresses to gather from. Of a large packet only the header is copied; its payload stays in the message's own memory,
//! kept alive by a reference, until the kernel has read it from there.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::RawFd;

use apus_wire::{Priority, Transmit, bundle, is_native};
use bytes::Bytes;
use socket2::Socket;

use super::sender::Sender;
use crate::address::{Family, RawAddress};
use crate::paths::{ANY_PATH, Paths};
use crate::recent::Recent;
use crate::sys::IpVersion;

/// Packets up to this length, header and payload, are copied into bundles. Near a page's worth of copying costs as much as the
/// kernel's work for one more datagram piece.
const SMALL_MAX: usize = 1_400;

/// Peers whose addresses are kept ready.
const PEERS_MAX: usize = 4_096;

/// Peers that have a socket of their own; when there would be more, all lose it and begin again.
const SENDERS_MAX: usize = 64;

/// A queue this long is flushed before anything is added to it: it fills one `sendmmsg`.
const DATAGRAMS_MAX: usize = 128;

/// The same in bytes; more would only push the packets out of the cache again before the kernel reads them.
const BYTES_MAX: usize = 1 << 20;

/// Most segments the kernel takes in one GSO datagram (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS_MAX: usize = 64;

/// Most bytes in one GSO datagram; the kernel's limit is that of one IPv4 packet.
const SEGMENTED_MAX: usize = super::config::MAX_DATAGRAM;

/// What is kept ready for a peer.
pub(super) struct Peer {
    pub(super) addr: SocketAddr,
    pub(super) raw: RawAddress,
    pub(super) loopback: bool,
    pub(super) version: IpVersion,
    /// The address of this machine that the route prefers, if that is known.
    pub(super) preferred: Option<IpAddr>,
    sender: Sender,
    /// Of the paths that what follows was taken from.
    paths_version: u64,
    /// The path is known.
    known: bool,
    /// Longest datagram the path takes.
    max: usize,
    /// Longest packet that is copied into a bundle.
    small: usize,
    /// The last flush that had something for the peer.
    flush: u64,
    /// Bytes in it.
    queued: usize,
    /// The bundle that takes further packets, by priority: its place in `Outbox::bundles` plus one, or 0.
    open: [u16; 8],
}

impl Peer {
    fn new(addr: SocketAddr, raw: RawAddress) -> Self {
        Self {
            addr,
            raw,
            loopback: raw.is_loopback(),
            version: if addr.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 },
            preferred: None,
            sender: Sender::default(),
            paths_version: u64::MAX,
            known: false,
            max: 0,
            small: 0,
            flush: 0,
            queued: 0,
            open: [0; 8],
        }
    }

    /// What is known of the path is as good as it must be for what is queued.
    #[inline]
    fn is_ready(&self, paths: &Paths) -> bool {
        self.paths_version == paths.version() && (self.known || self.queued <= ANY_PATH)
    }

    /// Looks the path up. A host to which no more than a few bytes go in a flush is not looked up: that takes a dozen system calls, and
    /// anybody can have us answer.
    #[cold]
    fn make_ready(&mut self, paths: &Paths) {
        if self.queued > ANY_PATH {
            paths.to(self.addr);
        }
        self.paths_version = paths.version();
        let found = paths.peek(self.addr);
        self.known = found.is_some();
        self.max = ANY_PATH;
        if let Some((path, source)) = found {
            self.loopback = path.loopback;
            self.preferred = source;
            self.max = path.max_packet;
        }
        // A packet that would fill more than half a datagram shares with nobody and is better sent as it is, perhaps with
        // others like it as segments.
        self.small = SMALL_MAX.min(self.max / 2);
    }

    /// On loopback nothing looks at priorities, so all share one bundle.
    fn class(&self, priority: Priority) -> usize {
        if self.loopback { 0 } else { usize::from(priority.get()) }
    }
}

/// Small packets for one peer.
pub(super) struct Bundle {
    pub(super) peer: usize,
    pub(super) priority: Priority,
    /// As [`bundle::start`] and [`bundle::push`] write it.
    bytes: Vec<u8>,
}

impl Bundle {
    /// What to send.
    pub(super) fn datagram(&self) -> &[u8] {
        bundle::datagram(&self.bytes)
    }

    /// The datagram is a bundle, not a packet alone.
    pub(super) fn is_bundle(&self) -> bool {
        bundle::count(&self.bytes) > 1
    }
}

/// A packet too large to copy.
pub(super) struct Large {
    pub(super) peer: usize,
    pub(super) priority: Priority,
    header: Range<usize>,
    body: Bytes,
    payload: Range<usize>,
}

impl Large {
    pub(super) fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.body[self.payload.clone()]
    }
}

/// Why a packet was not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// A socket of this family cannot reach the peer, or the peer is of a native link.
    NoLink,
    /// The peer needs the place of another that has something in the queue; flush it first.
    NoRoom,
}

/// The queue.
pub(super) struct Outbox {
    family: Family,
    share: bool,
    peers: Recent<SocketAddr, Peer>,
    /// Those with a socket of their own.
    senders: usize,
    /// The peer of the packet before.
    last: usize,
    /// The first `used` are queued, the rest is memory for later.
    bundles: Vec<Bundle>,
    used: usize,
    large: Vec<Large>,
    headers: Vec<u8>,
    bytes: usize,
    /// Counts flushes, from 1.
    flush: u64,
}

impl Outbox {
    /// `share`: small packets for one peer may share a datagram.
    pub(super) fn new(family: Family, share: bool) -> Self {
        Self {
            family,
            share,
            peers: Recent::new(PEERS_MAX),
            senders: 0,
            last: 0,
            bundles: Vec::new(),
            used: 0,
            large: Vec::new(),
            headers: Vec::new(),
            bytes: 0,
            flush: 1,
        }
    }

    /// Queues a packet. `is_full` must be false.
    #[inline]
    pub(super) fn push(&mut self, packet: &Transmit<'_>, paths: &Paths) -> Result<(), Refused> {
        let place = self.place_of(packet.to)?;
        let len = packet.len();
        self.bytes += len;
        let peer = self.peers.at(place);
        if peer.flush != self.flush {
            (peer.flush, peer.queued) = (self.flush, 0);
        }
        peer.queued += len;
        if !peer.is_ready(paths) {
            peer.make_ready(paths);
        }
        if len <= peer.small {
            self.push_small(place, packet);
        } else {
            self.push_large(place, packet);
        }
        Ok(())
    }

    #[inline]
    fn push_small(&mut self, place: usize, packet: &Transmit<'_>) {
        let peer = self.peers.at(place);
        let open = &mut peer.open[peer.class(packet.priority)];
        if let Some(index) = usize::from(*open).checked_sub(1)
            && self.share
            && bundle::push(
                &mut self.bundles[index].bytes,
                peer.max,
                packet.header,
                packet.payload(),
            )
        {
            return;
        }
        let index = self.used;
        self.used += 1;
        *open = u16::try_from(self.used).expect("a queue of DATAGRAMS_MAX is flushed first");
        if self.bundles.len() == index {
            self.bundles.push(Bundle { peer: place, priority: packet.priority, bytes: Vec::new() });
        }
        let bundle = &mut self.bundles[index];
        bundle.peer = place;
        bundle.priority = packet.priority;
        bundle::start(&mut bundle.bytes);
        let taken = bundle::push(&mut bundle.bytes, usize::MAX, packet.header, packet.payload());
        debug_assert!(taken, "a small packet fits an empty bundle");
    }

    fn push_large(&mut self, peer: usize, packet: &Transmit<'_>) {
        let start = self.headers.len();
        self.headers.extend_from_slice(packet.header);
        self.large.push(Large {
            peer,
            priority: packet.priority,
            header: start..self.headers.len(),
            body: packet.body.clone(),
            payload: packet.range.clone(),
        });
    }

    #[inline]
    fn place_of(&mut self, to: SocketAddr) -> Result<usize, Refused> {
        match self.peers.get(self.last) {
            Some(peer) if peer.addr == to => Ok(self.last),
            _ => self.look_up(to),
        }
    }

    fn look_up(&mut self, to: SocketAddr) -> Result<usize, Refused> {
        let place = match self.peers.place(&to) {
            Some(place) => place,
            None => self.add(to)?,
        };
        self.last = place;
        Ok(place)
    }

    fn add(&mut self, to: SocketAddr) -> Result<usize, Refused> {
        let raw = RawAddress::encode(to, self.family)
            .filter(|_| !is_native(to))
            .ok_or(Refused::NoLink)?;
        if self.peers.next_victim().is_some_and(|peer| peer.flush == self.flush) {
            return Err(Refused::NoRoom);
        }
        let (place, evicted) = self.peers.insert(to, Peer::new(to, raw));
        let had_sender = evicted.is_some_and(|peer| peer.sender.descriptor().is_some());
        self.senders -= usize::from(had_sender);
        Ok(place)
    }

    /// Must be flushed before the next packet.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used + self.large.len() >= DATAGRAMS_MAX || self.bytes >= BYTES_MAX
    }

    pub(super) fn bundles(&self) -> &[Bundle] {
        &self.bundles[..self.used]
    }

    pub(super) fn large(&self) -> &[Large] {
        &self.large
    }

    pub(super) fn header(&self, packet: &Large) -> &[u8] {
        &self.headers[packet.header.clone()]
    }

    pub(super) fn peer(&self, place: usize) -> &Peer {
        self.peers.get(place).expect("a place that was given out")
    }

    /// The descriptor of the peer's own socket, if it has one or now gets one.
    #[inline]
    pub(super) fn sender(
        &mut self,
        place: usize,
        link: &Socket,
        local: SocketAddr,
    ) -> Option<RawFd> {
        let peer = self.peers.at(place);
        if !peer.loopback {
            return None;
        }
        if let Some(descriptor) = peer.sender.descriptor() {
            return Some(descriptor);
        }
        if peer.sender.is_due() {
            if self.senders == SENDERS_MAX {
                self.close_senders();
            }
            let peer = self.peers.at(place);
            peer.sender = Sender::open(link, local, peer.addr);
            self.senders += usize::from(peer.sender.descriptor().is_some());
        }
        None
    }

    /// Takes the peer's own socket away, after it has failed.
    pub(super) fn close_sender(&mut self, place: usize) {
        let sender = std::mem::take(&mut self.peers.at(place).sender);
        self.senders -= usize::from(sender.descriptor().is_some());
    }

    fn close_senders(&mut self) {
        for peer in self.peers.values() {
            if peer.sender.descriptor().is_some() {
                peer.sender = Sender::default();
            }
        }
        self.senders = 0;
    }

    /// The peer that everything queued is for, if there is one.
    #[inline]
    pub(super) fn only_peer(&self) -> Option<usize> {
        let first =
            self.bundles().first().map(|it| it.peer).or_else(|| Some(self.large.first()?.peer))?;
        let same = self.bundles().iter().all(|it| it.peer == first)
            && self.large.iter().all(|it| it.peer == first);
        same.then_some(first)
    }

    /// Splits the large packets into runs that can be the segments of one datagram: same peer, same priority, same length, but
    /// for the last one, which may be shorter. Without GSO, a run is one packet.
    pub(super) fn runs(&self, gso: bool) -> impl Iterator<Item = &[Large]> {
        let mut rest = &self.large[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (run, after) = rest.split_at(if gso { run_length(rest) } else { 1 });
            rest = after;
            Some(run)
        })
    }

    /// Forgets what was queued; keeps the memory.
    pub(super) fn clear(&mut self) {
        for bundle in &self.bundles[..self.used] {
            self.peers.at(bundle.peer).open = [0; 8];
        }
        self.used = 0;
        self.large.clear();
        self.headers.clear();
        self.bytes = 0;
        self.flush += 1;
    }
}

/// How many packets from the first on can be segments of one datagram; at least one.
fn run_length(packets: &[Large]) -> usize {
    let first = &packets[0];
    let mut bytes = first.len();
    let mut count = 1;
    for packet in packets[1..].iter().take(SEGMENTS_MAX - 1) {
        bytes += packet.len();
        let fits = packet.peer == first.peer
            && packet.priority == first.priority
            && packet.len() <= first.len()
            && bytes <= SEGMENTED_MAX;
        if !fits {
            break;
        }
        count += 1;
        if packet.len() < first.len() {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UdpConfig;

    const PEER: &str = "127.0.0.1:7";
    const HEADER: [u8; 56] = [1; 56];

    fn paths_up_to(max_packet: usize) -> Paths {
        Paths::new(UdpConfig::default().max_packet(max_packet).encapsulation())
    }

    fn outbox() -> (Outbox, Paths) {
        (Outbox::new(Family::V4, true), paths_up_to(super::super::config::MAX_DATAGRAM))
    }

    fn push(outbox: &mut Outbox, paths: &Paths, to: &str, priority: u8, payload: usize) {
        let body = Bytes::from(vec![7; payload]);
        let packet = Transmit {
            to: to.parse().unwrap(),
            priority: Priority::clamped(priority),
            header: &HEADER,
            body: &body,
            range: 0..payload,
        };
        // As the core does before it sends what is long.
        paths.to(packet.to);
        if outbox.push(&packet, paths) == Err(Refused::NoRoom) {
            outbox.clear();
            assert_eq!(outbox.push(&packet, paths), Ok(()));
        }
    }

    /// Segments of each run.
    fn runs(outbox: &Outbox) -> Vec<usize> {
        outbox.runs(true).map(<[Large]>::len).collect()
    }

    #[test]
    fn small_packets_for_one_peer_share_and_one_alone_goes_plain() {
        let (mut outbox, paths) = outbox();
        push(&mut outbox, &paths, PEER, 0, 100);
        assert_eq!(outbox.bundles()[0].datagram().len(), 156);
        assert!(!outbox.bundles()[0].is_bundle());
        push(&mut outbox, &paths, PEER, 7, 100);
        push(&mut outbox, &paths, "127.0.0.1:8", 7, 100);
        push(&mut outbox, &paths, PEER, 3, 100);
        assert_eq!(
            outbox.bundles().len(),
            2,
            "one for each peer; on loopback all priorities together"
        );
        assert_eq!(bundle::packets(outbox.bundles()[0].datagram()).count(), 3);
        outbox.clear();
        assert!(outbox.bundles().is_empty());
        push(&mut outbox, &paths, PEER, 0, 100);
        assert!(!outbox.bundles()[0].is_bundle(), "nothing is left of the last flush");
    }

    #[test]
    fn a_full_bundle_is_followed_by_another() {
        let mut outbox = Outbox::new(Family::V4, true);
        let paths = paths_up_to(1_472);
        for _ in 0..20 {
            push(&mut outbox, &paths, PEER, 0, 100);
        }
        let counts: Vec<_> =
            outbox.bundles().iter().map(|it| bundle::packets(it.datagram()).count()).collect();
        assert_eq!(counts, [9, 9, 2]);
        assert!(outbox.bundles().iter().all(|bundle| bundle.datagram().len() <= 1_472));
    }

    #[test]
    fn without_sharing_each_packet_is_alone() {
        let mut outbox = Outbox::new(Family::V4, false);
        let paths = paths_up_to(1_472);
        for _ in 0..3 {
            push(&mut outbox, &paths, PEER, 0, 100);
        }
        assert_eq!(outbox.bundles().len(), 3);
        assert!(outbox.bundles().iter().all(|bundle| bundle.datagram().len() == 156));
    }

    #[test]
    fn equal_packets_are_one_run_that_a_shorter_one_ends() {
        let (mut outbox, paths) = outbox();
        for payload in [1_416, 1_416, 1_416, 1_400, 1_416, 1_416] {
            push(&mut outbox, &paths, PEER, 0, payload);
        }
        assert_eq!(runs(&outbox), [4, 2]);
        assert_eq!(outbox.runs(false).count(), 6);
    }

    #[test]
    fn a_run_has_one_peer_and_one_priority_and_grows_no_longer() {
        let (mut outbox, paths) = outbox();
        push(&mut outbox, &paths, PEER, 0, 1_400);
        push(&mut outbox, &paths, PEER, 1, 1_400);
        push(&mut outbox, &paths, "127.0.0.1:8", 1, 1_400);
        push(&mut outbox, &paths, "127.0.0.1:8", 1, 1_401);
        assert_eq!(runs(&outbox), [1, 1, 1, 1]);
    }

    #[test]
    fn a_run_has_no_more_bytes_and_segments_than_the_kernel_takes() {
        let (mut outbox, paths) = outbox();
        for _ in 0..100 {
            push(&mut outbox, &paths, PEER, 0, 1_416);
        }
        assert_eq!(runs(&outbox), [44, 44, 12]);
        let (mut outbox, _) = self::outbox();
        let paths = paths_up_to(600);
        for _ in 0..100 {
            push(&mut outbox, &paths, PEER, 0, 544);
        }
        assert_eq!(runs(&outbox), [64, 36]);
    }

    #[test]
    fn the_queue_and_the_peers_are_bounded() {
        let (mut outbox, paths) = outbox();
        let mut packets = 0;
        while !outbox.is_full() {
            push(&mut outbox, &paths, PEER, 0, 60_000);
            packets += 1;
        }
        assert_eq!(packets, BYTES_MAX.div_ceil(60_056));
        outbox.clear();
        for peer in 0..3 * PEERS_MAX {
            push(&mut outbox, &paths, &format!("127.0.0.1:{}", peer + 8), 0, 10);
            if outbox.is_full() {
                outbox.clear();
                push(&mut outbox, &paths, PEER, 0, 10);
            }
        }
        assert_eq!(outbox.peers.len(), PEERS_MAX);
        assert!(outbox.peers.peek(&PEER.parse().unwrap()).is_some(), "it is in use");
    }

    #[test]
    fn a_peer_that_needs_the_place_of_another_waits_for_the_flush() {
        let (mut outbox, paths) = outbox();
        // A queue of one flush, in which all peers are.
        let answer = |port: usize| {
            Transmit::control(
                SocketAddr::from(([127, 0, 0, 1], port as u16)),
                Priority::HIGHEST,
                &HEADER,
            )
        };
        for port in 0..PEERS_MAX {
            assert_eq!(outbox.push(&answer(8 + port), &paths), Ok(()));
        }
        let one_more = answer(7);
        assert_eq!(outbox.push(&one_more, &paths), Err(Refused::NoRoom));
        assert_eq!(outbox.bundles().len(), PEERS_MAX);
        outbox.clear();
        assert_eq!(outbox.push(&one_more, &paths), Ok(()));
        assert_eq!(outbox.peers.len(), PEERS_MAX);
    }

    #[test]
    fn no_path_is_looked_up_for_a_short_packet() {
        let (mut outbox, paths) = outbox();
        let to: SocketAddr = PEER.parse().unwrap();
        let answer = Transmit::control(to, Priority::HIGHEST, &HEADER);
        assert_eq!(outbox.push(&answer, &paths), Ok(()));
        assert_eq!(paths.peek(to), None);
        let body = Bytes::from(vec![7; ANY_PATH - 55]);
        let packet = Transmit { body: &body, range: 0..body.len(), ..answer };
        assert_eq!(outbox.push(&packet, &paths), Ok(()));
        assert!(paths.peek(to).is_some());
    }

    #[test]
    fn the_payload_is_not_copied() {
        let (mut outbox, paths) = outbox();
        let body = Bytes::from(vec![7; 10_000]);
        let packet = Transmit {
            to: PEER.parse().unwrap(),
            priority: Priority::LOWEST,
            header: &HEADER,
            body: &body,
            range: 2_000..9_000,
        };
        assert!(outbox.push(&packet, &paths).is_ok());
        assert_eq!(outbox.large()[0].payload().as_ptr(), body[2_000..].as_ptr());
        assert!(!body.is_unique());
        outbox.clear();
        assert!(body.is_unique());
    }
}
