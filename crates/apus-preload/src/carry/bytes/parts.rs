//! The buffers of a call, taken a few at a time.

use std::{ptr, slice};

use libc::iovec;

/// The buffers of a call, and the progress of the call.
pub(crate) struct Parts {
    list: *const iovec,
    count: usize,
    /// Completed bytes of the first remaining buffer.
    done: usize,
    /// Remaining bytes of all buffers.
    left: usize,
}

/// Upper bound on buffers per step.
const WINDOW: usize = 16;

impl Parts {
    /// # Safety
    ///
    /// There are `count` buffers, each readable or writable as the call requires.
    pub(crate) unsafe fn new(list: *const iovec, count: usize) -> Self {
        // SAFETY: guaranteed by the caller.
        let left = unsafe { total(list, count) };
        Self { list, count, done: 0, left }
    }

    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Calls `work` with the next buffers and their number of bytes. Returns its result.
    #[inline]
    pub(crate) fn next<T>(&self, work: impl FnOnce(&mut [iovec], usize) -> T) -> T {
        if self.count == 1 {
            let mut part = [self.first()];
            return work(&mut part, self.left);
        }
        let (mut window, count, bytes) = self.window();
        work(&mut window[..count], bytes)
    }

    /// The rest of the first buffer.
    #[inline]
    fn first(&self) -> iovec {
        // SAFETY: at least one buffer remains.
        let part = unsafe { *self.list };
        let length = (part.iov_len - self.done).min(self.left);
        // SAFETY: `done` is at most the length of the buffer.
        iovec { iov_base: unsafe { part.iov_base.byte_add(self.done) }, iov_len: length }
    }

    #[inline(never)]
    fn window(&self) -> ([iovec; WINDOW], usize, usize) {
        let mut window = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; WINDOW];
        let (mut bytes, count) = (0, self.count.min(WINDOW));
        for (index, part) in window.iter_mut().take(count).enumerate() {
            // SAFETY: at least that many buffers remain.
            *part = if index == 0 { self.first() } else { unsafe { *self.list.add(index) } };
            part.iov_len = part.iov_len.min(self.left - bytes);
            bytes += part.iov_len;
        }
        (window, count, bytes)
    }

    /// Marks the next bytes as completed.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.left -= bytes;
        self.done += bytes;
        while self.count > 0 {
            // SAFETY: at least one buffer remains.
            let length = unsafe { (*self.list).iov_len };
            if self.done < length || self.left == 0 {
                return;
            }
            self.done -= length;
            self.count -= 1;
            // SAFETY: the pointer stays within the list, or one past its end.
            self.list = unsafe { self.list.add(1) };
        }
    }
}

/// Bytes of all parts, up to the maximum that a call may return.
///
/// # Safety
///
/// There are `count` parts.
pub(crate) unsafe fn total(parts: *const iovec, count: usize) -> usize {
    if count == 0 {
        return 0; // The list may be null.
    }
    // SAFETY: the caller guarantees that the parts are valid.
    let parts = unsafe { slice::from_raw_parts(parts, count) };
    parts
        .iter()
        .fold(0_usize, |sum, part| sum.saturating_add(part.iov_len))
        .min(isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_worked_off_in_any_steps() {
        let bytes: Vec<u8> = (0..100).collect();
        let cuts = [0, 7, 7, 30, 31, 100];
        let list: Vec<iovec> = cuts
            .windows(2)
            .map(|cut| iovec {
                iov_base: bytes[cut[0]..].as_ptr().cast_mut().cast(),
                iov_len: cut[1] - cut[0],
            })
            .collect();
        for step in [1, 3, 40, 100] {
            // SAFETY: the buffers are parts of `bytes`.
            let mut parts = unsafe { Parts::new(list.as_ptr(), list.len()) };
            let mut seen = Vec::<u8>::new();
            while parts.left() > 0 {
                let (window, all) = parts.next(|parts, all| (parts.to_vec(), all));
                assert_eq!(all, parts.left());
                let mut take = step.min(all);
                parts.advance(take);
                for part in &window {
                    let length = part.iov_len.min(take);
                    take -= length;
                    // SAFETY: as above.
                    seen.extend(unsafe {
                        slice::from_raw_parts(part.iov_base.cast::<u8>(), length)
                    });
                }
            }
            assert_eq!(seen, bytes);
        }
    }
}
