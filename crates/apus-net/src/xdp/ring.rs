//! The rings of an XSK: queues of one producer and one consumer, this process and the kernel.
//!
//! A ring is an array whose length is a power of two, and two counters that only grow: the producer's counts the entries that are
//! written, and the consumer's those that are read. Each side writes its own counter, after the entries that it stands for.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use super::region::Region;

/// Places of a ring's parts within its memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) entries: usize,
}

/// A type of entries.
///
/// # Safety
///
/// Every value of its bytes is a valid one: the kernel writes them.
pub(super) unsafe trait RingEntry: Copy {}

// SAFETY: an integer.
unsafe impl RingEntry for u64 {}
// SAFETY: three integers without padding.
unsafe impl RingEntry for libc::xdp_desc {}

#[derive(Debug)]
struct Ring<T> {
    region: Region,
    layout: Layout,
    /// Number of entries: a power of two.
    size: u32,
    entry: PhantomData<T>,
}

impl<T: RingEntry> Ring<T> {
    fn new(region: Region, layout: Layout, size: u32) -> Self {
        assert!(size.is_power_of_two(), "{size} entries");
        for counter in [layout.producer, layout.consumer, layout.flags] {
            region.at::<AtomicU32>(counter);
        }
        region.at::<T>(layout.entries + (size as usize - 1) * size_of::<T>());
        region.at::<T>(layout.entries);
        Self { region, layout, size, entry: PhantomData }
    }

    fn counter(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked the place. Both sides access the word only as an atomic.
        unsafe { self.region.at::<AtomicU32>(offset).as_ref() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.counter(self.layout.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.counter(self.layout.consumer)
    }

    /// Returns the place of the entry that a counter stands for.
    fn entry(&self, counter: u32) -> *mut T {
        let index = (counter & (self.size - 1)) as usize;
        self.region.at::<T>(self.layout.entries + index * size_of::<T>()).as_ptr()
    }
}

/// A ring that this process fills.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// Number of entries written, of which the kernel may not know the last ones yet.
    written: u32,
    /// Number of entries that the kernel had read when last looked at.
    read: u32,
}

impl<T: RingEntry> Producer<T> {
    /// # Panics
    ///
    /// If the ring does not fit the region.
    pub(super) fn new(region: Region, layout: Layout, size: u32) -> Self {
        Self { ring: Ring::new(region, layout, size), written: 0, read: 0 }
    }

    /// Adds an entry, which the kernel sees after [`publish`](Self::publish). Returns `false` if the ring is full.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.written.wrapping_sub(self.read) >= self.ring.size {
            self.read = self.ring.consumer().load(Ordering::Acquire);
            if self.written.wrapping_sub(self.read) >= self.ring.size {
                return false;
            }
        }
        // SAFETY: the place is inside the ring, and the kernel has read its last entry, so it leaves the place alone until the
        // counter passes it.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Lets the kernel see all entries.
    pub(super) fn publish(&mut self) {
        self.ring.producer().store(self.written, Ordering::Release);
    }

    /// Returns the number of entries that the kernel has not read.
    pub(super) fn unread(&mut self) -> u32 {
        self.read = self.ring.consumer().load(Ordering::Acquire);
        self.written.wrapping_sub(self.read)
    }

    /// Returns whether the kernel reads entries only in a system call.
    pub(super) fn needs_wake_up(&self) -> bool {
        let flags = self.ring.counter(self.ring.layout.flags).load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that the kernel fills.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// Number of entries that the kernel had written when last looked at.
    written: u32,
    /// Number of entries read.
    read: u32,
}

impl<T: RingEntry> Consumer<T> {
    /// # Panics
    ///
    /// If the ring does not fit the region.
    pub(super) fn new(region: Region, layout: Layout, size: u32) -> Self {
        Self { ring: Ring::new(region, layout, size), written: 0, read: 0 }
    }

    /// Takes the oldest entry. The kernel may fill its place after [`release`](Self::release).
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.read == self.written {
            self.written = self.ring.producer().load(Ordering::Acquire);
            if self.read == self.written {
                return None;
            }
        }
        // SAFETY: the place is inside the ring, and the kernel has written the entry before the counter passed it.
        let entry = unsafe { self.ring.entry(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    /// Lets the kernel use the places of all entries taken.
    pub(super) fn release(&mut self) {
        self.ring.consumer().store(self.read, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::*;

    const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

    /// Returns both ends of a ring in plain memory, the second of which stands for the kernel's.
    fn ends(size: u32) -> (Producer<u64>, Consumer<u64>) {
        // SAFETY: takes a string that ends with a zero, and returns a new descriptor, which only this function owns.
        let file = unsafe { libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0, "a descriptor is left");
        // SAFETY: as above.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: changes the length of a file.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), 4_096) }, 0);
        let map = || Region::of_file(file.as_raw_fd(), 0, 4_096).unwrap();
        (Producer::new(map(), LAYOUT, size), Consumer::new(map(), LAYOUT, size))
    }

    #[test]
    fn entries_arrive_in_order_once_they_are_published() {
        let (mut producer, mut consumer) = ends(4);
        assert!(producer.push(7) && producer.push(8));
        assert_eq!(consumer.pop(), None);
        producer.publish();
        assert_eq!((consumer.pop(), consumer.pop(), consumer.pop()), (Some(7), Some(8), None));
        assert_eq!(producer.unread(), 2);
        consumer.release();
        assert_eq!(producer.unread(), 0);
    }

    #[test]
    fn a_full_ring_takes_no_entry_until_places_are_released() {
        let (mut producer, mut consumer) = ends(4);
        assert!((0..4).all(|number| producer.push(number)));
        assert!(!producer.push(4));
        producer.publish();
        assert_eq!(consumer.pop(), Some(0));
        assert!(!producer.push(4), "the place is not released");
        consumer.release();
        assert!(producer.push(4) && !producer.push(5));
    }

    #[test]
    fn counters_pass_their_maximum() {
        let (mut producer, mut consumer) = ends(4);
        let start = u32::MAX - 1;
        (producer.written, producer.read) = (start, start);
        (consumer.written, consumer.read) = (start, start);
        consumer.release();
        producer.publish();
        for number in 0..20 {
            assert!(producer.push(number));
            producer.publish();
            assert_eq!(producer.unread(), 1);
            assert_eq!((consumer.pop(), consumer.pop()), (Some(number), None));
            consumer.release();
        }
    }

    #[test]
    fn the_kernel_asks_for_wake_ups() {
        let (producer, consumer) = ends(4);
        assert!(!producer.needs_wake_up());
        consumer.ring.counter(LAYOUT.flags).store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.needs_wake_up());
    }

    #[test]
    #[should_panic(expected = "of 4096")]
    fn a_ring_fits_its_memory() {
        ends(512);
    }
}
