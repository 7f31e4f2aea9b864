//! Memory that one process writes and another reads.
//!
//! The writer creates a [`Segment`]: a memfd with allocated pages, which it maps and then seals. The seals hold for both processes
//! and for ever:
//!
//! | seal | effect |
//! |---|---|
//! | `F_SEAL_SHRINK`, `F_SEAL_GROW` | the size stays, so a mapped page exists |
//! | `F_SEAL_FUTURE_WRITE` | no other mapping can be written, no `write` works, and no hole can be punched |
//! | `F_SEAL_SEAL` | this list stays |
//!
//! So the reader ([`PeerSegment`]) cannot write, and the writer cannot take pages away: a read never ends in `SIGBUS`. The writer
//! can still change every byte at any time, so a reader copies a value before checking it.

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::BytesMut;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::{SFlag, fstat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::ftruncate;

#[cfg(test)]
use crate::lines;

/// Size of a page in bytes; a segment's size is a multiple of it.
pub const PAGE: usize = 4096;

/// Size of a cache line in bytes.
pub(crate) const LINE: usize = 64;
/// Number of 64-bit words of a cache line.
const LINE_WORDS: usize = LINE / 8;

/// `MFD_NOEXEC_SEAL` of Linux 6.3: the memory can never be executed.
const MFD_NOEXEC_SEAL: u32 = 8;

/// Checks whether the process may create a file of this many bytes. `RLIMIT_FSIZE` applies to unnamed memory as well, and beyond it
/// the kernel sends `SIGXFSZ`, which ends a process.
///
/// # Errors
///
/// [`io::ErrorKind::FileTooLarge`] if it may not.
pub fn fits_file_limit(bytes: u64) -> io::Result<()> {
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if bytes <= limit {
        return Ok(());
    }
    let text = format!("it takes {bytes} bytes, and RLIMIT_FSIZE is {limit}");
    Err(io::Error::new(io::ErrorKind::FileTooLarge, text))
}

/// Seals that a reader requires.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_FUTURE_WRITE)
    .union(SealFlag::F_SEAL_SEAL);

/// Reason for not mapping a descriptor from a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The descriptor is not a memfd. Memory of huge pages does not count as one.
    #[error("the descriptor is not a memory file with ordinary pages")]
    NotMemory,
    /// The memory has a different size than agreed.
    #[error("the segment has {actual} bytes instead of {expected}")]
    Size {
        /// The agreed size in bytes.
        expected: usize,
        /// The size of the file in bytes.
        actual: u64,
    },
    /// A seal is missing: the peer could take pages away.
    #[error("the segment lacks seals (it has {0:#x})")]
    Seals(i32),
    /// Pages are not allocated: a read could fail for lack of memory.
    #[error("only {0} bytes of the segment are allocated")]
    NotAllocated(u64),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<nix::Error> for SegmentError {
    fn from(error: nix::Error) -> Self {
        Self::System(error.into())
    }
}

/// Memory that this process writes. A peer with the [descriptor](Self::descriptor) can read it.
#[derive(Debug)]
pub struct Segment {
    descriptor: OwnedFd,
    memory: Memory,
}

impl Segment {
    /// Creates zeroed memory of `size` bytes, a multiple of [`PAGE`] above 0. All pages are allocated.
    ///
    /// # Errors
    ///
    /// The errors of [`fits_file_limit`] and of the system calls: no descriptor or no memory is left, or the kernel is older than
    /// 5.1.
    ///
    /// # Panics
    ///
    /// If `size` is 0 or not a multiple of [`PAGE`].
    pub fn create(size: usize) -> io::Result<Self> {
        Self::create_mapped(size, Mapping::keep_from_children)
    }

    /// Creates memory as [`create`](Self::create) does. Children of the process inherit the memory, and may write it as well.
    ///
    /// # Errors
    ///
    /// The errors of [`create`](Self::create).
    ///
    /// # Panics
    ///
    /// The panics of [`create`](Self::create).
    pub fn create_inherited(size: usize) -> io::Result<Self> {
        Self::create_mapped(size, |_| Ok(()))
    }

    fn create_mapped(
        size: usize,
        prepare: impl FnOnce(&mut Mapping) -> io::Result<()>,
    ) -> io::Result<Self> {
        assert!(size > 0 && size.is_multiple_of(PAGE), "{size} is not a whole number of pages");
        fits_file_limit(size as u64)?;
        let length = i64::try_from(size).map_err(io::Error::other)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        // Hosts with `vm.memfd_noexec = 2` require the flag, and kernels before 6.3 do not know it.
        let no_exec = MFdFlags::from_bits_retain(MFD_NOEXEC_SEAL);
        let descriptor = match memfd_create(c"apus", flags | no_exec) {
            Err(Errno::EINVAL) => memfd_create(c"apus", flags)?,
            created => created?,
        };
        ftruncate(&descriptor, length)?;
        fallocate(&descriptor, FallocateFlags::empty(), 0, length)?;
        let mut mapping = Mapping::new(descriptor.as_fd(), size, Access::ReadWrite)?;
        prepare(&mut mapping)?;
        fcntl(&descriptor, FcntlArg::F_ADD_SEALS(SEALS))?;
        Ok(Self { descriptor, memory: Memory::whole(mapping) })
    }

    /// Returns the descriptor for the peer.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns the memory, to be filled before the peer gets the descriptor.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Converts the segment to its memory and closes the descriptor. The mapping lives as long as any part of it.
    #[must_use]
    pub fn into_memory(self) -> Memory {
        self.memory
    }
}

/// Memory that a peer writes and this process can only read. Clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct PeerSegment {
    mapping: Arc<Mapping>,
}

