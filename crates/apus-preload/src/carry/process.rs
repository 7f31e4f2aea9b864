//! The number of this process, available without a system call.
//!
//! Processes that share a connection identify each other by these numbers. In a PID namespace of its own, a child may have the
//! same PID as another process in the parent's namespace, and sees none of those processes. So such a child gets a number that no
//! process has.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::errno;

static ID: AtomicU32 = AtomicU32::new(0);

/// The PID namespace of the process at its start.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);

/// Flag in the number of a process in another namespace.
const ELSEWHERE: u32 = 1 << 31;

/// The number of the process that last called [`note`], which a child does after a fork.
#[inline]
pub(crate) fn id() -> u32 {
    ID.load(Ordering::Relaxed)
}

/// Stores the number of this process. Runs at its start.
pub(crate) fn note() {
    NAMESPACE.store(namespace(), Ordering::Relaxed);
    ID.store(std::process::id(), Ordering::Relaxed);
}

/// The same in a child of fork. `unique` returns a number that it has given to no other process of the namespace.
pub(crate) fn note_child(unique: impl FnOnce() -> u32) {
    let is_elsewhere = namespace() != NAMESPACE.load(Ordering::Relaxed);
    let id = if is_elsewhere { ELSEWHERE | unique() } else { std::process::id() };
    ID.store(id, Ordering::Relaxed);
}

/// The PID of a process for the kernel. `None` if this process cannot see it.
pub(crate) fn visible(process: u32) -> Option<u32> {
    if process == id() {
        return Some(std::process::id());
    }
    ((process | id()) & ELSEWHERE == 0).then_some(process)
}

/// The inode of this process's PID namespace. 0 without `/proc`.
fn namespace() -> u64 {
    // SAFETY: all zeros are a valid value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the name ends with a zero byte, and the buffer has room for the status.
    let result =
        errno::kept(|| unsafe { libc::stat(c"/proc/self/ns/pid".as_ptr(), &raw mut status) });
    if result == 0 { status.st_ino } else { 0 }
}
