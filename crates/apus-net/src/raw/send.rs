//! Passes packets from the outbox to the kernel: one `sendmmsg` for up to 128 packets.

use std::os::fd::AsRawFd;

use apus_wire::Transmit;

use super::RawLink;
use super::outbox::Queued;
use crate::errors::SendReaction;
use crate::sys::{Batch, IpVersion, SendOptions};

impl RawLink {
    pub(super) fn queue(&mut self, packet: &Transmit<'_>) {
        let Some(place) = self.peers.place(packet.path) else {
            self.counters.path_forgotten += 1;
            return;
        };
        let (to, peer) = (self.peers.address_at(place), self.peers.at(place));
        let version = if to.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
        let preferred = self.paths.peek(to).and_then(|(_, source)| source);
        let options = SendOptions {
            // Set on loopback too: the peer may read the module's TOS byte.
            tos: Some((packet.priority.tos(), version)),
            source: peer.called.filter(|&called| preferred != Some(called)),
            segment: None,
        };
        let outbox = &mut self.outbox;
        let start = outbox.headers.len();
        outbox.headers.extend_from_slice(packet.header);
        outbox.bytes += packet.len();
        outbox.packets.push(Queued {
            to,
            raw: peer.raw,
            options,
            header: start..outbox.headers.len(),
            body: packet.body.clone(),
            payload: packet.range.clone(),
        });
        self.counters.packets_sent += 1;
    }

    /// Sends the queued packets.
    pub(super) fn send_queued(&mut self) {
        let descriptor = self.socket.as_raw_fd();
        let Self { outbox, storage, counters, errors, paths, .. } = self;
        if outbox.packets.is_empty() {
            return;
        }
        let mut batch = Batch::begin(storage);
        for packet in &outbox.packets {
            batch.message(Some(&packet.raw), packet.options);
            batch.part(&outbox.headers[packet.header.clone()]);
            batch.part(&packet.body[packet.payload.clone()]);
        }
        let (mut first, mut tried) = (0, false);
        while first < batch.len() {
            counters.send_calls += 1;
            match batch.send(descriptor, first) {
                Ok(sent) => {
                    let sent = &outbox.packets[first..first + sent];
                    counters.datagrams_sent += sent.len() as u64;
                    counters.bytes_sent += sent.iter().map(|it| it.len() as u64).sum::<u64>();
                    first += sent.len();
                    tried = false;
                }
                Err(error) => {
                    let to = outbox.packets[first].to;
                    let context = (&[descriptor][..], &*paths);
                    let verdict = errors.judge(&error, to, tried, false, context, counters);
                    tried = verdict == SendReaction::Again;
                    first += usize::from(!tried);
                }
            }
        }
        outbox.clear();
    }
}
