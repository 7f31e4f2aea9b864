//! The common header: the 28 bytes at the start of every packet (rules W1 to W6).
//!
//! The fields of the first 20 bytes have the places of TCP's fields, so that hardware for segmentation and receive-side scaling,
//! and the Linux module's TCP hijacking, work on Homa packets.

use std::fmt;
use std::ops::Range;

use crate::field::{read_u16, read_u64, write_u16, write_u32, write_u64};
use crate::{COMMON_LEN, ParseError};

/// Places of the fields.
pub(crate) mod layout {
    use super::Range;

    pub(crate) const SOURCE_PORT: Range<usize> = 0..2;
    pub(crate) const DEST_PORT: Range<usize> = 2..4;
    pub(crate) const SEQUENCE: Range<usize> = 4..8;
    pub(crate) const TYPE: usize = 11;
    pub(crate) const DOFF: usize = 12;
    pub(crate) const FLAGS: usize = 13;
    pub(crate) const CHECKSUM: Range<usize> = 16..18;
    pub(crate) const URGENT: Range<usize> = 18..20;
    pub(crate) const SENDER_ID: Range<usize> = 20..28;
}

/// TCP's data offset in DATA, as the module sends it: 14 words.
const DOFF_DATA: u8 = 0xE0;
/// TCP's data offset in all control packets: 5 words. Some network cards drop hijacked packets with other values.
const DOFF_CONTROL: u8 = 0x50;
/// TCP's SYN and RST together, which real TCP never sends. One half of the mark by which the module recognises hijacked packets.
const FLAGS_HOMA: u8 = 0x06;
/// The other half of the mark, in TCP's urgent pointer.
const URGENT_HOMA: u16 = 0xB97D;

/// The id of a remote procedure call, in the form of its holder: even at the client; the same number with bit 0 set at the server.
///
/// A packet carries the form of its sender; the receiver's form is [`RpcId::flipped`]. Zero means "no RPC" in ack entries and
/// is never allocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RpcId(pub u64);

impl RpcId {
    /// Returns whether this is the client's form (even).
    #[inline]
    #[must_use]
    pub const fn is_client(self) -> bool {
        self.0 & 1 == 0
    }

    /// Returns whether this is the server's form (odd).
    #[inline]
    #[must_use]
    pub const fn is_server(self) -> bool {
        !self.is_client()
    }

    /// Returns the same RPC in the other side's form.
    #[inline]
    #[must_use]
    pub const fn flipped(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// Returns the same RPC in its client's form, which acks use.
    #[inline]
    #[must_use]
    pub const fn client_form(self) -> Self {
        Self(self.0 & !1)
    }
}

impl fmt::Display for RpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The urgency of a packet in the network: a level from 0 to 7; 7 is the most urgent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Priority(u8);

impl Priority {
    /// Level 0.
    pub const LOWEST: Self = Self(0);
    /// Level 7, which all control packets use.
    pub const HIGHEST: Self = Self(7);
    /// Number of levels.
    pub const LEVELS: usize = 8;

    /// Returns the priority of this level, or `None` above 7.
    #[inline]
    #[must_use]
    pub const fn new(level: u8) -> Option<Self> {
        if level <= Self::HIGHEST.0 { Some(Self(level)) } else { None }
    }

    /// Returns the priority of this level, or 7 for higher levels.
    #[inline]
    #[must_use]
    pub const fn clamped(level: u8) -> Self {
        if level <= Self::HIGHEST.0 { Self(level) } else { Self::HIGHEST }
    }

    /// Returns the level, 0 to 7.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the byte for IPv4's TOS or IPv6's traffic class: the level in the three precedence bits of DSCP, with ECN bits zero
    /// (rule W20).
    #[inline]
    #[must_use]
    pub const fn tos(self) -> u8 {
        self.0 << 5
    }
}

/// The kinds of packet, with their values on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PacketType {
    /// A piece of a message.
    Data = 0x10,
    /// Receiver to sender: permission to transmit more.
    Grant,
    /// Receiver to sender: request for missing bytes.
    Resend,
    /// Answer to RESEND: the RPC is not known.
    RpcUnknown,
    /// Answer to RESEND: the sender is alive and has nothing to transmit yet.
    Busy,
    /// Receiver to sender: priorities of unscheduled bytes.
    Cutoffs,
    /// Debugging aid of the Linux module.
    Freeze,
    /// Server to client: request for the acknowledgement.
    NeedAck,
    /// Client to server: acknowledgement of finished RPCs.
    Ack = 0x18,
    /// First packet to a peer over UDP. This type and the following ones belong to Apus.
    Open,
    /// Answer to OPEN: the token of its sender.
    Token,
    /// Answer to TOKEN: proof that its sender receives at its address.
    Confirm,
    /// Client to server: the client gives the call up.
    Abort = 0x1C,
    /// Either way: returns a nonce from a unix socket.
    Meet,
}

