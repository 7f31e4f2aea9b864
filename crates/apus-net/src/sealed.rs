//! Sealed paths, as the driver of handshakes sees them.
//!
//! A link seals and opens datagrams, and knows no certificates. A driver above it runs the handshakes, as ordinary calls over plain
//! paths, and gives the link their keys.

use std::net::SocketAddr;
use std::time::Duration;

use apus_seal::{AssociationId, EndReason, LoggedKey, PathSecret, RefreshSalt, Role, Suite};
use apus_wire::PathId;

/// The cipher of records.
#[cfg(feature = "secure")]
pub(crate) type Cipher = apus_seal::AwsAead;
#[cfg(not(feature = "secure"))]
pub(crate) type Cipher = no_cipher::NoCipher;

//= docs/protocol.md#seal-18
/// The choice among the sealed paths to an address. The default is the path of a node with one identity to one with one identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SealedKey {
    /// The number of this node's identity.
    pub local: u8,
    /// The Homa port of the peer that the path is for alone; 0 if the peer has one identity for all its ports, or if that is not known
    /// yet.
    pub port: u16,
}

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
    /// The peer of the first path, which has keys, receives by the second path now, and the keys belong to that one.
    Moved(PathId, PathId),
}

/// The sealed paths of a link.
///
/// A path with keys is held until its keys end.
pub trait SealedPaths {
    /// Returns a sealed path to an address, a new one if necessary, or `None` if the link does not reach the address. A new path has
    /// no keys. Packets on it are counted and dropped, and the first one causes [`SealEvent::Wanted`].
    fn resolve_sealed(&mut self, to: SocketAddr, key: SealedKey) -> Option<PathId>;

    //= docs/protocol.md#seal-5
    /// Returns a new sealed path to an address at which another peer answers. An earlier path with this choice is no longer found by the
    /// address. Without a choice, the new path is not found by it either.
    fn renew_sealed(&mut self, to: SocketAddr, key: Option<SealedKey>) -> Option<PathId>;

    /// Returns the choice by which a path is found; `None` if it is not found by its address.
    fn sealed_key(&self, path: PathId) -> Option<SealedKey>;

    //= docs/protocol.md#seal-18
    /// Has a path that is found by its address be found by another choice.
    fn set_sealed_key(&mut self, path: PathId, key: SealedKey);

    /// Takes an id for a handshake. `random` is drawn anew for each. `None`: too many paths are in use.
    fn reserve_keys(&mut self, random: u64) -> Option<AssociationId>;

    /// Gives keys to a path, and to an id from [`reserve_keys`](Self::reserve_keys). From now on packets on the path are opened with them, and sealed
    /// with them unless this node is the client of the handshake and the path has keys: these seal until
    /// [`confirm_keys`](Self::confirm_keys), because the server has the new ones later. Returns `false` if the path or the id is forgotten.
    fn install_keys(&mut self, path: PathId, id: AssociationId, keys: PathKeys) -> bool;

    //= docs/protocol.md#seal-2
    /// Notes that the server of a handshake has its keys. From now on packets on the path are sealed with them.
    fn confirm_keys(&mut self, id: AssociationId);

    /// Forgets an id and its keys. Nothing is reported.
    fn remove_keys(&mut self, id: AssociationId);

    //= docs/protocol.md#seal-11
    /// Ends all keys of a path. Nothing is reported.
    fn end_keys(&mut self, path: PathId);

    /// Makes the next packet on a path without keys cause [`SealEvent::Wanted`] again.
    fn forget_want(&mut self, path: PathId);

    //= docs/protocol.md#seal-7
    /// Returns the part of a path's secret that a refresh of the path needs; `None` if the path has no keys.
    fn refresh_salt(&self, path: PathId) -> Option<RefreshSalt>;

    //= docs/protocol.md#seal-7
    /// Returns these parts of all secrets of a path, earlier ones included: the peer may refresh any of them.
    fn refresh_salts(&self, path: PathId) -> Vec<RefreshSalt>;

    /// Returns the sealed paths that are found by an address.
    fn sealed_at(&self, address: SocketAddr) -> Vec<PathId>;

    /// Has each key reported by [`poll_logged_key`](Self::poll_logged_key) from now on, once it is used.
    fn log_keys(&mut self);

    /// Returns the next key for the key log.
    fn poll_logged_key(&mut self) -> Option<LoggedKey>;

    /// Returns whether [`poll_seal`](Self::poll_seal) has an event that sending or receiving has caused, or
    /// [`poll_logged_key`](Self::poll_logged_key) a key.
    fn has_seal_events(&self) -> bool;

    /// Returns the next event. Ends keys whose time is over.
    fn poll_seal(&mut self) -> Option<SealEvent>;

    /// Returns the time until keys may end in [`poll_seal`](Self::poll_seal); `None` if no path has keys.
    fn seal_due_in(&self) -> Option<Duration>;
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
