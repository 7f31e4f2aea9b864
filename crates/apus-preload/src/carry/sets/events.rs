//! Events of an epoll set, and the tags that identify carried members in them.

use std::sync::OnceLock;

use libc::{c_int, epoll_event};

/// The program's buffer for events. Reads only events that the kernel or this library has written.
pub(crate) struct Events {
    first: *mut epoll_event,
    pub(crate) limit: usize,
}

impl Events {
    /// # Safety
    ///
    /// The buffer has room for `limit` events.
    pub(crate) unsafe fn new(first: *mut epoll_event, limit: usize) -> Self {
        Self { first, limit }
    }

    /// Reads an event that was written.
    pub(super) fn get(&self, index: usize) -> epoll_event {
        // SAFETY: the caller of `new` guarantees the room; callers of this function read only written events.
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

/// The source of a tagged event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EventSource {
    Socket = 0,
    Bell = 1,
    Set = 2,
}

const KINDS: [EventSource; 4] =
    [EventSource::Socket, EventSource::Bell, EventSource::Set, EventSource::Set];

/// The upper bits of all tags. The program's data has them with a probability of 2⁻⁴⁶.
fn magic() -> u64 {
    static MAGIC: OnceLock<u64> = OnceLock::new();
    *MAGIC.get_or_init(|| {
        let mut bytes = [0; 8];
        // SAFETY: the buffer has room for the bytes.
        let _ = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        u64::from_ne_bytes(bytes) | 1 << 63
    })
}

/// The upper bits of a tag. The bits below are the kind and the descriptor.
const MAGIC: u64 = !0 << 18;

pub(super) fn tag(kind: EventSource, fd: c_int) -> u64 {
    magic() & MAGIC | (kind as u64) << 16 | fd as u64
}

pub(super) fn tagged(data: u64) -> Option<(EventSource, c_int)> {
    let kind = KINDS[(data >> 16 & 3) as usize];
    (data & MAGIC == magic() & MAGIC).then_some((kind, (data & 0xffff) as c_int))
}
