//! gRPC's frames: a flag, a length of four bytes, a message.

use apus_rpc::{Code, Status};
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Length of the head of a frame.
const HEAD: usize = 5;

/// Bytes that room is made for before they are there.
const RESERVED_MAX: usize = 1 << 20;

/// A message in its frame.
pub(crate) fn frame(message: &[u8]) -> Result<Bytes, Status> {
    let Ok(length) = u32::try_from(message.len()) else {
        return Err(Status::new(Code::ResourceExhausted, "a message has at most 4 GiB"));
    };
    let mut frame = BytesMut::with_capacity(HEAD + message.len());
    frame.put_u8(0);
    frame.put_u32(length);
    frame.put_slice(message);
    Ok(frame.freeze())
}

/// Takes messages out of bytes whose borders mean nothing.
pub(crate) struct FrameReader {
    /// The bytes that were added and not taken.
    rest: Bytes,
    head: BytesMut,
    /// A message that is not whole, and its length.
    part: Option<(BytesMut, usize)>,
    longest: usize,
}

impl FrameReader {
    /// For messages of at most this length.
    pub(crate) fn new(longest: usize) -> Self {
        Self { rest: Bytes::new(), head: BytesMut::new(), part: None, longest }
    }

    /// Adds bytes, after all messages before them were taken.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.rest.is_empty(), "messages are taken before more bytes are added");
        self.rest = bytes;
    }

    /// Whether the bytes end between two messages.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty() && self.head.is_empty() && self.part.is_none()
    }

    /// The next message, without a copy if it is in one piece.
    ///
    /// # Errors
    ///
    /// The message is too long, or compressed.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let (mut message, length) = match self.part.take() {
            Some(part) => part,
            None => match self.begin()? {
                Some(length) if length <= self.rest.len() => {
                    return Ok(Some(self.rest.split_to(length)));
                }
                Some(length) => (BytesMut::with_capacity(length.min(RESERVED_MAX)), length),
                None => return Ok(None),
            },
        };
        let taken = self.rest.split_to((length - message.len()).min(self.rest.len()));
        message.extend_from_slice(&taken);
        if message.len() == length {
            return Ok(Some(message.freeze()));
        }
        self.part = Some((message, length));
        Ok(None)
    }

    /// Reads the head of a frame: the length of its message.
    fn begin(&mut self) -> Result<Option<usize>, Status> {
        let taken = self.rest.split_to((HEAD - self.head.len()).min(self.rest.len()));
        self.head.extend_from_slice(&taken);
        if self.head.len() < HEAD {
            return Ok(None);
        }
        let (flag, length) = (self.head.get_u8(), self.head.get_u32());
        if flag != 0 {
            let text = "a message is compressed, which this side has not asked for";
            return Err(Status::new(Code::Unimplemented, text));
        }
        let length = length as usize;
        if length > self.longest {
            let text = format!("Received message larger than max ({length} vs. {})", self.longest);
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        Ok(Some(length))
    }
}
