//! Bodies of messages to send.

use std::fmt;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// The bytes of a message to send: in one piece, or as two parts in a row, which travel without a copy that would join them.
///
/// Whatever [`Bytes`] can be made of without a copy is a body, too.
#[derive(Clone)]
pub struct Body(Pieces);

#[derive(Clone)]
enum Pieces {
    One(Bytes),
    /// Both parts, which have more than [`Body::JOINED_MAX`] bytes together.
    Two(Box<[Bytes; 2]>),
}

/// The payload of a packet within a body.
#[derive(Debug)]
pub(crate) struct PacketPayload<'a> {
    /// The first bytes, if they are in another part than the rest.
    pub(crate) before: &'a [u8],
    /// The part with the rest.
    pub(crate) part: &'a Bytes,
    /// The rest within its part.
    pub(crate) range: Range<usize>,
}

impl Body {
    /// Upper bound on the length of a body whose parts are joined by a copy, in bytes: 8 KiB. The copy costs less than the second
    /// part would.
    pub const JOINED_MAX: usize = 8 << 10;

    /// Makes a body of two parts: an envelope, for example, and the bytes of a program. Parts of more than
    /// [`JOINED_MAX`](Self::JOINED_MAX) bytes together are not copied before the message is: into packets, or into memory that is
    /// shared with the receiver.
    #[must_use]
    pub fn parts([first, second]: [Bytes; 2]) -> Self {
        if second.is_empty() {
            return Self(Pieces::One(first));
        }
        if first.is_empty() {
            return Self(Pieces::One(second));
        }
        let two = Box::new([first, second]);
        if two.iter().map(Bytes::len).sum::<usize>() <= Self::JOINED_MAX {
            return Self(Pieces::One(join(&two)));
        }
        Self(Pieces::Two(two))
    }

    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Pieces::One(bytes) => bytes.len(),
            Pieces::Two(two) => two_len(two),
        }
    }

    /// Returns whether the body has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first part, and the second one if there are two.
    #[inline]
    #[must_use]
    pub fn as_parts(&self) -> (&Bytes, Option<&Bytes>) {
        match &self.0 {
            Pieces::One(bytes) => (bytes, None),
            Pieces::Two(two) => (&two[0], Some(&two[1])),
        }
    }

    /// Returns the bytes in one piece, copied if they are two parts.
    #[inline]
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Pieces::One(bytes) => bytes,
            Pieces::Two(two) => join(&two),
        }
    }

    /// Returns the bytes of a body of at most [`JOINED_MAX`](Self::JOINED_MAX) bytes.
    #[inline]
    pub(crate) fn short(&self) -> &Bytes {
        debug_assert!(self.len() <= Self::JOINED_MAX, "a longer body may have two parts");
        match &self.0 {
            Pieces::One(bytes) => bytes,
            Pieces::Two(two) => &two[0],
        }
    }

    /// Returns the bytes in this range, which lies within the body.
    #[inline]
    pub(crate) fn packet(&self, range: Range<usize>) -> PacketPayload<'_> {
        match &self.0 {
            Pieces::One(part) => PacketPayload { before: &[], part, range },
            Pieces::Two(two) => packet_of_two(two, range),
        }
    }
}

#[cold]
fn two_len(two: &[Bytes; 2]) -> usize {
    two[0].len().saturating_add(two[1].len())
}

#[cold]
fn join(two: &[Bytes; 2]) -> Bytes {
    two.concat().into()
}

#[cold]
fn packet_of_two([first, second]: &[Bytes; 2], range: Range<usize>) -> PacketPayload<'_> {
    let border = first.len();
    if range.end <= border {
        return PacketPayload { before: &[], part: first, range };
    }
    let before = first.get(range.start..).unwrap_or_default();
    let range = range.start.saturating_sub(border)..range.end.saturating_sub(border);
    PacketPayload { before, part: second, range }
}

impl Default for Body {
    #[inline]
    fn default() -> Self {
        Self(Pieces::One(Bytes::new()))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.as_parts();
        f.debug_list().entry(first).entries(second).finish()
    }
}

macro_rules! body_from {
    ($($bytes:ty),*) => {$(
        impl From<$bytes> for Body {
            #[inline]
            fn from(bytes: $bytes) -> Self {
                Self(Pieces::One(bytes.into()))
            }
        }
    )*};
}

body_from!(Bytes, BytesMut, Vec<u8>, Box<[u8]>, String, &'static [u8], &'static str);

#[cfg(test)]
mod tests {
    use super::*;

    fn two(first: usize, second: usize) -> Body {
        Body::parts([vec![1; first].into(), vec![2; second].into()])
    }

    #[test]
    fn a_second_part_takes_no_room_in_the_usual_body() {
        assert_eq!(size_of::<Body>(), size_of::<Bytes>());
    }

    #[test]
    fn short_parts_are_joined_and_long_ones_stay_in_place() {
        for (first, second, parts) in [
            (0, 0, 1),
            (0, 100_000, 1),
            (100_000, 0, 1),
            (100, Body::JOINED_MAX - 100, 1),
            (100, Body::JOINED_MAX - 99, 2),
            (100_000, 1, 2),
        ] {
            let body = two(first, second);
            let found = 1 + usize::from(body.as_parts().1.is_some());
            assert_eq!((body.len(), found), (first + second, parts));
            assert_eq!(body.is_empty(), first + second == 0);
            assert_eq!(body.into_bytes(), [vec![1; first], vec![2; second]].concat());
        }
        let [first, second] = [Bytes::from(vec![1; 100]), Bytes::from(vec![2; 100_000])];
        let places = (first.as_ptr(), Some(second.as_ptr()));
        let body = Body::parts([first, second]).clone();
        let (first, second) = body.as_parts();
        assert_eq!((first.as_ptr(), second.map(|second| second.as_ptr())), places);
    }

    #[test]
    fn packets_lie_in_a_part_or_begin_in_the_first_one() {
        let whole = two(3_000, 7_000).into_bytes();
        for body in [two(3_000, 7_000), whole.clone().into()] {
            for (start, end) in [
                (0, 1_000),
                (2_000, 3_000),
                (2_000, 3_001),
                (0, 10_000),
                (3_000, 4_000),
                (9_000, 10_000),
            ] {
                let PacketPayload { before, part, range } = body.packet(start..end);
                assert_eq!([before, &part[range]].concat(), whole[start..end], "{start}..{end}");
                let begins_before = start < 3_000 && end > 3_000 && body.as_parts().1.is_some();
                assert_eq!(!before.is_empty(), begins_before, "{start}..{end}");
            }
        }
    }
}
