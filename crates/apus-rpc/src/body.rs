//! Bodies before the message with their head is made.

use apus::Bytes;

use crate::scratch::EncodeBuffer;

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
        if self.is_long() { 0 } else { self.len() }
    }

    /// Whether the body stays in its buffer, and its head is written before it.
    fn is_long(&self) -> bool {
        self.rest.is_empty() && self.encoded.as_ref().is_some_and(EncodeBuffer::is_long)
    }

    /// The bytes alone.
    pub(crate) fn into_bytes(mut self) -> Bytes {
        if self.encoded.is_none() { self.rest } else { self.message(Vec::new()) }
    }

    /// The message of this body, which may become another message later.
    pub(crate) fn message(&mut self, head: Vec<u8>) -> Bytes {
        if self.is_long()
            && let Some(encoded) = self.encoded.take()
        {
            let message = encoded.behind(&head);
            self.rest = message.slice(head.len()..);
            return message;
        }
        let mut message = head;
        message.reserve_exact(self.len());
        message.extend_from_slice(self.encoded());
        message.extend_from_slice(&self.rest);
        message.into()
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
                assert!(message.starts_with(head.as_bytes()));
                assert!(message[head.len()..].iter().all(|byte| *byte == 7));
                assert_eq!(message.as_ptr() != place, is_copied || head != "head");
            }
        }
    }

    #[test]
    fn the_rest_follows_the_encoded_bytes() {
        let mut encoded = EncodeBuffer::new();
        encoded.buffer().extend_from_slice(b"one ");
        let mut body = MessageBody { encoded: Some(encoded), rest: Bytes::from_static(b"two") };
        assert_eq!(body.message(b"head ".to_vec()), "head one two");
    }
}
