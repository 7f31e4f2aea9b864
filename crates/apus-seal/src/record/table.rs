//! The associations of a shard, found by the ids that it chose.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use apus_wire::{PathId, Priority};

use crate::holes::Hole;
use crate::record::aead::Aead;
use crate::record::association::{
    Association, EndReason, Installation, SealLimits, Shared, Successor,
};
use crate::record::counters::SealCounters;
use crate::record::datagram::{AssociationId, ClearHeader, Hint, OVERHEAD};
use crate::record::error::{HintError, OpenError, SealError};
use crate::record::key_log::LoggedKey;
use crate::record::opened::Admitted;
use crate::schedule::RefreshSalt;

/// Upper bound on the datagrams that are kept for one pending association, and on their bytes.
const KEPT_MAX: usize = 16;
const KEPT_BYTES_MAX: usize = 32 << 10;
/// Upper bound on the bytes that are kept for all pending associations.
const KEPT_BYTES_TOTAL: usize = 1 << 20;

/// Number of associations that one [`handle_timeout`](Associations::handle_timeout) looks at.
const SWEEP_LEN: usize = 256;
/// Time between two sweeps over all associations. Their deadlines are 10 s away and more.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The associations of a shard. `Address` is a source address of datagrams, in the form in which the link compares them.
///
/// A handshake takes an id with [`reserve`](Self::reserve), and then [installs](Self::install) the keys or
/// [removes](Self::remove) the id. Meanwhile datagrams with the id are kept. Time is measured from an epoch of the caller.
pub struct Associations<A, Address> {
    shard: u8,
    places: Vec<Place<A, Address>>,
    free: Vec<usize>,
    shared: Shared,
    /// The place at which the sweep goes on.
    cursor: usize,
    ended: VecDeque<EndedAssociation>,
}

enum Place<A, Address> {
    Free,
    Pending(Box<Pending<Address>>),
    Active(Box<Association<A, Address>>),
}

/// An association whose handshake is not complete.
struct Pending<Address> {
    id: AssociationId,
    kept: Vec<Kept<Address>>,
    bytes: usize,
}

/// A datagram that arrived before its keys.
#[derive(Debug)]
pub struct Kept<Address> {
    /// The address from which it came.
    pub from: Address,
    /// The datagram, for [`Associations::admit`].
    pub datagram: Vec<u8>,
}

/// An association that has ended by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct EndedAssociation {
    /// Its id, which is never used again.
    pub id: AssociationId,
    /// Its path.
    pub path: PathId,
    /// The reason.
    pub reason: EndReason,
}

impl<A: Aead, Address: Copy + PartialEq> Associations<A, Address> {
    /// Creates an empty table.
    ///
    /// # Panics
    ///
    /// If `shard` is above 63.
    #[must_use]
    pub fn new(shard: u8, limits: SealLimits) -> Self {
        assert!(shard < 64, "an id has 6 bits for the shard");
        Self {
            shard,
            places: Vec::new(),
            free: Vec::new(),
            shared: Shared {
                limits,
                counters: SealCounters::default(),
                sweep_at: Duration::MAX,
                earliest: Duration::MAX,
                kept_bytes: 0,
                key_log: None,
            },
            cursor: 0,
            ended: VecDeque::new(),
        }
    }

