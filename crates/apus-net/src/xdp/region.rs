//! Memory that this process shares with the kernel.

use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// Mapped memory, all zeroes at first or what the kernel has put there. It is unmapped when the region is dropped.
///
/// The kernel may write it at any time, so it is read and written by pointers and atomics only, never by a reference to its bytes,
/// unless its user knows that the kernel leaves a part alone.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the region owns its mapping, which any thread may use. It has no interior access without a pointer.
unsafe impl Send for Region {}

impl Region {
    /// Maps zeroed memory of whole pages. A child of `fork` shares it, so that no write moves this process to a copy, which the kernel
    /// would not see.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps a part of an open file, such as a ring of a socket.
    pub(super) fn of_file(file: RawFd, offset: libc::off_t, len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED, file, offset)
    }

    fn map(len: usize, flags: i32, file: RawFd, offset: libc::off_t) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: asks for a new mapping at an address of the kernel's choice, which overlaps no other memory of this process.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("a mapping is not at address 0");
        Ok(Self { start, len })
    }

    /// Returns the address of a value within the region.
    ///
    /// # Panics
    ///
    /// If the value is not inside, or not aligned.
    pub(super) fn at<T>(&self, offset: usize) -> NonNull<T> {
        let inside = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.len);
        assert!(inside && offset.is_multiple_of(align_of::<T>()), "{offset} of {}", self.len);
        // SAFETY: the offset is inside the mapping.
        unsafe { self.start.add(offset) }.cast()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's, and no pointer into it is used after its owner has ended.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
