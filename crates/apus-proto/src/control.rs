//! Control packets waiting to be sent.

use apus_wire::{
    Ack, Acked, Busy, COMMON_LEN, Cutoffs, Grant, Header, MAX_HEADER, NeedAck, Resend, RpcUnknown,
};

use crate::slab::PeerKey;

/// One control packet. It is written to bytes only when it goes out.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) peer: PeerKey,
    pub(crate) header: Header,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Grant(Grant),
    Resend(Resend),
    Unknown(RpcUnknown),
    Busy,
    Cutoffs(Cutoffs),
    NeedAck,
    Ack(Vec<Acked>),
    /// ICMP port unreachable, for the packet with this header.
    Refused,
}

impl Control {
    /// Writes the packet; returns its length. `native`: without what only Apus understands.
    pub(crate) fn emit(&self, buffer: &mut [u8; MAX_HEADER], native: bool) -> usize {
        match &self.body {
            Body::Grant(grant) => grant.emit(&self.header, buffer),
            Body::Resend(resend) => resend.emit(&self.header, buffer),
            Body::Unknown(unknown) => {
                let length = unknown.emit(&self.header, buffer);
                //= docs/protocol.md#linux-2
                if native { COMMON_LEN } else { length }
            }
            Body::Busy => Busy.emit(&self.header, buffer),
            Body::Cutoffs(cutoffs) => cutoffs.emit(&self.header, buffer),
            Body::NeedAck => NeedAck.emit(&self.header, buffer),
            Body::Ack(acked) => Ack::new(acked).emit(&self.header, buffer),
            // The beginning of the refused packet, as far as an error shows it.
            Body::Refused => Busy.emit(&self.header, buffer),
        }
    }
}
