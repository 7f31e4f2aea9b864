//! Short complete messages for one peer, and acknowledgements, in one UDP datagram: bundles of version 4 (rules W53 to W57).
//!
//! ```text
//! 0      2      3       4       12        20               22     24
//! | 0 0  |  4   | count | token | base id | cutoff version | 0 0  | entry ...
//!
//! 0           4             6           8        10      11      12
//! | id offset | source port | dest port | length | flags | words | words of 4 bytes | body |
//! ```
//!
//! An entry takes 12 bytes where a DATA packet in a [`bundle`](crate::bundle) takes 58, and is written and parsed in one pass.

use std::ops::Range;

use crate::ack::Acked;
use crate::bundle::BundleError;
use crate::data::{Data, DataFlags};
use crate::extension::Extension;
use crate::field::{read_u16, read_u32, read_u64, write_u16, write_u32, write_u64};
use crate::header::{Header, RpcId};
use crate::stamp::{Stamp, Token};

const VERSION: usize = 2;
const COUNT: usize = 3;
const TOKEN: Range<usize> = 4..12;
const BASE: Range<usize> = 12..20;
const CUTOFF_VERSION: Range<usize> = 20..22;

/// Version of the frame, in the place of a bundle's version.
pub const VERSION_4: u8 = 4;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 24;

const ID_OFFSET: Range<usize> = 0..4;
const SOURCE_PORT: Range<usize> = 4..6;
const DEST_PORT: Range<usize> = 6..8;
const LENGTH: Range<usize> = 8..10;
const FLAGS: usize = 10;
const WORDS: usize = 11;

/// Length in bytes of an entry without its extension and its body.
pub const ENTRY_LEN: usize = 12;

/// Upper bound on the acknowledgements of one entry.
pub const ACKS_MAX: u16 = 255;

/// The fields that all entries share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Envelope {
    /// The receiver's token for the sender, as in a [`Stamp`].
    pub token: Token,
    /// Version of the last CUTOFFS that the sender received from the receiver; 0 for none.
    pub cutoff_version: u16,
}

/// Finished RPCs of a client with consecutive ids.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AckRange {
    /// The first RPC in its client's form.
    pub first: RpcId,
    /// Number of RPCs, 1 to [`ACKS_MAX`].
    pub count: u16,
}

impl AckRange {
    /// Returns the RPCs in their client's form.
    #[inline]
    pub fn ids(self) -> impl Iterator<Item = RpcId> {
        (0..u64::from(self.count)).map(move |number| RpcId(self.first.0.wrapping_add(2 * number)))
    }

    /// Returns whether an RPC is one of them.
    #[inline]
    #[must_use]
    pub fn contains(self, id: RpcId) -> bool {
        let behind = id.0.wrapping_sub(self.first.0);
        behind.is_multiple_of(2) && behind / 2 < u64::from(self.count)
    }

    /// Adds an RPC if it is the next one and there is room. Returns whether it was added.
    #[inline]
    pub fn extend(&mut self, id: RpcId) -> bool {
        let next = self.first.0.wrapping_add(2 * u64::from(self.count));
        let fits = id.0 == next && self.count < ACKS_MAX;
        self.count += u16::from(fits);
        fits
    }
}

/// A message of one packet that is transmitted for the first time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Ports and id.
    pub header: Header,
    /// The flags of DATA.
    pub flags: DataFlags,
    /// The extension of DATA: whole words of 4 bytes, at most 255.
    pub words: &'a [u8],
    /// The body, at least 1 byte, as DATA carries it.
    pub body: &'a [u8],
}

