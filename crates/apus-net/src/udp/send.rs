//! Passes datagrams from the outbox to the kernel, with as few system calls as possible.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;

use apus_wire::Priority;

use super::UdpLink;
use super::outbox::{Outbox, Sending};
use super::peer::Peer;
use super::sender::Sender;
use crate::errors::SendReaction;
use crate::path_table::PathTable;
use crate::sys::{self, Batch, SendOptions};

/// Upper bound on peers with a socket of their own. Beyond it, all lose theirs and begin again.
const SENDERS_MAX: usize = 64;

/// Another way for datagrams out of this machine.
pub(crate) trait Bypass {
    /// Takes a copy of a datagram to a peer, from a local address or, with `None`, the one that the route prefers. Returns `false`
    /// if the datagram is to go by the socket.
    fn take(
        &mut self,
        to: SocketAddr,
        source: Option<IpAddr>,
        priority: Priority,
        datagram: &[u8],
    ) -> bool;
}

impl UdpLink {
    /// Sends the queued packets. A single datagram on loopback takes the shortest path; all others use `sendmmsg`.
    pub(super) fn send_queued(&mut self) {
        self.seal_queued();
        let only = self.outbox.only_peer();
        let Some(peer) = only.filter(|&peer| self.peers.at(peer).source().is_none()) else {
            self.send_batch(None, 0, false);
            return self.outbox.clear(&mut self.peers);
        };
        let sender = if self.capabilities.connected_sends { self.sender(peer) } else { None };
        let to = self.peers.at(peer);
        let raw = if sender.is_none() { Some(&to.raw) } else { None };
        let socket = sender.unwrap_or(self.descriptor);
        let (sent, bytes, is_bundle) = match (self.outbox.bundles(), self.outbox.large()) {
            ([bundle], []) if to.loopback => {
                let bytes = self.outbox.datagram(bundle);
                (sys::send_to(socket, bytes, raw), bytes.len(), bundle.is_bundle())
            }
            ([], [packet]) if to.loopback => {
                let sent = match self.outbox.records(std::slice::from_ref(packet)) {
                    Some(record) => sys::send_to(socket, record, raw),
                    None => {
                        let header = self.outbox.header(packet);
                        sys::send_parts(socket, header, packet.payload(), raw)
                    }
                };
                (sent, packet.len(), false)
            }
            _ => {
                self.send_batch(sender, 0, false);
                return self.outbox.clear(&mut self.peers);
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
        self.outbox.clear(&mut self.peers);
    }

    #[inline]
    fn seal_queued(&mut self) {
        if self.outbox.has_unsealed() {
            self.counters.waiting_for_keys += self.outbox.seal(&mut self.peers, &mut self.sealing);
        }
    }

    /// Gives the queued bundles and single small packets for other machines to another way, as far as it takes them. The
    /// others stay queued; the next call is a flush.
    pub(crate) fn divert(&mut self, bypass: &mut impl Bypass) {
        self.seal_queued();
        let Self { outbox, peers, counters, .. } = self;
        outbox.divert(peers, |peers, bundle, datagram| {
            let peer = peers.at(bundle.peer);
            let to = peers.address_at(bundle.peer);
            let taken = !peer.loopback && bypass.take(to, peer.source(), bundle.priority, datagram);
            if taken {
                let (bytes, is_bundle) = (datagram.len() as u64, bundle.is_bundle());
                count(counters, &Sending { peer: bundle.peer, datagrams: 1, bytes, is_bundle });
                counters.xsk_sent += 1;
            }
            taken
        });
    }

    /// Returns whether packets wait for the flush.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Returns whether the next packet flushes the queue.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.outbox.is_full()
    }

    /// Returns the descriptor of the peer's own socket, if it has one or gets one now.
    #[inline]
    fn sender(&mut self, place: usize) -> Option<RawFd> {
        let peer = self.peers.at_mut(place);
        if !peer.loopback {
            return None;
        }
        if let Some(descriptor) = peer.sender.descriptor() {
            return Some(descriptor);
        }
        if peer.sender.is_due() {
            self.open_sender(place);
        }
        None
    }

    #[cold]
    fn open_sender(&mut self, place: usize) {
        if self.senders == SENDERS_MAX {
            let open = self.peers.values_mut().filter(|peer| peer.sender.descriptor().is_some());
            open.for_each(|peer| peer.sender = Sender::default());
            self.senders = 0;
        }
        let sender = Sender::open(&self.socket, self.local, self.peers.address_at(place));
        self.senders += usize::from(sender.descriptor().is_some());
        self.peers.at_mut(place).sender = sender;
    }

    /// Sends a datagram that failed alone again, as a batch of one.
    #[cold]
    fn send_again(&mut self, error: &io::Error, peer: usize) {
        let addr = self.peers.address_at(peer);
        close_sender(&mut self.peers, &mut self.senders, peer);
        let context = (&self.watched()[..], &self.paths);
        // The first failure always justifies a second attempt.
        self.errors.judge(error, addr, false, false, context, &mut self.counters);
        self.send_batch(None, 0, true);
    }

    /// Sends from message number `first` on, by a connected socket if one is given. `tried`: that message has failed once.
    fn send_batch(&mut self, sender: Option<RawFd>, mut first: usize, mut tried: bool) {
        let sockets = self.watched();
        let Self {
            outbox,
            storage,
            sendings,
            counters,
            errors,
            paths,
            peers,
            senders,
            descriptor,
            gso,
            ..
        } = self;
        let mut batch = Batch::begin(storage);
        sendings.clear();
        fill(&mut batch, sendings, (outbox, peers), *gso, sender.is_none());
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
            let addr = peers.address_at(peer);
            let verdict =
                errors.judge(&error, addr, tried, datagrams > 1, (&sockets, paths), counters);
            if sender.is_some() {
                // The link's own socket reports the error precisely.
                close_sender(peers, senders, peer);
                return self.send_batch(None, first, true);
            }
            tried = verdict == SendReaction::Again;
            first += usize::from(!tried);
            if verdict == SendReaction::NoGso && *gso {
                *gso = false;
                counters.gso_disabled += 1;
            }
        }
    }
}