impl PeerSegment {
    /// Maps the memory behind `descriptor`, which a peer has sent and which must be `size` bytes long.
    ///
    /// # Errors
    ///
    /// [`SegmentError`], before any mapping.
    pub fn open(descriptor: BorrowedFd<'_>, size: usize) -> Result<Self, SegmentError> {
        // The seals come first: they keep the other checked properties from changing.
        let seals =
            fcntl(descriptor, FcntlArg::F_GET_SEALS).map_err(|_| SegmentError::NotMemory)?;
        if !SealFlag::from_bits_retain(seals).contains(SEALS) {
            return Err(SegmentError::Seals(seals));
        }
        let status = fstat(descriptor)?;
        let regular = SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG;
        if !regular || fstatfs(descriptor)?.filesystem_type() != TMPFS_MAGIC {
            return Err(SegmentError::NotMemory);
        }
        let actual = status.st_size.cast_unsigned();
        if actual != size as u64 {
            return Err(SegmentError::Size { expected: size, actual });
        }
        let allocated = status.st_blocks.cast_unsigned() * 512;
        if allocated < size as u64 {
            return Err(SegmentError::NotAllocated(allocated));
        }
        let mapping = Mapping::new(descriptor, size, Access::Read)?;
        Ok(Self { mapping: Arc::new(mapping) })
    }

    /// Returns the size of the segment in bytes.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.mapping.size
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> *const u8 {
        self.mapping.base.as_ptr()
    }

    /// Loads a 64-bit word.
    ///
    /// # Panics
    ///
    /// If the word is not within the segment or `offset` is not a multiple of 8.
    #[inline]
    #[must_use]
    pub fn load(&self, offset: usize, ordering: Ordering) -> u64 {
        #[cfg(test)]
        lines::read(self.address(), offset..offset + 8);
        self.mapping.word(offset).load(ordering)
    }

    /// Loads the first word of the cache line at `offset` and, unless it is 0, the two words after it.
    ///
    /// # Panics
    ///
    /// If the line is not within the segment or `offset` is not a multiple of 64.
    #[inline]
    pub(crate) fn load_head(&self, offset: usize) -> (u64, [u64; 2]) {
        #[cfg(test)]
        lines::read(self.address(), offset..offset + 24);
        let [first, second, third, ..] = self.mapping.line(offset);
        match first.load(Ordering::Acquire) {
            0 => (0, [0, 0]),
            head => (head, [second, third].map(|word| word.load(Ordering::Relaxed))),
        }
    }

    /// Loads a 32-bit word.
    ///
    /// # Panics
    ///
    /// If the word is not within the segment or `offset` is not a multiple of 4.
    #[inline]
    #[must_use]
    pub fn load_u32(&self, offset: usize, ordering: Ordering) -> u32 {
        self.mapping.half_word(offset).load(ordering)
    }

