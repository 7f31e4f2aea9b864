//! RPC_UNKNOWN: the answer to a packet for an RPC that is not known here (rule W19).

use crate::{COMMON_LEN, Header, PacketType};

mod layout {
    /// The byte after the common header, where Apus tells the reason. The Linux module neither
    /// sends nor reads it.
    pub(super) const REASON: usize = crate::COMMON_LEN;
}

/// The RPC is not known here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RpcUnknown {
    /// The reason, if the sender states one.
    pub reason: UnknownReason,
}

/// Why an RPC is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum UnknownReason {
    /// Not stated, or no packet of the RPC was ever received: the client may send its request again.
    #[default]
    Unknown = 0,
    /// The port is not served: the request was not executed and will not be.
    NoSuchPort = 1,
    /// The request was executed and its response given up: it will not be executed again.
    Finished = 2,
    /// The request is longer than the server ever accepts: it was not executed.
    TooLarge = 3,
    /// The budgets of the server are full: the request was not taken and may be sent again later.
    OverBudget = 4,
    /// The packet is of another version of the wire format. The stamp of this answer has the version of its sender (rule W30).
    /// The request was not executed.
    OtherVersion = 5,
    /// The packet's token is not known: its receiver has restarted, or has forgotten the sender.
    TokenUnknown = 6,
    /// The handler of the server panicked with the request: it may have been executed in part, and will not be executed again.
    HandlerPanicked = 7,
    /// The port that an OPEN or a CONFIRM names is not served: this first contact has failed. This says nothing about a request
    /// that followed another first contact.
    NoContact = 8,
}

impl UnknownReason {
    /// The reason of a byte; an unknown byte means that none is stated.
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
            _ => Self::Unknown,
        }
    }
}

impl RpcUnknown {
    /// Bytes of the packet as sent by Apus. The Linux module sends the 28 bytes of the common header.
    pub const LEN: usize = COMMON_LEN + 1;

    /// Parses what follows the common header, which may be nothing: a packet that has a
    /// [`Header`] is complete.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let reason = bytes
            .get(layout::REASON)
            .map_or(UnknownReason::Unknown, |&byte| UnknownReason::from_byte(byte));
        Self { reason }
    }

    /// Writes the whole packet and gives its length, [`RpcUnknown::LEN`].
    ///
    /// # Panics
    ///
    /// If the buffer is shorter than that.
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
            assert_eq!(reason as u8, if byte <= 8 { byte } else { 0 });
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
