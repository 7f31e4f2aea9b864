//! Writes the fields of a head.

use crate::envelope::FIRST_BYTE;

/// A head that grows.
pub(crate) struct HeadWriter {
    bytes: Vec<u8>,
}

impl HeadWriter {
    /// With the mark and version, and room for a head and body of exactly this length: a message without spare room becomes
    /// [`Bytes`](bytes::Bytes) without an allocation.
    pub(crate) fn begin(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.push(FIRST_BYTE);
        Self { bytes }
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn varint(&mut self, value: u64) {
        put_varint(value, &mut self.bytes);
    }

    /// A length and that many bytes.
    pub(crate) fn counted(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes of a varint.
    pub(crate) fn varint_length(value: u64) -> usize {
        (70 - (value | 1).leading_zeros() as usize) / 7
    }

    /// Bytes of [`counted`](Self::counted).
    pub(crate) fn counted_length(length: usize) -> usize {
        Self::varint_length(length as u64) + length
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

/// Appends a varint, as postcard and protocol buffers have it as well.
//= docs/rpc-wire.md#E2
pub(crate) fn put_varint(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}
