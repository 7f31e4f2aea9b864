//! Messages on a byte stream: the reader parses them, and the writer gathers them into few system calls.
//!
//! Shared by TCP, unix sockets and `apus node`. The reader drops the data after a check, which a real RPC library cannot do. The
//! writer sends the pattern in place. Both favour the rivals.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};

use anyhow::{Result, ensure};

use crate::message::{MessageHeader, check_last, filler};

/// Bytes requested from the kernel in one read.
pub const READ_SIZE: usize = 256 << 10;

/// Upper bound on bytes of one write if the caller has other work.
pub const WRITE_SIZE: usize = 128 << 10;

/// Upper bound on messages that are copied one behind another; longer ones are sent in place.
const COPY_MAX: usize = 8 << 10;

/// Upper bound on a copied piece.
const PIECE_MAX: usize = 64 << 10;

/// Upper bound on pieces passed to the kernel in one call.
const PIECES_PER_CALL: usize = 64;

/// Parses a byte stream into messages.
#[derive(Debug, Default)]
pub struct FrameReader {
    /// The start of a message whose header is incomplete.
    header: [u8; MessageHeader::LEN],
    have: usize,
    /// The message being read.
    current: Option<MessageHeader>,
    /// Bytes of it that were read, including the header.
    offset: usize,
}

impl FrameReader {
    /// Takes the next bytes of the stream, and calls `complete` for each message whose last byte is among them.
    ///
    /// # Errors
    /// If the bytes are wrong.
    pub fn take(
        &mut self,
        mut bytes: &[u8],
        mut complete: impl FnMut(MessageHeader),
    ) -> Result<()> {
        while !bytes.is_empty() {
            let Some(header) = self.current else {
                bytes = self.take_header(bytes)?;
                self.finish_if_whole(&mut complete);
                continue;
            };
            let (body, rest) =
                bytes.split_at(bytes.len().min(header.length as usize - self.offset));
            self.offset += body.len();
            check_last(body, self.offset)?;
            bytes = rest;
            self.finish_if_whole(&mut complete);
        }
        Ok(())
    }

    fn take_header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let (part, rest) = bytes.split_at(bytes.len().min(MessageHeader::LEN - self.have));
        self.header[self.have..self.have + part.len()].copy_from_slice(part);
        self.have += part.len();
        if self.have == MessageHeader::LEN {
            let header =
                MessageHeader::from_bytes(&self.header).expect("the buffer is a header long");
            ensure!(
                header.length as usize >= MessageHeader::LEN,
                "a message of {} bytes, shorter than its header",
                header.length
            );
            self.current = Some(header);
            self.offset = MessageHeader::LEN;
        }
        Ok(rest)
    }

    fn finish_if_whole(&mut self, complete: &mut impl FnMut(MessageHeader)) {
        if let Some(header) = self.current.take_if(|header| header.length as usize == self.offset) {
            self.have = 0;
            complete(header);
        }
    }
}

/// Outgoing messages.
#[derive(Debug, Default)]
pub struct FrameWriter {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that the kernel has accepted.
    sent: usize,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// A slice of the pattern: its offset and its length.
    Filler(usize, usize),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Filler(_, length) => *length,
        }
    }

    fn slice(&self, from: usize) -> &[u8] {
        match self {
            Self::Bytes(bytes) => &bytes[from..],
            Self::Filler(offset, length) => filler(offset + from, length - from),
        }
    }
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is left.
    Done,
    /// Bytes are left, and the kernel may accept them.
    More,
    /// The kernel accepts no bytes now.
    Full,
}

impl FrameWriter {
    /// Queues the message that `header` describes.
    pub fn push(&mut self, header: MessageHeader) {
        let length = header.length as usize;
        let copied = if length <= COPY_MAX { length } else { MessageHeader::LEN };
        let bytes = self.copied_piece(copied);
        bytes.extend_from_slice(&header.to_bytes());
        bytes.extend_from_slice(filler(MessageHeader::LEN, copied - MessageHeader::LEN));
        if length > copied {
            self.pieces.push_back(Piece::Filler(copied, length - copied));
        }
    }

