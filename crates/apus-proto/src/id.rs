//! RPC ids, unique among the calls to a peer.
//!
//! Over UDP, the server's token and the id identify a call, so ids only count: from 1 for each token. On a native link there are no
//! tokens, and a server knows a client by its address alone. There, an id has, from the top, 41 bits of *incarnation*, 22 bits of
//! sequence number, counted per peer without gaps, and one bit that distinguishes server from client. An incarnation is a random
//! number, drawn for each peer and each time that the peer becomes known.

use apus_wire::RpcId;

/// Binary logarithm of the number of calls to one peer of a native link in one incarnation.
pub(crate) const SEQUENCE_BITS: u32 = 22;
const INCARNATION_BITS: u32 = 41;

/// Upper bound on the incarnation bits of ids that a Linux host has counted up from 2: reaching it takes 2^48 calls.
const COUNTED: u64 = 1 << 26;

/// A run of a client at an address of a native link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Incarnation(u64);

impl Incarnation {
    /// Derives an incarnation from a random number.
    pub(crate) fn from_random(number: u64) -> Self {
        //= docs/protocol.md#life-2
        let top = 1 << (INCARNATION_BITS - 1);
        Self(number & (top - 1) | top)
    }

    pub(crate) fn of(id: RpcId) -> Self {
        Self(id.0 >> (SEQUENCE_BITS + 1))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns whether this is not an incarnation but the upper bits of an id that a Linux host has counted.
    pub(crate) fn is_counted(self) -> bool {
        self.0 < COUNTED
    }

    /// Returns the incarnation that follows once the sequence numbers are used up.
    pub(crate) fn next(self) -> Self {
        Self::from_random(self.0 + 1)
    }
}

/// Returns the sequence number of `id` among the calls of its incarnation to this peer.
pub(crate) fn sequence(id: RpcId) -> u64 {
    (id.0 >> 1) & ((1 << SEQUENCE_BITS) - 1)
}

/// The ids of the calls to one peer.
#[derive(Debug)]
pub(crate) struct Ids {
    /// `None`: the peer gave a token, and ids only count.
    incarnation: Option<Incarnation>,
    next_sequence: u64,
}

impl Ids {
    /// Ids of calls to a peer that is known by its token.
    pub(crate) fn counted() -> Self {
        // 0 is skipped: an id of 0 means "no acknowledgement" in DATA.
        Self { incarnation: None, next_sequence: 1 }
    }

    /// Ids of calls to a peer of a native link.
    pub(crate) fn of_incarnation(incarnation: Incarnation) -> Self {
        Self { incarnation: Some(incarnation), next_sequence: 1 }
    }

    /// Returns the client form of the next id of a peer that is known by its token, without using it.
    #[inline]
    pub(crate) fn next_counted(&self) -> Option<RpcId> {
        if self.incarnation.is_some() { None } else { Some(RpcId(self.next_sequence << 1)) }
    }

    /// Returns the client form of the next id.
    #[inline]
    pub(crate) fn next(&mut self) -> RpcId {
        let Some(incarnation) = self.incarnation else {
            let id = RpcId(self.next_sequence << 1);
            self.next_sequence += 1;
            return id;
        };
        //= docs/protocol.md#once-4
        if self.next_sequence == 1 << SEQUENCE_BITS {
            *self = Self::of_incarnation(incarnation.next());
            return self.next();
        }
        //= docs/protocol.md#life-2
        let id = incarnation.0 << (SEQUENCE_BITS + 1) | self.next_sequence << 1;
        self.next_sequence += 1;
        RpcId(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_even_and_dense() {
        for mut ids in [Ids::counted(), Ids::of_incarnation(Incarnation::from_random(7))] {
            let (a, b) = (ids.next(), ids.next());
            assert!(a.is_client() && b.0 == a.0 + 2);
            assert_eq!((sequence(a), sequence(b)), (1, 2));
            assert_eq!(Incarnation::of(a), Incarnation::of(b));
        }
        assert_eq!(Ids::counted().next(), RpcId(2));
    }

    #[test]
    fn no_incarnation_is_what_a_linux_host_counts_to() {
        for number in [0, 1, u64::MAX] {
            assert!(!Incarnation::from_random(number).is_counted());
            assert!(!Incarnation::from_random(number).next().is_counted());
        }
        assert!(Incarnation::of(RpcId(2)).is_counted());
    }

    #[test]
    fn the_sequence_rolls_over_into_the_next_incarnation() {
        let incarnation = Incarnation::from_random(9);
        let mut ids = Ids::of_incarnation(incarnation);
        ids.next_sequence = (1 << SEQUENCE_BITS) - 1;
        let (last, first) = (ids.next(), ids.next());
        assert_eq!(
            (Incarnation::of(last), Incarnation::of(first)),
            (incarnation, incarnation.next())
        );
        assert_eq!(sequence(first), 1);
    }
}
