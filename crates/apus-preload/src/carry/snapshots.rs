//! Copies of connections' memory as it was at a fork.
//!
//! A signal handler may interrupt a call that holds a token, fork, and return in the child. The parent's call continues with the
//! token. The child's call would be a second holder, so it continues with a copy of the memory, which no other process sees: its
//! result is that of the parent's call, and the parent makes the changes. The child's later calls use the shared memory again.
//!
//! A copy is made before the fork, because the parent's call may end before the child runs. The child maps it at the place of the
//! shared memory, whose addresses the call has.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::carry::mapping::{map_or_abort, unmap};
use crate::originals::own;

/// The copies of a thread.
pub(super) struct Snapshots(AtomicPtr<Snapshot>);

/// The memory of a connection: both segments. The value lies in mapped memory, because a handler does not allocate.
struct Snapshot {
    next: *mut Self,
    segments: [Segment; 2],
}

/// The address and the number of bytes of a segment.
pub(super) type Region = (usize, usize);

struct Segment {
    place: *mut u8,
    bytes: usize,
    /// The shared memory at another address. Null before the fork.
    shared: *mut u8,
    /// The copy. Null while it is at `place`.
    copy: *mut u8,
}

impl Snapshots {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    #[inline]
    pub(super) fn are_there(&self) -> bool {
        !self.0.load(Ordering::Relaxed).is_null()
    }

    /// Calls `with` for each snapshot, which may free it.
    fn for_each(&self, with: impl Fn(*mut Snapshot)) {
        let mut next = self.0.load(Ordering::Relaxed);
        while !next.is_null() {
            let snapshot = next;
            // SAFETY: a listed snapshot is mapped, and belongs to this thread.
            next = unsafe { (*snapshot).next };
            with(snapshot);
        }
    }

    fn push(&self, snapshot: *mut Snapshot) {
        // SAFETY: the snapshot is mapped, and in no list.
        unsafe { (*snapshot).next = self.0.load(Ordering::Relaxed) };
        self.0.store(snapshot, Ordering::Relaxed);
    }

    /// Whether an address is in the first segment of a snapshot.
    pub(super) fn have(&self, address: usize) -> bool {
        let found = std::cell::Cell::new(false);
        self.for_each(|snapshot| {
            // SAFETY: as above.
            let [own, _] = unsafe { &(*snapshot).segments };
            found.set(found.get() || address.wrapping_sub(own.place.addr()) < own.bytes);
        });
        found.get()
    }

    /// Copies the segments of a connection, unless they are here already.
    pub(super) fn add(&self, places: [Region; 2]) {
        if self.have(places[0].0) {
            return;
        }
        let snapshot: *mut Snapshot = map_or_abort(size_of::<Snapshot>()).cast();
        let segments = places.map(Segment::copied);
        // SAFETY: the memory has room for the snapshot.
        unsafe { snapshot.write(Snapshot { next: ptr::null_mut(), segments }) };
        self.push(snapshot);
    }

