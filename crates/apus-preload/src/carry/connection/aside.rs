//! Bytes that a signal handler writes while it interrupts a write of the same connection.
//!
//! The handler can neither wait for the interrupted write nor complete it. So its bytes are put aside, and are sent before the
//! next bytes of any write. If no write follows, this library's thread sends them.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::iovec;

/// Upper bound on bytes put aside at a time. A handler that writes more gets a short write.
const ROOM: usize = 1024;

/// The bytes put aside: a ring. Handlers that interrupt the holder of the write token write into it, and the holder takes from
/// it. The holder does not run while a handler does.
pub(crate) struct Aside {
    /// Total bytes put aside.
    end: AtomicU32,
    /// Bytes of those that were sent.
    sent: AtomicU32,
    bytes: UnsafeCell<[u8; ROOM]>,
}

// SAFETY: handlers write between `end` and `sent`; the holder of the token reads between `sent` and `end`.
unsafe impl Sync for Aside {}

impl Aside {
    pub(crate) const fn new() -> Self {
        Self { end: AtomicU32::new(0), sent: AtomicU32::new(0), bytes: UnsafeCell::new([0; ROOM]) }
    }

    fn count(&self) -> usize {
        self.end.load(Ordering::SeqCst).wrapping_sub(self.sent.load(Ordering::SeqCst)) as usize
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn at(&self, position: u32) -> *mut u8 {
        // SAFETY: the result is within the bytes.
        unsafe { self.bytes.get().cast::<u8>().add(position as usize % ROOM) }
    }

    /// Puts the first bytes of the parts aside. Returns the number of bytes that fit. Only for a handler that has interrupted the
    /// holder of the write token; another handler may interrupt this one.
    ///
    /// # Safety
    ///
    /// The parts are readable.
    pub(crate) unsafe fn put(&self, parts: &[iovec]) -> usize {
        let all: usize = parts.iter().map(|part| part.iov_len).fold(0, usize::saturating_add);
        let count = all.min(ROOM - self.count());
        let mut position = self.end.fetch_add(count as u32, Ordering::SeqCst);
        let mut left = count;
        for part in parts {
            for index in 0..part.iov_len.min(left) {
                // SAFETY: the caller guarantees that the part is valid.
                unsafe { *self.at(position) = *part.iov_base.cast::<u8>().add(index) };
                position = position.wrapping_add(1);
                left -= 1;
            }
        }
        count
    }

    /// Discards all bytes. Only for the holder of the write token, and for a child of fork.
    pub(crate) fn clear(&self) {
        self.sent.store(self.end.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Passes the bytes to `send`, and keeps those that it does not send. Only for the holder of the write token.
    pub(crate) fn follow<E>(
        &self,
        mut send: impl FnMut(&mut [iovec], usize) -> Result<usize, E>,
    ) -> Result<(), E> {
        while !self.is_empty() {
            let position = self.sent.load(Ordering::SeqCst);
            let length = self.count().min(ROOM - position as usize % ROOM);
            let part = iovec { iov_base: self.at(position).cast(), iov_len: length };
            let sent = send(&mut [part], length)?;
            let next = position.wrapping_add(sent as u32);
            // A handler that forked in between has cleared the bytes in the child.
            let _ = self.sent.compare_exchange(position, next, Ordering::SeqCst, Ordering::SeqCst);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &[u8]) -> iovec {
        iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
    }

    #[test]
    fn bytes_follow_in_order_as_far_as_there_is_room() {
        let aside = Aside::new();
        assert!(aside.is_empty());
        // SAFETY: the parts are bytes of this test.
        unsafe {
            assert_eq!(aside.put(&[part(b"on")]), 2);
            assert_eq!(aside.put(&[part(b"e t"), part(b"wo")]), 5);
        }
        let mut sent = Vec::new();
        let mut room = 5;
        let mut send = |parts: &mut [iovec], bytes: usize| {
            let count = bytes.min(room).min(3);
            room -= count;
            // SAFETY: the part has at least `count` bytes.
            sent.extend(unsafe {
                std::slice::from_raw_parts(parts[0].iov_base.cast::<u8>(), count)
            });
            if count > 0 { Ok(count) } else { Err("full") }
        };
        assert_eq!(aside.follow(&mut send), Err("full"));
        assert!(!aside.is_empty());
        let mut rest = Vec::new();
        let all = aside.follow(|parts, bytes| {
            // SAFETY: as above.
            rest.extend(unsafe {
                std::slice::from_raw_parts(parts[0].iov_base.cast::<u8>(), bytes)
            });
            Ok::<_, ()>(bytes)
        });
        assert_eq!((all, sent.as_slice(), rest.as_slice()), (Ok(()), &b"one t"[..], &b"wo"[..]));
        assert!(aside.is_empty());
        // SAFETY: as above.
        assert_eq!(unsafe { aside.put(&[part(&[7; 3000])]) }, ROOM);
    }
}
