//! Dispatch: one received packet, parsed completely.

use crate::{
    Ack, Credentials, Cutoffs, Data, Grant, Header, Meet, Open, PacketType, ParseError, Resend,
    RpcUnknown,
};

/// One received packet. Its shape needs no further check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    missing_docs,
    reason = "the fields are the parts of the packet, documented at their types"
)]
pub enum Packet<'a> {
    /// A piece of a message; `payload` is at least one byte and ends within the message.
    Data { header: Header, data: Data, payload: &'a [u8] },
    /// See [`Grant`].
    Grant { header: Header, grant: Grant },
    /// See [`Resend`].
    Resend { header: Header, resend: Resend },
    /// See [`RpcUnknown`].
    RpcUnknown { header: Header, unknown: RpcUnknown },
    /// See [`Busy`](crate::Busy).
    Busy { header: Header },
    /// See [`Cutoffs`].
    Cutoffs { header: Header, cutoffs: Cutoffs },
    /// See [`Freeze`](crate::Freeze).
    Freeze { header: Header },
    /// See [`NeedAck`](crate::NeedAck).
    NeedAck { header: Header },
    /// See [`Ack`].
    Ack { header: Header, ack: Ack },
    /// See [`Open`].
    Open { header: Header, open: Open },
    /// See [`Credentials`].
    Token { header: Header, credentials: Credentials },
    /// See [`Credentials`].
    Confirm { header: Header, credentials: Credentials },
    /// See [`Abort`](crate::Abort).
    Abort { header: Header },
    /// See [`Meet`].
    Meet { header: Header, meet: Meet },
}

impl<'a> Packet<'a> {
    /// Parses one packet, from the first byte of the Homa header to the last byte of the datagram. Copies no payload, allocates
    /// nothing, never panics. Ignores bytes after a control packet (rule W5).
    ///
    /// # Errors
    ///
    /// The reason for dropping the packet.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (packet_type, header) = Header::parse(bytes)?;
        Self::parse_after_header(packet_type, header, bytes)
    }

    /// Parses the rest of a packet after [`Header::parse`].
    ///
    /// # Errors
    ///
    /// The errors of [`parse`](Self::parse).
    #[inline]
    pub fn parse_after_header(
        packet_type: PacketType,
        header: Header,
        bytes: &'a [u8],
    ) -> Result<Self, ParseError> {
        Ok(match packet_type {
            PacketType::Data => {
                let (data, payload) = Data::parse(bytes)?;
                Self::Data { header, data, payload }
            }
            PacketType::Grant => Self::Grant { header, grant: Grant::parse(bytes)? },
            PacketType::Resend => Self::Resend { header, resend: Resend::parse(bytes)? },
            PacketType::RpcUnknown => {
                Self::RpcUnknown { header, unknown: RpcUnknown::parse(bytes) }
            }
            PacketType::Busy => Self::Busy { header },
            PacketType::Cutoffs => Self::Cutoffs { header, cutoffs: Cutoffs::parse(bytes)? },
            PacketType::Freeze => Self::Freeze { header },
            PacketType::NeedAck => Self::NeedAck { header },
            PacketType::Ack => Self::Ack { header, ack: Ack::parse(bytes)? },
            PacketType::Open => Self::Open { header, open: Open::parse(bytes)? },
            PacketType::Token => Self::Token { header, credentials: Credentials::parse(bytes)? },
            PacketType::Confirm => {
                Self::Confirm { header, credentials: Credentials::parse(bytes)? }
            }
            PacketType::Abort => Self::Abort { header },
            PacketType::Meet => Self::Meet { header, meet: Meet::parse(bytes)? },
        })
    }

    /// Returns the common header.
    #[inline]
    #[must_use]
    pub const fn header(&self) -> &Header {
        match self {
            Self::Data { header, .. }
            | Self::Grant { header, .. }
            | Self::Resend { header, .. }
            | Self::RpcUnknown { header, .. }
            | Self::Busy { header }
            | Self::Cutoffs { header, .. }
            | Self::Freeze { header }
            | Self::NeedAck { header }
            | Self::Ack { header, .. }
            | Self::Open { header, .. }
            | Self::Token { header, .. }
            | Self::Confirm { header, .. }
            | Self::Abort { header }
            | Self::Meet { header, .. } => header,
        }
    }

    /// Returns the type of the packet.
    #[inline]
    #[must_use]
    pub const fn packet_type(&self) -> PacketType {
        match self {
            Self::Data { .. } => PacketType::Data,
            Self::Grant { .. } => PacketType::Grant,
            Self::Resend { .. } => PacketType::Resend,
            Self::RpcUnknown { .. } => PacketType::RpcUnknown,
            Self::Busy { .. } => PacketType::Busy,
            Self::Cutoffs { .. } => PacketType::Cutoffs,
            Self::Freeze { .. } => PacketType::Freeze,
            Self::NeedAck { .. } => PacketType::NeedAck,
            Self::Ack { .. } => PacketType::Ack,
            Self::Open { .. } => PacketType::Open,
            Self::Token { .. } => PacketType::Token,
            Self::Confirm { .. } => PacketType::Confirm,
            Self::Abort { .. } => PacketType::Abort,
            Self::Meet { .. } => PacketType::Meet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{self, FROM_CLIENT, FROM_SERVER, bytes};

    #[test]
    fn knows_type_and_header_of_each() {
        let cases = [
            (samples::SPEC_DATA, PacketType::Data, FROM_CLIENT),
            (samples::SPEC_GRANT, PacketType::Grant, FROM_SERVER),
            (samples::SPEC_RESEND, PacketType::Resend, FROM_CLIENT),
            (samples::SPEC_CUTOFFS, PacketType::Cutoffs, FROM_SERVER),
            (samples::SPEC_NEED_ACK, PacketType::NeedAck, FROM_SERVER),
            (samples::SPEC_ACK, PacketType::Ack, FROM_CLIENT),
        ];
        for (hex, packet_type, header) in cases {
            let bytes = bytes(hex);
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!((packet.packet_type(), packet.header()), (packet_type, &header));
        }
        for packet_type in [PacketType::Busy, PacketType::NeedAck, PacketType::Freeze] {
            let mut bytes = bytes(samples::SPEC_NEED_ACK);
            bytes[11] = packet_type as u8;
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!((packet.packet_type(), packet.header()), (packet_type, &FROM_SERVER));
        }
    }
}