/// Closes a peer's own socket after a failure.
fn close_sender(peers: &mut PathTable<Peer>, senders: &mut usize, place: usize) {
    let sender = std::mem::take(&mut peers.at_mut(place).sender);
    *senders -= usize::from(sender.descriptor().is_some());
}

fn count(counters: &mut crate::LinkCounters, sending: &Sending) {
    counters.datagrams_sent += sending.datagrams;
    counters.bytes_sent += sending.bytes;
    counters.bundles_sent += u64::from(sending.is_bundle);
    if sending.datagrams > 1 {
        counters.gso_segments += sending.datagrams;
    }
}

/// Fills the batch with one message for each bundle and each run of large packets; the small ones first, because they are urgent.
/// `named`: each message has an address.
fn fill<'d>(
    batch: &mut Batch<'_, 'd>,
    sendings: &mut Vec<Sending>,
    (outbox, peers): (&'d Outbox, &'d PathTable<Peer>),
    gso: bool,
    named: bool,
) {
    for bundle in outbox.bundles() {
        let peer = peers.at(bundle.peer);
        batch.message(named.then_some(&peer.raw), options(peer, bundle.priority, None));
        let bytes = outbox.datagram(bundle);
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
        let peer = peers.at(run[0].peer);
        let segment =
            (run.len() > 1).then(|| u16::try_from(run[0].len()).expect("a run fits MAX_DATAGRAM"));
        batch.message(named.then_some(&peer.raw), options(peer, run[0].priority, segment));
        if let Some(records) = outbox.records(run) {
            batch.part(records);
        } else {
            for packet in run {
                batch.part(outbox.header(packet));
                batch.part(packet.payload());
            }
        }
        let bytes = run.iter().map(|packet| packet.len() as u64).sum();
        sendings.push(Sending {
            peer: run[0].peer,
            datagrams: run.len() as u64,
            bytes,
            is_bundle: false,
        });
    }
}

/// Returns the options of a datagram. Priorities are for switches, and loopback has none, so setting them there would only cost
/// time.
fn options(peer: &Peer, priority: Priority, segment: Option<u16>) -> SendOptions {
    let tos = (!peer.loopback).then(|| (priority.tos(), peer.version));
    SendOptions { tos, source: peer.source(), segment }
}
