//! Packets that wait for the flush.

use std::net::SocketAddr;
use std::ops::Range;

use bytes::Bytes;

use crate::address::RawAddress;
use crate::sys::SendOptions;

/// Upper bound on queued packets; a full queue is flushed before the next packet.
const PACKETS_MAX: usize = 128;

/// Upper bound on queued bytes.
const BYTES_MAX: usize = 1 << 20;

/// The queue of packets for the flush.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) packets: Vec<Queued>,
    pub(super) headers: Vec<u8>,
    pub(super) bytes: usize,
}

pub(super) struct Queued {
    pub(super) to: SocketAddr,
    pub(super) raw: RawAddress,
    pub(super) options: SendOptions,
    pub(super) header: Range<usize>,
    pub(super) body: Bytes,
    pub(super) payload: Range<usize>,
}

impl Queued {
    pub(super) fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }
}

impl Outbox {
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.packets.len() >= PACKETS_MAX || self.bytes >= BYTES_MAX
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.headers.clear();
        self.bytes = 0;
    }
}