    /// Frees all copies, none of which is shown.
    pub(super) fn discard(&self) {
        self.for_each(|snapshot| {
            // SAFETY: as above. The list is cleared next.
            unsafe {
                (*snapshot).segments.iter().for_each(|segment| unmap(segment.copy, segment.bytes));
            }
            unmap(snapshot.cast(), size_of::<Snapshot>());
        });
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Runs in a child of fork. Takes over the copies that were made before the fork.
    pub(super) fn inherit(&self, made: &Self) {
        made.for_each(|snapshot| {
            // SAFETY: as above.
            let segments = unsafe { &mut (*snapshot).segments };
            if segments.iter_mut().all(Segment::keep_shared) {
                self.push(snapshot);
            }
        });
        made.0.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Whether the thread uses the copies.
    pub(super) fn are_shown(&self) -> bool {
        // SAFETY: as above.
        let first = unsafe { self.0.load(Ordering::Relaxed).as_ref() };
        first.is_some_and(|snapshot| snapshot.segments[0].is_shown())
    }

    /// Puts the copies in the place of the shared memory, or the shared memory back.
    pub(super) fn show(&self, shows: bool) {
        self.for_each(|snapshot| {
            // SAFETY: as above.
            let segments = unsafe { &mut (*snapshot).segments };
            for segment in segments.iter_mut().filter(|segment| segment.is_shown() != shows) {
                if shows { segment.show() } else { segment.hide() }
            }
        });
    }

    /// The interrupted calls no longer use the memory. Puts the shared memory back for good.
    pub(super) fn end(&self) {
        self.show(false);
        self.for_each(|snapshot| {
            // SAFETY: as above.
            let segments = unsafe { &(*snapshot).segments };
            for segment in segments {
                unmap(segment.shared, segment.bytes);
            }
        });
        self.discard();
    }
}

impl Segment {
    fn copied((place, bytes): Region) -> Self {
        let place: *mut u8 = ptr::with_exposed_provenance_mut(place);
        let mut segment = Self { place, bytes, shared: ptr::null_mut(), copy: ptr::null_mut() };
        segment.copy();
        segment
    }

    fn is_shown(&self) -> bool {
        self.copy.is_null()
    }

    /// Copies the bytes at the place.
    fn copy(&mut self) {
        self.copy = map_or_abort(self.bytes);
        // SAFETY: both have as many bytes. Other processes may change those at the place meanwhile, but for those that the token
        // protects.
        unsafe { self.copy.copy_from_nonoverlapping(self.place, self.bytes) };
    }

    /// Maps the shared memory at another address too.
    fn keep_shared(&mut self) -> bool {
        // SAFETY: a new size without an old one makes another mapping of the same shared memory.
        let shared = unsafe {
            own::mremap(self.place.cast(), 0, self.bytes, libc::MREMAP_MAYMOVE, ptr::null_mut())
        };
        if shared != libc::MAP_FAILED {
            self.shared = shared.cast();
        }
        !self.shared.is_null()
    }

    fn show(&mut self) {
        put(self.copy, self.bytes, self.place, self.bytes);
        self.copy = ptr::null_mut();
    }

    fn hide(&mut self) {
        self.copy();
        put(self.shared, 0, self.place, self.bytes);
    }
}

/// Replaces the memory at `place` by that at `from`, which moves there if `moved` bytes are `bytes`, and else stays as well.
fn put(from: *mut u8, moved: usize, place: *mut u8, bytes: usize) {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the place is a mapping of this size, which this module exchanges, and no reference to `from` exists.
    let result = unsafe { own::mremap(from.cast(), moved, bytes, flags, place.cast()) };
    if result == libc::MAP_FAILED {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use apus_shm::{PAGE, PeerSegment, Segment as Shared};

    use super::*;

    #[test]
    fn changes_of_a_copy_stay_there_and_later_ones_are_shared() {
        let shared = Shared::create_inherited(2 * PAGE).unwrap();
        let peer = PeerSegment::open(shared.descriptor().as_fd(), 2 * PAGE).unwrap();
        let own = shared.into_memory();
        let word = |at| own.word(at);
        let seen = |at| peer.load(at, Ordering::Relaxed);
        word(8).store(1, Ordering::Relaxed);
        let places = [own.address(0, PAGE), peer.address()];
        let places = places.map(|place| (place.expose_provenance(), 2 * PAGE));
        let (made, snapshots) = (Snapshots::new(), Snapshots::new());
        made.add(places);
        made.add(places);
        word(8).store(2, Ordering::Relaxed);
        snapshots.inherit(&made);
        assert!(snapshots.have(places[0].0 + PAGE) && !snapshots.have(places[0].0 + 2 * PAGE));
        assert!(snapshots.are_there() && !snapshots.are_shown() && !made.are_there());

        snapshots.show(true);
        assert_eq!((word(8).load(Ordering::Relaxed), seen(8)), (1, 1));
        word(8).store(9, Ordering::Relaxed);
        assert_eq!(seen(8), 1);
        snapshots.show(false);
        assert_eq!((word(8).load(Ordering::Relaxed), seen(8)), (2, 2));
        word(16).store(3, Ordering::Relaxed);
        assert_eq!(seen(16), 3);
        snapshots.show(true);
        assert_eq!((word(8).load(Ordering::Relaxed), word(16).load(Ordering::Relaxed)), (9, 0));
        snapshots.end();
        assert_eq!((word(8).load(Ordering::Relaxed), seen(8), seen(16)), (2, 2, 3));
        word(8).store(4, Ordering::Relaxed);
        assert_eq!(seen(8), 4);
        assert!(!snapshots.are_there());
    }

    #[test]
    fn copies_of_a_fork_are_freed_in_the_parent() {
        let own = Shared::create_inherited(PAGE).unwrap().into_memory();
        let made = Snapshots::new();
        made.add([(own.address(0, PAGE).expose_provenance(), PAGE); 2]);
        made.discard();
        assert!(!made.are_there());
        own.word(0).store(1, Ordering::Relaxed);
    }
}
