//! Buffers in which values are encoded before their length is known.
//!
//! A thread keeps some of them, so that encoding a short value allocates nothing. Its message, whose length is known then, is
//! allocated once. A long value stays in its buffer, which is a part of its message.

use std::cell::RefCell;
use std::mem;

use bytes::Bytes;

/// A buffer, which goes back to its thread when it is dropped.
#[derive(Debug)]
pub(crate) struct EncodeBuffer {
    buffer: Vec<u8>,
}

/// Most buffers that a thread keeps: that many calls may be encoded at a time and not be over.
const KEPT_MAX: usize = 16;

/// Longest buffer that is kept, in bytes.
const SHORT_MAX: usize = 4 << 10;

/// Capacity of a new buffer.
const FIRST: usize = 256;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

impl EncodeBuffer {
    /// An empty buffer.
    pub(crate) fn new() -> Self {
        // A thread that ends has none.
        let kept = KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten();
        Self { buffer: kept.unwrap_or_else(|| Vec::with_capacity(FIRST)) }
    }

    /// The buffer, for bytes that are appended to it.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// The bytes that were appended.
    #[inline]
    pub(crate) fn written(&self) -> &[u8] {
        &self.buffer
    }

    /// Puts bytes before all others.
    pub(crate) fn prepend(&mut self, bytes: &[u8]) {
        self.buffer.splice(..0, bytes.iter().copied());
    }

    /// The bytes, in their buffer.
    pub(crate) fn into_bytes(mut self) -> Bytes {
        mem::take(&mut self.buffer).into()
    }
}

impl Drop for EncodeBuffer {
    fn drop(&mut self) {
        let mut buffer = mem::take(&mut self.buffer);
        if !(FIRST..=SHORT_MAX).contains(&buffer.capacity()) {
            return;
        }
        buffer.clear();
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                kept.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_some_short_buffers() {
        let mut scratch = EncodeBuffer::new();
        scratch.buffer().push(7);
        let place = scratch.written().as_ptr();
        drop(scratch);
        let mut again = EncodeBuffer::new();
        assert!(again.written().is_empty() && again.written().as_ptr() == place);
        again.buffer().resize(SHORT_MAX + 1, 0);
        drop(again);
        assert_eq!(KEPT.with(|kept| kept.borrow().len()), 0);
        drop([(); 2 * KEPT_MAX].map(|()| EncodeBuffer::new()));
        assert_eq!(KEPT.with(|kept| kept.borrow().len()), KEPT_MAX);
    }

    #[test]
    fn bytes_may_be_prepended() {
        let mut scratch = EncodeBuffer::new();
        scratch.buffer().extend_from_slice(b"two");
        scratch.prepend(b"one ");
        assert_eq!(scratch.written(), b"one two");
    }
}
