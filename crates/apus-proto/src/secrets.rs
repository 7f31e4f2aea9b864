//! Numbers that peers must not guess, all derived from one key of the node's run.
//!
//! The key comes from the system's random numbers, so that a token identifies one run: another run has another key, and accepts
//! none of this run's tokens. SipHash-2-4 is a keyed hash whose results reveal nothing about the key; the faster hash of the tables
//! never leaves the process.

use std::hash::{Hash, Hasher};

use apus_wire::{PathId, Token};
use siphasher::sip::SipHasher24;

use crate::time::Time;

/// Purpose of a number, so that one kind is never taken for another.
#[derive(Hash)]
enum Purpose {
    Tables,
    OwnToken,
    OfferedToken,
    Proof,
    Incarnation,
    Version,
    Challenge,
}

#[derive(Debug)]
pub(crate) struct Secrets {
    key: SipHasher24,
    /// Number of numbers drawn so far.
    drawn: u64,
}

impl Secrets {
    pub(crate) fn new(seed: u128) -> Self {
        Self { key: SipHasher24::new_with_key(&seed.to_le_bytes()), drawn: 0 }
    }

    fn hash(&self, purpose: &Purpose, value: impl Hash) -> u64 {
        let mut hasher = self.key;
        purpose.hash(&mut hasher);
        value.hash(&mut hasher);
        hasher.finish()
    }

    fn draw(&mut self, purpose: &Purpose) -> u64 {
        self.drawn += 1;
        self.hash(purpose, self.drawn)
    }

    /// Returns the seed of the hash tables.
    pub(crate) fn tables(&self) -> u64 {
        self.hash(&Purpose::Tables, 0)
    }

    /// Returns a new token, which no peer has.
    pub(crate) fn token(&mut self) -> Token {
        Token(self.draw(&Purpose::OwnToken).max(1))
    }

    /// Returns the token for the peer that names itself by `theirs` in an OPEN. It is the same for each OPEN of one unit of time,
    /// so that no state need be kept until the peer confirms.
    pub(crate) fn offered_token(&self, theirs: Token, issued: u32) -> Token {
        Token(self.hash(&Purpose::OfferedToken, (theirs.0, issued)).max(1))
    }

    /// Returns the proof for this token, which is sent only to this address.
    pub(crate) fn proof(&self, token: Token, path: PathId, issued: u32) -> u64 {
        self.hash(&Purpose::Proof, (token.0, path.name(), issued))
    }

    /// Returns an incarnation for the ids of calls to a peer of a native link.
    pub(crate) fn incarnation(&mut self) -> u64 {
        self.draw(&Purpose::Incarnation)
    }

    /// Returns the first version of the cutoffs.
    pub(crate) fn first_version(&self) -> u16 {
        self.hash(&Purpose::Version, 0) as u16
    }

    /// Returns the number to add to the version for one peer of a native link.
    pub(crate) fn version_salt(&mut self) -> u16 {
        self.draw(&Purpose::Version) as u16
    }

    /// Returns the version that a client of a native link must echo for its `incarnation` to be taken after `begun` others.
    pub(crate) fn challenge(&self, path: PathId, incarnation: u64, begun: u32) -> u16 {
        (self.hash(&Purpose::Challenge, (path.name(), incarnation, begun)) as u16).max(1)
    }
}

/// Binary logarithm of the unit of a TOKEN's age in nanoseconds: about a second.
const ISSUED_SHIFT: u32 = 30;

/// Age in those units beyond which a TOKEN can no longer be confirmed: about ten seconds.
const ISSUED_MAX: u32 = 10;

/// Returns the unit of time that contains `now`.
pub(crate) fn issued_at(now: Time) -> u32 {
    (now.as_nanos() >> ISSUED_SHIFT) as u32
}

/// Returns whether a TOKEN of that time can still be confirmed.
pub(crate) fn is_fresh(now: Time, issued: u32) -> bool {
    //= docs/protocol.md#contact-4
    issued_at(now).wrapping_sub(issued) <= ISSUED_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn runs_share_no_number_and_one_run_repeats_none() {
        let (mut one, mut other) = (Secrets::new(1), Secrets::new(2));
        let drawn: std::collections::BTreeSet<_> =
            (0..1_000).flat_map(|_| [one.token(), other.token()]).collect();
        assert_eq!(drawn.len(), 2_000);
        let from = PathId::new(0, 1);
        let token = one.token();
        assert_eq!(one.offered_token(token, 7), one.offered_token(token, 7));
        assert_ne!(one.offered_token(token, 7), one.offered_token(token, 8));
        assert_ne!(one.offered_token(token, 7), other.offered_token(token, 7));
        assert_eq!(one.proof(token, from, 7), one.proof(token, from, 7));
        let elsewhere = PathId::new(1, 2);
        assert_ne!(one.proof(token, from, 7), one.proof(token, elsewhere, 7));
        assert_ne!(one.proof(token, from, 7), other.proof(token, from, 7));
    }

    #[test]
    fn a_proof_ages() {
        let at = |secs| Time::ZERO + Duration::from_secs(secs);
        let issued = issued_at(at(100));
        assert!(is_fresh(at(100), issued) && is_fresh(at(109), issued));
        assert!(!is_fresh(at(113), issued) && !is_fresh(at(90), issued));
    }
}
