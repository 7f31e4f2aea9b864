//! The direction in which this node sends: its key and its numbers.

use apus_wire::Priority;

use crate::record::datagram::{AssociationId, ClearHeader, Hint, LANES, Number};
use crate::record::key::EpochKey;
use crate::record::key_log::LoggedKey;
use crate::{Aead, DirectionSecret, Suite};

/// A datagram counts as at least this many bytes. So the limit of 2^37 bytes is also one of 2^27 datagrams.
const CHARGE_MIN: u64 = 1024;

//= docs/protocol.md#seal-9
/// A hint counts if the number that it copies is among this many last ones of its lane.
const RECENT: u64 = 1 << 16;

/// Neither more bytes nor an update of the key are allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exhausted;

pub(crate) struct Sending<A> {
    peer_id: AssociationId,
    suite: Suite,
    epoch: u32,
    secret: DirectionSecret,
    /// The key of the epoch; absent until the epoch's first datagram, and while the path is idle.
    key: Option<EpochKey<A>>,
    /// Whether the key of the epoch is in the key log.
    is_logged: bool,
    /// The last number of each lane.
    numbers: [Number; LANES],
    /// Bytes that the key may still seal.
    credit: u64,
    /// Bytes that a key may seal before an update. A second time as many are allowed while an update is not.
    key_bytes: u64,
    is_overdrawn: bool,
    /// Whether a datagram of the peer was opened since the last update.
    pub(crate) is_answered: bool,
}

impl<A: Aead> Sending<A> {
    pub(crate) fn new(
        peer_id: AssociationId,
        suite: Suite,
        secret: DirectionSecret,
        key_bytes: u64,
    ) -> Self {
        Self {
            peer_id,
            suite,
            epoch: 0,
            secret,
            key: None,
            is_logged: false,
            numbers: std::array::from_fn(Number::before_first),
            credit: key_bytes,
            key_bytes,
            is_overdrawn: false,
            is_answered: false,
        }
    }

    /// Returns whether [`next`](Self::next) may follow for a datagram of this length. If not, [`renew`](Self::renew) comes first.
    #[inline]
    pub(crate) fn is_ready(&self, len: usize) -> bool {
        self.key.is_some() && self.credit >= charge(len)
    }

    //= docs/protocol.md#seal-13
    /// Takes the next number of the lane. Returns the clear header of the datagram with this number, and its key.
    #[inline]
    pub(crate) fn next(
        &mut self,
        level: Priority,
        header_len: usize,
        len: usize,
    ) -> (ClearHeader, &EpochKey<A>) {
        let key = self.key.as_ref().expect("the key was found ready or renewed");
        self.credit = self.credit.saturating_sub(charge(len));
        let number = &mut self.numbers[Number::lane_of(level, header_len != 0)];
        *number = number.next();
        (ClearHeader::new(self.epoch, header_len, self.peer_id, *number), key)
    }

    /// Makes the key ready for a datagram of this length. Returns whether that took an update.
    #[cold]
    pub(crate) fn renew(&mut self, len: usize) -> Result<bool, Exhausted> {
        let mut is_updated = false;
        if self.credit < charge(len) {
            is_updated = self.update();
            if !is_updated && self.is_overdrawn {
                return Err(Exhausted);
            }
            if !is_updated {
                self.is_overdrawn = true;
                self.credit += self.key_bytes;
            }
        }
        self.key.get_or_insert_with(|| EpochKey::new(&self.secret, self.suite));
        Ok(is_updated)
    }

    /// Returns whether the key has sealed anything.
    pub(crate) fn is_key_used(&self) -> bool {
        self.is_overdrawn || self.credit != self.key_bytes
    }

    //= docs/protocol.md#seal-15
    /// Goes to the next epoch, if the peer was received in this one.
    pub(crate) fn update(&mut self) -> bool {
        if !self.is_answered {
            return false;
        }
        self.epoch += 1;
        self.secret = self.secret.next();
        self.key = None;
        self.is_logged = false;
        self.credit = self.key_bytes;
        self.is_overdrawn = false;
        self.is_answered = false;
        true
    }

    /// Begins all lanes again, as a hole ([`Hole::ResetNumbers`](crate::holes::Hole)).
    #[cold]
    pub(crate) fn reset_numbers(&mut self) {
        self.numbers = std::array::from_fn(Number::before_first);
    }

    /// Takes the last number of a lane again, as a hole.
    #[cfg(feature = "holes")]
    pub(crate) fn step_back(&mut self, level: Priority, header_len: usize) {
        let number = &mut self.numbers[Number::lane_of(level, header_len != 0)];
        *number = number.before();
    }

    /// Returns the key of the epoch for the key log, once.
    #[cold]
    pub(crate) fn take_key_to_log(&mut self) -> Option<LoggedKey> {
        let is_logged = std::mem::replace(&mut self.is_logged, true);
        let key = || self.secret.record_key(self.suite);
        (!is_logged).then(|| LoggedKey { id: self.peer_id, epoch: self.epoch, key: key() })
    }

    /// Gives up the expanded key.
    pub(crate) fn shrink(&mut self) {
        self.key = None;
    }

    /// Returns whether a hint names the peer's side of this path.
    pub(crate) fn is_named_by(&self, hint: Hint) -> bool {
        hint.id == self.peer_id
    }

    /// Returns whether a hint names one of the last numbers of its lane.
    pub(crate) fn is_recent(&self, hint: Hint) -> bool {
        let last = self.numbers[hint.number.lane()].counter();
        last.checked_sub(hint.number.counter()).is_some_and(|age| age < RECENT)
    }
}

#[inline]
const fn charge(len: usize) -> u64 {
    let len = len as u64;
    if len < CHARGE_MIN { CHARGE_MIN } else { len }
}
