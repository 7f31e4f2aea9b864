//! The clear bytes of a sealed datagram, and the hint that answers one whose key is not known (rules W43 to W47).
//!
//! ```text
//!  0     2    3       4          12            20                          n-16      n
//!  | 0 0 | 02 | e e 0 w w w w w | id (8) | lane 4 bits, counter 60 bits | sealed | tag |
//!  | 0 0 | 03 | 0               | id (8) | lane 4 bits, counter 60 bits |                hint
//! ```

use std::fmt;
use std::num::NonZeroU64;

use apus_wire::{COMMON_LEN, DATA_HEADER_LEN, Priority};

use crate::{Nonce, TAG_LEN};

/// Length in bytes of the clear header of a sealed datagram.
pub const CLEAR_LEN: usize = 20;

//= docs/wire.md#W46
/// Number of bytes by which a sealed datagram is longer than its packets: the clear header and the tag.
pub const OVERHEAD: usize = CLEAR_LEN + TAG_LEN;

/// Length of a hint in bytes.
pub const HINT_LEN: usize = CLEAR_LEN;

/// Third byte of a sealed datagram, after two zero bytes. 1 is a bundle (W23).
pub const VERSION_SEALED: u8 = 2;

/// Third byte of a hint, after two zero bytes.
pub const VERSION_HINT: u8 = 3;

/// Number of lanes of a direction: two for each priority.
pub(crate) const LANES: usize = 2 * Priority::LEVELS;

/// Length of the shortest sealed datagram that holds packets: that of a packet without a body.
const LEN_MIN: usize = OVERHEAD + COMMON_LEN;

/// The shortest header behind a payload in words of 4 bytes: DATA's without an extension.
const HEADER_WORDS_MIN: u8 = (DATA_HEADER_LEN / 4) as u8;

const EPOCH_SHIFT: u32 = 6;
const RESERVED_BIT: u8 = 1 << 5;
const HEADER_WORDS_MASK: u8 = RESERVED_BIT - 1;

const LANE_SHIFT: u32 = 60;
const COUNTER_MASK: u64 = (1 << LANE_SHIFT) - 1;

/// The name of an association at the node that receives its datagrams, which that node chose: 6 bits of the shard, 20 of the
/// place in its table and 38 random ones. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AssociationId(NonZeroU64);

impl AssociationId {
    const INDEX_SHIFT: u32 = 38;
    const SHARD_SHIFT: u32 = 58;
    /// Upper bound on the associations of a table.
    pub(crate) const INDEX_END: usize = 1 << (Self::SHARD_SHIFT - Self::INDEX_SHIFT);

    /// Creates the id of the association at this place. Of `random`, 38 bits count.
    pub(crate) fn new(shard: u8, index: usize, random: u64) -> Self {
        debug_assert!(shard < 64 && index < Self::INDEX_END);
        let place = u64::from(shard) << Self::SHARD_SHIFT | (index as u64) << Self::INDEX_SHIFT;
        let id = place | random & ((1 << Self::INDEX_SHIFT) - 1);
        Self(NonZeroU64::new(id).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the id of this number, which a peer chose; `None` for 0.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// Returns the number that travels.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// Returns the shard of the receiver, 0 to 63.
    #[inline]
    #[must_use]
    pub const fn shard(self) -> u8 {
        (self.to_bits() >> Self::SHARD_SHIFT) as u8
    }

    /// Returns the place in the table of the receiver's shard.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        (self.to_bits() >> Self::INDEX_SHIFT) as usize % Self::INDEX_END
    }
}

impl fmt::Debug for AssociationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AssociationId({:016x})", self.0)
    }
}

/// The number of a sealed datagram: its lane, and its place in the lane from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Number(u64);

impl Number {
    /// Returns the number before the first one of a lane.
    pub(crate) const fn before_first(lane: usize) -> Self {
        Self((lane as u64) << LANE_SHIFT)
    }