    /// Appends a copy of bytes to `target`. The bytes may change while they are copied, so the copy is arbitrary if the peer breaks
    /// the protocol.
    ///
    /// # Panics
    ///
    /// If `range` is not within the segment.
    #[inline]
    pub fn copy_out(&self, range: Range<usize>, target: &mut Vec<u8>) {
        #[cfg(test)]
        lines::read(self.address(), range.clone());
        let from = self.mapping.bytes(&range);
        let length = range.len();
        target.reserve(length);
        let end = target.len();
        // SAFETY: `from` points at `length` bytes that are mapped as long as `self` lives, `reserve` has made room for as many
        // bytes after the end, and the two do not overlap, because the target belongs to this process alone.
        unsafe {
            from.as_ptr().copy_to_nonoverlapping(target.as_mut_ptr().add(end), length);
            target.set_len(end + length);
        }
    }

    /// Appends a copy of bytes to a buffer with room for them, as [`copy_out`](Self::copy_out) does.
    ///
    /// # Panics
    ///
    /// If `range` is not within the segment, or the buffer has no room.
    #[inline]
    pub(crate) fn append_to(&self, range: Range<usize>, target: &mut BytesMut) {
        #[cfg(test)]
        lines::read(self.address(), range.clone());
        let from = self.mapping.bytes(&range);
        let (length, end) = (range.len(), target.len());
        let room = target.spare_capacity_mut();
        assert!(length <= room.len(), "no room");
        // SAFETY: as in `copy_out`; there is room for these bytes after the end, and they are written before they count.
        unsafe {
            from.as_ptr().copy_to_nonoverlapping(room.as_mut_ptr().cast(), length);
            target.set_len(end + length);
        }
    }

    /// Copies bytes to an address. The bytes may change while they are copied.
    ///
    /// # Safety
    ///
    /// `target` must be valid for writes of that many bytes.
    ///
    /// # Panics
    ///
    /// If `range` is not within the segment.
    #[inline]
    pub unsafe fn copy_to(&self, range: Range<usize>, target: *mut u8) {
        let from = self.mapping.bytes(&range);
        // SAFETY: `from` points at bytes that are mapped as long as `self` lives, and the caller guarantees the target.
        unsafe { target.copy_from(from.as_ptr(), range.len()) };
    }

    /// Returns bytes in place.
    ///
    /// # Safety
    ///
    /// The peer must not write to these bytes while the slice lives. Only a peer that is trusted as much as this process itself
    /// guarantees that.
    ///
    /// # Panics
    ///
    /// If `range` is not within the segment.
    #[must_use]
    pub unsafe fn in_place(&self, range: Range<usize>) -> &[u8] {
        let from = self.mapping.bytes(&range);
        // SAFETY: the bytes are mapped as long as `self` lives, and the caller guarantees that the peer does not write to them.
        unsafe { std::slice::from_raw_parts(from.as_ptr(), range.len()) }
    }
}

/// A part of a segment of this process. No other code in this process writes to the part.
#[derive(Debug)]
pub struct Memory {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl Memory {
    fn whole(mapping: Mapping) -> Self {
        let range = 0..mapping.size;
        Self { mapping: Arc::new(mapping), range }
    }

    /// Returns a part of this part. The caller ensures that no other code writes there.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Self {
        assert!(offset + length <= self.size(), "{length} bytes at {offset} of {}", self.size());
        let start = self.range.start + offset;
        Self { mapping: Arc::clone(&self.mapping), range: start..start + length }
    }

