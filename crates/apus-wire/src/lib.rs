//! Homa packet formats: parse, emit, and what both sides of the I/O line agree on.
//!
//! This crate turns bytes into values and values into bytes, and nothing else: it has no state, no clock, no socket, and it
//! allocates only where a bundle is written into a caller's `Vec`. The format is the one the Linux kernel module speaks since
//! March 2026 (`homa_wire.h`); `docs/wire.md` restates it in numbered rules (W1, W2, …), which comments and tests here cite.
//!
//! | part | holds |
//! | --- | --- |
//! | [`Packet`] | dispatch: one received packet, parsed whole |
//! | [`Header`], [`RpcId`], [`Priority`], [`PacketType`] | what every packet carries |
//! | [`Data`], [`Grant`], [`Resend`], [`RpcUnknown`], [`Busy`], [`Cutoffs`], [`Freeze`], [`NeedAck`], [`Ack`], [`Abort`] | one type each, one file each |
//! | [`Open`], [`Offer`] | first contact over UDP: OPEN, TOKEN, CONFIRM |
//! | [`Stamp`], [`Token`] | what every packet over UDP carries beside: version, and the receiver's token |
//! | [`ParseError`] | why a packet was refused |
//! | [`checksum`] | the TCP-style checksum a native (raw IP) link may fill in |
//! | [`bundle`] | several small packets in one UDP datagram |
//! | [`segments`] | several segments in one DATA packet of the Linux module |
//! | [`PathId`], [`PacketSink`], [`Transmit`], [`PathError`] | the contract between the protocol core and a link |
//!
//! The order of calls: a link receives a datagram, takes it apart with [`bundle::packets`] if it is a bundle, and hands each
//! packet to the core, which calls [`Packet::parse`] once. After that nothing downstream can fail on the shape of a packet. On
//! the way out the core fills a header buffer with one of the `emit` functions and hands a [`Transmit`] to the link's
//! [`PacketSink`]; the link adds what its encapsulation needs and never looks inside.

#![forbid(unsafe_code)]

mod abort;
mod ack;
pub mod bundle;
mod busy;
pub mod checksum;
mod contact;
mod cutoffs;
mod data;
mod error;
mod field;
mod freeze;
mod grant;
mod header;
mod io;
mod need_ack;
mod packet;
mod path;
mod resend;
mod rpc_unknown;
#[cfg(test)]
mod samples;
pub mod segments;
mod stamp;

pub use abort::Abort;
pub use ack::{Ack, Acked};
pub use busy::Busy;
pub use contact::{Offer, Open, Proof};
pub use cutoffs::Cutoffs;
pub use data::{Data, DataFlags};
pub use error::ParseError;
pub use freeze::Freeze;
pub use grant::Grant;
pub use header::{Header, PacketType, Priority, RpcId};
pub use io::{PacketReceiver, PacketSink, PathError, ReceiveTarget, Transmit, is_native};
pub use need_ack::NeedAck;
pub use packet::Packet;
pub use path::PathId;
pub use resend::Resend;
pub use rpc_unknown::{RpcUnknown, UnknownReason};
pub use stamp::{Stamp, Token};

/// IANA's protocol number of Homa, the value of IPv4 `protocol` and IPv6 `nexthdr` on a native link.
pub const IP_PROTOCOL: u8 = 146;

/// The UDP port at which an Apus node listens unless configured otherwise (rule W21). One port per node: Homa's own ports stay
/// in the Homa header.
pub const DEFAULT_UDP_PORT: u16 = 20146;

/// Bytes of header any receiver must be able to hold (`HOMA_MAX_HEADER`); the largest one sent today is [`Ack::LEN`].
pub const MAX_HEADER: usize = 90;

/// Bytes of the common header, the start of every packet and the whole of the shortest ones.
pub const COMMON_LEN: usize = 28;

/// Bytes of a DATA packet before its payload.
pub const DATA_HEADER_LEN: usize = 56;

/// Longest message the Linux module sends or accepts, in bytes (`HOMA_MAX_MESSAGE_LENGTH`). Not enforced here: the protocol
/// core knows which peer it talks to.
pub const MAX_LINUX_MESSAGE: u32 = 1_000_000;
