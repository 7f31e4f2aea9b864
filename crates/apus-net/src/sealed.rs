//! Sealed paths, as the driver of handshakes sees them.
//!
//! A link seals and opens datagrams, and knows no certificates. A driver above it runs the handshakes, as ordinary calls over plain
//! paths, and gives the link their keys.

use std::net::SocketAddr;
use std::time::Duration;

use apus_seal::{AssociationId, EndReason, PathSecret, Role, Suite};
use apus_wire::PathId;

/// The cipher of records.
#[cfg(feature = "secure")]
pub(crate) type Cipher = apus_seal::AwsAead;
#[cfg(not(feature = "secure"))]
pub(crate) type Cipher = no_cipher::NoCipher;

/// The keys that a handshake gave to a path.
pub struct PathKeys {
    /// The secret that the two nodes share.
    pub secret: PathSecret,
    /// The role of this node in the handshake.
    pub role: Role,
    /// The suite that the server chose.
    pub suite: Suite,
    /// The id that the peer chose for the datagrams that it receives.
    pub peer_id: AssociationId,
    /// The time after which the keys are used no more.
    pub lifetime: Duration,
    /// Whether the handshake went over the sealed path, whose earlier keys these replace.
    pub is_refresh: bool,
}

/// An event of sealed paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SealEvent {
    /// A packet was to be sent on a path without keys. Reported once until the path has keys.
    Wanted(PathId),
    /// The peer may have lost its keys: a handshake that names its token has to show whether it has.
    Doubted(PathId),
    /// The keys of a path are used no more.
    Ended(PathId, EndReason),
}

/// The sealed paths of a link.
pub trait SealedPaths {
    /// Returns the sealed path to an address, a new one if necessary, or `None` if the link does not reach the address. A new path has
    /// no keys. Packets on it are counted and dropped, and the first one causes [`SealEvent::Wanted`].
    fn resolve_sealed(&mut self, to: SocketAddr) -> Option<PathId>;

    /// Takes an id for a handshake. `random` is drawn anew for each. `None`: too many paths are in use.
    fn reserve_keys(&mut self, random: u64) -> Option<AssociationId>;

    /// Gives keys to a path, and to an id from [`reserve_keys`](Self::reserve_keys). From now on packets on the path are sealed with them. Returns
    /// `false` if the path or the id is forgotten.
    fn install_keys(&mut self, path: PathId, id: AssociationId, keys: PathKeys) -> bool;

    /// Forgets an id and its keys. Nothing is reported.
    fn remove_keys(&mut self, id: AssociationId);

    /// Returns the next event. Ends keys whose time is over.
    fn poll_seal(&mut self) -> Option<SealEvent>;
}

/// The cipher of a build without the feature `secure`, where no path has keys.
#[cfg(not(feature = "secure"))]
mod no_cipher {
    use apus_seal::{Aead, Forged, Nonce, RecordKey, Tag};

    #[derive(Debug)]
    pub(crate) enum NoCipher {}

    impl Aead for NoCipher {
        fn new(_: &RecordKey) -> Self {
            unreachable!("install_keys refuses keys without the feature `secure`")
        }

        fn seal_in_place(&self, _: &Nonce, _: &mut [u8], _: &mut Tag) {
            match *self {}
        }

        fn seal_parts(&self, _: &Nonce, _: &[u8], _: &[u8], _: &mut [u8]) {
            match *self {}
        }

        fn open_in_place(&self, _: &Nonce, _: &mut [u8], _: &Tag) -> Result<(), Forged> {
            match *self {}
        }

        fn open_into(&self, _: &Nonce, _: &[u8], _: &Tag, _: &mut [u8]) -> Result<(), Forged> {
            match *self {}
        }
    }
}
