//! Homa packet formats: parse and emit, and the contract between the protocol core and a link.
//!
//! This crate converts bytes to values and values to bytes. It has no state, no clock and no socket, and it allocates only
//! where a bundle is written into a caller's `Vec`. The format is that of the Linux kernel module since March 2026
//! (`homa_wire.h`). `docs/wire.md` states it in numbered rules (W1, W2, …), which comments and tests cite.
//!
//! | part | holds |
//! | --- | --- |
//! | [`Packet`] | dispatch: one received packet, parsed completely |
//! | [`Header`], [`RpcId`], [`Priority`], [`PacketType`] | the content of every packet |
//! | [`Data`], [`Grant`], [`Resend`], [`RpcUnknown`], [`Busy`], [`Cutoffs`], [`Freeze`], [`NeedAck`], [`Ack`], [`Abort`], [`Meet`] | one type each, one file each |
//! | [`Open`], [`Credentials`] | first contact over UDP: OPEN, TOKEN, CONFIRM |
//! | [`Stamp`], [`Token`] | additions to every packet over UDP: version, and the receiver's token |
//! | [`Extension`], [`TraceContext`] | optional items of a request: its deadline, and its context in a distributed trace |
//! | [`ParseError`] | reasons for refusing a packet |
//! | [`checksum`] | the TCP-style checksum that a native (raw IP) link may fill in |
//! | [`bundle`] | several small packets in one UDP datagram |
//! | [`compact`] | several short messages in one UDP datagram |
//! | [`segments`] | several segments in one DATA packet of the Linux module |
//! | [`PathId`], [`PacketSink`], [`Transmit`], [`PathError`] | the contract between the protocol core and a link |
//!
//! The order of calls: a link receives a datagram, splits it with [`bundle::packets`] if it is a bundle, and passes each packet
//! to the core, which calls [`Packet::parse`] once. After that no code can fail on the shape of the packet. To transmit, the
//! core fills a header buffer with one of the `emit` functions and passes a [`Transmit`] to the link's [`PacketSink`]. The link
//! adds its encapsulation and does not read the packet.

#![forbid(unsafe_code)]

mod abort;
mod ack;
pub mod bundle;
mod busy;
pub mod checksum;
pub mod compact;
mod contact;
mod cutoffs;
mod data;
mod error;
mod extension;
mod field;
mod freeze;
mod grant;
mod header;
mod io;
mod meet;
mod need_ack;
mod packet;
mod path;
mod resend;
mod rpc_unknown;
#[cfg(test)]
mod samples;
pub mod segments;
mod stamp;
mod trace_context;

pub use abort::Abort;
pub use ack::{Ack, Acked};
pub use busy::Busy;
pub use contact::{Credentials, Open, Proof};
pub use cutoffs::Cutoffs;
pub use data::{Data, DataFlags};
pub use error::ParseError;
pub use extension::Extension;
pub use freeze::Freeze;
pub use grant::Grant;
pub use header::{Header, PacketType, Priority, RpcId};
pub use io::{
    PacketReceiver, PacketSink, PathError, ReceiveTarget, ShortTransmit, Transmit, is_native,
    packets_of_entries, send_acks_as_packets,
};
pub use meet::Meet;
pub use need_ack::NeedAck;
pub use packet::Packet;
pub use path::PathId;
pub use resend::Resend;
pub use rpc_unknown::{RpcUnknown, UnknownReason};
pub use stamp::{Stamp, Token};
pub use trace_context::{ParseTraceContextError, TraceContext};

/// IANA's protocol number for Homa: the value of IPv4's `protocol` and IPv6's `nexthdr` on a native link.
pub const IP_PROTOCOL: u8 = 146;

/// The default UDP port of an Apus node (rule W21). A node has one UDP port; Homa's own ports stay in the Homa header.
pub const DEFAULT_UDP_PORT: u16 = 20146;

/// Length in bytes of the longest header that a receiver must be able to hold (`HOMA_MAX_HEADER`). The longest header in use is
/// [`Ack::LEN`]; only DATA with an [`Extension`], which Apus does not send to Linux hosts, may have more before its payload
/// ([`Data::LEN_MAX`]).
pub const MAX_HEADER: usize = 90;

/// Length in bytes of the common header, with which every packet begins. The shortest packets consist of it alone.
pub const COMMON_LEN: usize = 28;

/// Length in bytes of the header of a DATA packet.
pub const DATA_HEADER_LEN: usize = 56;

/// Length in bytes of the longest message that the Linux module sends or accepts (`HOMA_MAX_MESSAGE_LENGTH`). This crate does not
/// enforce it, because only the protocol core knows the kind of its peer.
pub const MAX_LINUX_MESSAGE: u32 = 1_000_000;
