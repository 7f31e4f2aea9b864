//! Messages out of chunks.

use bytes::{Buf, Bytes, BytesMut};

use crate::envelope::EnvelopeError;
use crate::streaming::chunks::LENGTH;

/// Reads messages out of chunks, whose borders mean nothing. A message that lies in one chunk is not copied.
//= docs/rpc-wire.md#E20
#[derive(Default)]
pub(crate) struct FrameReader {
    chunk: Bytes,
    /// The beginning of a message that goes on in the next chunk.
    part: BytesMut,
}

impl FrameReader {
    /// Adds the next chunk, after all messages of the one before were read.
    pub(crate) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "chunks are read one after the other");
        self.chunk = chunk;
    }

    /// The next message, if its bytes have arrived.
    pub(crate) fn next(&mut self, frame_max: usize) -> Result<Option<Bytes>, EnvelopeError> {
        if self.part.is_empty() {
            let Some(length) = length(&self.chunk, frame_max)? else { return Ok(self.keep(0)) };
            if self.chunk.len() < LENGTH + length {
                return Ok(self.keep(LENGTH + length));
            }
            self.chunk.advance(LENGTH);
            return Ok(Some(self.chunk.split_to(length)));
        }
        self.take(LENGTH);
        let Some(length) = length(&self.part, frame_max)? else { return Ok(None) };
        self.take(LENGTH + length);
        if self.part.len() < LENGTH + length {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.part).freeze();
        message.advance(LENGTH);
        Ok(Some(message))
    }

    /// Keeps the rest of the chunk, the beginning of a message of this length.
    fn keep(&mut self, length: usize) -> Option<Bytes> {
        // The peer's word for a length costs at most one chunk until its bytes arrive.
        self.part.reserve(length.min(2 * self.chunk.len()));
        let rest = self.chunk.split_to(self.chunk.len());
        self.part.extend_from_slice(&rest);
        None
    }

    /// Moves bytes of the chunk to the part, until the part has this length.
    fn take(&mut self, length: usize) {
        let missing = length.saturating_sub(self.part.len()).min(self.chunk.len());
        let taken = self.chunk.split_to(missing);
        self.part.extend_from_slice(&taken);
    }

    /// Whether no message has begun.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunk.is_empty() && self.part.is_empty()
    }
}

/// The length of the message that begins here, if all bytes of the length have arrived.
//= docs/rpc-wire.md#E17
fn length(bytes: &[u8], frame_max: usize) -> Result<Option<usize>, EnvelopeError> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > frame_max {
        return Err(EnvelopeError::FrameTooLong { length, limit: frame_max });
    }
    Ok(Some(length))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::streaming::chunks::ChunkQueue;

    fn messages(chunks: impl IntoIterator<Item = Bytes>, frame_max: usize) -> Vec<Bytes> {
        let (mut reader, mut messages) = (FrameReader::default(), Vec::new());
        for chunk in chunks {
            reader.push(chunk);
            while let Some(message) = reader.next(frame_max).expect("short messages") {
                messages.push(message);
            }
        }
        assert!(reader.is_empty());
        messages
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused_by_its_length() {
        //= docs/rpc-wire.md#E17
        let mut reader = FrameReader::default();
        reader.push(Bytes::from_static(&[0xFF; 4]));
        let error = EnvelopeError::FrameTooLong { length: u32::MAX as usize, limit: 1000 };
        assert_eq!(reader.next(1000), Err(error));
    }

    #[test]
    fn a_length_alone_reserves_little() {
        let mut reader = FrameReader::default();
        reader.push(Bytes::from_static(&[0, 0x3F, 0, 0, 1]));
        assert_eq!(reader.next(4 << 20), Ok(None));
        assert!(reader.part.capacity() < 1000);
    }

    proptest! {
        #[test]
        fn borders_of_chunks_mean_nothing(
            sent in vec(vec(any::<u8>(), 0..50), 0..20),
            cuts in vec(1..30_usize, 0..60),
        ) {
            //= docs/rpc-wire.md#E20
            let mut queue = ChunkQueue::default();
            sent.iter().for_each(|message| queue.push_message(message));
            let mut whole = queue.pop().unwrap_or_default();
            let mut chunks: Vec<Bytes> =
                cuts.into_iter().map(|cut| whole.split_to(cut.min(whole.len()))).collect();
            chunks.push(whole);
            prop_assert_eq!(messages(chunks, 50), sent);
        }
    }
}
