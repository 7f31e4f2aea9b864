//! The records of sealed paths: sealed and opened with the keys that [`keys`](super::keys) installs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use apus_seal::{
    AssociationId, Associations, HEADER_LEN_MAX, Hint, Kept, OVERHEAD, OpenError, SealLimits,
};
use apus_wire::{Data, PathId, Priority};

use super::records::SealedRecords;
use crate::link::LinkCounters;
use crate::sealed::{Cipher, SealEvent};

/// Upper bound on the hints of one receive call.
const HINTS_MAX: usize = 64;

/// Room in front of an opened payload for its header, which stands behind it in the record.
const HEADER_ROOM: usize = 128;

//= docs/wire.md#W45
const _: () = assert!(Data::LEN_MAX <= HEADER_LEN_MAX && HEADER_LEN_MAX <= HEADER_ROOM);

pub(super) struct Sealing {
    /// Whether the link has sealed paths.
    pub(super) is_on: bool,
    pub(super) associations: Associations<Cipher, SocketAddr>,
    /// Time is measured from here.
    pub(super) epoch: Instant,
    /// The time of the last batch.
    pub(super) now: Duration,
    pub(super) events: VecDeque<SealEvent>,
    /// Hints to send, and the addresses that caused them.
    pub(super) hints: Vec<(Hint, SocketAddr)>,
    /// Datagrams that came before their keys, which are there now.
    pub(super) kept: Vec<Kept<SocketAddr>>,
    /// The path of the last record that came from another address than that of its path.
    pub(super) foreign: Option<PathId>,
    /// Memory for the DATA packet that is opened.
    pub(super) packet: Vec<u8>,
}

/// An opened record.
pub(super) struct OpenedRecord<'a> {
    pub(super) origin: Origin,
    /// A packet or a bundle.
    pub(super) content: &'a [u8],
}

/// The origin of an opened record.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) id: AssociationId,
    /// The path; `None` if the record came from another address than that of the path.
    pub(super) home: Option<PathId>,
}

impl Sealing {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            associations: Associations::new(0, SealLimits::default()),
            epoch: Instant::now(),
            now: Duration::ZERO,
            events: VecDeque::new(),
            hints: Vec::new(),
            kept: Vec::new(),
            foreign: None,
            packet: Vec::new(),
        }
    }

    /// Reads the clock, once for a batch.
    #[inline]
    pub(super) fn begin_batch(&mut self) {
        if !self.associations.is_empty() {
            self.now = self.epoch.elapsed();
        }
    }

    /// Writes the counters of sealed paths.
    pub(super) fn count(&self, counters: &mut LinkCounters) {
        let own = self.associations.counters();
        counters.sealed_sent = own.sealed;
        counters.sealed_received = own.opened;
        counters.sealed_malformed = own.dropped_malformed;
        counters.dropped_unknown_keys = own.dropped_unknown_id + own.dropped_epoch;
        counters.dropped_forged = own.dropped_forged;
        counters.dropped_replay = own.dropped_replay;
        counters.replay_too_old = own.replay_too_old;
        counters.dropped_unverified = own.dropped_unverified;
        counters.hints_believed = own.hints_believed;
        counters.hints_ignored += own.hints_ignored;
        counters.key_updates = own.key_updates;
    }

    /// Appends the record of a packet to `records`. `header` is empty for a packet or bundle in one piece. Returns `false` if the path
    /// has no keys; nothing is appended then.
    #[inline]
    pub(super) fn seal(
        &mut self,
        id: AssociationId,
        level: Priority,
        (header, payload): (&[u8], &[u8]),
        records: &mut SealedRecords,
    ) -> bool {
        records.append(OVERHEAD + header.len() + payload.len(), |record| {
            let sealed = self.associations.seal_parts(self.now, id, level, payload, header, record);
            sealed.is_ok()
        })
    }

    /// Opens a received record: a DATA packet into `packet`, anything else in place.
    #[inline]
    pub(super) fn open<'a>(
        &mut self,
        from: SocketAddr,
        datagram: &'a mut [u8],
        packet: &'a mut Vec<u8>,
    ) -> Result<OpenedRecord<'a>, OpenError> {
        let admitted = self.associations.admit(from, datagram)?;
        let home = admitted.path();
        if admitted.header_len() == 0 {
            let opened = admitted.open_in_place(self.now)?;
            let origin = Origin { id: opened.id, home };
            return Ok(OpenedRecord { origin, content: opened.text });
        }
        let end = HEADER_ROOM + admitted.text_len();
        if packet.len() < end {
            packet.resize(end, 0);
        }
        let opened = admitted.open_into(self.now, &mut packet[HEADER_ROOM..])?;
        let (origin, header_len) = (Origin { id: opened.id, home }, opened.header_len);
        let (start, behind) = (HEADER_ROOM - header_len, end - header_len);
        packet.copy_within(behind..end, start);
        Ok(OpenedRecord { origin, content: &packet[start..behind] })
    }

    //= docs/protocol.md#seal-9
    /// Notes that a datagram deserves a hint.
    #[cold]
    pub(super) fn want_hint(&mut self, hint: Hint, to: SocketAddr) {
        if self.hints.len() < HINTS_MAX {
            self.hints.push((hint, to));
        }
    }

    /// Returns whether a hint names the peer's id of an association.
    #[cold]
    pub(super) fn is_about(&self, datagram: &[u8], id: AssociationId) -> bool {
        Hint::parse(datagram).is_ok_and(|hint| self.associations.is_named_by(id, hint))
    }

    /// Takes a hint from the address of a path.
    #[cold]
    pub(super) fn take_hint(&mut self, path: PathId, id: AssociationId, datagram: &[u8]) {
        self.now = self.epoch.elapsed();
        if self.associations.handle_hint(self.now, id, datagram).is_ok() {
            self.events.push_back(SealEvent::Doubted(path));
        }
    }

    /// Reports that a path without keys has packets to send.
    #[cold]
    pub(super) fn want_keys(&mut self, path: PathId) {
        self.events.push_back(SealEvent::Wanted(path));
    }

    #[inline]
    pub(super) fn has_hints(&self) -> bool {
        !self.hints.is_empty()
    }

    #[inline]
    pub(super) fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Returns the datagrams that came before their keys, once.
    pub(super) fn take_kept(&mut self) -> Vec<Kept<SocketAddr>> {
        std::mem::take(&mut self.kept)
    }
}