    /// Returns the lane of the datagrams with this priority that have the header behind the payload, or have not.
    #[inline]
    pub(crate) const fn lane_of(level: Priority, is_split: bool) -> usize {
        level.get() as usize * 2 + is_split as usize
    }

    /// Returns the number that follows in the lane. A lane has 2^60 numbers, and the keys of a path end long before.
    #[inline]
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the number before this one, which is the last one if it is 0 already.
    #[cfg(feature = "holes")]
    pub(crate) fn before(self) -> Self {
        if self.counter() == 0 { self } else { Self(self.0 - 1) }
    }

    #[inline]
    pub(crate) const fn lane(self) -> usize {
        (self.0 >> LANE_SHIFT) as usize
    }

    #[inline]
    pub(crate) const fn counter(self) -> u64 {
        self.0 & COUNTER_MASK
    }
}

/// The vector of a key as a number, which makes a nonce of two operations.
#[derive(Clone, Copy)]
pub(crate) struct Iv(u128);

impl Iv {
    pub(crate) fn new(iv: &Nonce) -> Self {
        let mut bytes = [0; 16];
        bytes[4..].copy_from_slice(iv);
        Self(u128::from_be_bytes(bytes))
    }
}

/// The first 20 bytes of a sealed datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClearHeader {
    /// Epoch and words of the header behind the payload, as in byte 3.
    marks: u8,
    pub(crate) id: AssociationId,
    pub(crate) number: Number,
}

impl ClearHeader {
    /// Creates the header of a datagram. `header_len` is the length of the header behind the payload, 0 if there is none.
    #[inline]
    pub(crate) fn new(epoch: u32, header_len: usize, id: AssociationId, number: Number) -> Self {
        debug_assert!(header_len.is_multiple_of(4) && header_len <= HEADER_LEN_MAX);
        Self { marks: (epoch << EPOCH_SHIFT) as u8 | (header_len / 4) as u8, id, number }
    }

    //= docs/wire.md#W43
    /// Reads the clear header of a datagram.
    #[inline]
    pub(crate) fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        let (marks, id, number) = fields(VERSION_SEALED, datagram)?;
        if marks & RESERVED_BIT != 0 {
            return Err(Malformed::ReservedBit);
        }
        let words = marks & HEADER_WORDS_MASK;
        if words != 0 && words < HEADER_WORDS_MIN {
            return Err(Malformed::HeaderLength);
        }
        let len_min = if words == 0 { LEN_MIN } else { OVERHEAD + 1 + usize::from(words) * 4 };
        if datagram.len() < len_min {
            return Err(Malformed::TooShort);
        }
        if (number.lane() % 2 == 1) != (words != 0) {
            return Err(Malformed::WrongLane);
        }
        Ok(Self { marks, id, number })
    }

    #[inline]
    pub(crate) fn emit(self) -> [u8; CLEAR_LEN] {
        emit(self.mark_word(), self.id, self.number)
    }

    //= docs/wire.md#W44
    /// Returns the nonce of the record: bytes 0–3 and 12–19 of the datagram, XOR the vector of the key.
    #[inline]
    pub(crate) const fn nonce(self, iv: Iv) -> Nonce {
        let bound = (self.mark_word() as u128) << 64 | self.number.0 as u128;
        let [_, _, _, _, nonce @ ..] = (iv.0 ^ bound).to_be_bytes();
        nonce
    }

    /// Returns the two lowest bits of the key's epoch.
    #[inline]
    pub(crate) const fn epoch_bits(self) -> u32 {
        (self.marks >> EPOCH_SHIFT) as u32
    }

    /// Returns the length of the header behind the payload; 0 if the content is a packet or a bundle.
    #[inline]
    pub(crate) const fn header_len(self) -> usize {
        (self.marks & HEADER_WORDS_MASK) as usize * 4
    }

    /// Returns the hint that answers the datagram.
    pub(crate) const fn hint(self) -> Hint {
        Hint { id: self.id, number: self.number }
    }

    #[inline]
    const fn mark_word(self) -> u32 {
        (VERSION_SEALED as u32) << 8 | self.marks as u32
    }
}

