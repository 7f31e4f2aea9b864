//! Paths: what the core knows in place of addresses.

/// A path to a peer's node.
///
/// A link gives a path to each address that it sends to or receives from. The core and the library name the node by this path
/// and never see an address. A link may therefore move a path to another address, and a layer between the core and a link may
/// give paths of its own, for example one for each security association.
///
/// A path that the core holds ([`PacketSink::hold`](crate::PacketSink::hold)) stays valid. Others may be forgotten at any time;
/// packets to a forgotten path are lost and counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathId {
    name: u64,
    index: u32,
    native: bool,
    loopback: bool,
}

impl PathId {
    /// A path over UDP to another machine.
    ///
    /// `index` is small, because tables are indexed by it, and unique among the paths that exist at one time. `name` is equal
    /// for equal addresses and different for different ones. Peers must not be able to find two addresses with one name, so a
    /// link makes names by a keyed hash.
    #[inline]
    #[must_use]
    pub const fn new(index: u32, name: u64) -> Self {
        Self { name, index, native: false, loopback: false }
    }

    /// The same path by IP protocol 146, without UDP. Such a peer may be the Linux module, so it is sent only what the module
    /// knows.
    #[inline]
    #[must_use]
    pub const fn native(self) -> Self {
        Self { native: true, ..self }
    }

    /// The same path, to this machine.
    #[inline]
    #[must_use]
    pub const fn loopback(self) -> Self {
        Self { loopback: true, ..self }
    }

    /// The path's place in tables that are indexed by paths.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// A number that stands for the address: equal for equal addresses.
    #[inline]
    #[must_use]
    pub const fn name(self) -> u64 {
        self.name
    }

    /// Whether the path is by IP protocol 146, without UDP.
    #[inline]
    #[must_use]
    pub const fn is_native(self) -> bool {
        self.native
    }

    /// Whether the path leads to this machine.
    #[inline]
    #[must_use]
    pub const fn is_loopback(self) -> bool {
        self.loopback
    }
}