    /// Takes an id for a handshake. The caller draws the random number, of which 38 bits count, anew for each id.
    ///
    /// If the table is full, the association that has been idle for the longest time is replaced. Returns `None` if no
    /// association is idle.
    #[must_use]
    pub fn reserve(&mut self, random: u64) -> Option<AssociationId> {
        let limit = self.shared.limits.associations.min(AssociationId::INDEX_END);
        if self.len() >= limit {
            let idle = self.places.iter().filter_map(Place::idle).min_by_key(|(since, _)| *since);
            self.report_end(idle?.1, EndReason::Replaced);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::Free);
            self.places.len() - 1
        });
        let id = AssociationId::new(self.shard, index, random);
        self.places[index] = Place::Pending(Box::new(Pending { id, kept: Vec::new(), bytes: 0 }));
        Some(id)
    }

    /// Gives its keys to an id that [`reserve`](Self::reserve) returned. Returns the datagrams that were kept for it, which the
    /// caller admits now; `None` if the id was removed or has its keys.
    pub fn install(
        &mut self,
        now: Duration,
        id: AssociationId,
        new: Installation<Address>,
    ) -> Option<Vec<Kept<Address>>> {
        let place = self.places.get_mut(id.index())?;
        let Place::Pending(pending) = place else { return None };
        if pending.id != id {
            return None;
        }
        self.shared.kept_bytes -= pending.bytes;
        let kept = mem::take(&mut pending.kept);
        let association = Association::new(now, id, new, &self.shared.limits);
        self.shared.schedule(association.due());
        *place = Place::Active(Box::new(association));
        Some(kept)
    }

    /// Ends an association, pending or not, without a report. Returns whether there was one.
    pub fn remove(&mut self, id: AssociationId) -> bool {
        let Some(place) = self.places.get_mut(id.index()).filter(|place| place.id() == Some(id))
        else {
            return false;
        };
        if let Place::Pending(pending) = mem::replace(place, Place::Free) {
            self.shared.kept_bytes -= pending.bytes;
        }
        self.free.push(id.index());
        true
    }

    //= docs/protocol.md#seal-12
    /// Seals a packet or a bundle in place. `datagram` begins with [`CLEAR_LEN`](crate::CLEAR_LEN) bytes and ends with
    /// [`TAG_LEN`](crate::TAG_LEN) bytes that this function writes.
    ///
    /// # Errors
    ///
    /// If the association has no keys.
    ///
    /// # Panics
    ///
    /// If `datagram` is shorter than [`OVERHEAD`].
    #[inline]
    pub fn seal_in_place(
        &mut self,
        now: Duration,
        id: AssociationId,
        level: Priority,
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        let (association, shared) = self.active(id).ok_or(SealError::NoKeys)?;
        let (clear, key) = association.next(now, level, 0, datagram.len(), shared)?;
        let (text, tag) = write_clear(datagram, clear).split_last_chunk_mut().expect(ROOM);
        key.aead.seal_in_place(&clear.nonce(key.iv), text, tag);
        Ok(())
    }

    //= docs/wire.md#W45
    /// Seals a DATA packet, given in two parts, into `datagram`, whose length is [`OVERHEAD`] more than that of the parts.
    /// `header` has at most [`HEADER_LEN_MAX`](crate::HEADER_LEN_MAX) bytes.
    ///
    /// # Errors
    ///
    /// If the association has no keys.
    ///
    /// # Panics
    ///
    /// If `datagram` has another length.
    #[inline]
    pub fn seal_parts(
        &mut self,
        now: Duration,
        id: AssociationId,
        level: Priority,
        payload: &[u8],
        header: &[u8],
        datagram: &mut [u8],
    ) -> Result<(), SealError> {
        assert_eq!(datagram.len(), OVERHEAD + payload.len() + header.len());
        let (association, shared) = self.active(id).ok_or(SealError::NoKeys)?;
        let (clear, key) = association.next(now, level, header.len(), datagram.len(), shared)?;
        let sealed = write_clear(datagram, clear);
        key.aead.seal_parts(&clear.nonce(key.iv), payload, header, sealed);
        Ok(())
    }

    /// Reads the clear bytes of a datagram, finds its keys and tests its number.
    ///
    /// # Errors
    ///
    /// All of [`OpenError`] but `Forged` and `UnknownEpoch`.
    #[inline(always)]
    pub fn admit<'t, 'd>(
        &'t mut self,
        from: Address,
        datagram: &'d mut [u8],
    ) -> Result<Admitted<'t, 'd, A, Address>, OpenError> {
        let shared = &mut self.shared;
        let clear = match ClearHeader::parse(datagram) {
            Ok(clear) => clear,
            Err(error) => {
                shared.counters.dropped_malformed += 1;
                return Err(error.into());
            }
        };
        let association = match self.places.get_mut(clear.id.index()) {
            Some(Place::Active(association)) if association.id == clear.id => association,
            Some(Place::Pending(pending)) if pending.id == clear.id => {
                return Err(pending.keep(from, datagram, shared));
            }
            _ => {
                shared.counters.dropped_unknown_id += 1;
                return Err(OpenError::UnknownId(clear.hint()));
            }
        };
        let is_home = association.address == from;
        association.check(clear, is_home || shared.limits.has(Hole::OneWindow), shared)?;
        Ok(Admitted { association, shared, clear, is_home, datagram })
    }

    /// Takes a hint that came from the address of an association's path. `Ok` puts the path in doubt: a handshake has to show
    /// whether the peer still has its keys. The association stays as it is.
    ///
    /// # Errors
    ///
    /// If the hint is ignored.
    pub fn handle_hint(
        &mut self,
        now: Duration,
        id: AssociationId,
        datagram: &[u8],
    ) -> Result<(), HintError> {
        let result = Hint::parse(datagram).map_err(HintError::from).and_then(|hint| {
            let (association, _) = self.active(id).ok_or(HintError::WrongId)?;
            association.handle_hint(now, hint)
        });
        if result.is_ok() && self.shared.limits.has(Hole::HintEvicts) {
            self.remove(id);
        }
        match result {
            Ok(()) => self.shared.counters.hints_believed += 1,
            Err(_) => self.shared.counters.hints_ignored += 1,
        }
        result
    }

    /// Has the next datagram of a lane take the number of the last one, as a hole (seal-13).
    #[cfg(feature = "holes")]
    pub fn step_back(&mut self, id: AssociationId, level: Priority, header_len: usize) {
        if let Some((association, _)) = self.active(id) {
            association.step_back(level, header_len);
        }
    }

    /// Notes that the peer has its keys, because it has answered the last message of the handshake.
    pub fn confirm(&mut self, id: AssociationId) {
        if let Some((association, _)) = self.active(id) {
            association.is_confirmed = true;
        }
    }

    /// Notes that a later handshake gave the path of this association another one, by which this node sends now. The old one
    /// opens datagrams for a time: 10 s after a refresh, and until 10 minutes without a datagram after a crossing handshake.
    pub fn supersede(&mut self, now: Duration, id: AssociationId, by: Successor) {
        if let Some((association, shared)) = self.active(id) {
            association.supersede(now, by, shared);
        }
    }

    //= docs/protocol.md#seal-10
    /// Notes that the peer has moved.
    pub fn move_to(&mut self, id: AssociationId, path: PathId, address: Address) {
        if let Some((association, _)) = self.active(id) {
            association.path = path;
            association.address = address;
        }
    }

    //= docs/protocol.md#seal-9
    /// Returns whether a hint names the peer's id of an association.
    #[must_use]
    pub fn is_named_by(&self, id: AssociationId, hint: Hint) -> bool {
        self.find(id).is_some_and(|association| association.is_named_by(hint))
    }

    /// Returns the path of an association; `None` if it is pending or has ended.
    #[must_use]
    pub fn path(&self, id: AssociationId) -> Option<PathId> {
        self.find(id).map(|association| association.path)
    }

    /// Returns the active associations of a path, earlier ones included. Looks at all.
    #[must_use]
    pub fn of_path(&self, path: PathId) -> Vec<AssociationId> {
        let of_place = |place: &Place<A, Address>| match place {
            Place::Active(association) if association.path == path => Some(association.id),
            _ => None,
        };
        self.places.iter().filter_map(of_place).collect()
    }

    /// Returns the part of the association's secret that the next handshake over its path needs.
    #[must_use]
    pub fn refresh_salt(&self, id: AssociationId) -> Option<&RefreshSalt> {
        self.find(id).map(|association| &association.salt)
    }

    /// Returns the number of associations, pending ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns whether there is no association.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &SealCounters {
        &self.shared.counters
    }

    /// Returns the next association that has ended by itself.
    pub fn poll_ended(&mut self) -> Option<EndedAssociation> {
        self.ended.pop_front()
    }

    /// Has each key reported by [`poll_logged_key`](Self::poll_logged_key) from now on, once it has sealed or opened a datagram.
    pub fn log_keys(&mut self) {
        self.shared.key_log.get_or_insert_default();
    }

    /// Returns the next key for the key log.
    pub fn poll_logged_key(&mut self) -> Option<LoggedKey> {
        self.shared.key_log.as_mut()?.pop_front()
    }

    /// Returns whether [`poll_logged_key`](Self::poll_logged_key) has a key.
    #[inline]
    #[must_use]
    pub fn has_logged_keys(&self) -> bool {
        self.shared.key_log.as_ref().is_some_and(|keys| !keys.is_empty())
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        (self.shared.sweep_at != Duration::MAX).then_some(self.shared.sweep_at)
    }

    /// Does the work that is due: updates keys, shrinks idle associations and ends old ones. One call looks at 256 associations
    /// at most; if more are left, the next call is due at once.
    pub fn handle_timeout(&mut self, now: Duration) {
        if now < self.shared.sweep_at {
            return;
        }
        if self.cursor == 0 {
            self.shared.earliest = Duration::MAX;
        }
        let end = self.places.len().min(self.cursor + SWEEP_LEN);
        for index in self.cursor..end {
            let Place::Active(association) = &mut self.places[index] else { continue };
            let id = association.id;
            match association.handle_timeout(now, &mut self.shared) {
                Some(reason) => self.report_end(id, reason),
                None => self.shared.earliest = self.shared.earliest.min(association.due()),
            }
        }
        self.cursor = end;
        if end == self.places.len() {
            self.cursor = 0;
            self.shared.sweep_at = self.shared.earliest.max(now + SWEEP_INTERVAL);
        }
    }

    /// Removes an active association and reports that.
    fn report_end(&mut self, id: AssociationId, reason: EndReason) {
        if let Some(path) = self.path(id) {
            self.remove(id);
            self.ended.push_back(EndedAssociation { id, path, reason });
        }
    }

    fn find(&self, id: AssociationId) -> Option<&Association<A, Address>> {
        match self.places.get(id.index()) {
            Some(Place::Active(association)) if association.id == id => Some(association),
            _ => None,
        }
    }

    #[inline]
    fn active(&mut self, id: AssociationId) -> Option<(&mut Association<A, Address>, &mut Shared)> {
        match self.places.get_mut(id.index()) {
            Some(Place::Active(association)) if association.id == id => {
                Some((association, &mut self.shared))
            }
            _ => None,
        }
    }
}

