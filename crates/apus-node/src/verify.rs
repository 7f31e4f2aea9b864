//! Messages with every byte checked: both sides compute the bytes from the tag.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::message::MessageHeader;

/// Flag in the tag of a message whose bytes depend on the tag.
pub const VERIFIED: u64 = 1 << 63;

/// Upper bound on remembered tags. Beyond it, second executions are not detected. 8 million tags take about 140 MB.
const TAGS_MAX: usize = 8 << 20;

/// A message of `length` bytes with `header` in front and a body computed from the header's tag.
pub fn build(header: MessageHeader, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    bytes.extend_from_slice(&header.to_bytes());
    for word in words(header.tag) {
        if bytes.len() >= length {
            break;
        }
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Whether every byte after the header matches its tag.
pub fn is_right(header: MessageHeader, message: &[u8]) -> bool {
    let body = message.get(MessageHeader::LEN..).unwrap_or_default();
    body.chunks(8)
        .zip(words(header.tag))
        .all(|(bytes, word)| *bytes == word.to_le_bytes()[..bytes.len()])
}

/// An endless sequence of words that differs in every position for every tag (SplitMix64).
fn words(tag: u64) -> impl Iterator<Item = u64> {
    (1_u64..).map(move |place| {
        let mut word = tag.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    })
}

/// The tags of requests that were executed.
#[derive(Debug, Default)]
pub struct Executed {
    tags: Mutex<HashSet<u64>>,
}

impl Executed {
    /// Records a request. Returns `false` if it was executed before.
    pub fn note(&self, tag: u64) -> bool {
        let mut tags = self.tags.lock().expect("no thread panics with the lock");
        tags.len() >= TAGS_MAX || tags.insert(tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_wrong_byte_is_noticed() {
        let header = MessageHeader { tag: VERIFIED | 77, length: 0, other_length: 0 };
        for length in [16, 17, 24, 100, 1001] {
            let message = build(header, length);
            assert_eq!(message.len(), length);
            assert!(is_right(header, &message));
            for place in MessageHeader::LEN..length {
                let mut wrong = message.clone();
                wrong[place] ^= 1;
                assert!(!is_right(header, &wrong), "{place} of {length}");
            }
        }
        let other = MessageHeader { tag: VERIFIED | 78, ..header };
        assert!(!is_right(other, &build(header, 100)));
    }

    #[test]
    fn a_second_execution_is_noticed() {
        let executed = Executed::default();
        assert!(executed.note(1) && executed.note(2) && !executed.note(1));
    }
}
