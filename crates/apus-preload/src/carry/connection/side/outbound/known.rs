//! This process's state of the direction, beyond the shared words. Only the direction uses these fields.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::carry::connection::aside::Aside;
use crate::carry::connection::copying::Copying;

/// This process's state of the direction.
pub(in super::super) struct Outbound {
    /// Bytes that a signal handler wrote while it interrupted a write.
    pub(super) aside: Aside,
    /// Number of writes that are done in part. A call that was left by a jump stays counted.
    pub(super) partial_writes: AtomicU32,
    pub(super) copying: Copying,
    /// Whether a write found the ring full.
    pub(super) was_full: AtomicBool,
    /// Whether the answering thread watches for progress of the peer.
    pub(super) is_stuck: AtomicBool,
    /// The peer's read position at the thread's last look.
    pub(super) read_when_stuck: AtomicU64,
    /// Number of looks since then.
    pub(super) looks: AtomicU32,
    /// The last epoch that this process ended because the ring was stuck.
    pub(super) spilled_at: AtomicU64,
}

impl Outbound {
    pub(in super::super) const fn new() -> Self {
        Self {
            aside: Aside::new(),
            partial_writes: AtomicU32::new(0),
            copying: Copying::new(),
            was_full: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            read_when_stuck: AtomicU64::new(u64::MAX),
            looks: AtomicU32::new(0),
            spilled_at: AtomicU64::new(0),
        }
    }
}
