//! The state of a UDP link for each path.

use std::net::{IpAddr, SocketAddr};

use apus_seal::{AssociationId, OVERHEAD, Successor};
use apus_wire::{PathId, Priority};

use super::sender::Sender;
use crate::address::RawAddress;
use crate::path::ANY_PATH;
use crate::path_table::PathTable;
use crate::paths::Paths;
use crate::sealed::SealedKey;
use crate::sys::IpVersion;

/// Length of the longest packet, header and payload, that is copied into a bundle. Copying almost a page costs as much as the
/// kernel's work for one more piece of a datagram.
const SMALL_MAX: usize = 1_400;

/// The peer of a path.
pub(super) struct Peer {
    pub(super) raw: RawAddress,
    pub(super) loopback: bool,
    pub(super) version: IpVersion,
    /// The local address that the peer called last. A peer must be answered from the address that it called. Kept if the link is
    /// bound to all addresses.
    pub(super) called: Option<IpAddr>,
    /// The local address that the route prefers, if known.
    preferred: Option<IpAddr>,
    pub(super) sender: Sender,
    /// Whether the path is sealed.
    pub(super) is_sealed: bool,
    /// The keys of a sealed path, if it has any.
    pub(super) keys: Option<AssociationId>,
    /// Later keys, which the server of their handshake may not have yet.
    pub(super) next_keys: Option<(AssociationId, Successor)>,
    /// Whether it was reported that a sealed path has no keys.
    pub(super) wants_keys: bool,
    /// Version of the paths from which the following fields were taken.
    paths_version: u64,
    /// Whether the path is known.
    known: bool,
    /// Length of the longest datagram that the path allows.
    pub(super) max: usize,
    /// Length of the longest packet that is copied into a bundle.
    pub(super) small: usize,
    /// Number of the last flush with packets for the peer.
    flush: u64,
    /// Bytes queued in that flush.
    queued: usize,
    /// The bundle that takes further packets, by priority: its index in `Outbox::bundles` plus one, or 0.
    open: [u16; 8],
    /// The compact bundle that takes further entries, in the same way.
    compact: [u16; 8],
}

/// Assigns a path to an address, perhaps in place of an unheld one. `senders` counts peers with a socket of their own.
#[cold]
pub(super) fn add(
    peers: &mut PathTable<Peer>,
    senders: &mut usize,
    address: SocketAddr,
    raw: RawAddress,
) -> PathId {
    peers.insert(address, Peer::new(address, raw), |evicted| {
        *senders -= usize::from(evicted.sender.descriptor().is_some());
    })
}

/// Assigns a sealed path to an address, as [`add`] assigns a plain one.
#[cold]
pub(super) fn add_sealed(
    peers: &mut PathTable<Peer>,
    senders: &mut usize,
    (address, key): (SocketAddr, Option<SealedKey>),
    raw: RawAddress,
) -> PathId {
    let peer = Peer { is_sealed: true, ..Peer::new(address, raw) };
    peers.insert_sealed(address, key, peer, |evicted| {
        *senders -= usize::from(evicted.sender.descriptor().is_some());
    })
}

//= docs/protocol.md#seal-10
/// Assigns another address to the peer of a sealed path, which has these keys.
#[cold]
pub(super) fn add_foreign(
    peers: &mut PathTable<Peer>,
    senders: &mut usize,
    address: SocketAddr,
    raw: RawAddress,
    (home, keys): (PathId, AssociationId),
) -> PathId {
    let peer = Peer { is_sealed: true, keys: Some(keys), ..Peer::new(address, raw) };
    peers.insert_foreign(address, home, peer, |evicted| {
        *senders -= usize::from(evicted.sender.descriptor().is_some());
    })
}

impl Peer {
    pub(super) fn new(address: SocketAddr, raw: RawAddress) -> Self {
        Self {
            raw,
            loopback: raw.is_loopback(),
            version: if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 },
            called: None,
            preferred: None,
            sender: Sender::default(),
            is_sealed: false,
            keys: None,
            next_keys: None,
            wants_keys: false,
            paths_version: u64::MAX,
            known: false,
            max: 0,
            small: 0,
            flush: 0,
            queued: 0,
            open: [0; 8],
            compact: [0; 8],
        }
    }

    /// Records bytes queued for this flush.
    #[inline]
    pub(super) fn note_queued(&mut self, flush: u64, bytes: usize) {
        if self.flush != flush {
            (self.flush, self.queued) = (flush, 0);
        }
        self.queued += bytes;
    }

    /// Returns whether the known properties of the path suffice for the queued bytes.
    #[inline]
    pub(super) fn is_ready(&self, paths: &Paths) -> bool {
        self.paths_version == paths.version() && (self.known || self.queued <= ANY_PATH)
    }

    /// Returns the length of the longest packet on the path, if it is known and unchanged.
    #[inline]
    pub(super) fn max_packet(&self, paths: &Paths) -> Option<usize> {
        (self.known && self.paths_version == paths.version()).then_some(self.max)
    }

    /// Takes over the known properties of the path. A host that gets only a few bytes per flush is not examined: an examination
    /// takes a dozen system calls, and any host can cause answers.
    #[cold]
    pub(super) fn make_ready(&mut self, address: SocketAddr, paths: &Paths) {
        self.paths_version = paths.version();
        let found = paths.peek(address);
        self.known = found.is_some();
        self.max = ANY_PATH;
        if let Some((path, source)) = found {
            self.loopback = path.loopback;
            self.preferred = source;
            self.max = path.max_packet;
        } else if self.queued > ANY_PATH {
            paths.want(address);
        }
        //= docs/wire.md#W46
        self.max -= self.overhead();
        // A packet that would fill more than half a datagram shares it with no other, and is better sent alone, perhaps with equal
        // ones as segments.
        self.small = SMALL_MAX.min(self.max / 2);
    }

    /// Notes that the keys have ended. The next packet asks for others.
    #[cold]
    pub(super) fn lose_keys(&mut self) {
        (self.keys, self.wants_keys) = (None, false);
    }

    /// Returns the bytes that a datagram has in addition to its packets.
    #[inline]
    pub(super) fn overhead(&self) -> usize {
        if self.is_sealed { OVERHEAD } else { 0 }
    }

    /// Returns the bundle of this priority. On loopback, priorities have no effect, so all share one bundle.
    #[inline]
    pub(super) fn open_bundle(&mut self, priority: Priority) -> &mut u16 {
        let class = self.class(priority);
        &mut self.open[class]
    }

    /// Returns the compact bundle of this priority.
    #[inline]
    pub(super) fn open_compact(&mut self, priority: Priority) -> &mut u16 {
        let class = self.class(priority);
        &mut self.compact[class]
    }

    #[inline]
    fn class(&self, priority: Priority) -> usize {
        if self.loopback { 0 } else { usize::from(priority.get()) }
    }

    pub(super) fn close_bundles(&mut self) {
        (self.open, self.compact) = ([0; 8], [0; 8]);
    }

    /// Returns the address to send from, if it differs from the route's choice.
    #[inline]
    pub(super) fn source(&self) -> Option<IpAddr> {
        self.called.filter(|&called| self.preferred != Some(called))
    }
}
