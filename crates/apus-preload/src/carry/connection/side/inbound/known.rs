//! This process's state of the direction, beyond the shared words. Only the direction uses these fields.

use std::sync::atomic::AtomicI32;

use crate::carry::connection::gathering::Gathering;

/// This process's state of the direction.
pub(in super::super) struct Inbound {
    pub(super) gathering: Gathering,
    /// The descriptor of the last call that received or followed; -1 before the first. It may be closed.
    pub(super) last_fd: AtomicI32,
}

impl Inbound {
    pub(in super::super) const fn new() -> Self {
        Self { gathering: Gathering::new(), last_fd: AtomicI32::new(-1) }
    }
}
