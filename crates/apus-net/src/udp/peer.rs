//! What a UDP link keeps ready for each path.

use std::net::{IpAddr, SocketAddr};

use apus_wire::{PathId, Priority};

use super::sender::Sender;
use crate::address::RawAddress;
use crate::path::ANY_PATH;
use crate::path_table::PathTable;
use crate::paths::Paths;
use crate::sys::IpVersion;

/// Packets up to this length, header and payload, are copied into bundles. Near a page's worth of copying costs as much as the
/// kernel's work for one more datagram piece.
const SMALL_MAX: usize = 1_400;

/// The peer at the end of a path.
pub(super) struct Peer {
    pub(super) raw: RawAddress,
    pub(super) loopback: bool,
    pub(super) version: IpVersion,
    /// The address of this machine that the peer called last. A peer that called one address and is answered from another would
    /// not know who answers. Kept when the link is bound to all addresses.
    pub(super) called: Option<IpAddr>,
    /// The address of this machine that the route prefers, if that is known.
    preferred: Option<IpAddr>,
    pub(super) sender: Sender,
    /// Of the paths that what follows was taken from.
    paths_version: u64,
    /// The path is known.
    known: bool,
    /// Longest datagram the path takes.
    pub(super) max: usize,
    /// Longest packet that is copied into a bundle.
    pub(super) small: usize,
    /// The last flush that had something for the peer.
    flush: u64,
    /// Bytes in it.
    queued: usize,
    /// The bundle that takes further packets, by priority: its place in `Outbox::bundles` plus one, or 0.
    open: [u16; 8],
}

/// Gives an address a path, perhaps in the place of one that nobody holds. `senders` counts peers that have a socket of their own.
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

impl Peer {
    pub(super) fn new(address: SocketAddr, raw: RawAddress) -> Self {
        Self {
            raw,
            loopback: raw.is_loopback(),
            version: if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 },
            called: None,
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

    /// Bytes are queued for this flush.
    #[inline]
    pub(super) fn note_queued(&mut self, flush: u64, bytes: usize) {
        if self.flush != flush {
            (self.flush, self.queued) = (flush, 0);
        }
        self.queued += bytes;
    }

    /// What is known of the path is as good as it must be for what is queued.
    #[inline]
    pub(super) fn is_ready(&self, paths: &Paths) -> bool {
        self.paths_version == paths.version() && (self.known || self.queued <= ANY_PATH)
    }

    /// Longest packet that the path takes, if that is known and nothing has changed since.
    #[inline]
    pub(super) fn max_packet(&self, paths: &Paths) -> Option<usize> {
        (self.known && self.paths_version == paths.version()).then_some(self.max)
    }

    /// Takes over what is known of the path. A host to which no more than a few bytes go in a flush is not examined: that takes a
    /// dozen system calls, and anybody can have us answer.
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
        // A packet that would fill more than half a datagram shares with nobody and is better sent as it is, perhaps with
        // others like it as segments.
        self.small = SMALL_MAX.min(self.max / 2);
    }

    /// The bundle of this priority. On loopback nothing looks at priorities, so all share one bundle.
    #[inline]
    pub(super) fn open_bundle(&mut self, priority: Priority) -> &mut u16 {
        let class = if self.loopback { 0 } else { usize::from(priority.get()) };
        &mut self.open[class]
    }

    pub(super) fn close_bundles(&mut self) {
        self.open = [0; 8];
    }

    /// The address to send from, when it is another than the route would choose.
    #[inline]
    pub(super) fn source(&self) -> Option<IpAddr> {
        self.called.filter(|&called| self.preferred != Some(called))
    }
}
