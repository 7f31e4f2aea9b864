//! Packets that `send` has queued and `flush` has not yet passed to the kernel.
//!
//! A small packet is copied into a bundle for its peer; copying it is cheaper than keeping its body and giving the kernel two more
//! addresses to gather from. Only the header of a large packet is copied. Its payload stays in the message's own memory, kept alive
//! by a reference, until the kernel has read it.

use std::ops::Range;

use apus_wire::compact::{self, Entry, Envelope};
use apus_wire::{Extension, Priority, ShortTransmit, Transmit, bundle};
use bytes::Bytes;

use super::peer::Peer;
use super::records::SealedRecords;
use super::sealing::Sealing;
use crate::path_table::PathTable;
use crate::paths::Paths;

/// Upper bound on queued datagrams, which fill one `sendmmsg`; a full queue is flushed before the next packet.
const DATAGRAMS_MAX: usize = 128;

/// Upper bound on queued bytes. More would push the packets out of the cache before the kernel reads them.
const BYTES_MAX: usize = 1 << 20;

/// Upper bound on queued bytes for sealed paths, so that the kernel reads their records from the second-level cache.
const SEALED_MAX: usize = 256 << 10;

/// Upper bound on segments in one GSO datagram (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS_MAX: usize = 64;

/// Upper bound on bytes in one GSO datagram: the kernel's limit is one IPv4 packet.
const SEGMENTED_MAX: usize = super::config::MAX_DATAGRAM;

/// Small packets for one peer.
pub(super) struct Bundle {
    pub(super) peer: usize,
    pub(super) priority: Priority,
    /// The bundle, in the form of [`bundle::start`] and [`bundle::push`], or of [`compact::start`] and [`compact::push`].
    bytes: Vec<u8>,
    is_compact: bool,
    /// The sealed datagram within `Outbox::records`; empty on a plain path.
    record: Range<usize>,
}

impl Bundle {
    /// Returns the datagram, before it is sealed.
    fn content(&self) -> &[u8] {
        if self.is_compact { &self.bytes } else { bundle::datagram(&self.bytes) }
    }

    /// Returns whether the datagram is a bundle instead of a single packet.
    pub(super) fn is_bundle(&self) -> bool {
        self.is_compact || bundle::count(&self.bytes) > 1
    }
}

/// A packet too large to copy.
pub(super) struct Large {
    pub(super) peer: usize,
    pub(super) priority: Priority,
    header: Range<usize>,
    body: Bytes,
    payload: Range<usize>,
    /// Length of the datagram.
    len: usize,
    /// The sealed datagram within `Outbox::records`; empty on a plain path.
    record: Range<usize>,
}

impl Large {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn payload(&self) -> &[u8] {
        &self.body[self.payload.clone()]
    }
}

/// Values to count once a message of a batch has been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) peer: usize,
    /// Number of datagrams: 1 without GSO segments.
    pub(super) datagrams: u64,
    pub(super) bytes: u64,
    pub(super) is_bundle: bool,
}

/// The queue.
pub(super) struct Outbox {
    share: bool,
    /// The first `used` bundles are queued; the others are spare memory.
    bundles: Vec<Bundle>,
    used: usize,
    large: Vec<Large>,
    headers: Vec<u8>,
    /// The sealed datagrams of a flush.
    records: SealedRecords,
    bytes: usize,
    /// Bytes for sealed paths among them.
    sealed_bytes: usize,
    /// Number of the current flush, from 1.
    flush: u64,
}

impl Outbox {
    /// Creates an empty queue. `share`: small packets for one peer may share a datagram.
    pub(super) fn new(share: bool) -> Self {
        Self {
            share,
            bundles: Vec::new(),
            used: 0,
            large: Vec::new(),
            headers: Vec::new(),
            records: SealedRecords::default(),
            bytes: 0,
            sealed_bytes: 0,
            flush: 1,
        }
    }

    /// Queues a packet for the peer at a place. The queue must not be full.
    #[inline]
    pub(super) fn push(
        &mut self,
        place: usize,
        packet: &Transmit<'_>,
        peers: &mut PathTable<Peer>,
        paths: &Paths,
    ) {
        let len = packet.len();
        self.bytes += len;
        let address = peers.address_at(place);
        let peer = peers.at_mut(place);
        peer.note_queued(self.flush, len);
        if !peer.is_ready(paths) {
            peer.make_ready(address, paths);
        }
        if peer.is_sealed {
            self.sealed_bytes += len;
        }
        if len <= peer.small {
            self.push_small(place, peer, packet);
        } else {
            self.push_large(place, packet, len + peer.overhead());
        }
    }

