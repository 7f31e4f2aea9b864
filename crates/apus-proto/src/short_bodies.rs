//! Bodies of short messages that packets carry, which share allocations.

use bytes::{Bytes, BytesMut};

/// Size of an allocation that short bodies share, in bytes. A body that is kept keeps all of it, which is less than four times the
/// charge of its RPC.
const CHUNK: usize = 2 << 10;
/// Upper bound on the length of a body that shares an allocation, in bytes.
const SHARING_MAX: usize = 256;

/// Memory for the next short bodies.
#[derive(Debug, Default)]
pub(crate) struct ShortBodies {
    chunk: BytesMut,
}

impl ShortBodies {
    /// Copies the payload of a packet that is a whole message.
    #[inline]
    pub(crate) fn copy(&mut self, payload: &[u8]) -> Bytes {
        if payload.len() > SHARING_MAX {
            return Bytes::copy_from_slice(payload);
        }
        if self.chunk.capacity() < payload.len() {
            self.chunk.reserve(CHUNK); // Without a kept body the memory is used again.
        }
        self.chunk.extend_from_slice(payload);
        self.chunk.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_bodies_share_memory_and_long_ones_have_their_own() {
        let mut bodies = ShortBodies::default();
        let lengths = [0, 1, 100, SHARING_MAX, SHARING_MAX + 1, 5_000];
        for round in 0..100 {
            let payloads = lengths.map(|length| vec![round; length]);
            let copies = payloads.each_ref().map(|payload| bodies.copy(payload));
            for (payload, copy) in payloads.iter().zip(&copies) {
                assert_eq!(payload, copy);
            }
        }
        let (first, second) = (bodies.copy(b"ab"), bodies.copy(b"cd"));
        assert_eq!(first.as_ptr().wrapping_add(2), second.as_ptr());
    }

    #[test]
    fn memory_without_a_kept_body_is_used_again() {
        let mut bodies = ShortBodies::default();
        let first = bodies.copy(&[1; SHARING_MAX]).as_ptr();
        let again = (0..CHUNK / SHARING_MAX).map(|_| bodies.copy(&[2; SHARING_MAX]).as_ptr());
        assert_eq!(again.last(), Some(first));
    }
}
