//! Messages on their way out, in chunks.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};

/// Longest chunk of several messages, in bytes. A longer message is a chunk of its own.
pub(crate) const CHUNK_MAX: usize = 64 << 10;

/// Bytes of the length before a message.
pub(crate) const LENGTH: usize = 4;

/// First capacity of a chunk for short messages, in bytes.
const CHUNK_FIRST: usize = 1 << 10;

/// Messages that wait to be sent. Short ones share a chunk.
//= docs/rpc-wire.md#E21
#[derive(Default)]
pub(crate) struct ChunkQueue {
    full: VecDeque<Bytes>,
    /// The chunk that grows.
    last: BytesMut,
    bytes: usize,
}

impl ChunkQueue {
    /// Adds a message with its length before it.
    //= docs/rpc-wire.md#E20
    pub(crate) fn push_message(&mut self, message: &[u8]) {
        let length = LENGTH + message.len();
        if !self.last.is_empty() && self.last.len() + length > CHUNK_MAX {
            self.close_chunk();
        }
        if self.last.is_empty() {
            self.last.reserve(length.max(CHUNK_FIRST));
        }
        self.last.put_u32(u32::try_from(message.len()).expect("the sender has checked the length"));
        self.last.put_slice(message);
        self.bytes += length;
        if self.last.len() >= CHUNK_MAX {
            self.close_chunk();
        }
    }

    /// Adds bytes that have frames of their own. Short ones share a chunk.
    pub(crate) fn push_raw(&mut self, bytes: &Bytes) {
        if !self.last.is_empty() && self.last.len() + bytes.len() > CHUNK_MAX {
            self.close_chunk();
        }
        self.bytes += bytes.len();
        if bytes.len() >= CHUNK_MAX {
            self.full.push_back(bytes.clone());
        } else {
            self.last.put_slice(bytes);
        }
    }

    fn close_chunk(&mut self) {
        self.full.push_back(self.last.split().freeze());
    }

    /// Takes the oldest chunk.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let chunk = match self.full.pop_front() {
            Some(chunk) => chunk,
            None if self.last.is_empty() => return None,
            None => self.last.split().freeze(),
        };
        self.bytes -= chunk.len();
        Some(chunk)
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has_at_most_one(&self) -> bool {
        self.full.len() + usize::from(!self.last.is_empty()) <= 1
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_share_a_chunk_and_long_ones_have_their_own() {
        //= docs/rpc-wire.md#E20
        //= docs/rpc-wire.md#E21
        let mut queue = ChunkQueue::default();
        for _ in 0..1000 {
            queue.push_message(&[7; 96]);
        }
        queue.push_message(&[8; 200_000]);
        queue.push_message(b"");
        assert_eq!(queue.bytes(), 1000 * 100 + 200_004 + 4);
        let lengths: Vec<usize> = std::iter::from_fn(|| queue.pop()).map(|it| it.len()).collect();
        assert_eq!(lengths, [65_500, 34_500, 200_004, 4]);
        assert!(queue.is_empty());
    }
}
