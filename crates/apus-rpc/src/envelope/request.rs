//! Heads of requests.

use bytes::Bytes;

use crate::envelope::FIRST_BYTE;
use crate::envelope::error::EnvelopeError;
use crate::envelope::head_reader::HeadReader;
use crate::envelope::head_writer::HeadWriter;
use crate::envelope::limits::EnvelopeLimits;
use crate::envelope::pairs;
use crate::envelope::path::MethodPath;
use crate::metadata::Metadata;

/// The head of a request: its kind, and the fields of the kind.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RequestHead {
    /// Begins a call.
    Open(Opening),
    /// More of the body of a stream.
    Push {
        /// The call.
        id: u64,
        /// The body ends with this message.
        ends: bool,
        /// Place in the body, which counts from 1.
        seq: u64,
    },
    /// Asks for more of the response's body.
    Pull {
        /// The call.
        id: u64,
        /// Place in the response, which counts from 1.
        seq: u64,
    },
    /// Stands for the call while its response goes on.
    Hold {
        /// The call.
        id: u64,
    },
    /// Gives the call up when no other message stands for it.
    Cancel {
        /// The call.
        id: u64,
    },
}

/// The head of an OPEN.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The call.
    pub id: u64,
    /// The body ends with this message.
    pub ends: bool,
    /// A HOLD follows.
    pub holds: bool,
    /// The method.
    pub path: MethodPath,
    /// The metadata of the request.
    pub metadata: Metadata,
}

const OPEN: u8 = 1;
const PUSH: u8 = 2;
const PULL: u8 = 3;
const HOLD: u8 = 4;
const CANCEL: u8 = 5;

/// Flag of OPEN and PUSH.
const END: u8 = 1;

/// Flag of OPEN.
const HOLDS: u8 = 2;

/// Place of the flags.
const FLAGS: usize = 2;

/// Bytes before the fields of a kind.
const FIXED: usize = 11;

impl RequestHead {
    /// Splits a message into its head and its chunks.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`]: the bytes break a rule of the format or a limit.
    //= docs/rpc-wire.md#E3
    pub fn decode(
        message: &Bytes,
        limits: &EnvelopeLimits,
    ) -> Result<(Self, Bytes), EnvelopeError> {
        let mut reader = HeadReader::begin(message, limits.head)?;
        let kind = reader.byte()?;
        if !(OPEN..=CANCEL).contains(&kind) {
            return Err(EnvelopeError::UnknownKind { kind });
        }
        //= docs/rpc-wire.md#E4
        let flags = reader.byte()?;
        let (ends, holds) = (flags & END != 0, flags & HOLDS != 0);
        let id = reader.u64()?;
        let head = match kind {
            OPEN => {
                let path = MethodPath::new(reader.bytes()?)?;
                let metadata = pairs::read(&mut reader, limits.pairs)?;
                Self::Open(Opening { id, ends, holds, path, metadata })
            }
            PUSH => Self::Push { id, ends, seq: reader.varint()? },
            PULL => Self::Pull { id, seq: reader.varint()? },
            HOLD => Self::Hold { id },
            _ => Self::Cancel { id },
        };
        Ok((head, reader.chunks()))
    }

    /// Whether a message is a PUSH, PULL, HOLD or CANCEL of this version, as far as its first bytes say.
    pub(crate) fn is_about_stream(message: &[u8]) -> bool {
        matches!(message, [FIRST_BYTE, PUSH..=CANCEL, ..])
    }

    /// The id of an OPEN that other messages of its call follow, whatever the rest of it is.
    pub(crate) fn followed_id(message: &[u8]) -> Option<u64> {
        let [FIRST_BYTE, OPEN, flags, rest @ ..] = message else { return None };
        let is_followed = flags & END == 0 || flags & HOLDS != 0;
        is_followed.then(|| rest.first_chunk().map(|id| u64::from_be_bytes(*id)))?
    }

    /// Sets the flags of an OPEN that was encoded.
    pub(crate) fn set_flags(message: &mut [u8], ends: bool, holds: bool) {
        message[FLAGS] = if ends { END } else { 0 } | if holds { HOLDS } else { 0 };
    }

    /// The head as bytes, with room for `body` bytes behind it.
    #[must_use]
    pub fn encode(&self, body: usize) -> Vec<u8> {
        let (kind, ends, id) = match self {
            Self::Open(opening) => return opening.encode(body),
            Self::Push { id, ends, .. } => (PUSH, *ends, *id),
            Self::Pull { id, .. } => (PULL, false, *id),
            Self::Hold { id } => (HOLD, false, *id),
            Self::Cancel { id } => (CANCEL, false, *id),
        };
        let seq = match self {
            Self::Push { seq, .. } | Self::Pull { seq, .. } => Some(*seq),
            _ => None,
        };
        let length = FIXED + seq.map_or(0, HeadWriter::varint_length);
        let mut writer = begin(kind, ends, id, length + body);
        if let Some(seq) = seq {
            writer.varint(seq);
        }
        writer.finish()
    }
}

