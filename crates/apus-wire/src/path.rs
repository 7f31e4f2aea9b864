//! Paths: what the core knows in place of addresses.

/// One way to one peer's node.
///
/// A link gives each address that it sends to or receives from a path, and everything above the link names the node by it: the core
/// never sees an address. A link may therefore move a path to another address, and a layer between the core and a link may give
/// paths of its own, one for each security association for instance.
///
/// A path that the core holds ([`PacketSink::hold`](crate::PacketSink::hold)) stays valid. Others may be forgotten at any time; what
/// is sent by a forgotten path is lost and counted.
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
    /// `index` is small, and different for all paths that exist at one time: tables are indexed by it. `name` is the same whenever
    /// the same address is given a path and different for other addresses. Peers must not be able to find two addresses with one
    /// name, so a link makes names by a keyed hash.
    #[inline]
    #[must_use]
    pub const fn new(index: u32, name: u64) -> Self {
        Self { name, index, native: false, loopback: false }
    }

    /// The same by IP protocol 146, without UDP. Such a peer may be the Linux module, so it is spoken to in the module's words
    /// only.
    #[inline]
    #[must_use]
    pub const fn native(self) -> Self {
        Self { native: true, ..self }
    }

    /// The same to this machine, as the address shows.
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

    /// By IP protocol 146, without UDP.
    #[inline]
    #[must_use]
    pub const fn is_native(self) -> bool {
        self.native
    }

    /// To this machine, as the address shows.
    #[inline]
    #[must_use]
    pub const fn is_loopback(self) -> bool {
        self.loopback
    }
}