/// Length in bytes of the longest header that can stand behind a payload. A packet with a longer one is sealed as it is.
pub const HEADER_LEN_MAX: usize = HEADER_WORDS_MASK as usize * 4;

//= docs/wire.md#W47
/// The answer to a sealed datagram whose key is not known: its id and number. It proves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hint {
    pub(crate) id: AssociationId,
    pub(crate) number: Number,
}

impl Hint {
    /// Reads a hint.
    ///
    /// # Errors
    ///
    /// If the bytes are not a hint.
    pub fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        let (marks, id, number) = fields(VERSION_HINT, datagram)?;
        if datagram.len() != HINT_LEN {
            return Err(Malformed::TooLong);
        }
        if marks != 0 {
            return Err(Malformed::ReservedBit);
        }
        Ok(Self { id, number })
    }

    /// Returns the bytes that travel.
    #[must_use]
    pub fn emit(self) -> [u8; HINT_LEN] {
        emit(u32::from(VERSION_HINT) << 8, self.id, self.number)
    }
}

/// A datagram that no node of this version sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Bytes are missing.
    #[error("the datagram is too short")]
    TooShort,
    /// Bytes follow a hint.
    #[error("the hint is too long")]
    TooLong,
    /// The bytes are neither a sealed datagram nor a hint of this version.
    #[error("the version is not known")]
    UnknownVersion,
    /// A bit is set that has no meaning.
    #[error("a reserved bit is set")]
    ReservedBit,
    /// The header behind the payload is shorter than DATA's.
    #[error("the header behind the payload is shorter than that of DATA")]
    HeaderLength,
    /// The lane belongs to datagrams of the other form.
    #[error("the lane belongs to the other form of datagrams")]
    WrongLane,
    /// The id is 0, which names nothing.
    #[error("the id is 0")]
    ZeroId,
    /// The counter is 0, which no datagram has.
    #[error("the counter is 0")]
    ZeroCounter,
}

/// Reads the fields that sealed datagrams and hints share: byte 3, id and number.
#[inline]
fn fields(version: u8, datagram: &[u8]) -> Result<(u8, AssociationId, Number), Malformed> {
    let Some((clear, _)) = datagram.split_first_chunk::<CLEAR_LEN>() else {
        return Err(Malformed::TooShort);
    };
    let (mark, fields) = clear.split_first_chunk::<4>().expect("4 of 20 bytes");
    let (id, number) = fields.split_first_chunk::<8>().expect("8 of 16 bytes");
    let mark = u32::from_be_bytes(*mark);
    if mark >> 8 != u32::from(version) {
        return Err(Malformed::UnknownVersion);
    }
    let Some(id) = AssociationId::from_bits(u64::from_be_bytes(*id)) else {
        return Err(Malformed::ZeroId);
    };
    let number = Number(u64::from_be_bytes(number.try_into().expect("the last 8 bytes")));
    if number.counter() == 0 {
        return Err(Malformed::ZeroCounter);
    }
    Ok((mark as u8, id, number))
}

