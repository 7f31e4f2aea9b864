//! Paths, which the core knows in place of addresses.

use std::fmt;

/// A path to a peer's node.
///
/// A link assigns a path to each address that it sends to or receives from. The core and the library name the node by this path and
/// never see an address. A link may therefore move a path to another address, and a layer between the core and a link may assign
/// paths of its own, for example one for each security association.
///
/// A path that the core holds ([`PacketSink::hold`](crate::PacketSink::hold)) stays valid. The link may forget other paths at any
/// time; packets to a forgotten path are dropped and counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    name: u64,
    /// The index in the low half; one bit for each fact and the host's number above it. Two words make the comparison of paths,
    /// once per packet, cheap.
    index_and_facts: u64,
}

const NATIVE: u64 = 1 << 32;
const LOOPBACK: u64 = 1 << 33;
const LOCAL: u64 = 1 << 34;
const SEALED: u64 = 1 << 35;
const BARRED: u64 = 1 << 36;
/// Position of the host's number within the word.
const HOST_SHIFT: u32 = 37;

impl PathId {
    /// Creates a path over UDP to another machine.
    ///
    /// `index` is small, because tables are indexed by it, and unique among the paths that exist at one time. `name` is equal for
    /// equal addresses and different for different ones. Peers must not be able to find two addresses with one name, so a link
    /// derives names by a keyed hash.
    #[inline]
    #[must_use]
    pub const fn new(index: u32, name: u64) -> Self {
        Self { name, index_and_facts: index as u64 }
    }

    /// Returns the same path by IP protocol 146, without UDP. The peer may be the Linux module, so Apus sends it only packets that
    /// the module knows.
    #[inline]
    #[must_use]
    pub const fn native(self) -> Self {
        Self { index_and_facts: self.index_and_facts | NATIVE, ..self }
    }

    /// Returns the same path, marked as leading to this machine.
    #[inline]
    #[must_use]
    pub const fn loopback(self) -> Self {
        Self { index_and_facts: self.index_and_facts | LOOPBACK, ..self }
    }

    /// Returns a path to another process of this host, which carries whole messages instead of packets. Its index belongs to a
    /// table of its own.
    #[inline]
    #[must_use]
    pub const fn local(self) -> Self {
        Self { index_and_facts: self.index_and_facts | LOCAL, ..self }
    }

    /// Returns the same path, whose packets are encrypted and authenticated. The high half of its name is the number of the peer's
    /// identity, see [`identity`](Self::identity).
    #[inline]
    #[must_use]
    pub const fn sealed(self) -> Self {
        Self { index_and_facts: self.index_and_facts | SEALED, ..self }
    }

    //= docs/protocol.md#seal-17
    /// Returns the same path, marked as leading to a host with which this node exchanges no plain packets.
    #[inline]
    #[must_use]
    pub const fn barred(self) -> Self {
        Self { index_and_facts: self.index_and_facts | BARRED, ..self }
    }

    /// Returns the same path, to the host with this number, 1 to 2^27 - 1. The number is equal for all addresses of one host, as
    /// far as the link knows, and different for most other hosts. 0 stands for an unknown host.
    #[inline]
    #[must_use]
    pub const fn on_host(self, host: u32) -> Self {
        let facts = self.index_and_facts & ((1 << HOST_SHIFT) - 1);
        Self { index_and_facts: facts | (host as u64) << HOST_SHIFT, ..self }
    }

    /// Returns the number of the host; 0 if the host is unknown.
    #[inline]
    #[must_use]
    pub const fn host(self) -> u32 {
        (self.index_and_facts >> HOST_SHIFT) as u32
    }

    /// Returns the path's index in tables that are indexed by paths.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.index_and_facts & 0xFFFF_FFFF) as usize
    }

    /// Returns the number that stands for the address: equal for equal addresses.
    #[inline]
    #[must_use]
    pub const fn name(self) -> u64 {
        self.name
    }

    /// Returns whether the path uses IP protocol 146, without UDP.
    #[inline]
    #[must_use]
    pub const fn is_native(self) -> bool {
        self.index_and_facts & NATIVE != 0
    }

    /// Returns whether the path leads to another process of this host and carries whole messages.
    #[inline]
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.index_and_facts & LOCAL != 0
    }

    /// Returns whether packets on the path are encrypted and authenticated, and its peer has an identity.
    #[inline]
    #[must_use]
    pub const fn is_sealed(self) -> bool {
        self.index_and_facts & SEALED != 0
    }

    //= docs/protocol.md#seal-5
    /// Returns the number of the peer's identity, if the path is sealed: equal on all paths whose packets the keys of one peer seal, and
    /// different for different peers. 0 on other paths.
    #[inline]
    #[must_use]
    pub const fn identity(self) -> u64 {
        if self.is_sealed() { self.name >> 32 } else { 0 }
    }

    /// Returns whether plain packets on the path are neither sent nor taken. Never on a sealed path.
    #[inline]
    #[must_use]
    pub const fn is_barred(self) -> bool {
        self.index_and_facts & BARRED != 0
    }

    /// Returns whether packets on the path leave this process unencrypted for a network.
    #[inline]
    #[must_use]
    pub const fn is_plain(self) -> bool {
        self.index_and_facts & (SEALED | LOCAL) == 0
    }

    /// Returns whether the path leads to this machine.
    #[inline]
    #[must_use]
    pub const fn is_loopback(self) -> bool {
        self.index_and_facts & LOOPBACK != 0
    }
}

impl fmt::Debug for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathId")
            .field("name", &self.name)
            .field("index", &self.index())
            .field("native", &self.is_native())
            .field("loopback", &self.is_loopback())
            .field("sealed", &self.is_sealed())
            .field("barred", &self.is_barred())
            .finish()
    }
}