impl Opening {
    /// The head as bytes, with room for `body` bytes behind it.
    #[must_use]
    pub fn encode(&self, body: usize) -> Vec<u8> {
        let mut message = encode_open(self.id, self.ends, &self.path, &self.metadata, body);
        if self.holds {
            message[FLAGS] |= HOLDS;
        }
        message
    }
}

/// The head of an OPEN, from borrowed parts.
pub(crate) fn encode_open(
    id: u64,
    ends: bool,
    path: &MethodPath,
    metadata: &Metadata,
    body: usize,
) -> Vec<u8> {
    let path = path.bytes();
    if let (true, Ok(length @ ..0x80)) = (metadata.is_empty(), u8::try_from(path.len())) {
        let mut message = Vec::with_capacity(FIXED + 2 + path.len() + body);
        let [a, b, c, d, e, f, g, h] = id.to_be_bytes();
        let end = if ends { END } else { 0 };
        message.extend_from_slice(&[FIRST_BYTE, OPEN, end, a, b, c, d, e, f, g, h, length]);
        message.extend_from_slice(path);
        message.push(0);
        return message;
    }
    let path_length = HeadWriter::counted_length(path.len());
    let room = FIXED + path_length + pairs::length(metadata) + body;
    let mut writer = begin(OPEN, ends, id, room);
    writer.counted(path);
    pairs::write(&mut writer, metadata);
    writer.finish()
}

/// The head of an OPEN in its most frequent form: with a short path and without metadata.
pub(crate) struct PlainOpen<'a> {
    pub(crate) id: u64,
    pub(crate) ends: bool,
    pub(crate) holds: bool,
    /// Not checked.
    pub(crate) path: &'a [u8],
    /// Bytes of the head.
    pub(crate) length: usize,
}

impl<'a> PlainOpen<'a> {
    /// `None` for other messages, which [`RequestHead::decode`] reads.
    #[inline]
    pub(crate) fn read(message: &'a [u8], limits: &EnvelopeLimits) -> Option<Self> {
        let (fixed, rest) = message.split_first_chunk::<FIXED>()?;
        let [FIRST_BYTE, OPEN, flags, id @ ..] = *fixed else { return None };
        let (&length, rest) = rest.split_first().filter(|(length, _)| **length < 0x80)?;
        let (path, rest) = rest.split_at_checked(usize::from(length))?;
        let head = message.len() - rest.len() + 1;
        (rest.first() == Some(&0) && head <= limits.head).then(|| Self {
            id: u64::from_be_bytes(id),
            ends: flags & END != 0,
            holds: flags & HOLDS != 0,
            path,
            length: head,
        })
    }
}

fn begin(kind: u8, ends: bool, id: u64, room: usize) -> HeadWriter {
    let mut writer = HeadWriter::begin(room);
    writer.byte(kind);
    //= docs/rpc-wire.md#E4
    writer.byte(if ends { END } else { 0 });
    writer.u64(id);
    writer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequent_form_of_an_open_is_read_as_all_others() {
        //= docs/rpc-wire.md#E3
        let mut metadata = Metadata::new();
        metadata.append("x-tenant-id", "7").expect("a pair");
        let long = format!("/{}/b", "a".repeat(124));
        assert_eq!(long.len(), 127);
        let limits = EnvelopeLimits::new();
        for (path, metadata, is_plain) in [
            ("/a/b", Metadata::new(), true),
            (&long, Metadata::new(), true),
            (&format!("{long}b"), Metadata::new(), false),
            ("/a/b", metadata, false),
        ] {
            let path = MethodPath::new(path.to_owned()).expect("a path");
            let opening =
                Opening { id: 0x0102_0304_0506_0708, ends: true, holds: false, path, metadata };
            let mut message = opening.encode(4);
            let length = message.len();
            message.extend_from_slice(b"body");
            for (ends, holds) in [(true, false), (false, true), (false, false), (true, true)] {
                RequestHead::set_flags(&mut message, ends, holds);
                let plain = PlainOpen::read(&message, &limits);
                let decoded = RequestHead::decode(&message.clone().into(), &limits);
                let Ok((RequestHead::Open(open), body)) = decoded else { panic!("{decoded:?}") };
                assert_eq!(body, "body");
                let Some(plain) = plain.filter(|_| is_plain) else {
                    assert!(!is_plain && PlainOpen::read(&message, &limits).is_none());
                    continue;
                };
                assert_eq!((plain.id, plain.ends, plain.holds), (open.id, ends, holds));
                assert_eq!((plain.path, plain.length), (&open.path.bytes()[..], length));
                let just = limits.head_max(length);
                assert!(PlainOpen::read(&message, &just).is_some());
                assert!(PlainOpen::read(&message, &limits.head_max(length - 1)).is_none());
                let short = (0..length).find_map(|end| PlainOpen::read(&message[..end], &limits));
                assert!(short.is_none());
            }
            for (place, byte) in [(0, 0xA2), (0, 0xB1), (1, 2), (1, 6)] {
                let mut other = message.clone();
                other[place] = byte;
                assert!(PlainOpen::read(&other, &limits).is_none());
            }
        }
    }
}
