//! From the outbox into the kernel, with as few system calls as there can be.

use std::io;
use std::os::fd::RawFd;

use super::UdpLink;
use super::outbox::{Outbox, Peer};
use crate::errors::Verdict;
use crate::sources::Sources;
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
        let Some(peer) = self.outbox.only_peer() else {
            self.send_batch(None, 0, false);
            return self.outbox.clear();
        };
        let Peer { addr, preferred, .. } = *self.outbox.peer(peer);
        let sources = self.sources.as_ref();
        if sources.is_some_and(|sources| sources.towards(addr, preferred).is_some()) {
            self.send_batch(None, 0, false);
            return self.outbox.clear();
        }
        let sender = match self.capabilities.connected_sends {
            true => self.outbox.sender(peer, &self.socket, self.local),
            false => None,
        };
        let to = self.outbox.peer(peer);
        let raw = if sender.is_none() { Some(&to.raw) } else { None };
        let socket = sender.unwrap_or(self.descriptor);
        let (sent, bytes, is_bundle) = match (self.outbox.bundles(), self.outbox.large()) {
            ([bundle], []) if to.loopback => {
                let bytes = bundle.datagram();
                (sys::send_to(socket, bytes, raw), bytes.len(), bundle.is_bundle())
            }
            ([], [packet]) if to.loopback => {
                let header = self.outbox.header(packet);
                (sys::send_parts(socket, header, packet.payload(), raw), packet.len(), false)
            }
            _ => {
                self.send_batch(sender, 0, false);
                return self.outbox.clear();
            }
        };
        self.counters.send_calls += 1;
        self.counters.connected_send_calls += u64::from(sender.is_some());
        match sent {
            Ok(_) => {
                let sending = Sending { peer, datagrams: 1, bytes: bytes as u64, is_bundle };
                count(&mut self.counters, &sending);
            }
            Err(error) => self.send_again(&error, peer),
        }
        self.outbox.clear();
    }

    /// A datagram that failed by itself becomes a batch of one.
    #[cold]
    fn send_again(&mut self, error: &io::Error, peer: usize) {
        let addr = self.outbox.peer(peer).addr;
        self.outbox.close_sender(peer);
        let context = (self.descriptor, &self.paths);
        // A first failure is always worth a second try.
        self.errors.judge(error, addr, false, false, context, &mut self.counters);
        self.send_batch(None, 0, true);
    }

    /// Sends from message number `first` on, by a connected socket if one is given. `tried`: that message has failed once.
    fn send_batch(&mut self, sender: Option<RawFd>, mut first: usize, mut tried: bool) {
        let Self {
            outbox,
            storage,
            sendings,
            counters,
            errors,
            paths,
            descriptor,
            gso,
            sources,
            ..
        } = self;
        let mut batch = Batch::begin(storage);
        sendings.clear();
        let sources = sources.as_ref();
        fill(&mut batch, sendings, (outbox, sources), *gso, sender.is_none());
        while first < batch.len() {
            counters.send_calls += 1;
            counters.connected_send_calls += u64::from(sender.is_some());
            let error = match batch.send(sender.unwrap_or(*descriptor), first) {
                Ok(sent) => {
                    sendings[first..first + sent]
                        .iter()
                        .for_each(|sending| count(counters, sending));
                    first += sent;
                    tried = false;
                    continue;
                }
                Err(error) => error,
            };
            let Sending { peer, datagrams, .. } = sendings[first];
            let addr = outbox.peer(peer).addr;
            let verdict =
                errors.judge(&error, addr, tried, datagrams > 1, (*descriptor, paths), counters);
            if sender.is_some() {
                // The link's own socket knows better what is wrong.
                outbox.close_sender(peer);
                return self.send_batch(None, first, true);
            }
            tried = verdict == Verdict::Again;
            first += usize::from(!tried);
            if verdict == Verdict::NoGso && *gso {
                *gso = false;
                counters.gso_disabled += 1;
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
/// `named`: each says whom it is for.
fn fill<'d>(
    batch: &mut Batch<'_, 'd>,
    sendings: &mut Vec<Sending>,
    (outbox, sources): (&'d Outbox, Option<&Sources>),
    gso: bool,
    named: bool,
) {
    for bundle in outbox.bundles() {
        let peer = outbox.peer(bundle.peer);
        batch.message(named.then_some(&peer.raw), options(peer, sources, bundle.priority, None));
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
        batch.message(named.then_some(&peer.raw), options(peer, sources, run[0].priority, segment));
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
fn options(
    peer: &Peer,
    sources: Option<&Sources>,
    priority: apus_wire::Priority,
    segment: Option<u16>,
) -> SendOptions {
    let source = sources.and_then(|sources| sources.towards(peer.addr, peer.preferred));
    let tos = (!peer.loopback).then(|| (priority.tos(), peer.version));
    SendOptions { tos, source, segment }
}
