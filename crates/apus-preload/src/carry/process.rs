//! The number of this process, without a system call.
//!
//! Processes that share a connection know each other by these numbers. A child in a namespace of its own for processes has the number
//! that some other process has in the namespace of its parent, and sees no process there. It gets a number that no process has.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::errno;

static ID: AtomicU32 = AtomicU32::new(0);

/// The namespace of the process at the start.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);

/// In the number of a process of another namespace.
const ELSEWHERE: u32 = 1 << 31;

/// The number of the process that called [`note`] last: after a fork, the child does.
#[inline]
pub(crate) fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Notes the number of this process, at its start.
pub(crate) fn note() {
    NAMESPACE.store(namespace(), Ordering::Relaxed);
    ID.store(std::process::id(), Ordering::Relaxed);
}

/// The same in a child of fork. `unique` makes a number that no other process of its namespace has got by this.
pub(crate) fn note_child(unique: impl FnOnce() -> u32) {
    let is_elsewhere = namespace() != NAMESPACE.load(Ordering::Relaxed);
    let id = if is_elsewhere { ELSEWHERE | unique() } else { std::process::id() };
    ID.store(id, Ordering::Relaxed);
}

/// The number of a process, for the kernel; `None`: this process cannot see it.
pub(crate) fn visible(process: u32) -> Option<u32> {
    if process == id() {
        return Some(std::process::id());
    }
    ((process | id()) & ELSEWHERE == 0).then_some(process)
}

/// The number of the namespace of this process; 0 without `/proc`.
fn namespace() -> u64 {
    // SAFETY: all zeros are a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a zero byte, and there is room for the status.
    let result =
        errno::kept(|| unsafe { libc::stat(c"/proc/self/ns/pid".as_ptr(), &raw mut status) });
    if result == 0 { status.st_ino } else { 0 }
}