impl Message<'_> {
    /// Returns the header of DATA for this message.
    #[inline]
    #[must_use]
    pub fn data(&self, envelope: &Envelope, ack: Option<Acked>) -> Data {
        let length = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        Data {
            message_length: length,
            incoming: length,
            ack,
            cutoff_version: envelope.cutoff_version,
            retransmit: false,
            flags: self.flags,
            offset: 0,
        }
    }

    /// Writes the message as a DATA packet.
    pub fn to_packet(&self, envelope: &Envelope, packet: &mut Vec<u8>) {
        let mut header = [0; Data::LEN];
        self.data(envelope, None).emit(&self.header, &mut header);
        Data::set_extension_len(&mut header, self.words.len());
        Stamp::new(envelope.token).write(&mut header);
        packet.clear();
        packet.extend_from_slice(&header);
        packet.extend_from_slice(self.words);
        packet.extend_from_slice(self.body);
    }

    /// Parses the extension.
    #[must_use]
    pub fn extension(&self) -> Extension {
        Extension::parse(self.words)
    }
}

/// A part of a compact bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// A complete message.
    Message(Message<'a>),
    /// Acknowledgements.
    Acks(AckRange),
}

impl Entry<'_> {
    /// Returns the id of the message, or of the first acknowledged RPC.
    #[inline]
    #[must_use]
    pub fn id(&self) -> RpcId {
        match self {
            Self::Message(message) => message.header.sender_id,
            Self::Acks(acks) => acks.first,
        }
    }
}

/// Returns whether this bundle is of version 4. Call it for a [bundle](crate::bundle::is_bundle) only.
#[inline]
#[must_use]
pub fn is_compact(bundle: &[u8]) -> bool {
    bundle.get(VERSION) == Some(&VERSION_4)
}

/// Clears `buffer` and starts a compact bundle in it, whose first entry is about the RPC `base`.
#[inline]
pub fn start(buffer: &mut Vec<u8>, envelope: &Envelope, base: RpcId) {
    let mut header = [0; HEADER_LEN];
    header[VERSION] = VERSION_4;
    write_u64(&mut header, TOKEN, envelope.token.0);
    write_u64(&mut header, BASE, base.0);
    write_u16(&mut header, CUTOFF_VERSION, envelope.cutoff_version);
    buffer.clear();
    buffer.extend_from_slice(&header);
}

/// Appends an entry to a bundle that [`start`] began. `limit` is the longest datagram allowed for this peer. Returns `false`, and
/// leaves the bundle unchanged, if the entry does not fit: the envelope is another one, the limit or 255 entries are exceeded, the id
/// is too far from the first one, or the message has no length that fits its field.
///
/// # Panics
///
/// If `buffer` holds no bundle begun by [`start`].
#[inline]
#[must_use]
pub fn push(buffer: &mut Vec<u8>, limit: usize, envelope: &Envelope, entry: &Entry<'_>) -> bool {
    let header = buffer.first_chunk::<HEADER_LEN>().expect("the bundle was started");
    if read_envelope(header) != *envelope || header[COUNT] == u8::MAX {
        return false;
    }
    let base = read_u64(header, BASE);
    let mut head = [0; ENTRY_LEN];
    let (id, length, words, body): (_, _, &[u8], &[u8]) = match entry {
        Entry::Message(Message { header, flags, words, body }) => {
            write_u16(&mut head, SOURCE_PORT, header.source_port);
            write_u16(&mut head, DEST_PORT, header.dest_port);
            head[FLAGS] = flags.0;
            (header.sender_id, body.len(), *words, *body)
        }
        Entry::Acks(AckRange { first, count }) => (*first, usize::from(*count), &[], &[]),
    };
    //= docs/wire.md#W54
    let offset = id.0.wrapping_sub(base).cast_signed();
    let (Ok(offset), Ok(length)) = (i32::try_from(offset), u16::try_from(length)) else {
        return false;
    };
    if length == 0 || buffer.len() + ENTRY_LEN + words.len() + body.len() > limit {
        return false;
    }
    write_u32(&mut head, ID_OFFSET, offset.cast_unsigned());
    write_u16(&mut head, LENGTH, length);
    if !words.is_empty() {
        head[FLAGS] |= DataFlags::EXTENDED.0;
        head[WORDS] = (words.len() / 4) as u8;
    }
    buffer[COUNT] += 1;
    buffer.extend_from_slice(&head);
    if !words.is_empty() {
        buffer.extend_from_slice(words);
    }
    buffer.extend_from_slice(body);
    true
}

