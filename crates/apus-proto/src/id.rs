//! RPC ids that no other call to a peer has had: not in this process, not in its earlier lives.
//!
//! An id is, from the top, 41 bits of client incarnation (when the client started, in
//! milliseconds), 22 bits of sequence number counted per peer without gaps, and one bit that tells server
//! from client. Ids must be unique per source address over restarts, because a server knows a client
//! by its address alone, and it must tell a late duplicate of an earlier incarnation from a new
//! request.

use std::time::Duration;

use apus_wire::RpcId;

/// Calls to one peer before the next incarnation begins: 2 to this power.
pub(crate) const SEQUENCE_BITS: u32 = 22;
const INCARNATION_BITS: u32 = 41;
/// 1 January 2020, in milliseconds of the Unix epoch.
const EPOCH_MILLIS: u64 = 1_577_836_800_000;

/// A life of a client, ordered by when it began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Incarnation(u64);

impl Incarnation {
    /// The incarnation that began at this time of the Unix clock.
    pub(crate) fn starting_at(unix_millis: u64) -> Self {
        let millis = unix_millis.saturating_sub(EPOCH_MILLIS);
        Self(millis & ((1 << INCARNATION_BITS) - 1))
    }

    pub(crate) fn of(id: RpcId) -> Self {
        Self(id.0 >> (SEQUENCE_BITS + 1))
    }

    /// No incarnation but the upper bits of a number that a Linux host has counted up from 2: no Apus client started in the
    /// first hours of 2020.
    pub(crate) fn is_counted(self) -> bool {
        self.0 < 1 << 26
    }

    /// The incarnation a client that has run for `age` would have, had it started now.
    pub(crate) fn after(self, age: Duration) -> Self {
        let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.wrapping_add(millis) & ((1 << INCARNATION_BITS) - 1))
    }

    /// The one that follows when the sequence numbers are used up.
    pub(crate) fn next(self) -> Self {
        Self((self.0 + 1) & ((1 << INCARNATION_BITS) - 1))
    }
}

/// The place of `id` among the calls of its incarnation to this peer.
pub(crate) fn sequence(id: RpcId) -> u64 {
    (id.0 >> 1) & ((1 << SEQUENCE_BITS) - 1)
}

/// The ids of the calls to one peer.
#[derive(Debug)]
pub(crate) struct Ids {
    incarnation: Incarnation,
    next_sequence: u64,
}

impl Ids {
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        // Not 0, so that no id is 0, which means "no acknowledgement" in DATA.
        Self { incarnation, next_sequence: 1 }
    }

    /// The client form of the next id. After 2^22 calls the next incarnation begins; at ten million
    /// calls a second that is every 0.4 s, so it never runs ahead of the clock.
    #[inline]
    pub(crate) fn next(&mut self) -> RpcId {
        //= docs/protocol.md#once-4
        if self.next_sequence == 1 << SEQUENCE_BITS {
            *self = Self::new(self.incarnation.next());
        }
        //= docs/protocol.md#life-2
        let id = self.incarnation.0 << (SEQUENCE_BITS + 1) | self.next_sequence << 1;
        self.next_sequence += 1;
        RpcId(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_even_dense_and_ordered_by_start() {
        let mut early = Ids::new(Incarnation::starting_at(EPOCH_MILLIS + 1_000));
        let mut late = Ids::new(Incarnation::starting_at(EPOCH_MILLIS + 2_000));
        let (a, b, c) = (early.next(), early.next(), late.next());
        assert!(a.is_client() && b.0 == a.0 + 2 && c.0 > b.0);
        assert_eq!((sequence(a), sequence(b)), (1, 2));
        assert!(
            Incarnation::of(a) == Incarnation::of(b) && Incarnation::of(c) > Incarnation::of(a)
        );
    }

    #[test]
    fn the_sequence_rolls_over_into_a_later_incarnation() {
        let mut ids = Ids::new(Incarnation::starting_at(EPOCH_MILLIS));
        ids.next_sequence = (1 << SEQUENCE_BITS) - 1;
        let (last, first) = (ids.next(), ids.next());
        assert!(Incarnation::of(first) > Incarnation::of(last));
        assert_eq!(sequence(first), 1);
    }
}
