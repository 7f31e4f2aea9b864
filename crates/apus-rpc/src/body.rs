//! Bodies before the message with their head is made.

use apus::{Body, Bytes};

use crate::scratch::EncodeBuffer;

/// The message of a head and the bytes behind it, which stay where they are if they are long.
pub(crate) fn behind(mut head: Vec<u8>, bytes: Bytes) -> Body {
    if is_long(bytes.len()) {
        return Body::parts([head.into(), bytes]);
    }
    head.extend_from_slice(&bytes);
    head.into()
}

/// Bytes for which a head has room that [`behind`] puts this many bytes behind.
pub(crate) fn room(length: usize) -> usize {
    if is_long(length) { 0 } else { length }
}

/// Whether this many bytes are better left where they are than copied behind a head.
fn is_long(length: usize) -> bool {
    length > Body::JOINED_MAX
}

/// The body of a request or a response: bytes that a codec has written, then bytes of the program.
#[derive(Debug, Default)]
pub(crate) struct MessageBody {
    pub(crate) encoded: Option<EncodeBuffer>,
    pub(crate) rest: Bytes,
}

impl MessageBody {
    pub(crate) fn len(&self) -> usize {
        self.encoded().len() + self.rest.len()
    }

    fn encoded(&self) -> &[u8] {
        self.encoded.as_ref().map_or(&[], EncodeBuffer::written)
    }

    /// Bytes for which a head has room that [`message`](Self::message) gets.
    pub(crate) fn room(&self) -> usize {
        if self.stays_encoded() { 0 } else { self.encoded().len() + room(self.rest.len()) }
    }

    /// Whether the body stays in the buffer in which it was encoded.
    fn stays_encoded(&self) -> bool {
        self.rest.is_empty() && is_long(self.encoded().len())
    }

    /// The bytes alone.
    pub(crate) fn into_bytes(mut self) -> Bytes {
        if self.encoded.is_none() { self.rest } else { self.message(Vec::new()).into_bytes() }
    }

    /// The message of this body, which may become another message later.
    pub(crate) fn message(&mut self, mut head: Vec<u8>) -> Body {
        if self.stays_encoded()
            && let Some(encoded) = self.encoded.take()
        {
            self.rest = encoded.into_bytes();
        }
        head.reserve_exact(self.room());
        head.extend_from_slice(self.encoded());
        if is_long(self.rest.len()) {
            return Body::parts([head.into(), self.rest.clone()]);
        }
        head.extend_from_slice(&self.rest);
        head.into()
    }
}

impl From<Bytes> for MessageBody {
    fn from(rest: Bytes) -> Self {
        Self { encoded: None, rest }
    }
}

impl From<EncodeBuffer> for MessageBody {
    fn from(encoded: EncodeBuffer) -> Self {
        Self { encoded: Some(encoded), rest: Bytes::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_body_stays_in_its_buffer_and_may_be_sent_again() {
        for (length, is_copied) in [(3, true), (100_000, false)] {
            let mut encoded = EncodeBuffer::new();
            encoded.buffer().reserve(length + 100);
            encoded.buffer().resize(length, 7);
            let place = encoded.written().as_ptr();
            let mut body = MessageBody::from(encoded);
            assert_eq!(body.room(), if is_copied { length } else { 0 });
            for head in ["head", "another head"] {
                let message = body.message(head.into());
                assert_eq!((message.len(), body.len()), (head.len() + length, length));
                let (first, second) = message.as_parts();
                assert_eq!(second.map(|second| second.as_ptr()), (!is_copied).then_some(place));
                assert_eq!(first.len(), if is_copied { head.len() + length } else { head.len() });
                let message = message.into_bytes();
                assert!(message.starts_with(head.as_bytes()));
                assert!(message[head.len()..].iter().all(|byte| *byte == 7));
            }
        }
    }

    #[test]
    fn the_rest_follows_the_encoded_bytes() {
        let mut encoded = EncodeBuffer::new();
        encoded.buffer().extend_from_slice(b"one ");
        let mut body = MessageBody { encoded: Some(encoded), rest: Bytes::from_static(b"two") };
        assert_eq!(body.message(b"head ".to_vec()).into_bytes(), "head one two");
    }

    #[test]
    fn a_long_rest_is_not_copied() {
        let mut encoded = EncodeBuffer::new();
        encoded.buffer().extend_from_slice(b"one ");
        let rest = Bytes::from(vec![7; 100_000]);
        let mut body = MessageBody { encoded: Some(encoded), rest: rest.clone() };
        assert_eq!(body.room(), 4);
        for _ in 0..2 {
            let message = body.message(b"head ".to_vec());
            let (first, second) = message.as_parts();
            assert_eq!(&first[..], b"head one ");
            assert_eq!(second.map(|second| second.as_ptr()), Some(rest.as_ptr()));
        }
    }
}
