//! ACK: the client acknowledges finished RPCs (rules W11 and W18).

use std::fmt;
use std::ops::Range;

use crate::field::{read_u16, read_u64, write_u16, write_u64};
use crate::{Header, PacketType, ParseError, RpcId};

const ENTRY_LEN: usize = 10;
/// Range within an entry.
const CLIENT_ID: Range<usize> = 0..8;
/// Range within an entry.
const SERVER_PORT: Range<usize> = 8..10;

const COUNT: Range<usize> = 28..30;
const ENTRIES: usize = 30;

/// One finished RPC, as ACK and DATA carry it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Acked {
    /// The RPC in its client's form (even). Zero means "no ack" on the wire and never occurs in a parsed packet.
    pub client_id: RpcId,
    /// Homa port of the server that handled the RPC.
    pub server_port: u16,
}

impl Acked {
    /// Parses an entry. Returns `None` if the id is zero.
    #[inline]
    pub(crate) fn parse(entry: &[u8; ENTRY_LEN]) -> Option<Self> {
        let client_id = RpcId(read_u64(entry, CLIENT_ID));
        //= docs/wire.md#W11
        (client_id.0 != 0).then(|| Self { client_id, server_port: read_u16(entry, SERVER_PORT) })
    }

    #[inline]
    pub(crate) fn emit(&self, entry: &mut [u8; ENTRY_LEN]) {
        write_u64(entry, CLIENT_ID, self.client_id.0);
        write_u16(entry, SERVER_PORT, self.server_port);
    }
}

/// The body of an ACK: up to five finished RPCs. The RPC in the common header is finished as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ack {
    count: u8,
    /// Entries at and after `count` are `EMPTY`, so that derived equality is correct.
    entries: [Acked; Self::MAX],
}

impl Ack {
    /// Length of the packet in bytes, independent of the number of entries: Linux drops shorter packets.
    pub const LEN: usize = 80;
    /// Upper bound on entries in one packet.
    pub const MAX: usize = 5;

    const EMPTY: Acked = Acked { client_id: RpcId(0), server_port: 0 };

    /// Creates an ACK of these RPCs. Leaves out entries with id zero.
    ///
    /// # Panics
    ///
    /// If there are more than [`Ack::MAX`] entries.
    #[must_use]
    pub fn new(finished: &[Acked]) -> Self {
        assert!(finished.len() <= Self::MAX, "an ACK holds five entries, not {}", finished.len());
        let mut ack = Self { count: 0, entries: [Self::EMPTY; Self::MAX] };
        for &entry in finished.iter().filter(|entry| entry.client_id.0 != 0) {
            ack.push(entry);
        }
        ack
    }

    /// Returns the RPCs in the body, in order, without the RPC of the common header.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Acked> + '_ {
        self.entries[..usize::from(self.count)].iter().copied()
    }

    /// Parses a packet whose common header has type ACK. Reads a count above five as five.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        //= docs/wire.md#W18
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

    /// Writes the whole packet. Returns its length, [`Ack::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
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

    /// Appends an entry. Every caller has at most `MAX` entries, so there is room.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{
        FROM_CLIENT, LINUX_ACK, SPEC_ACK, assert_lengths, bytes, emitted, without_checksum,
    };

    const ACKED: Acked = Acked { client_id: RpcId(4), server_port: 4000 };

    #[test]
    fn parses_the_spec_packet() {
        let packet = bytes(SPEC_ACK);
        let ack = Ack::new(&[ACKED]);
        assert_eq!(Packet::parse(&packet), Ok(Packet::Ack { header: FROM_CLIENT, ack }));
        //= docs/wire.md#W18
        assert_lengths(&packet, 80);
    }

    #[test]
    fn parses_a_packet_of_linux() {
        let ack = Ack::parse(&bytes(LINUX_ACK)).unwrap();
        assert!(ack.iter().eq([Acked { client_id: RpcId(2), server_port: 4100 }]));
    }

    #[test]
    fn emits_all_eighty_bytes() {
        //= docs/wire.md#W18
        let one = emitted(|buffer| Ack::new(&[ACKED]).emit(&FROM_CLIENT, buffer));
        assert_eq!(one, without_checksum(SPEC_ACK));
        let none = emitted(|buffer| Ack::new(&[]).emit(&FROM_CLIENT, buffer));
        assert_eq!(none.len(), 80);
    }

    #[test]
    fn clips_the_count_to_five() {
        //= docs/wire.md#W18
        let five = [2, 4, 6, 8, 10].map(|id| Acked { client_id: RpcId(id), server_port: 7 });
        let mut packet = emitted(|buffer| Ack::new(&five).emit(&FROM_CLIENT, buffer));
        assert!(Ack::parse(&packet).unwrap().iter().eq(five));
        packet[COUNT].fill(0xFF);
        assert!(Ack::parse(&packet).unwrap().iter().eq(five));
        packet[COUNT].copy_from_slice(&[0, 2]);
        assert!(Ack::parse(&packet).unwrap().iter().eq(five[..2].iter().copied()));
    }

    #[test]
    fn leaves_out_entries_of_id_zero() {
        //= docs/wire.md#W11
        let nothing = Acked { client_id: RpcId(0), server_port: 9 };
        assert_eq!(Ack::new(&[nothing, ACKED]), Ack::new(&[ACKED]));
        let mut packet = bytes(SPEC_ACK);
        packet[30..38].fill(0);
        assert_eq!(Ack::parse(&packet).unwrap().iter().len(), 0);
    }

    #[test]
    #[should_panic(expected = "an ACK holds five entries, not 6")]
    fn holds_no_sixth() {
        let _ = Ack::new(&[ACKED; 6]);
    }
}