#[inline]
fn emit(marks: u32, id: AssociationId, number: Number) -> [u8; CLEAR_LEN] {
    let mut clear = [0; CLEAR_LEN];
    clear[..4].copy_from_slice(&marks.to_be_bytes());
    clear[4..12].copy_from_slice(&id.to_bits().to_be_bytes());
    clear[12..].copy_from_slice(&number.0.to_be_bytes());
    clear
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram with a header of 56 bytes behind the payload: level 6, counter 2.
    fn datagram() -> Vec<u8> {
        let mut datagram = vec![0; 93];
        datagram[..CLEAR_LEN].copy_from_slice(&[
            0,
            0,
            2,
            0xC0 | 14,
            0x04,
            0,
            0,
            0x12,
            0x34,
            0x56,
            0x78,
            0x9A,
            0xD0,
            0,
            0,
            0,
            0,
            0,
            0,
            2,
        ]);
        datagram
    }

    fn changed(changes: &[(usize, u8)]) -> Result<ClearHeader, Malformed> {
        let mut datagram = datagram();
        for &(at, byte) in changes {
            datagram[at] = byte;
        }
        ClearHeader::parse(&datagram)
    }

    //= docs/wire.md#W43
    #[test]
    fn the_fields_are_where_the_table_says() {
        let clear = ClearHeader::parse(&datagram()).expect("a valid header");
        assert_eq!((clear.epoch_bits(), clear.header_len()), (3, 56));
        assert_eq!((clear.number.lane(), clear.number.counter()), (13, 2));
        assert_eq!(clear.id.to_bits(), 0x0400_0012_3456_789A);
        assert_eq!((clear.id.shard(), clear.id.index()), (1, 0));
        assert_eq!(clear.emit(), datagram()[..CLEAR_LEN]);
        assert_eq!(ClearHeader::new(7, 56, clear.id, clear.number), clear);
    }

    //= docs/wire.md#W43
    #[test]
    fn each_wrong_field_is_refused_for_its_own_reason() {
        assert_eq!(changed(&[(0, 1)]), Err(Malformed::UnknownVersion));
        assert_eq!(changed(&[(1, 1)]), Err(Malformed::UnknownVersion));
        for version in [0, 1, 3, 4] {
            assert_eq!(changed(&[(2, version)]), Err(Malformed::UnknownVersion));
        }
        assert_eq!(changed(&[(3, 0x20 | 14)]), Err(Malformed::ReservedBit));
        for words in 1..14 {
            assert_eq!(changed(&[(3, words)]), Err(Malformed::HeaderLength));
        }
        assert_eq!(changed(&[(12, 0xC0)]), Err(Malformed::WrongLane));
        assert_eq!(changed(&[(3, 0)]), Err(Malformed::WrongLane));
        assert_eq!(changed(&[(19, 0)]), Err(Malformed::ZeroCounter));
        let no_id: Vec<_> = (4..12).map(|at| (at, 0)).collect();
        assert_eq!(changed(&no_id), Err(Malformed::ZeroId));
    }

    //= docs/wire.md#W43
    #[test]
    fn a_datagram_holds_a_packet_or_a_header_and_a_byte_of_payload() {
        let mut whole = datagram();
        (whole[3], whole[12]) = (0, 0xC0);
        let mut longest_header = vec![0; 161];
        longest_header[..CLEAR_LEN].copy_from_slice(&datagram()[..CLEAR_LEN]);
        longest_header[3] = 31;
        for (datagram, len_min) in [(whole, 64), (datagram(), 93), (longest_header, 161)] {
            for len in 0..len_min {
                assert_eq!(ClearHeader::parse(&datagram[..len]), Err(Malformed::TooShort));
            }
            assert!(ClearHeader::parse(&datagram[..len_min]).is_ok());
        }
    }

    #[test]
    fn no_id_is_0() {
        let id = AssociationId::new(0, 0, 1 << 38);
        assert_eq!(id.to_bits(), 1);
        assert_eq!(AssociationId::from_bits(0), None);
        let id = AssociationId::new(63, AssociationId::INDEX_END - 1, u64::MAX);
        assert_eq!((id.to_bits(), id.shard(), id.index()), (u64::MAX, 63, (1 << 20) - 1));
    }

    //= docs/wire.md#W47
    #[test]
    fn a_hint_copies_id_and_number() {
        let clear = ClearHeader::parse(&datagram()).expect("a valid header");
        let bytes = clear.hint().emit();
        assert_eq!(bytes[..4], [0, 0, 3, 0]);
        assert_eq!(bytes[4..], datagram()[4..CLEAR_LEN]);
        assert_eq!(Hint::parse(&bytes), Ok(clear.hint()));
        assert_eq!(Hint::parse(&bytes[..19]), Err(Malformed::TooShort));
        assert_eq!(Hint::parse(&datagram()), Err(Malformed::UnknownVersion));
        assert_eq!(Hint::parse(&[&bytes[..], &[0]].concat()), Err(Malformed::TooLong));
    }
}
