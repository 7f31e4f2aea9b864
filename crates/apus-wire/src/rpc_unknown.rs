//! RPC_UNKNOWN: the answer to a packet of an RPC that this node does not know (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

mod layout {
    /// Offset of the byte after the common header, which carries the reason between Apus nodes. The Linux module neither sends nor
    /// reads it.
    pub(super) const REASON: usize = crate::COMMON_LEN;
}

/// The sender of this packet does not know the RPC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RpcUnknown {
    /// The reason, if the sender states one.
    pub reason: UnknownReason,
}

/// Reason for not knowing an RPC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum UnknownReason {
    /// No reason stated, or no packet of the RPC was ever received: the client may send its request again.
    #[default]
    Unknown = 0,
    /// The port is not served: the server did not execute the request and never will.
    NoSuchPort = 1,
    /// The server executed the request and gave its response up. It does not execute the request again.
    Finished = 2,
    /// The request exceeds the server's limit. The server did not execute it.
    TooLarge = 3,
    /// The budgets of the server are full. The server did not take the request; the client may send it again later.
    OverBudget = 4,
    /// The packet has another version of the wire format. The stamp of this answer has the version of its sender (rule W30). The
    /// server did not execute the request.
    OtherVersion = 5,
    /// The receiver does not know the packet's token: it has restarted, or has forgotten the sender.
    TokenUnknown = 6,
    /// The handler of the server panicked with the request. The server may have executed it in part, and does not execute it again.
    HandlerPanicked = 7,
    /// No service has the port that an OPEN or a CONFIRM names: this first contact has failed. Says nothing about a request that
    /// followed another first contact.
    NoContact = 8,
    /// The port takes sealed packets only, and this one is plain. The server did not execute the request and never will.
    SealedOnly = 9,
    /// The rule of the service does not name the client. The server did not execute the request and never will.
    NotAllowed = 10,
    /// As [`NoContact`](Self::NoContact), because the port takes sealed packets only.
    ContactSealedOnly = 11,
    /// As [`NoContact`](Self::NoContact), because the rule of the service does not name the client.
    ContactNotAllowed = 12,
}

impl UnknownReason {
    /// Returns the reason for this byte. An unknown byte counts as no stated reason.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::NoSuchPort,
            2 => Self::Finished,
            3 => Self::TooLarge,
            4 => Self::OverBudget,
            5 => Self::OtherVersion,
            6 => Self::TokenUnknown,
            7 => Self::HandlerPanicked,
            8 => Self::NoContact,
            9 => Self::SealedOnly,
            10 => Self::NotAllowed,
            11 => Self::ContactSealedOnly,
            12 => Self::ContactNotAllowed,
            _ => Self::Unknown,
        }
    }

    /// Returns whether the reason is that of a refused OPEN or CONFIRM: it says nothing about a request that followed another first
    /// contact.
    #[inline]
    #[must_use]
    pub const fn is_about_contact(self) -> bool {
        matches!(self, Self::NoContact | Self::ContactSealedOnly | Self::ContactNotAllowed)
    }
}

impl RpcUnknown {
    /// Length in bytes of the packet as sent by Apus. The Linux module sends the 28 bytes of the common header.
    pub const LEN: usize = COMMON_LEN + 1;

    /// Parses the bytes after the common header. There may be none: a packet with a [`Header`] is complete.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let reason = bytes
            .get(layout::REASON)
            .map_or(UnknownReason::Unknown, |&byte| UnknownReason::from_byte(byte));
        Self { reason }
    }

    /// Writes the whole packet. Returns its length, [`RpcUnknown::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than the packet.
    #[inline]
    pub fn emit(&self, header: &Header, buffer: &mut [u8]) -> usize {
        let packet = header.emit_control::<{ Self::LEN }>(PacketType::RpcUnknown, buffer);
        packet[layout::REASON] = self.reason as u8;
        Self::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;
    use crate::samples::{FROM_SERVER, bytes, emitted};

    #[test]
    fn emits_and_parses() {
        //= docs/wire.md#W19
        let unknown = RpcUnknown { reason: UnknownReason::NoSuchPort };
        let packet = emitted(|buffer| unknown.emit(&FROM_SERVER, buffer));
        let expected = bytes(
            "0f a0 80 00 00 00 00 00 00 00 00 13 50 06 00 00 00 00 b9 7d 00 00 00 00 00 00 00 03 01",
        );
        assert_eq!(packet, expected);
        assert_eq!(Packet::parse(&packet), Ok(Packet::RpcUnknown { header: FROM_SERVER, unknown }));
    }

    #[test]
    fn every_reason_is_what_its_byte_says() {
        for byte in 0..=u8::MAX {
            let reason = UnknownReason::from_byte(byte);
            assert_eq!(reason as u8, if byte <= 12 { byte } else { 0 });
        }
    }

    #[test]
    fn the_modules_packet_and_unknown_reasons_say_nothing() {
        let packet = emitted(|buffer| RpcUnknown::default().emit(&FROM_SERVER, buffer));
        for bytes in [packet[..COMMON_LEN].to_vec(), [&packet[..COMMON_LEN], &[77, 1]].concat()] {
            let unknown = RpcUnknown { reason: UnknownReason::Unknown };
            let parsed = Packet::parse(&bytes);
            assert_eq!(parsed, Ok(Packet::RpcUnknown { header: FROM_SERVER, unknown }));
        }
    }
}
