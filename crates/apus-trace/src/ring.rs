//! The ring of one thread.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::controls::Controls;
use crate::layout::{CAPACITY_AT, HEAD_AT, NAME_AT, RECORD, RING_HEADER, THREAD_AT};
use crate::stamp::{Clock, monotonic_nanos, ticks};

/// Records that a ring holds.
pub const RECORDS: usize = 65_536;

/// A moment of the clock is noted once in this many records.
const ANCHOR_EVERY: u64 = 1_024;

/// A ring that one thread writes, and others may read at any time.
///
/// Every word is atomic, so a reader that comes at the wrong moment reads a torn record and nothing worse. It knows which records
/// may be torn: it reads the number of records written before and after it copies, and drops those that may have been overwritten
/// meanwhile (`Trace::read`).
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

// The layout of files is that of the struct.
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
    /// The ring belongs to a thread from now on. Records of another one stay in it.
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

    /// Writes a record, unless the recording has ended. Only the thread that the ring belongs to may call it: with two, records are
    /// torn.
    #[inline]
    pub fn write(&self, clock: Clock, controls: &Controls, event: u16, arguments: [u32; 4]) {
        let stamp = ticks(clock);
        if !controls.records(stamp) {
            return;
        }
        let head = u64::from_le(self.head.load(Ordering::Relaxed));
        let record = &self.records[head as usize % RECORDS];
        let [a, b, c, d] = arguments.map(u64::from);
        // A reader that sees a word of this record sees the number of the record before it as well.
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

    /// Notes a moment of the clock, from which a reader learns the rate of the counter.
    #[cold]
    fn anchor(&self, clock: Clock) {
        let (ticks, nanos) = (ticks(clock), monotonic_nanos());
        self.anchor[0].store(ticks.to_le(), Ordering::Relaxed);
        self.anchor[1].store(nanos.to_le(), Ordering::Relaxed);
    }
}