    #[inline]
    fn push_small(&mut self, place: usize, peer: &mut Peer, packet: &Transmit<'_>) {
        let max = peer.max;
        let open = peer.open_bundle(packet.priority);
        if let Some(index) = usize::from(*open).checked_sub(1)
            && self.share
            && bundle::push(&mut self.bundles[index].bytes, max, packet.header, packet.payload())
        {
            return;
        }
        let bundle = self.open(open, place, packet.priority, false);
        bundle::start(&mut bundle.bytes);
        let taken = bundle::push(&mut bundle.bytes, usize::MAX, packet.header, packet.payload());
        debug_assert!(taken, "a small packet fits an empty bundle");
    }

    /// Opens a bundle, which takes further packets of its kind from now on.
    fn open(
        &mut self,
        open: &mut u16,
        peer: usize,
        priority: Priority,
        is_compact: bool,
    ) -> &mut Bundle {
        let index = self.used;
        self.used += 1;
        *open = u16::try_from(self.used).expect("a queue of DATAGRAMS_MAX is flushed first");
        if self.bundles.len() == index {
            let bytes = Vec::new();
            self.bundles.push(Bundle { peer, priority, bytes, is_compact, record: 0..0 });
        }
        let bundle = &mut self.bundles[index];
        (bundle.peer, bundle.priority, bundle.is_compact) = (peer, priority, is_compact);
        bundle.record = 0..0;
        bundle
    }

    /// Queues a short message for the peer at a place, with its acknowledgements. Returns `false`, with nothing queued, if it is to be
    /// queued as packets. The queue must not be full.
    #[inline]
    pub(super) fn push_short(
        &mut self,
        place: usize,
        message: &ShortTransmit<'_>,
        peers: &mut PathTable<Peer>,
        paths: &Paths,
    ) -> bool {
        let length = 2 * compact::ENTRY_LEN + message.body.len();
        if !self.takes_entry(place, length, peers, paths) {
            return false;
        }
        let peer = peers.at_mut(place);
        if let Some(acks) = message.acks {
            self.push_entry(place, peer, message.priority, &message.envelope, &Entry::Acks(acks));
        }
        let mut words = [0; Extension::LEN_MAX];
        let entry = Entry::Message(message.message(&mut words));
        self.push_entry(place, peer, message.priority, &message.envelope, &entry);
        true
    }

    /// Queues acknowledgements as [`push_short`](Self::push_short) does a message.
    pub(super) fn push_acks(
        &mut self,
        place: usize,
        priority: Priority,
        envelope: &Envelope,
        entry: &Entry<'_>,
        (peers, paths): (&mut PathTable<Peer>, &Paths),
    ) -> bool {
        let takes = self.takes_entry(place, compact::ENTRY_LEN, peers, paths);
        if takes {
            self.push_entry(place, peers.at_mut(place), priority, envelope, entry);
        }
        takes
    }

    /// Returns whether an entry of this length may share a datagram.
    #[inline]
    fn takes_entry(
        &mut self,
        place: usize,
        length: usize,
        peers: &mut PathTable<Peer>,
        paths: &Paths,
    ) -> bool {
        if !self.share {
            return false;
        }
        self.bytes += length;
        let peer = peers.at_mut(place);
        peer.note_queued(self.flush, length);
        if peer.is_sealed {
            self.sealed_bytes += length;
        }
        if !peer.is_ready(paths) {
            return false; // The way of a packet takes over what is known of the path.
        }
        compact::HEADER_LEN + length <= peer.small
    }

    #[inline]
    fn push_entry(
        &mut self,
        place: usize,
        peer: &mut Peer,
        priority: Priority,
        envelope: &Envelope,
        entry: &Entry<'_>,
    ) {
        let max = peer.max;
        let open = peer.open_compact(priority);
        if let Some(index) = usize::from(*open).checked_sub(1)
            && compact::push(&mut self.bundles[index].bytes, max, envelope, entry)
        {
            return;
        }
        let bundle = self.open(open, place, priority, true);
        compact::start(&mut bundle.bytes, envelope, entry.id());
        let taken = compact::push(&mut bundle.bytes, usize::MAX, envelope, entry);
        debug_assert!(taken, "a short entry fits an empty bundle");
    }

