//! Events of an epoll set, and the tags by which the kernel names members that are carried.

use std::sync::OnceLock;

use libc::{c_int, epoll_event};

/// Where the program wants to find events. What the kernel has not written there is not read.
pub(crate) struct Events {
    first: *mut epoll_event,
    pub(crate) limit: usize,
}

impl Events {
    /// # Safety
    ///
    /// There is room for `limit` events.
    pub(crate) unsafe fn new(first: *mut epoll_event, limit: usize) -> Self {
        Self { first, limit }
    }

    /// An event that was written.
    pub(super) fn get(&self, index: usize) -> epoll_event {
        // SAFETY: the caller of `new` vouches for the room; callers of this ask for what the kernel or they have written.
        unsafe { self.first.add(index).read_unaligned() }
    }

    pub(super) fn put(&mut self, index: usize, event: epoll_event) {
        debug_assert!(index < self.limit);
        // SAFETY: as above.
        unsafe { self.first.add(index).write_unaligned(event) }
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut epoll_event {
        self.first
    }
}

/// What an event of a tag is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Socket = 0,
    Bell = 1,
    Set = 2,
}

const KINDS: [Kind; 4] = [Kind::Socket, Kind::Bell, Kind::Set, Kind::Set];

/// Numbers of tags begin with bits that the program's data does not have, but by an accident of one in 2⁴⁶.
fn magic() -> u64 {
    static MAGIC: OnceLock<u64> = OnceLock::new();
    *MAGIC.get_or_init(|| {
        let mut bytes = [0; 8];
        // SAFETY: the buffer has room for the bytes.
        let _ = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        u64::from_ne_bytes(bytes) | 1 << 63
    })
}

/// Below these bits of a tag are the kind and the descriptor.
const MAGIC: u64 = !0 << 18;

pub(super) fn tag(kind: Kind, fd: c_int) -> u64 {
    magic() & MAGIC | (kind as u64) << 16 | fd as u64
}

pub(super) fn tagged(data: u64) -> Option<(Kind, c_int)> {
    let kind = KINDS[(data >> 16 & 3) as usize];
    (data & MAGIC == magic() & MAGIC).then_some((kind, (data & 0xffff) as c_int))
}