impl<A: Aead, Address> Place<A, Address> {
    fn id(&self) -> Option<AssociationId> {
        match self {
            Self::Free => None,
            Self::Pending(pending) => Some(pending.id),
            Self::Active(association) => Some(association.id),
        }
    }

    /// Returns an idle association, and the time since which it is idle.
    fn idle(&self) -> Option<(Duration, AssociationId)> {
        let Self::Active(association) = self else { return None };
        association.idle_since().map(|since| (since, association.id))
    }
}

impl<Address> Pending<Address> {
    //= docs/protocol.md#seal-2
    /// Keeps a datagram, if there is room.
    #[cold]
    fn keep(&mut self, from: Address, datagram: &[u8], shared: &mut Shared) -> OpenError {
        let len = datagram.len();
        let has_room = self.kept.len() < KEPT_MAX
            && self.bytes + len <= KEPT_BYTES_MAX
            && shared.kept_bytes + len <= KEPT_BYTES_TOTAL;
        if !has_room {
            shared.counters.dropped_unverified += 1;
            return OpenError::Unverified;
        }
        self.bytes += len;
        shared.kept_bytes += len;
        shared.counters.kept += 1;
        self.kept.push(Kept { from, datagram: datagram.to_vec() });
        OpenError::Kept
    }
}

/// Writes the clear header to the beginning of a datagram. Returns the bytes after it.
#[inline]
fn write_clear(datagram: &mut [u8], clear: ClearHeader) -> &mut [u8] {
    let (begin, rest) = datagram.split_first_chunk_mut().expect(ROOM);
    *begin = clear.emit();
    rest
}

const ROOM: &str = "a datagram has room for the clear header and the tag";
