//! The other end of an RPC.

use apus_wire::PathId;

/// A port of a peer's node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Remote {
    /// The path to the node.
    pub path: PathId,
    /// The Homa port.
    pub port: u16,
}

impl Remote {
    /// Creates the address of port `port` at the node that `path` leads to.
    #[must_use]
    pub const fn new(path: PathId, port: u16) -> Self {
        Self { path, port }
    }
}
