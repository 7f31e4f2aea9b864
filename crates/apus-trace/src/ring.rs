//! The ring of one thread.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::controls::Controls;
use crate::layout::{CAPACITY_AT, HEAD_AT, NAME_AT, RECORD, RING_HEADER, THREAD_AT};
use crate::stamp::{Clock, monotonic_nanos, ticks};

/// Records that a ring holds.
pub const RECORDS: usize = 65_536;

/// One record in this many notes an anchor.
const ANCHOR_EVERY: u64 = 1_024;

/// A ring that one thread writes, and other threads may read at any time.
///
/// Every word is atomic, so a concurrent reader may read a torn record and nothing worse. The reader recognises torn records: it
/// reads the number of written records before and after the copy, and drops records that may have been overwritten in between
/// (`Trace::read`).
#[repr(C, align(128))]
#[derive(Debug)]
pub struct LiveRing {
    capacity: AtomicU64,
    head: AtomicU64,
    anchor: [AtomicU64; 2],
    thread: AtomicU64,
    name: [AtomicU64; 4],
    unused: [AtomicU64; 7],
    records: [[AtomicU64; 4]; RECORDS],
}

// The layout of files is the layout of this struct.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<LiveRing>() == RING_HEADER + RECORDS * RECORD);
    assert!(offset_of!(LiveRing, capacity) == CAPACITY_AT.start);
    assert!(offset_of!(LiveRing, head) == HEAD_AT.start);
    assert!(offset_of!(LiveRing, thread) == THREAD_AT.start);
    assert!(offset_of!(LiveRing, name) == NAME_AT.start);
    assert!(offset_of!(LiveRing, records) == RING_HEADER);
};

impl LiveRing {
    /// Gives the ring to a thread. Records of its previous thread stay.
    pub(crate) fn take(&self, clock: Clock, thread: u32, name: &str) {
        let mut bytes = [0; 32];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        for (word, bytes) in self.name.iter().zip(bytes.chunks_exact(8)) {
            let bytes = bytes.try_into().expect("a chunk has eight bytes");
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        self.thread.store(u64::from(thread).to_le(), Ordering::Relaxed);
        self.anchor(clock);
        self.capacity.store((RECORDS as u64).to_le(), Ordering::Release);
    }

    /// Writes a record, unless the recording has ended. Only the ring's own thread may call it: two threads would tear records.
    #[inline]
    pub fn write(&self, clock: Clock, controls: &Controls, event: u16, arguments: [u32; 4]) {
        let stamp = ticks(clock);
        if !controls.records(stamp) {
            return;
        }
        let head = u64::from_le(self.head.load(Ordering::Relaxed));
        let record = &self.records[head as usize % RECORDS];
        let [a, b, c, d] = arguments.map(u64::from);
        // A reader that sees a word of this record also sees the number of the previous record.
        fence(Ordering::Release);
        record[0].store(stamp.to_le(), Ordering::Relaxed);
        record[1].store(u64::from(event).to_le(), Ordering::Relaxed);
        record[2].store((a | b << 32).to_le(), Ordering::Relaxed);
        record[3].store((c | d << 32).to_le(), Ordering::Relaxed);
        self.head.store((head + 1).to_le(), Ordering::Release);
        if head.is_multiple_of(ANCHOR_EVERY) {
            self.anchor(clock);
        }
    }

    /// Notes an anchor, from which a reader computes the rate of the counter.
    #[cold]
    fn anchor(&self, clock: Clock) {
        let (ticks, nanos) = (ticks(clock), monotonic_nanos());
        self.anchor[0].store(ticks.to_le(), Ordering::Relaxed);
        self.anchor[1].store(nanos.to_le(), Ordering::Relaxed);
    }
}