impl PacketType {
    /// Every type, in wire order.
    pub const ALL: [Self; 14] = [
        Self::Data,
        Self::Grant,
        Self::Resend,
        Self::RpcUnknown,
        Self::Busy,
        Self::Cutoffs,
        Self::Freeze,
        Self::NeedAck,
        Self::Ack,
        Self::Open,
        Self::Token,
        Self::Confirm,
        Self::Abort,
        Self::Meet,
    ];

    /// Returns the type for this byte, or `None` outside 0x10..=0x1D.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0x10 => Some(Self::Data),
            0x11 => Some(Self::Grant),
            0x12 => Some(Self::Resend),
            0x13 => Some(Self::RpcUnknown),
            0x14 => Some(Self::Busy),
            0x15 => Some(Self::Cutoffs),
            0x16 => Some(Self::Freeze),
            0x17 => Some(Self::NeedAck),
            0x18 => Some(Self::Ack),
            0x19 => Some(Self::Open),
            0x1A => Some(Self::Token),
            0x1B => Some(Self::Confirm),
            0x1C => Some(Self::Abort),
            0x1D => Some(Self::Meet),
            _ => None,
        }
    }

    /// Returns the position in [`PacketType::ALL`], for tables of counters.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        (self as u8 - Self::Data as u8) as usize
    }

    /// Returns Homa's name of the type in lower case, for counters and tools: `rpc_unknown`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Grant => "grant",
            Self::Resend => "resend",
            Self::RpcUnknown => "rpc_unknown",
            Self::Busy => "busy",
            Self::Cutoffs => "cutoffs",
            Self::Freeze => "freeze",
            Self::NeedAck => "need_ack",
            Self::Ack => "ack",
            Self::Open => "open",
            Self::Token => "token",
            Self::Confirm => "confirm",
            Self::Abort => "abort",
            Self::Meet => "meet",
        }
    }
}

impl fmt::Display for PacketType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The variable fields of the common header: both Homa ports and the RPC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Header {
    /// Homa port of the sender, the destination of answers. Never 0 in a parsed packet (rule W4).
    pub source_port: u16,
    /// Homa port of the receiver. 0 in FREEZE only.
    pub dest_port: u16,
    /// The RPC in its sender's form.
    pub sender_id: RpcId,
}

