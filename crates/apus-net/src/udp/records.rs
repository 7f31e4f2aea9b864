//! Memory for the records of a flush.

use std::ops::{Index, Range};

/// The records of a flush, one behind the other. The memory of earlier flushes is used again as it is: clearing it first would cost
/// half as much as sealing.
#[derive(Debug, Default)]
pub(super) struct SealedRecords {
    bytes: Vec<u8>,
    /// The end of the records.
    end: usize,
}

impl SealedRecords {
    /// Returns the end of the last record, where the next one begins.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Appends a record of this length, which `write` fills. Nothing is appended if it returns `false`.
    #[inline]
    pub(super) fn append(&mut self, length: usize, write: impl FnOnce(&mut [u8]) -> bool) -> bool {
        let end = self.end + length;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let written = write(&mut self.bytes[self.end..end]);
        if written {
            self.end = end;
        }
        written
    }

    /// Forgets all records, and keeps their memory.
    pub(super) fn clear(&mut self) {
        self.end = 0;
    }
}

impl Index<Range<usize>> for SealedRecords {
    type Output = [u8];

    #[inline]
    fn index(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[..self.end][range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_follow_each_other_and_a_flush_begins_anew() {
        let mut records = SealedRecords::default();
        let write = |byte: u8| {
            move |record: &mut [u8]| {
                record.fill(byte);
                true
            }
        };
        for flush in 0..3 {
            assert!(records.append(3, write(flush)));
            assert!(!records.append(5, |_| false));
            assert!(records.append(2, write(flush + 10)));
            assert_eq!(records[0..records.end()], [flush, flush, flush, flush + 10, flush + 10]);
            records.clear();
            assert_eq!(records.end(), 0);
        }
    }
}