    /// Whether no bytes wait to be written.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes everything to a blocking stream.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn write_all(&mut self, mut stream: impl Write) -> io::Result<()> {
        while self.write(&mut stream, usize::MAX)? != Progress::Done {}
        Ok(())
    }

    /// Writes once, at most `limit` bytes, so that a long message does not block the caller.
    ///
    /// # Errors
    /// The errors of the kernel; a full socket buffer is not an error.
    pub fn write(&mut self, stream: &mut impl Write, limit: usize) -> io::Result<Progress> {
        if self.pieces.is_empty() {
            return Ok(Progress::Done);
        }
        match self.write_some(stream, limit) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => self.advance(written),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Progress::Full),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        Ok(if self.pieces.is_empty() { Progress::Done } else { Progress::More })
    }

    fn write_some(&self, stream: &mut impl Write, limit: usize) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); PIECES_PER_CALL];
        let (mut from, mut room) = (self.sent, limit);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let bytes = piece.slice(from);
            *slice = IoSlice::new(&bytes[..bytes.len().min(room)]);
            room -= slice.len();
            // A piece that does not fit ends the call, because order matters.
            if slice.len() < piece.len() - from || room == 0 {
                break;
            }
            from = 0;
        }
        stream.write_vectored(&slices[..self.pieces.len().min(PIECES_PER_CALL)])
    }

    fn advance(&mut self, written: usize) {
        self.sent += written;
        while let Some(first) = self.pieces.front() {
            if self.sent < first.len() {
                break;
            }
            self.sent -= first.len();
            self.pieces.pop_front();
        }
    }

    /// The last piece, with room for `more` copied bytes.
    fn copied_piece(&mut self, more: usize) -> &mut Vec<u8> {
        let fits = matches!(self.pieces.back(), Some(Piece::Bytes(bytes)) if bytes.len() + more <= PIECE_MAX);
        if !fits {
            self.pieces.push_back(Piece::Bytes(Vec::with_capacity(more.max(1024))));
        }
        match self.pieces.back_mut() {
            Some(Piece::Bytes(bytes)) => bytes,
            _ => unreachable!("the last piece has bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts at most `a_call` bytes per call, then reports that it is full.
    struct Narrow {
        bytes: Vec<u8>,
        a_call: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.a_call);
            self.bytes.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const HEADERS: [MessageHeader; 5] = [
        MessageHeader { tag: 1, length: 16, other_length: 0 },
        MessageHeader { tag: 2, length: 100, other_length: 100 },
        MessageHeader { tag: 3, length: 3_000_000, other_length: 100 },
        MessageHeader { tag: 4, length: 17, other_length: 0 },
        MessageHeader { tag: 5, length: 10_000, other_length: 0 },
    ];

    fn stream(a_call: usize) -> Vec<u8> {
        let mut writer = FrameWriter::default();
        HEADERS.into_iter().for_each(|header| writer.push(header));
        let mut sink = Narrow { bytes: Vec::new(), a_call };
        writer.write_all(&mut sink).unwrap();
        assert!(writer.is_empty());
        sink.bytes
    }

    #[test]
    fn what_is_written_in_any_pieces_is_read_in_any_pieces() {
        let whole = stream(usize::MAX);
        assert_eq!(whole.len(), HEADERS.iter().map(|header| header.length as usize).sum::<usize>());
        assert_eq!(stream(777), whole);
        for a_read in [1, 15, 16, 17, 4096, whole.len()] {
            let mut reader = FrameReader::default();
            let mut seen = Vec::new();
            for bytes in whole.chunks(a_read) {
                reader.take(bytes, |header| seen.push(header)).unwrap();
            }
            assert_eq!(seen, HEADERS);
        }
    }

    #[test]
    fn a_lost_byte_is_noticed() {
        let mut bytes = stream(usize::MAX);
        bytes.remove(5_000);
        assert!(FrameReader::default().take(&bytes[..8_000], |_| {}).is_err());
    }
}