impl Header {
    /// Parses the common header; also returns the type of the packet.
    ///
    /// # Errors
    ///
    /// [`ParseError::TooShort`] below 28 bytes, [`ParseError::UnknownType`], [`ParseError::SourcePortZero`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(PacketType, Self), ParseError> {
        //= docs/wire.md#W2
        let Some(common) = bytes.first_chunk::<COMMON_LEN>() else {
            return Err(ParseError::TooShort { length: bytes.len(), needed: COMMON_LEN });
        };
        //= docs/wire.md#W3
        let kind = common[layout::TYPE];
        let Some(packet_type) = PacketType::from_byte(kind) else {
            return Err(ParseError::UnknownType(kind));
        };
        let header = Self {
            source_port: read_u16(common, layout::SOURCE_PORT),
            dest_port: read_u16(common, layout::DEST_PORT),
            sender_id: RpcId(read_u64(common, layout::SENDER_ID)),
        };
        //= docs/wire.md#W4
        if header.source_port == 0 {
            return Err(ParseError::SourcePortZero);
        }
        Ok((packet_type, header))
    }

    /// Writes the whole common header. `sequence` is the message offset in DATA and 0 in other packets.
    #[inline]
    pub(crate) fn emit(
        &self,
        packet_type: PacketType,
        sequence: u32,
        buffer: &mut [u8; COMMON_LEN],
    ) {
        //= docs/wire.md#W1
        *buffer = [0; COMMON_LEN];
        write_u16(buffer, layout::SOURCE_PORT, self.source_port);
        write_u16(buffer, layout::DEST_PORT, self.dest_port);
        write_u32(buffer, layout::SEQUENCE, sequence);
        buffer[layout::TYPE] = packet_type as u8;
        buffer[layout::DOFF] =
            if packet_type == PacketType::Data { DOFF_DATA } else { DOFF_CONTROL };
        buffer[layout::FLAGS] = FLAGS_HOMA;
        write_u16(buffer, layout::URGENT, URGENT_HOMA);
        write_u64(buffer, layout::SENDER_ID, self.sender_id.0);
    }

    /// Writes the common header of a control packet of `N` bytes and a body of zeros. Returns the packet, for the caller to fill in
    /// the body.
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    #[inline]
    pub(crate) fn emit_control<'b, const N: usize>(
        &self,
        packet_type: PacketType,
        buffer: &'b mut [u8],
    ) -> &'b mut [u8; N] {
        let packet = buffer
            .first_chunk_mut::<N>()
            .expect("the buffer holds the packet, as emit's doc demands");
        *packet = [0; N];
        let common = packet.first_chunk_mut().expect("no packet is shorter than the common header");
        self.emit(packet_type, 0, common);
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{FROM_SERVER, SPEC_NEED_ACK, bytes, without_checksum};

    #[test]
    fn id_of_each_side() {
        assert!(RpcId(6).is_client() && !RpcId(6).is_server());
        assert!(RpcId(7).is_server() && !RpcId(7).is_client());
        assert_eq!(RpcId(6).flipped(), RpcId(7));
        assert_eq!(RpcId(7).flipped(), RpcId(6));
        assert_eq!(RpcId(7).client_form(), RpcId(6));
        assert_eq!(RpcId(6).client_form(), RpcId(6));
    }

    #[test]
    fn priority_becomes_dscp_precedence() {
        //= docs/wire.md#W20
        assert_eq!(Priority::HIGHEST.tos(), 0xE0);
        assert_eq!(Priority::LOWEST.tos(), 0);
        assert_eq!(Priority::new(5).map(Priority::tos), Some(0xA0));
        assert_eq!(Priority::new(8), None);
        assert_eq!(Priority::clamped(8), Priority::HIGHEST);
        assert_eq!(Priority::clamped(3).get(), 3);
    }

    #[test]
    fn types_are_the_nine_of_homa_and_five_of_apus() {
        //= docs/wire.md#W3
        let known: Vec<PacketType> = (0..=255).filter_map(PacketType::from_byte).collect();
        assert_eq!(known, PacketType::ALL);
        for (index, packet_type) in PacketType::ALL.into_iter().enumerate() {
            assert_eq!(packet_type.index(), index);
            assert_eq!(PacketType::from_byte(packet_type as u8), Some(packet_type));
        }
    }

    #[test]
    fn parses() {
        let parsed = Header::parse(&bytes(SPEC_NEED_ACK));
        assert_eq!(parsed, Ok((PacketType::NeedAck, FROM_SERVER)));
    }

    #[test]
    fn emits_what_linux_sends() {
        //= docs/wire.md#W1
        let mut buffer = [0xA5; COMMON_LEN];
        FROM_SERVER.emit(PacketType::NeedAck, 0, &mut buffer);
        assert_eq!(buffer.to_vec(), without_checksum(SPEC_NEED_ACK));
    }

    #[test]
    fn ignores_fields_without_meaning() {
        //= docs/wire.md#W6
        let mut packet = bytes(SPEC_NEED_ACK);
        packet[4..11].fill(0xFF);
        packet[12..20].fill(0xFF);
        assert_eq!(Header::parse(&packet), Ok((PacketType::NeedAck, FROM_SERVER)));
    }

    #[test]
    fn refuses_short_unknown_and_unanswerable() {
        let packet = bytes(SPEC_NEED_ACK);
        //= docs/wire.md#W2
        for length in 0..COMMON_LEN {
            let too_short = ParseError::TooShort { length, needed: COMMON_LEN };
            assert_eq!(Header::parse(&packet[..length]), Err(too_short));
        }
        //= docs/wire.md#W3
        for unknown in [0, 0x0F, 0x1E, 0xFF] {
            let mut packet = packet.clone();
            packet[11] = unknown;
            assert_eq!(Header::parse(&packet), Err(ParseError::UnknownType(unknown)));
        }
        //= docs/wire.md#W4
        let mut from_nobody = packet;
        from_nobody[..2].fill(0);
        assert_eq!(Header::parse(&from_nobody), Err(ParseError::SourcePortZero));
    }
}