    fn push_large(&mut self, peer: usize, packet: &Transmit<'_>, len: usize) {
        let start = self.headers.len();
        self.headers.extend_from_slice(packet.header);
        self.large.push(Large {
            peer,
            priority: packet.priority,
            header: start..self.headers.len(),
            body: packet.body.clone(),
            payload: packet.range.clone(),
            len,
            record: 0..0,
        });
    }

    /// Returns whether the queue must be flushed before the next packet.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used + self.large.len() >= DATAGRAMS_MAX
            || self.bytes >= BYTES_MAX
            || self.sealed_bytes >= SEALED_MAX
    }

    /// Returns whether packets for sealed paths are queued that are not sealed.
    #[inline]
    pub(super) fn has_unsealed(&self) -> bool {
        self.sealed_bytes > 0
    }

    //= docs/protocol.md#seal-13
    /// Seals the packets for sealed paths, once: a record that the kernel refuses is handed over again as it is. Removes those whose
    /// path has no keys any more, and returns their number.
    pub(super) fn seal(&mut self, peers: &mut PathTable<Peer>, sealing: &mut Sealing) -> u64 {
        self.sealed_bytes = 0;
        sealing.begin_batch();
        let before = self.used + self.large.len();
        let records = &mut self.records;
        let mut at = 0;
        while at < self.used {
            let bundle = &mut self.bundles[at];
            let peer = peers.at_mut(bundle.peer);
            bundle.record = records.end()..records.end();
            if peer.is_sealed {
                let parts = (&[][..], bundle.content());
                let sealed =
                    peer.keys.is_some_and(|id| sealing.seal(id, bundle.priority, parts, records));
                if !sealed {
                    peer.lose_keys();
                    peer.close_bundles();
                    self.bundles[at..self.used].rotate_left(1);
                    self.used -= 1;
                    continue;
                }
                bundle.record.end = records.end();
            }
            at += 1;
        }
        let headers = &self.headers;
        self.large.retain_mut(|packet| {
            let peer = peers.at_mut(packet.peer);
            packet.record = records.end()..records.end();
            let parts = (&headers[packet.header.clone()], &packet.body[packet.payload.clone()]);
            let keep = !peer.is_sealed
                || peer.keys.is_some_and(|id| sealing.seal(id, packet.priority, parts, records));
            packet.record.end = records.end();
            if !keep {
                peer.lose_keys();
            }
            keep
        });
        (before - self.used - self.large.len()) as u64
    }

    /// Removes the bundles and single small packets that `take` accepts. Packets for sealed paths must be sealed.
    pub(super) fn divert(
        &mut self,
        peers: &mut PathTable<Peer>,
        mut take: impl FnMut(&PathTable<Peer>, &Bundle, &[u8]) -> bool,
    ) {
        let mut kept = 0;
        for at in 0..self.used {
            let bundle = &self.bundles[at];
            if take(peers, bundle, self.datagram(bundle)) {
                peers.at_mut(bundle.peer).close_bundles();
            } else {
                self.bundles.swap(kept, at);
                kept += 1;
            }
        }
        self.used = kept;
    }

    /// Returns the datagram of a bundle.
    #[inline]
    pub(super) fn datagram<'a>(&'a self, bundle: &'a Bundle) -> &'a [u8] {
        if bundle.record.is_empty() {
            bundle.content()
        } else {
            &self.records[bundle.record.clone()]
        }
    }

    /// Returns the datagrams of a run of large packets, if they are sealed.
    #[inline]
    pub(super) fn records(&self, run: &[Large]) -> Option<&[u8]> {
        let range = run[0].record.start..run[run.len() - 1].record.end;
        Some(&self.records[range]).filter(|records| !records.is_empty())
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

    /// Returns whether nothing is queued.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.used == 0 && self.large.is_empty()
    }

    /// Returns the peer of all queued packets, if there is only one.
    #[inline]
    pub(super) fn only_peer(&self) -> Option<usize> {
        let first =
            self.bundles().first().map(|it| it.peer).or_else(|| Some(self.large.first()?.peer))?;
        let same = self.bundles().iter().all(|it| it.peer == first)
            && self.large.iter().all(|it| it.peer == first);
        same.then_some(first)
    }

    /// Splits the large packets into runs that can be the segments of one datagram: same peer, same priority and same length,
    /// except for a shorter last one. Without GSO, a run is one packet.
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

    /// Drops the queued packets and keeps the memory.
    pub(super) fn clear(&mut self, peers: &mut PathTable<Peer>) {
        for bundle in &self.bundles[..self.used] {
            peers.at_mut(bundle.peer).close_bundles();
        }
        self.used = 0;
        self.large.clear();
        self.headers.clear();
        self.records.clear();
        self.bytes = 0;
        self.sealed_bytes = 0;
        self.flush += 1;
    }
}