    /// Returns 64-bit words, for this process to write and for other processes to read.
    ///
    /// # Panics
    ///
    /// If the words are not within the part or `offset` is not a multiple of 8.
    #[inline]
    #[must_use]
    pub fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let end = count.checked_mul(8).and_then(|bytes| bytes.checked_add(offset));
        assert!(end.is_some_and(|end| end <= self.size()), "{count} words at {offset}");
        if count == 0 {
            return &[];
        }
        let first: *const AtomicU64 = self.word(offset);
        // SAFETY: the first word is aligned, all of them are within the mapping, which lives as long as `self`, and they are only
        // accessed as atomics.
        unsafe { std::slice::from_raw_parts(first, count) }
    }

    /// Returns the size of the part in bytes.
    #[inline]
    #[must_use]
    pub fn size(&self) -> usize {
        self.range.end - self.range.start
    }

    /// Splits the part into its first `size` bytes and the rest.
    ///
    /// # Panics
    ///
    /// If the part is shorter, or `size` is not a multiple of 64, a cache line.
    #[must_use]
    pub fn split(self, size: usize) -> (Self, Self) {
        assert!(size <= self.size() && size.is_multiple_of(64), "{size} of {} bytes", self.size());
        let middle = self.range.start + size;
        let first = Self { mapping: Arc::clone(&self.mapping), range: self.range.start..middle };
        (first, Self { mapping: self.mapping, range: middle..self.range.end })
    }

    /// Returns a 64-bit word, for this process to write and for the peer to read.
    ///
    /// # Panics
    ///
    /// If the word is not within the part or `offset` is not a multiple of 8.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        if offset >= self.size() {
            no_word(offset, self.size());
        }
        #[cfg(test)]
        lines::write(
            self.mapping.base.as_ptr(),
            self.range.start + offset..self.range.start + offset + 8,
        );
        self.mapping.word(self.range.start + offset)
    }

    /// Returns a 32-bit word, for this process to write and for the peer to read.
    ///
    /// # Panics
    ///
    /// If the word is not within the part or `offset` is not a multiple of 4.
    #[inline]
    #[must_use]
    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        if offset >= self.size() {
            no_word(offset, self.size());
        }
        self.mapping.half_word(self.range.start + offset)
    }

    /// Writes a frame that begins with the cache line at `at`: two words and a payload after its first word, then 0 to the first
    /// word of the line at `next`, then `stamp` to the first word of the frame. A peer that reads the stamp reads all of it.
    ///
    /// # Panics
    ///
    /// If the frame or the line is not within the part, or an offset is not a multiple of 64.
    #[inline]
    pub(crate) fn write_frame(
        &mut self,
        (at, next): (usize, usize),
        words: [u64; 2],
        payload: &[u8],
        stamp: u64,
    ) {
        const HEAD: usize = 24;
        let size = self.size();
        let is_within = at < size && next < size && payload.len() <= size - HEAD - at;
        if !(at | next | size).is_multiple_of(LINE) || !is_within {
            no_word(at, size);
        }
        #[cfg(test)]
        for written in [at..at + HEAD + payload.len(), next..next + 8] {
            let start = self.range.start;
            lines::write(self.mapping.base.as_ptr(), start + written.start..start + written.end);
        }
        // SAFETY: the part is mapped for writing as long as `self` lives. Words are aligned, and only accessed as atomics. No
        // reference to the payload's bytes exists in this process, and `&mut self` excludes other threads.
        unsafe {
            let part = self.mapping.base.as_ptr().add(self.range.start);
            let frame = part.add(at);
            let word = |line: *mut u8, number: usize| &*line.cast::<AtomicU64>().add(number);
            word(frame, 1).store(words[0], Ordering::Relaxed);
            word(frame, 2).store(words[1], Ordering::Relaxed);
            frame.add(HEAD).copy_from_nonoverlapping(payload.as_ptr(), payload.len());
            word(part.add(next), 0).store(0, Ordering::Relaxed);
            word(frame, 0).store(stamp, Ordering::Release);
        }
    }

    /// Fetches the cache line at `offset`, for a write that follows soon: the peer's processor has it, and the transfer takes longer
    /// than the work on a short message. Does nothing for a line beyond the part.
    #[inline]
    pub fn fetch_to_write(&self, offset: usize) {
        if offset < self.size() {
            #[cfg(test)]
            lines::write(
                self.mapping.base.as_ptr(),
                self.range.start + offset..self.range.start + offset + 1,
            );
            // SAFETY: the address is within the mapping, which lives as long as `self`. A prefetch changes nothing.
            unsafe {
                let line = self.mapping.base.as_ptr().add(self.range.start + offset);
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
                #[cfg(all(target_arch = "aarch64", not(miri)))]
                std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
                let _ = line;
            }
        }
    }

    /// Copies bytes to `offset`.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    #[inline]
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        let start = self.range.start + offset;
        assert!(bytes.len() <= self.size() && offset <= self.size() - bytes.len(), "no room");
        #[cfg(test)]
        lines::write(self.mapping.base.as_ptr(), start..start + bytes.len());
        let to = self.mapping.bytes(&(start..start + bytes.len()));
        // SAFETY: `to` points at as many bytes that are mapped for writing as long as `self` lives, no reference to them exists in
        // this process because words are accessed as atomics, and `&mut self` excludes other threads.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes of a peer's memory to `offset`. They may change while they are copied.
    ///
    /// # Panics
    ///
    /// If they do not fit, or `range` is not within the peer's segment.
    #[inline]
    pub fn copy_from(&mut self, offset: usize, peer: &PeerSegment, range: Range<usize>) {
        let (from, length) = (peer.mapping.bytes(&range), range.len());
        // SAFETY: `&mut self` excludes other writers, and the source is mapped as long as `peer` lives.
        unsafe { self.copy_in_shared(offset, from.as_ptr(), length) };
    }

    /// Copies as [`copy_in`](Self::copy_in) does, for a part that other threads and processes hold as well.
    ///
    /// # Safety
    ///
    /// No other code writes to these bytes meanwhile, and `bytes` must be valid for reads.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    #[inline]
    pub unsafe fn copy_in_shared(&self, offset: usize, bytes: *const u8, length: usize) {
        let start = self.range.start + offset;
        assert!(length <= self.size() && offset <= self.size() - length, "no room");
        let to = self.mapping.bytes(&(start..start + length));
        // SAFETY: `to` points at as many bytes that are mapped for writing as long as `self` lives, and the caller guarantees the
        // rest.
        unsafe { to.as_ptr().copy_from(bytes, length) };
    }

    /// Copies as [`copy_in_shared`](Self::copy_in_shared) does, bypassing the caches: the cache lines are not fetched from the
    /// peer's processor, which takes long if the two processors share no cache. The peer then reads from main memory.
    ///
    /// # Safety
    ///
    /// The conditions of `copy_in_shared`.
    ///
    /// # Panics
    ///
    /// If there is no room.
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn copy_in_non_temporal(&self, offset: usize, bytes: *const u8, length: usize) {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let place = (self.range.start + offset) % LINE;
        let head = ((LINE - place) % LINE).min(length);
        let lines = (length - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: the caller's promise, for parts of the bytes.
        unsafe {
            self.copy_in_shared(offset, bytes, head);
            self.copy_in_shared(offset + tail, bytes.add(tail), length - tail);
        }
        let start = self.range.start + offset + head;
        let to = self.mapping.bytes(&(start..start + lines * LINE)).as_ptr().cast::<__m128i>();
        // SAFETY: as above. Both run over `lines` lines, and `to` begins with one: mappings begin with a page.
        unsafe {
            let from = bytes.add(head).cast::<__m128i>();
            for at in (0..lines * LINE / size_of::<__m128i>()).step_by(4) {
                // One line at once, and without closures, because compilers do not inline these into a function with such
                // instructions.
                let [first, second] =
                    [_mm_loadu_si128(from.add(at)), _mm_loadu_si128(from.add(at + 1))];
                let [third, last] =
                    [_mm_loadu_si128(from.add(at + 2)), _mm_loadu_si128(from.add(at + 3))];
                _mm_stream_si128(to.add(at), first);
                _mm_stream_si128(to.add(at + 1), second);
                _mm_stream_si128(to.add(at + 2), third);
                _mm_stream_si128(to.add(at + 3), last);
            }
            _mm_sfence(); // Otherwise later writes could overtake these.
        }
    }

    /// Returns the address of bytes that this process has written.
    ///
    /// # Panics
    ///
    /// If they are not within the part.
    #[must_use]
    pub fn address(&self, offset: usize, length: usize) -> *const u8 {
        assert!(length <= self.size() && offset <= self.size() - length, "out of reach");
        let start = self.range.start + offset;
        self.mapping.bytes(&(start..start + length)).as_ptr()
    }

    /// Returns the same segment as a peer sees it.
    #[cfg(test)]
    pub(crate) fn as_peer(&self) -> PeerSegment {
        PeerSegment { mapping: Arc::clone(&self.mapping) }
    }

    /// Creates memory that is not shared, for Miri, where the system calls do not exist.
    #[cfg(test)]
    pub(crate) fn private(size: usize) -> Self {
        Self::whole(Mapping::private(size))
    }
}

