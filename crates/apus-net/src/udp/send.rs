//! From the outbox into the kernel, with as few system calls as there can be.

use std::io;
use std::net::SocketAddr;

use super::UdpLink;
use super::errors::Verdict;
use super::outbox::{Outbox, Peer};
use crate::sys::{self, Batch, SendOptions};

/// What is counted when a message of a batch has been sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    peer: usize,
    /// 1 unless it is made of GSO segments.
    datagrams: u64,
    bytes: u64,
    is_bundle: bool,
}

impl UdpLink {
    /// Sends what is queued. One datagram on loopback goes by the shortest way there is; everything else by `sendmmsg`.
    pub(super) fn send_queued(&mut self) {
        match (self.outbox.bundles(), self.outbox.large()) {
            ([], []) => return,
            ([bundle], []) if self.outbox.peer(bundle.peer).loopback => {
                let (bytes, peer) = (bundle.datagram(), bundle.peer);
                let sending = Sending {
                    peer,
                    datagrams: 1,
                    bytes: bytes.len() as u64,
                    is_bundle: bundle.is_bundle(),
                };
                let sent = sys::send_to(self.descriptor, bytes, &self.outbox.peer(peer).raw);
                self.one_sent(sent, sending);
            }
            ([], [packet]) if self.outbox.peer(packet.peer).loopback => {
                let sending = Sending {
                    peer: packet.peer,
                    datagrams: 1,
                    bytes: packet.len() as u64,
                    is_bundle: false,
                };
                let (header, to) = (self.outbox.header(packet), &self.outbox.peer(packet.peer).raw);
                let sent = sys::send_parts(self.descriptor, header, packet.payload(), to);
                self.one_sent(sent, sending);
            }
            _ => self.send_batch(),
        }
        self.outbox.clear();
    }

    /// Counts a datagram sent by itself. If it failed, it becomes a batch of one, which knows how to repeat.
    #[inline]
    fn one_sent(&mut self, sent: io::Result<usize>, sending: Sending) {
        self.counters.send_calls += 1;
        match sent {
            Ok(_) => count(&mut self.counters, &sending),
            Err(error) => {
                let peer = self.outbox.peer(sending.peer).addr;
                let context = (self.descriptor, &self.paths);
                if self.errors.judge(&error, peer, false, false, context, &mut self.counters)
                    == Verdict::Again
                {
                    self.send_batch_from(true);
                }
            }
        }
    }

    fn send_batch(&mut self) {
        self.send_batch_from(false);
    }

    /// `tried`: the first message has been tried before.
    fn send_batch_from(&mut self, mut tried: bool) {
        let Self { outbox, storage, sendings, counters, errors, paths, descriptor, gso, .. } = self;
        let mut batch = Batch::begin(storage);
        sendings.clear();
        fill(&mut batch, sendings, outbox, *gso);
        let mut first = 0;
        while first < batch.len() {
            counters.send_calls += 1;
            match batch.send(*descriptor, first) {
                Ok(sent) => {
                    sendings[first..first + sent]
                        .iter()
                        .for_each(|sending| count(counters, sending));
                    first += sent;
                    tried = false;
                }
                Err(error) => {
                    let Sending { peer, datagrams, .. } = sendings[first];
                    let peer: SocketAddr = outbox.peer(peer).addr;
                    match errors.judge(
                        &error,
                        peer,
                        tried,
                        datagrams > 1,
                        (*descriptor, paths),
                        counters,
                    ) {
                        Verdict::Again => tried = true,
                        verdict => {
                            if verdict == Verdict::NoGso && *gso {
                                *gso = false;
                                counters.gso_disabled += 1;
                            }
                            first += 1;
                            tried = false;
                        }
                    }
                }
            }
        }
    }
}

fn count(counters: &mut crate::LinkCounters, sending: &Sending) {
    counters.datagrams_sent += sending.datagrams;
    counters.bytes_sent += sending.bytes;
    counters.bundles_sent += u64::from(sending.is_bundle);
    if sending.datagrams > 1 {
        counters.gso_segments += sending.datagrams;
    }
}

/// Makes a message of each bundle and each run of large packets; the small ones first, because they are what others wait for.
fn fill<'d>(batch: &mut Batch<'_, 'd>, sendings: &mut Vec<Sending>, outbox: &'d Outbox, gso: bool) {
    for bundle in outbox.bundles() {
        let peer = outbox.peer(bundle.peer);
        batch.message(&peer.raw, options(peer, bundle.priority, None));
        let bytes = bundle.datagram();
        batch.part(bytes);
        let is_bundle = bundle.is_bundle();
        sendings.push(Sending {
            peer: bundle.peer,
            datagrams: 1,
            bytes: bytes.len() as u64,
            is_bundle,
        });
    }
    for run in outbox.runs(gso) {
        let peer = outbox.peer(run[0].peer);
        let segment =
            (run.len() > 1).then(|| u16::try_from(run[0].len()).expect("a run fits MAX_DATAGRAM"));
        batch.message(&peer.raw, options(peer, run[0].priority, segment));
        let mut bytes = 0;
        for packet in run {
            batch.part(outbox.header(packet));
            batch.part(packet.payload());
            bytes += packet.len() as u64;
        }
        sendings.push(Sending {
            peer: run[0].peer,
            datagrams: run.len() as u64,
            bytes,
            is_bundle: false,
        });
    }
}

/// Priorities are for switches: on loopback there is none, and saying it would only cost time.
fn options(peer: &Peer, priority: apus_wire::Priority, segment: Option<u16>) -> SendOptions {
    let tos = (!peer.loopback).then(|| (priority.tos(), peer.version));
    SendOptions { tos, segment }
}
