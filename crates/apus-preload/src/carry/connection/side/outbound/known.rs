//! What a process knows of the direction, beyond what memory says. The fields are those of the direction alone.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::carry::connection::aside::Aside;
use crate::carry::connection::copying::Copying;

/// What this process knows of the direction.
pub(in super::super) struct Outbound {
    /// What a signal handler has written while it interrupted a write.
    pub(super) aside: Aside,
    /// Number of writes that are done in part. A call that was left by a jump stays counted.
    pub(super) splits: AtomicU32,
    pub(super) copying: Copying,
    /// A write found the ring full.
    pub(super) was_full: AtomicBool,
    /// The thread that answers looks whether the peer reads, and what the peer had read at the last look.
    pub(super) is_stuck: AtomicBool,
    pub(super) read_when_stuck: AtomicU64,
    /// Looks since then.
    pub(super) looks: AtomicU32,
    /// The epoch that this process was the last to end because the ring was stuck.
    pub(super) spilled_at: AtomicU64,
}

impl Outbound {
    pub(in super::super) const fn new() -> Self {
        Self {
            aside: Aside::new(),
            splits: AtomicU32::new(0),
            copying: Copying::new(),
            was_full: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            read_when_stuck: AtomicU64::new(u64::MAX),
            looks: AtomicU32::new(0),
            spilled_at: AtomicU64::new(0),
        }
    }
}
