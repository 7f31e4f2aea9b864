//! What a process knows of the direction, beyond what memory says. The fields are those of the direction alone.

use std::sync::atomic::AtomicI32;

use crate::carry::connection::gathering::Gathering;

/// What this process knows of the direction.
pub(in super::super) struct Inbound {
    pub(super) gathering: Gathering,
    /// A descriptor of the connection, as the last call that received or followed had it; -1 before. It may be closed.
    pub(super) last_fd: AtomicI32,
}

impl Inbound {
    pub(in super::super) const fn new() -> Self {
        Self { gathering: Gathering::new(), last_fd: AtomicI32::new(-1) }
    }
}