#[inline]
fn read_envelope(header: &[u8; HEADER_LEN]) -> Envelope {
    let (token, cutoff_version) = (read_u64(header, TOKEN), read_u16(header, CUTOFF_VERSION));
    Envelope { token: Token(token), cutoff_version }
}

/// The entries of a compact bundle, in the order of the pushes. They end before the first error; those before it are valid.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    envelope: Envelope,
    base: u64,
    left: u8,
    rest: &'a [u8],
    length: usize,
    taken: u8,
    error: Option<BundleError>,
}

impl<'a> Entries<'a> {
    /// Parses the header of a compact bundle.
    ///
    /// # Errors
    ///
    /// [`BundleError::Truncated`], [`BundleError::NotABundle`], [`BundleError::UnknownVersion`], [`BundleError::Empty`].
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, BundleError> {
        let Some((header, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Err(BundleError::Truncated);
        };
        if header[..VERSION] != [0, 0] {
            return Err(BundleError::NotABundle);
        }
        //= docs/wire.md#W53
        if header[VERSION] != VERSION_4 {
            return Err(BundleError::UnknownVersion(header[VERSION]));
        }
        if header[COUNT] == 0 {
            return Err(BundleError::Empty);
        }
        Ok(Self {
            envelope: read_envelope(header),
            base: read_u64(header, BASE),
            left: header[COUNT],
            rest,
            length: datagram.len(),
            taken: 0,
            error: None,
        })
    }

    /// Returns the fields that all entries share.
    #[inline]
    #[must_use]
    pub fn envelope(&self) -> Envelope {
        self.envelope
    }

    /// Returns the length of the datagram in bytes.
    #[inline]
    #[must_use]
    pub fn datagram_len(&self) -> usize {
        self.length
    }

    /// Returns the number of entries taken so far.
    #[inline]
    #[must_use]
    pub fn taken(&self) -> u8 {
        self.taken
    }

    /// Returns the error at which the entries have ended, if there is one.
    #[inline]
    #[must_use]
    pub fn error(&self) -> Option<BundleError> {
        self.error
    }

    #[cold]
    fn fail(&mut self, error: BundleError) -> Option<Entry<'a>> {
        (self.left, self.rest, self.error) = (0, &[], Some(error));
        None
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.left == 0 {
            //= docs/wire.md#W28
            if !self.rest.is_empty() {
                return self.fail(BundleError::TrailingBytes(self.rest.len()));
            }
            return None;
        }
        //= docs/wire.md#W26
        let Some((head, rest)) = self.rest.split_first_chunk::<ENTRY_LEN>() else {
            return self.fail(BundleError::Truncated);
        };
        //= docs/wire.md#W54
        let offset = i64::from(read_u32(head, ID_OFFSET).cast_signed());
        let id = RpcId(self.base.wrapping_add_signed(offset));
        let (source_port, length) = (read_u16(head, SOURCE_PORT), read_u16(head, LENGTH));
        //= docs/wire.md#W55
        if length == 0 || source_port == 0 && length > ACKS_MAX {
            return self.fail(BundleError::BadLength(length));
        }
        let entry = if source_port == 0 {
            self.rest = rest;
            Entry::Acks(AckRange { first: id, count: length })
        } else {
            let flags = DataFlags(head[FLAGS]);
            let words =
                if flags.contains(DataFlags::EXTENDED) { 4 * usize::from(head[WORDS]) } else { 0 };
            let Some((words, rest)) = rest.split_at_checked(words) else {
                return self.fail(BundleError::Truncated);
            };
            let Some((body, rest)) = rest.split_at_checked(usize::from(length)) else {
                return self.fail(BundleError::Truncated);
            };
            self.rest = rest;
            let header =
                Header { source_port, dest_port: read_u16(head, DEST_PORT), sender_id: id };
            Entry::Message(Message { header, flags, words, body })
        };
        self.left -= 1;
        self.taken += 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Packet, packets_of_entries};

