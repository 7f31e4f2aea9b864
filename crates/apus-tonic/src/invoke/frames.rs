//! Messages with gRPC's frames: a flag, the length, the message.

use apus_rpc::{Code, Status};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use grpc::core::SendMessage;

/// Bytes before a message: the flag of compression, and the length.
const HEAD: usize = 5;

/// Longest message of a response, as gRPC has it by default.
const MESSAGE_MAX: usize = 4 << 20;

/// A message in its frame. An error if it has no bytes, or too many for a frame.
pub(super) fn frame(message: &dyn SendMessage) -> Result<Bytes, ()> {
    let encoded = message.encode().map_err(drop)?;
    let length = encoded.remaining();
    let mut frame = BytesMut::with_capacity(HEAD.saturating_add(length));
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).map_err(drop)?);
    frame.put(encoded);
    Ok(frame.freeze())
}

/// The bytes of messages that were not taken.
#[derive(Default)]
pub(super) struct Frames {
    bytes: BytesMut,
}

impl Frames {
    pub(super) fn push(&mut self, chunk: Bytes) {
        if self.bytes.is_empty() {
            // The only owner of a chunk keeps it.
            self.bytes = chunk.into();
        } else {
            self.bytes.extend_from_slice(&chunk);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next message, if all of it is there.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(head) = self.bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let [flag, length @ ..] = *head;
        if flag != 0 {
            let text = "the response is compressed, which the client has not asked for";
            return Err(Status::new(Code::Internal, text));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > MESSAGE_MAX {
            let text = format!("a message of {length} bytes: at most {MESSAGE_MAX} are allowed");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        if self.bytes.len() < HEAD + length {
            return Ok(None);
        }
        self.bytes.advance(HEAD);
        Ok(Some(self.bytes.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Encoded(&'static [u8]);

    impl SendMessage for Encoded {
        fn encode(&self) -> Result<Box<dyn Buf + Send + Sync>, String> {
            Ok(Box::new(self.0))
        }
    }

    #[test]
    fn messages_come_out_of_their_frames_wherever_chunks_end() {
        let messages: [&[u8]; 3] = [b"one", b"", b"three"];
        let whole: Vec<u8> =
            messages.iter().flat_map(|it| frame(&Encoded(it)).expect("a frame")).collect();
        for size in 1..=whole.len() {
            let (mut frames, mut read) = (Frames::default(), Vec::new());
            for chunk in whole.chunks(size) {
                frames.push(Bytes::copy_from_slice(chunk));
                while let Some(message) = frames.next().expect("valid frames") {
                    read.push(message);
                }
            }
            assert!(frames.is_empty());
            assert_eq!(read, messages, "chunks of {size}");
        }
    }

    #[test]
    fn frames_that_no_client_asked_for_are_refused() {
        for (bytes, code) in [
            (&[1, 0, 0, 0, 0][..], Code::Internal),
            (&[0, 0, 0x40, 0, 1], Code::ResourceExhausted),
            (&[0, 0xFF, 0xFF, 0xFF, 0xFF], Code::ResourceExhausted),
        ] {
            let mut frames = Frames::default();
            frames.push(Bytes::copy_from_slice(bytes));
            assert_eq!(frames.next().map_err(|status| status.code()), Err(code));
        }
    }
}
