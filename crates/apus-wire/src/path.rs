//! Paths: what the core knows in place of addresses.

use std::fmt;

/// A path to a peer's node.
///
/// A link gives a path to each address that it sends to or receives from. The core and the library name the node by this path
/// and never see an address. A link may therefore move a path to another address, and a layer between the core and a link may
/// give paths of its own, for example one for each security association.
///
/// A path that the core holds ([`PacketSink::hold`](crate::PacketSink::hold)) stays valid. Others may be forgotten at any time;
/// packets to a forgotten path are lost and counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId {
    name: u64,
    /// The index, and above it a bit for each of the facts: two paths are compared for every packet.
    index_and_facts: u64,
}

const NATIVE: u64 = 1 << 32;
const LOOPBACK: u64 = 1 << 33;
const LOCAL: u64 = 1 << 34;
/// Where the number of the host begins.
const HOST_SHIFT: u32 = 36;

impl PathId {
    /// A path over UDP to another machine.
    ///
    /// `index` is small, because tables are indexed by it, and unique among the paths that exist at one time. `name` is equal
    /// for equal addresses and different for different ones. Peers must not be able to find two addresses with one name, so a
    /// link makes names by a keyed hash.
    #[inline]
    #[must_use]
    pub const fn new(index: u32, name: u64) -> Self {
        Self { name, index_and_facts: index as u64 }
    }

    /// The same path by IP protocol 146, without UDP. Such a peer may be the Linux module, so it is sent only what the module
    /// knows.
    #[inline]
    #[must_use]
    pub const fn native(self) -> Self {
        Self { index_and_facts: self.index_and_facts | NATIVE, ..self }
    }

    /// The same path, to this machine.
    #[inline]
    #[must_use]
    pub const fn loopback(self) -> Self {
        Self { index_and_facts: self.index_and_facts | LOOPBACK, ..self }
    }

    /// A path to another process of this host by whole messages and not by packets. Its index is of a table of its own.
    #[inline]
    #[must_use]
    pub const fn local(self) -> Self {
        Self { index_and_facts: self.index_and_facts | LOCAL, ..self }
    }

    /// The same path, to the host with this number, 1 to 2^28 - 1: equal for all addresses of one host, as far as the link can tell, and
    /// different for most others. 0 stands for no known host.
    #[inline]
    #[must_use]
    pub const fn on_host(self, host: u32) -> Self {
        let facts = self.index_and_facts & ((1 << HOST_SHIFT) - 1);
        Self { index_and_facts: facts | (host as u64) << HOST_SHIFT, ..self }
    }

    /// The number of the host; 0 if it is not known.
    #[inline]
    #[must_use]
    pub const fn host(self) -> u32 {
        (self.index_and_facts >> HOST_SHIFT) as u32
    }

    /// The path's place in tables that are indexed by paths.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self.index_and_facts & 0xFFFF_FFFF) as usize
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
        self.index_and_facts & NATIVE != 0
    }

    /// Whether the path is to another process of this host by whole messages.
    #[inline]
    #[must_use]
    pub const fn is_local(self) -> bool {
        self.index_and_facts & LOCAL != 0
    }

    /// Whether the path leads to this machine.
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
            .finish()
    }
}