/// Maps `size` bytes of a file that this process writes, even if the file is shorter: memory beyond its end must not be touched
/// until the file is that long. A child of the process does not inherit the mapping.
pub(crate) fn map_beyond(descriptor: BorrowedFd<'_>, size: usize) -> io::Result<Memory> {
    let mut mapping = Mapping::new(descriptor, size, Access::ReadWrite)?;
    mapping.keep_from_children()?;
    Ok(Memory::whole(mapping))
}

enum Access {
    Read,
    ReadWrite,
}

/// Bytes that stay mapped until the value is dropped.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    size: usize,
    /// The only process with the mapping, if children do not inherit it: a child may have other memory at the address.
    writer: Option<u32>,
    #[cfg(test)]
    private: bool,
}

// SAFETY: the mapping belongs to the process and not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives atomics and raw pointers only; the users of the pointers state their reasons.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(descriptor: BorrowedFd<'_>, size: usize, access: Access) -> io::Result<Self> {
        let length = NonZeroUsize::new(size).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: the kernel chooses a free address, so no existing mapping changes.
        let base = unsafe { mmap(None, length, protection, flags, descriptor, 0)? };
        let mapping = Self {
            base: base.cast(),
            size,
            writer: None,
            #[cfg(test)]
            private: false,
        };
        Ok(mapping)
    }

    /// Excludes the mapping from children: a child of a fork would be a second writer.
    fn keep_from_children(&mut self) -> io::Result<()> {
        // SAFETY: the range is the mapping, and the advice changes nothing in this process.
        unsafe { madvise(self.base.cast(), self.size, MmapAdvise::MADV_DONTFORK)? };
        self.writer = Some(std::process::id());
        Ok(())
    }

    #[cfg(test)]
    fn private(size: usize) -> Self {
        let words = Box::leak(vec![0u128; size / 16].into_boxed_slice());
        Self { base: NonNull::from(words).cast(), size, writer: None, private: true }
    }

    #[inline]
    fn bytes(&self, range: &Range<usize>) -> NonNull<u8> {
        if range.start > range.end || range.end > self.size {
            no_bytes(range, self.size);
        }
        // SAFETY: the offset is within the mapping.
        unsafe { self.base.add(range.start) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        if !offset.is_multiple_of(8) || offset >= self.size {
            no_word(offset, self.size); // The size is a multiple of 8 as well.
        }
        // SAFETY: the word is aligned, mapped as long as `self` lives, and only accessed as an atomic; `PeerSegment` only loads
        // from its read-only mapping.
        unsafe { self.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    #[inline]
    fn line(&self, offset: usize) -> &[AtomicU64; LINE_WORDS] {
        if !offset.is_multiple_of(LINE) || offset >= self.size {
            no_word(offset, self.size); // The size is a multiple of a line as well.
        }
        // SAFETY: the line is aligned, mapped as long as `self` lives, and only accessed as atomics, as in `word`.
        unsafe { self.base.add(offset).cast::<[AtomicU64; LINE_WORDS]>().as_ref() }
    }

    #[inline]
    fn half_word(&self, offset: usize) -> &AtomicU32 {
        if !offset.is_multiple_of(4) || offset >= self.size {
            no_word(offset, self.size);
        }
        // SAFETY: the same as in `word`.
        unsafe { self.base.add(offset).cast::<AtomicU32>().as_ref() }
    }
}

/// Out of line, so that access to a word is a few instructions.
#[cold]
#[inline(never)]
fn no_word(offset: usize, size: usize) -> ! {
    panic!("no word at offset {offset} of {size} bytes");
}

#[cold]
#[inline(never)]
fn no_bytes(range: &Range<usize>, size: usize) -> ! {
    panic!("{range:?} of {size} bytes");
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(test)]
        if self.private {
            let words = std::ptr::slice_from_raw_parts_mut(
                self.base.as_ptr().cast::<u128>(),
                self.size / 16,
            );
            // SAFETY: the memory was leaked from such a box.
            drop(unsafe { Box::from_raw(words) });
            return;
        }
        if self.writer.is_some_and(|writer| writer != std::process::id()) {
            return;
        }
        // SAFETY: the range was mapped by `new`, in this process or, if it is read-only, in a parent, whose child has it too. Every
        // part of it holds this value.
        let unmapped = unsafe { munmap(self.base.cast(), self.size) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use nix::fcntl::{FallocateFlags, OFlag};
    use nix::unistd::pipe2;

    use super::*;

    #[test]
    fn a_peer_reads_what_was_written() {
        let segment = Segment::create(2 * PAGE).unwrap();
        let peer = PeerSegment::open(segment.descriptor(), 2 * PAGE).unwrap();
        let (first, mut rest) = segment.into_memory().split(PAGE);
        first.word(8).store(7, Ordering::Release);
        rest.copy_in(3, b"bytes");
        assert_eq!(
            (first.size(), peer.size(), peer.load(8, Ordering::Acquire)),
            (PAGE, 2 * PAGE, 7)
        );
        let mut copy = b"the ".to_vec();
        peer.copy_out(PAGE + 3..PAGE + 8, &mut copy);
        assert_eq!(copy, b"the bytes");
        rest.copy_from(0, &peer, PAGE + 5..PAGE + 8);
        copy.clear();
        peer.copy_out(PAGE..PAGE + 8, &mut copy);
        assert_eq!(copy, b"tesbytes");
    }

    /// The guarantee against SIGBUS.
    #[test]
    fn nobody_can_take_pages_away_or_write() {
        let segment = Segment::create(PAGE).unwrap();
        let descriptor = segment.descriptor();
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert_eq!(fallocate(descriptor, hole, 0, PAGE as i64), Err(nix::Error::EPERM));
        assert_eq!(ftruncate(descriptor, 0), Err(nix::Error::EPERM));
        assert_eq!(nix::unistd::write(descriptor, b"x"), Err(nix::Error::EPERM));
        assert!(Mapping::new(descriptor, PAGE, Access::ReadWrite).is_err());
        // The writer cannot do so by its mapping either.
        let mapping = &segment.memory.mapping;
        segment.memory.word(0).store(7, Ordering::Relaxed);
        // SAFETY: the range is mapped; accepted advice would make it read as zeros.
        let removed = unsafe { madvise(mapping.base.cast(), PAGE, MmapAdvise::MADV_REMOVE) };
        assert_eq!(segment.memory.word(0).load(Ordering::Relaxed), 7);
        if !ignores_advice() {
            assert_eq!(removed, Err(nix::Error::EPERM));
        }
    }

    /// Returns whether advice to remove pages is accepted and ignored, as by qemu, which runs these tests for other machine types.
    fn ignores_advice() -> bool {
        let file = memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&file, PAGE as i64).unwrap();
        let mapping = Mapping::new(file.as_fd(), PAGE, Access::ReadWrite).unwrap();
        nix::unistd::write(&file, b"x").unwrap();
        // SAFETY: the range is mapped; it reads as zeros from then on.
        unsafe { madvise(mapping.base.cast(), PAGE, MmapAdvise::MADV_REMOVE) }.unwrap();
        let mut byte = [0];
        nix::sys::uio::pread(&file, &mut byte, 0).unwrap();
        byte == *b"x"
    }

    #[test]
    fn what_is_no_sealed_memory_is_refused() {
        let (pipe, _) = pipe2(OFlag::O_CLOEXEC).unwrap();
        assert!(matches!(PeerSegment::open(pipe.as_fd(), PAGE), Err(SegmentError::NotMemory)));
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"test", flags).unwrap();
        ftruncate(&file, PAGE as i64).unwrap();
        assert!(matches!(PeerSegment::open(file.as_fd(), PAGE), Err(SegmentError::Seals(0))));
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS)).unwrap();
        assert!(matches!(
            PeerSegment::open(file.as_fd(), PAGE),
            Err(SegmentError::NotAllocated(0))
        ));
        let error = PeerSegment::open(file.as_fd(), 2 * PAGE).unwrap_err();
        assert_eq!(error.to_string(), "the segment has 4096 bytes instead of 8192");
    }

    #[test]
    #[should_panic(expected = "no room")]
    fn a_part_ends_where_the_next_begins() {
        let (mut first, _rest) = Memory::private(2 * PAGE).split(PAGE);
        first.copy_in(PAGE - 1, b"ab");
    }

    #[test]
    #[should_panic(expected = "of 4096")]
    fn a_word_of_the_next_part_is_out_of_reach() {
        let (first, _rest) = Memory::private(2 * PAGE).split(PAGE);
        let _ = first.word(PAGE);
    }
}
