//! Control packets that wait for transmission.

use apus_wire::{
    Abort, Ack, Acked, Busy, COMMON_LEN, Credentials, Cutoffs, Freeze, Grant, Header, MAX_HEADER,
    Meet, NeedAck, Open, PathId, Resend, RpcUnknown, Token,
};

use crate::counters::Counters;
use crate::slab::PeerKey;

/// One control packet, encoded when it is transmitted.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) peer: PeerKey,
    pub(crate) header: Header,
    pub(crate) body: Body,
}

/// An answer to a node without state in this endpoint. It is no longer than the answered packet.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) path: PathId,
    /// Copy of the token in the answered packet; [`Token::NONE`] on a native link.
    pub(crate) token: Token,
    pub(crate) header: Header,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Grant(Grant),
    Resend(Resend),
    /// A RESEND that asks a peer of this host how far it got. Nothing is known to be lost.
    Probe(Resend),
    Unknown(RpcUnknown),
    Busy,
    Cutoffs(Cutoffs),
    NeedAck,
    Ack(Vec<Acked>),
    /// All acknowledgements for a peer that reads compact bundles.
    AckRanges,
    Open(Open),
    Token(Credentials),
    Confirm(Credentials),
    Abort,
    Freeze,
    Meet(Meet),
    /// ICMP port unreachable, for the packet with this header.
    Refused,
}

impl Body {
    /// Returns the counter of transmitted packets of this kind, if there is one.
    pub(crate) fn counter<'a>(&self, counters: &'a mut Counters) -> Option<&'a mut u64> {
        match self {
            Self::Resend(_) => Some(&mut counters.resends_sent),
            Self::Probe(_) => Some(&mut counters.probes_sent),
            Self::Cutoffs(_) => Some(&mut counters.cutoffs_sent),
            Self::NeedAck => Some(&mut counters.need_acks_sent),
            Self::Ack(_) => Some(&mut counters.acks_sent),
            Self::Grant(_) => Some(&mut counters.grants_sent),
            Self::Unknown(_) => Some(&mut counters.unknown_sent),
            Self::Busy => Some(&mut counters.busy_sent),
            Self::Open(_) => Some(&mut counters.opens_sent),
            Self::Abort => Some(&mut counters.aborts_sent),
            Self::Freeze => Some(&mut counters.freezes_sent),
            Self::Meet(_) => Some(&mut counters.meets_sent),
            Self::Token(_) | Self::Confirm(_) | Self::Refused | Self::AckRanges => None,
        }
    }

    /// Writes the packet without its stamp. Returns its length. `native` omits the fields that only Apus understands.
    pub(crate) fn emit(
        &self,
        header: &Header,
        native: bool,
        buffer: &mut [u8; MAX_HEADER],
    ) -> usize {
        match self {
            Self::Grant(grant) => grant.emit(header, buffer),
            Self::Resend(resend) | Self::Probe(resend) => resend.emit(header, buffer),
            Self::Unknown(unknown) => {
                let length = unknown.emit(header, buffer);
                //= docs/protocol.md#linux-2
                if native { COMMON_LEN } else { length }
            }
            Self::Cutoffs(cutoffs) => cutoffs.emit(header, buffer),
            Self::NeedAck => NeedAck.emit(header, buffer),
            Self::Ack(acked) => Ack::new(acked).emit(header, buffer),
            Self::Open(open) => open.emit(header, buffer),
            Self::Token(credentials) => credentials.emit_token(header, buffer),
            Self::Confirm(credentials) => credentials.emit_confirm(header, buffer),
            Self::Abort => Abort.emit(header, buffer),
            Self::Freeze => Freeze.emit(header, buffer),
            Self::Meet(meet) => meet.emit(header, buffer),
            // The refused packet's beginning, as much as an ICMP error quotes.
            Self::Busy | Self::Refused | Self::AckRanges => Busy.emit(header, buffer),
        }
    }
}

/// Returns the header of an answer about an unknown RPC.
pub(crate) fn turned_round(header: &Header) -> Header {
    Header {
        source_port: header.dest_port,
        dest_port: header.source_port,
        sender_id: header.sender_id.flipped(),
    }
}