    const ENVELOPE: Envelope = Envelope { token: Token(0x0102_0304_0506_0708), cutoff_version: 9 };

    fn message(id: u64, body: &[u8]) -> Entry<'_> {
        let header = Header { source_port: 0x8000, dest_port: 4000, sender_id: RpcId(id) };
        Entry::Message(Message { header, flags: DataFlags::NONE, words: &[], body })
    }

    fn acks(first: u64, count: u16) -> Entry<'static> {
        Entry::Acks(AckRange { first: RpcId(first), count })
    }

    fn bundle_of(entries: &[Entry<'_>]) -> Vec<u8> {
        let mut buffer = vec![0xA5; 3];
        start(&mut buffer, &ENVELOPE, entries.first().map_or(RpcId(0), Entry::id));
        for entry in entries {
            assert!(push(&mut buffer, usize::MAX, &ENVELOPE, entry));
        }
        buffer
    }

    /// Returns the entries, and the error that ends them.
    fn parse(datagram: &[u8]) -> (Vec<Entry<'_>>, Option<BundleError>) {
        match Entries::parse(datagram) {
            Ok(mut entries) => (entries.by_ref().collect(), entries.error()),
            Err(error) => (Vec::new(), Some(error)),
        }
    }

    //= docs/wire.md#W53
    //= docs/wire.md#W54
    #[test]
    fn common_fields_appear_once() {
        let bundle = bundle_of(&[message(6, b"one"), message(4, b"second")]);
        let expected = b"\x00\x00\x04\x02\x01\x02\x03\x04\x05\x06\x07\x08\x00\x00\x00\x00\x00\x00\x00\x06\x00\x09\x00\x00\
            \x00\x00\x00\x00\x80\x00\x0f\xa0\x00\x03\x00\x00one\xff\xff\xff\xfe\x80\x00\x0f\xa0\x00\x06\x00\x00second";
        assert_eq!(bundle, expected);
        assert!(crate::bundle::is_bundle(&bundle) && is_compact(&bundle));
        assert_eq!(parse(&bundle), (vec![message(6, b"one"), message(4, b"second")], None));
        let entries = Entries::parse(&bundle).unwrap();
        assert_eq!((entries.envelope(), entries.datagram_len()), (ENVELOPE, bundle.len()));
    }

    //= docs/wire.md#W55
    #[test]
    fn acknowledgements_are_a_range() {
        let mut range = AckRange { first: RpcId(10), count: 1 };
        assert!(!range.extend(RpcId(10)) && !range.extend(RpcId(14)) && range.extend(RpcId(12)));
        let bundle = bundle_of(&[Entry::Acks(range), message(u64::MAX, b"x"), acks(2, 255)]);
        let found = vec![Entry::Acks(range), message(u64::MAX, b"x"), acks(2, 255)];
        assert_eq!(parse(&bundle), (found, None));
        assert!(range.ids().eq([RpcId(10), RpcId(12)]));
        let contained = [8, 10, 11, 12, 14].map(|id| range.contains(RpcId(id)));
        assert_eq!(contained, [false, true, false, true, false]);
        for count in [0, 256, u16::MAX] {
            let mut bad = bundle_of(&[acks(2, 7)]);
            bad[HEADER_LEN + 8..][..2].copy_from_slice(&count.to_be_bytes());
            assert_eq!(parse(&bad), (vec![], Some(BundleError::BadLength(count))));
        }
    }

    //= docs/wire.md#W54
    #[test]
    fn an_entry_stands_for_a_packet() {
        let words = [1, 4, 0, 0, 0, 9, 0, 0];
        let mut extended = message(8, b"body");
        if let Entry::Message(message) = &mut extended {
            message.words = &words;
        }
        let bundle = bundle_of(&[message(6, b"one"), acks(2, 8), extended]);
        let mut packets = Vec::new();
        packets_of_entries(&mut Entries::parse(&bundle).unwrap(), |packet| {
            packets.push(packet.to_vec());
        });
        assert!(packets.iter().all(|it| Stamp::read(it) == Some(Stamp::new(ENVELOPE.token))));
        let parsed: Vec<_> = packets.iter().map(|it| Packet::parse(it).unwrap()).collect();
        let [Packet::Data { header, data, payload }, Packet::Ack { header: first, ack }, _, last] =
            parsed[..]
        else {
            panic!("{parsed:?}")
        };
        assert_eq!((header.sender_id, payload), (RpcId(6), &b"one"[..]));
        let whole = (data.message_length, data.incoming, data.offset, data.cutoff_version);
        assert_eq!(whole, (3, 3, 0, 9));
        assert_eq!((first.sender_id, ack.iter().len()), (RpcId(2), 5));
        assert!(matches!(last, Packet::Data { payload: b"body", .. }));
        assert_eq!(Data::extension(&packets[3]).deadline, Some(9));
    }

    //= docs/wire.md#W53
    #[test]
    fn a_bundle_holds_what_fits_it() {
        let mut buffer = bundle_of(&[message(6, b"one")]);
        let mut full = buffer.clone();
        let limit = buffer.len() + ENTRY_LEN + 3;
        assert!(!push(&mut buffer, limit, &ENVELOPE, &message(8, b"four")));
        let other = Envelope { cutoff_version: 8, ..ENVELOPE };
        assert!(!push(&mut buffer, limit, &other, &message(8, b"two")));
        assert!(!push(&mut buffer, limit, &ENVELOPE, &message(1 << 40, b"two")));
        assert!(!push(&mut buffer, limit, &ENVELOPE, &message(8, b"")));
        assert!(!push(&mut buffer, usize::MAX, &ENVELOPE, &message(8, &[0; 0x1_0000])));
        assert_eq!(buffer, full);
        assert!(push(&mut buffer, limit, &ENVELOPE, &message(8, b"two")));
        (1..255).for_each(|_| assert!(push(&mut full, usize::MAX, &ENVELOPE, &message(8, b"x"))));
        assert!(!push(&mut full, usize::MAX, &ENVELOPE, &message(8, b"x")));
        assert_eq!(parse(&full).0.len(), 255);
    }

    //= docs/wire.md#W26
    //= docs/wire.md#W28
    #[test]
    fn entries_before_an_error_are_valid() {
        let bundle = bundle_of(&[message(6, b"one"), acks(2, 1), message(8, b"two")]);
        let ends = [HEADER_LEN, 39, 51, bundle.len()];
        for end in 3..bundle.len() {
            let (entries, error) = parse(&bundle[..end]);
            let whole = ends.iter().filter(|&&it| it <= end).count().saturating_sub(1);
            assert_eq!((entries.len(), error), (whole, Some(BundleError::Truncated)), "{end}");
        }
        let mut longer = bundle;
        longer.push(0);
        let (entries, error) = parse(&longer);
        assert_eq!((entries.len(), error), (3, Some(BundleError::TrailingBytes(1))));
    }

    //= docs/wire.md#W23
    //= docs/wire.md#W24
    #[test]
    fn other_versions_and_bundles_without_entries_are_refused() {
        let mut bundle = bundle_of(&[]);
        assert_eq!(parse(&bundle).1, Some(BundleError::Empty));
        bundle[VERSION] = 3;
        assert_eq!(parse(&bundle).1, Some(BundleError::UnknownVersion(3)));
        bundle[0] = 1;
        assert_eq!(parse(&bundle).1, Some(BundleError::NotABundle));
        // An extension that extends beyond the end.
        let mut bundle = bundle_of(&[message(6, b"one")]);
        bundle[HEADER_LEN + FLAGS] = DataFlags::EXTENDED.0;
        bundle[HEADER_LEN + WORDS] = 1;
        assert_eq!(parse(&bundle).1, Some(BundleError::Truncated));
    }
}
