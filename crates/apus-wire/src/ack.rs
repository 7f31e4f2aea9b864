//! ACK: the client tells the server which RPCs it has finished with (rules W11 and W18).

use std::fmt;
use std::ops::Range;

use crate::field::{read_u16, read_u64, write_u16, write_u64};
use crate::{Header, PacketType, ParseError, RpcId};

const ENTRY_LEN: usize = 10;
/// Within an entry.
const CLIENT_ID: Range<usize> = 0..8;
/// Within an entry.
const SERVER_PORT: Range<usize> = 8..10;

const COUNT: Range<usize> = 28..30;
const ENTRIES: usize = 30;

/// One finished RPC, as ACK and DATA carry it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Acked {
    /// The RPC in its client's form (even). Zero stands for "no ack" on the wire and is never found in a parsed packet.
    pub client_id: RpcId,
    /// Homa port of the server that handled it.
    pub server_port: u16,
}

impl Acked {
    /// Reads an entry; `None` where the id is zero.
    #[inline]
    pub(crate) fn parse(entry: &[u8; ENTRY_LEN]) -> Option<Self> {
        let client_id = RpcId(read_u64(entry, CLIENT_ID));
        (client_id.0 != 0).then(|| Self { client_id, server_port: read_u16(entry, SERVER_PORT) })
    }

    #[inline]
    pub(crate) fn emit(&self, entry: &mut [u8; ENTRY_LEN]) {
        write_u64(entry, CLIENT_ID, self.client_id.0);
        write_u16(entry, SERVER_PORT, self.server_port);
    }
}

/// The body of an ACK: up to five finished RPCs, beside the one in the common header, which counts as finished too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ack {
    count: u8,
    /// Those from `count` on are `EMPTY`, so that equality compares what is there.
    entries: [Acked; Self::MAX],
}

impl Ack {
    /// Bytes of the packet, however many entries are in use: Linux drops anything shorter.
    pub const LEN: usize = 80;
    /// Most entries in one packet.
    pub const MAX: usize = 5;

    const EMPTY: Acked = Acked { client_id: RpcId(0), server_port: 0 };

    /// An ACK of these RPCs. Entries with a zero id say nothing and are left out.
    ///
    /// # Panics
    ///
    /// When there are more than [`Ack::MAX`].
    #[must_use]
    pub fn new(finished: &[Acked]) -> Self {
        assert!(finished.len() <= Self::MAX, "an ACK holds five entries, not {}", finished.len());
        let mut ack = Self { count: 0, entries: [Self::EMPTY; Self::MAX] };
        for &entry in finished.iter().filter(|entry| entry.client_id.0 != 0) {
            ack.push(entry);
        }
        ack
    }

    /// The RPCs named in the body, in order. The one in the common header is not among them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Acked> + '_ {
        self.entries[..usize::from(self.count)].iter().copied()
    }

    /// Reads a packet whose common header said ACK. A count above five is taken as five.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let Some(fixed) = bytes.first_chunk::<{ Self::LEN }>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: Self::LEN });
        };
        let mut ack = Self { count: 0, entries: [Self::EMPTY; Self::MAX] };
        let (entries, _) = fixed[ENTRIES..].as_chunks::<ENTRY_LEN>();
        for entry in
            entries.iter().take(usize::from(read_u16(fixed, COUNT))).filter_map(Acked::parse)
        {
            ack.push(entry);
        }
        Ok(ack)
    }

    /// Writes the whole packet and gives its length, [`Ack::LEN`].
    ///
    /// # Panics
    ///
    /// When the buffer is shorter than that.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        let packet = header.emit_control::<{ Self::LEN }>(PacketType::Ack, buffer);
        write_u16(packet, COUNT, u16::from(self.count));
        let (entries, _) = packet[ENTRIES..].as_chunks_mut::<ENTRY_LEN>();
        for (slot, entry) in entries.iter_mut().zip(self.iter()) {
            entry.emit(slot);
        }
        Self::LEN
    }

    /// There is room: every caller has at most `MAX` entries.
    fn push(&mut self, entry: Acked) {
        self.entries[usize::from(self.count)] = entry;
        self.count += 1;
    }
}

impl fmt::Debug for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