/// Returns how many packets from the first on can be segments of one datagram; at least one.
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
    use std::time::Instant;

    use apus_wire::compact::Entries;
    use apus_wire::{DataFlags, Header, RpcId, Token};

    use super::*;
    use crate::UdpConfig;
    use crate::address::{AddressFamily, RawAddress};
    use crate::path::ANY_PATH;

    const PEER: &str = "127.0.0.1:7";
    const HEADER: [u8; 56] = [1; 56];

    /// An outbox with the tables of its link.
    struct Queue {
        outbox: Outbox,
        peers: PathTable<Peer>,
        paths: Paths,
    }

    impl Queue {
        fn new(max_packet: usize, share: bool) -> Self {
            let paths = Paths::new(UdpConfig::default().max_packet(max_packet).encapsulation());
            Self { outbox: Outbox::new(share), peers: PathTable::new(0), paths }
        }

        /// Returns the place of a peer.
        fn place(&mut self, to: &str) -> usize {
            let address = to.parse().unwrap();
            let path = self.peers.find(address).unwrap_or_else(|| {
                let raw = RawAddress::encode(address, AddressFamily::V4).unwrap();
                self.peers.insert(address, Peer::new(address, raw), drop)
            });
            self.peers.place(path).unwrap()
        }

        fn push_parts(&mut self, to: &str, priority: u8, body: &Bytes, range: Range<usize>) {
            let priority = Priority::clamped(priority);
            let place = self.place(to);
            let path = self.peers.find(self.peers.address_at(place)).unwrap();
            let packet = Transmit { path, priority, header: &HEADER, body, range };
            self.outbox.push(place, &packet, &mut self.peers, &self.paths);
        }

        fn push(&mut self, to: &str, priority: u8, payload: usize) {
            // Examines the path, as the library does before it sends long messages.
            let address = to.parse().unwrap();
            if let Some(examination) = self.paths.examination(address, Instant::now()) {
                self.paths.examined(examination.run(), Instant::now());
            }
            self.push_parts(to, priority, &Bytes::from(vec![7; payload]), 0..payload);
        }

        fn push_short(&mut self, to: &str, id: u64) -> bool {
            let place = self.place(to);
            let path = self.peers.find(self.peers.address_at(place)).unwrap();
            let header = Header { source_port: 1, dest_port: 2, sender_id: RpcId(id) };
            let message = ShortTransmit {
                path,
                priority: Priority::LOWEST,
                envelope: Envelope { token: Token(7), cutoff_version: 0 },
                header,
                flags: DataFlags::NONE,
                extension: None,
                acks: None,
                body: &Bytes::from_static(&[7; 100]),
            };
            self.outbox.push_short(place, &message, &mut self.peers, &self.paths)
        }

        fn clear(&mut self) {
            self.outbox.clear(&mut self.peers);
        }

        /// Returns the number of segments of each run.
        fn runs(&self) -> Vec<usize> {
            self.outbox.runs(true).map(<[Large]>::len).collect()
        }
    }

    fn queue() -> Queue {
        Queue::new(super::super::config::MAX_DATAGRAM, true)
    }

    #[test]
    fn small_packets_for_one_peer_share_and_one_alone_goes_plain() {
        let mut queue = queue();
        queue.push(PEER, 0, 100);
        assert_eq!(queue.outbox.bundles()[0].content().len(), 156);
        assert!(!queue.outbox.bundles()[0].is_bundle());
        queue.push(PEER, 7, 100);
        queue.push("127.0.0.1:8", 7, 100);
        queue.push(PEER, 3, 100);
        assert_eq!(
            queue.outbox.bundles().len(),
            2,
            "one for each peer; on loopback all priorities together"
        );
        assert_eq!(bundle::packets(queue.outbox.bundles()[0].content()).count(), 3);
        queue.clear();
        assert!(queue.outbox.bundles().is_empty());
        queue.push(PEER, 0, 100);
        assert!(!queue.outbox.bundles()[0].is_bundle(), "nothing is left of the last flush");
    }

    //= docs/wire.md#W53
    #[test]
    fn short_messages_share_a_compact_bundle_beside_packets() {
        let mut queue = Queue::new(1_472, true);
        assert!(!queue.push_short(PEER, 2), "the way of a packet takes over the path");
        queue.push(PEER, 0, 100);
        queue.clear();
        (1..=13).for_each(|number| assert!(queue.push_short(PEER, 2 * number)));
        queue.push(PEER, 0, 100);
        let counts: Vec<_> = queue.outbox.bundles()[..2]
            .iter()
            .map(|bundle| Entries::parse(bundle.content()).unwrap().count())
            .collect();
        assert_eq!(counts, [12, 1]);
        assert!(queue.outbox.bundles().iter().all(|bundle| bundle.content().len() <= 1_472));
        assert_eq!(queue.outbox.bundles().iter().filter(|bundle| bundle.is_bundle()).count(), 2);
        queue.clear();
        assert!(queue.push_short(PEER, 2));
        assert_eq!(queue.outbox.bundles()[0].content().len(), 24 + 12 + 100);
        assert!(!Queue::new(1_472, false).push_short(PEER, 2));
    }

    #[test]
    fn a_full_bundle_is_followed_by_another() {
        let mut queue = Queue::new(1_472, true);
        for _ in 0..20 {
            queue.push(PEER, 0, 100);
        }
        let counts: Vec<_> =
            queue.outbox.bundles().iter().map(|it| bundle::packets(it.content()).count()).collect();
        assert_eq!(counts, [9, 9, 2]);
        assert!(queue.outbox.bundles().iter().all(|bundle| bundle.content().len() <= 1_472));
    }

    #[test]
    fn without_sharing_each_packet_is_alone() {
        let mut queue = Queue::new(1_472, false);
        for _ in 0..3 {
            queue.push(PEER, 0, 100);
        }
        assert_eq!(queue.outbox.bundles().len(), 3);
        assert!(queue.outbox.bundles().iter().all(|bundle| bundle.content().len() == 156));
    }

    #[test]
    fn equal_packets_are_one_run_that_a_shorter_one_ends() {
        let mut queue = queue();
        for payload in [1_416, 1_416, 1_416, 1_400, 1_416, 1_416] {
            queue.push(PEER, 0, payload);
        }
        assert_eq!(queue.runs(), [4, 2]);
        assert_eq!(queue.outbox.runs(false).count(), 6);
    }

    #[test]
    fn a_run_has_one_peer_and_one_priority_and_grows_no_longer() {
        let mut queue = queue();
        queue.push(PEER, 0, 1_400);
        queue.push(PEER, 1, 1_400);
        queue.push("127.0.0.1:8", 1, 1_400);
        queue.push("127.0.0.1:8", 1, 1_401);
        assert_eq!(queue.runs(), [1, 1, 1, 1]);
    }

    #[test]
    fn a_run_has_no_more_bytes_and_segments_than_the_kernel_takes() {
        let mut queue = queue();
        for _ in 0..100 {
            queue.push(PEER, 0, 1_416);
        }
        assert_eq!(queue.runs(), [44, 44, 12]);
        let mut queue = Queue::new(600, true);
        for _ in 0..100 {
            queue.push(PEER, 0, 544);
        }
        assert_eq!(queue.runs(), [64, 36]);
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut queue = queue();
        let mut packets = 0;
        while !queue.outbox.is_full() {
            queue.push(PEER, 0, 60_000);
            packets += 1;
        }
        assert_eq!(packets, BYTES_MAX.div_ceil(60_056));
        queue.clear();
        let mut peers = 0;
        while !queue.outbox.is_full() {
            queue.push(&format!("127.0.0.1:{}", peers + 8), 0, 10);
            peers += 1;
        }
        assert_eq!(peers, DATAGRAMS_MAX);
    }

    #[test]
    fn no_examination_is_wanted_for_a_short_packet() {
        let mut queue = queue();
        queue.push_parts(PEER, 7, &Bytes::new(), 0..0);
        assert!(queue.paths.next_wanted().is_none());
        let body = Bytes::from(vec![7; ANY_PATH - 55]);
        queue.push_parts(PEER, 7, &body, 0..body.len());
        assert_eq!(queue.paths.next_wanted().unwrap().peer(), PEER.parse().unwrap());
    }

    #[test]
    fn the_payload_is_not_copied() {
        let mut queue = queue();
        let body = Bytes::from(vec![7; 10_000]);
        queue.push_parts(PEER, 0, &body, 2_000..9_000);
        assert_eq!(queue.outbox.large()[0].payload().as_ptr(), body[2_000..].as_ptr());
        assert!(!body.is_unique());
        queue.clear();
        assert!(body.is_unique());
    }
}
