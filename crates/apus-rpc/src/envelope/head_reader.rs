//! Reads the fields of a head, up to the limit of a head.

use bytes::Bytes;

use crate::envelope::FIRST_BYTE;
use crate::envelope::error::EnvelopeError;

/// A place in a message. No read goes past the message or the limit of a head.
pub(crate) struct HeadReader<'a> {
    message: &'a Bytes,
    at: usize,
    end: usize,
}

impl<'a> HeadReader<'a> {
    /// At the byte after the mark and version.
    //= docs/rpc-wire.md#E1
    //= docs/rpc-wire.md#E5
    pub(crate) fn begin(message: &'a Bytes, head_max: usize) -> Result<Self, EnvelopeError> {
        match message.first() {
            Some(&FIRST_BYTE) => {
                Ok(Self { message, at: 1, end: message.len().min(head_max.max(1)) })
            }
            Some(first) if first >> 4 == FIRST_BYTE >> 4 => {
                Err(EnvelopeError::OtherVersion { version: first & 0xF })
            }
            _ => Err(EnvelopeError::NotAnEnvelope),
        }
    }

    /// The error of a read past the end.
    //= docs/rpc-wire.md#E3
    //= docs/rpc-wire.md#E5
    #[cold]
    fn past_end(&self) -> EnvelopeError {
        if self.end < self.message.len() {
            EnvelopeError::HeadTooLong { limit: self.end }
        } else {
            EnvelopeError::TooShort
        }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, EnvelopeError> {
        Ok(self.slice(1)?[0])
    }

    //= docs/rpc-wire.md#E2
    pub(crate) fn u64(&mut self) -> Result<u64, EnvelopeError> {
        let bytes = self.slice(8)?.first_chunk().expect("the slice has eight bytes");
        Ok(u64::from_be_bytes(*bytes))
    }

    //= docs/rpc-wire.md#E2
    pub(crate) fn varint(&mut self) -> Result<u64, EnvelopeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits || (byte == 0 && shift != 0) {
                return Err(EnvelopeError::BadVarint);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(EnvelopeError::BadVarint)
    }

    /// A length and that many bytes.
    fn counted(&mut self) -> Result<&'a [u8], EnvelopeError> {
        let length = self.varint()?;
        let length = usize::try_from(length).map_err(|_| self.past_end())?;
        self.slice(length)
    }

    /// A length and that many bytes, as a part of the message.
    pub(crate) fn bytes(&mut self) -> Result<Bytes, EnvelopeError> {
        let slice = self.counted()?;
        Ok(if slice.is_empty() { Bytes::new() } else { self.message.slice_ref(slice) })
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], EnvelopeError> {
        if length > self.remaining() {
            return Err(self.past_end());
        }
        let begin = self.at;
        self.at += length;
        Ok(&self.message[begin..self.at])
    }

    /// Bytes that a head may still have.
    pub(crate) fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// The bytes after the head.
    pub(crate) fn chunks(self) -> Bytes {
        self.message.slice(self.at..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(bytes: &[u8]) -> Result<u64, EnvelopeError> {
        let message = Bytes::from([&[FIRST_BYTE], bytes].concat());
        HeadReader::begin(&message, 100)?.varint()
    }

    #[test]
    fn a_varint_has_one_form() {
        //= docs/rpc-wire.md#E2
        assert_eq!(varint(&[0]), Ok(0));
        assert_eq!(varint(&[0x7F]), Ok(127));
        assert_eq!(varint(&[0x80, 1]), Ok(128));
        let max = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1];
        assert_eq!(varint(&max), Ok(u64::MAX));
        assert_eq!(varint(&[0x80, 0]), Err(EnvelopeError::BadVarint));
        let too_large = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2];
        assert_eq!(varint(&too_large), Err(EnvelopeError::BadVarint));
        assert_eq!(varint(&[0x80; 12]), Err(EnvelopeError::BadVarint));
        assert_eq!(varint(&[0x80]), Err(EnvelopeError::TooShort));
    }
}
