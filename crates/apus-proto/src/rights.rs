//! Rights of the nodes at the ends of paths (rule `seal-6` of docs/protocol.md).
//!
//! A node with an identity has rules: of the peers that may call a service, and of the peers that a client may call. The driver
//! compares the identity of a peer with each rule once, and reports the results as two sets of bits. The core tests one bit for each
//! request and each call.

use std::collections::BTreeMap;

use apus_wire::{PathId, UnknownReason};

/// Rights of the node at the end of a path. Bit r of a set stands for rule r, 0 to 63 ([`Endpoint::set_rule`]).
///
/// [`Endpoint::set_rule`]: crate::Endpoint::set_rule
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights {
    /// Rules of the sockets to which the node may send requests.
    pub requests: u64,
    /// Rules of the sockets that may call the node.
    pub calls: u64,
}

impl Rights {
    /// Every right. All paths have it at the beginning.
    pub const ALL: Self = Self { requests: u64::MAX, calls: u64::MAX };
    /// No right.
    pub const NONE: Self = Self { requests: 0, calls: 0 };
}

/// The kinds of paths, by what a link knows of the node at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathKind {
    /// Packets over UDP that are not encrypted.
    Plain,
    /// A native link ([`PathId::is_native`]).
    Native,
    /// Sealed packets ([`PathId::is_sealed`]).
    Sealed,
    /// Messages within the host ([`PathId::is_local`]).
    Local,
}

impl PathKind {
    /// Returns the kind of a path.
    #[must_use]
    pub const fn of(path: PathId) -> Self {
        if path.is_local() {
            Self::Local
        } else if path.is_sealed() {
            Self::Sealed
        } else if path.is_native() {
            Self::Native
        } else {
            Self::Plain
        }
    }

    /// Returns the reason for refusing a request by such a path for want of a right.
    pub(crate) const fn refusal(self) -> UnknownReason {
        match self {
            Self::Plain => UnknownReason::SealedOnly,
            Self::Native | Self::Sealed | Self::Local => UnknownReason::NotAllowed,
        }
    }

    /// Returns the reason for refusing a first contact by such a path for want of a right.
    pub(crate) const fn contact_refusal(self) -> UnknownReason {
        match self {
            Self::Plain => UnknownReason::ContactSealedOnly,
            Self::Native | Self::Sealed | Self::Local => UnknownReason::ContactNotAllowed,
        }
    }
}

/// The rights of all paths. A peer has a copy of its own.
#[derive(Debug)]
pub(crate) struct PathRights {
    /// Rights of paths without own ones, by kind.
    defaults: [Rights; 4],
    own: BTreeMap<PathId, Rights>,
}

impl Default for PathRights {
    fn default() -> Self {
        Self { defaults: [Rights::ALL; 4], own: BTreeMap::new() }
    }
}

impl PathRights {
    pub(crate) fn set_default(&mut self, kind: PathKind, rights: Rights) {
        self.defaults[kind as usize] = rights;
    }

    pub(crate) fn set(&mut self, path: PathId, rights: Rights) {
        self.own.insert(path, rights);
    }

    /// Removes the own rights of a path.
    pub(crate) fn remove(&mut self, path: PathId) {
        self.own.remove(&path);
    }

    pub(crate) fn of(&self, path: PathId) -> Rights {
        //= docs/protocol.md#seal-17
        if path.is_barred() {
            return Rights::NONE;
        }
        let default = self.defaults[PathKind::of(path) as usize];
        self.own.get(&path).copied().unwrap_or(default)
    }

    /// Returns whether the rights of a path were set, or are those of every path of its kind. A sealed path gets its rights when the
    /// identity of its peer is known.
    pub(crate) fn are_known(&self, path: PathId) -> bool {
        !path.is_sealed() || self.own.contains_key(&path)
    }

    /// Gives a path the own rights of another one, because its peer moves there.
    pub(crate) fn follow(&mut self, before: PathId, path: PathId) {
        if let Some(&rights) = self.own.get(&before) {
            self.own.entry(path).or_insert(rights);
        }
    }
}
