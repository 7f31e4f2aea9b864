//! Probes: packets that check whether a peer is alive, or how far it got.

use std::time::Duration;

use apus_wire::Resend;

use crate::control::Body;
use crate::endpoint::Endpoint;
use crate::endpoint::step::Step;
use crate::rpc::AwaitedPacket;
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;
use crate::usage::Account;

/// Upper bound on the RPCs with pending probes that are examined in one tick.
const QUEUED_MAX: usize = 1_024;

/// Number of unanswered probes after which a sender counts as silent: its grants go to other senders.
const SILENT_AFTER: u8 = 2;

/// Upper bound on the ranges requested at once.
const RANGES_MAX: usize = 16;

/// Upper bound on the messages of which data is requested at once when packets were dropped, for each role. The others wait for
/// their RTO.
const DROPPED_MAX: usize = 64;

/// Time between two such requests about one message.
const DROPPED_EVERY: Duration = Duration::from_micros(100);

impl Endpoint {
    /// Requests the missing data of peers of this host at once if the receive buffer has refused packets.
    #[inline]
    pub(super) fn request_dropped(&mut self, now: Time) {
        if self.parts.drops.take_new() {
            self.request_dropped_now(now);
        }
    }

    #[cold]
    fn request_dropped_now(&mut self, now: Time) {
        let usage = &self.parts.total.usage;
        let arriving = [Account::Own, Account::Theirs]
            .into_iter()
            .flat_map(|account| usage.all_arriving(account).take(DROPPED_MAX));
        let arriving: Vec<RpcKey> = arriving.map(|(_, key)| key).collect();
        for key in arriving {
            let Some(mut step) = self.step(key) else { continue };
            let (started, last) = (step.rpc.started, step.rpc.probing.last_probe);
            let is_first = last == started && step.rpc.probing.probes_unanswered == 0;
            let may = is_first || now.saturating_since(last) >= DROPPED_EVERY;
            let waits = step.rpc.awaited_packet() == AwaitedPacket::Data;
            //= docs/protocol.md#loss-14
            if step.peer.loopback && waits && may {
                step.ask(now, u32::MAX, true);
                step.arm(now);
            }
        }
    }

    /// Probes the peer now, or in this RPC's turn.
    pub(super) fn probe_in_turn(&mut self, now: Time, key: RpcKey) {
        let Some(mut step) = self.step(key) else { return };
        //= docs/protocol.md#loss-12
        let waiting = step.peer.prober.is_waiting();
        if !waiting && step.peer.prober.take(now) {
            return step.probe(now);
        }
        step.rpc.probing.queued = true;
        step.peer.prober.push(key, step.rpc.is_known());
        if !waiting {
            let peer = step.rpc.peer;
            self.probe_queue.push(now, peer);
        }
    }

    /// Sends the pending probes that are due, one peer's after the other.
    pub(super) fn probe_queued(&mut self, now: Time) {
        if self.probe_queue.next().is_none_or(|next| now < next) {
            return;
        }
        self.probe_queue.begin(now);
        let mut left = QUEUED_MAX;
        for _ in 0..self.probe_queue.len() {
            let Some(peer) = self.probe_queue.pop() else { return };
            self.probe_queued_of(now, peer, &mut left);
            if self.peers.get(peer).is_some_and(|peer| peer.prober.is_waiting()) {
                self.probe_queue.push(now, peer);
            }
            if left == 0 {
                return;
            }
        }
    }

    fn probe_queued_of(&mut self, now: Time, key: PeerKey, left: &mut usize) {
        while *left > 0 {
            let Some(peer) = self.peers.get_mut(key) else { return };
            if !peer.prober.is_waiting() || !peer.prober.take(now) {
                return;
            }
            *left -= 1;
            let next = peer.prober.pop();
            let probed = next.and_then(|key| self.step(key)).is_some_and(|s| s.take_turn(now));
            if !probed {
                self.peers[key].prober.give_back();
            }
        }
    }
}

impl Step<'_> {
    /// Takes this RPC's turn. Returns `false` if it no longer waits for anything.
    fn take_turn(mut self, now: Time) -> bool {
        if !std::mem::take(&mut self.rpc.probing.queued) {
            return false;
        }
        let timeout = self.parts.config.peer_timeout;
        let probes = self.rpc.may_queue() && self.rpc.due(timeout) <= now;
        if probes {
            self.probe(now);
        }
        self.arm(now);
        probes
    }

    /// Returns whether the peer answers a probe.
    pub(super) fn is_answered_by_peer(&self) -> bool {
        self.rpc.awaited_packet() != AwaitedPacket::Nothing || self.rpc.phase.is_in_service()
    }

    /// Probes the peer for the missing packet (rules `loss-1` to `loss-3`).
    pub(super) fn probe(&mut self, now: Time) {
        self.probe_for(now, u32::MAX);
    }

    /// Probes as [`probe`](Self::probe), for at most `most` bytes of missing data; the peer sends whole packets.
    pub(super) fn probe_for(&mut self, now: Time, most: u32) {
        self.ask(now, most, !self.is_nothing_lost());
    }

    /// Probes as [`probe_for`](Self::probe_for). `is_lost`: the packet may be lost, rather than not sent yet.
    fn ask(&mut self, now: Time, most: u32, is_lost: bool) {
        let awaited = self.rpc.awaited_packet();
        self.rpc.probing.by_doubt = !is_lost;
        self.rpc.probing.last_probe = now;
        self.rpc.probing.probes_unanswered = self.rpc.probing.probes_unanswered.saturating_add(1);
        self.rpc.disturbed |= awaited == AwaitedPacket::Data;
        self.peer.prober.note(now, Duration::from_nanos(self.rpc.probing.rto));
        match awaited {
            //= docs/protocol.md#server-2
            AwaitedPacket::Nothing if self.rpc.phase.is_in_service() => self.control(Body::NeedAck),
            AwaitedPacket::Nothing => {}
            AwaitedPacket::Response => self.probe_progress(is_lost),
            //= docs/protocol.md#ack-3
            AwaitedPacket::Acknowledgement | AwaitedPacket::Grant => self.control(Body::NeedAck),
            AwaitedPacket::Confirmation => self.request_confirmation(now),
            AwaitedPacket::Data if is_lost => self.request_data(now, most, Body::Resend),
            AwaitedPacket::Data => self.request_data(now, 1, Body::Probe),
        }
    }

    /// Returns whether the silence of the peer is no sign of a loss: the peer is on this host, and the receive buffer has refused no
    /// packet since the last probe. No longer true of a peer that then had to send data again all the same.
    pub(super) fn is_nothing_lost(&self) -> bool {
        //= docs/protocol.md#loss-14
        let (peer, drops) = (&*self.peer, &self.parts.drops);
        peer.loopback && !peer.loses_unseen && drops.none_since(self.rpc.probing.last_probe)
    }

    /// Requests the server's progress with the request. `is_lost`: a packet may have been lost.
    pub(super) fn probe_progress(&mut self, is_lost: bool) {
        let priority = self.parts.traffic.control();
        let resend = Resend { offset: 0, length: None, priority };
        self.control(if is_lost { Body::Resend(resend) } else { Body::Probe(resend) });
    }

    fn request_data(&mut self, now: Time, most: u32, body: fn(Resend) -> Body) {
        self.note_ahead();
        let rpc = &mut *self.rpc;
        //= docs/protocol.md#grant-7
        let probes = rpc.probing.probes_unanswered.saturating_add(rpc.probing.probes_answered);
        let expected = probes < SILENT_AFTER;
        let (peer_key, header) = (rpc.peer, rpc.header());
        let Some(message) = rpc.incoming_mut() else { return };
        self.parts.grants.suspend(now, self.key, message, expected, self.peer, peer_key);
        //= docs/protocol.md#loss-3
        let ranges = if most == u32::MAX { RANGES_MAX } else { 1 };
        let priority = self.parts.traffic.control();
        for range in message.missing().take(ranges) {
            let length = Some(range.end.saturating_sub(range.start).min(most));
            let resend = Resend { offset: range.start, length, priority };
            self.parts.control(peer_key, header, body(resend));
        }
    }

    /// Records the bytes that the link has delivered at the levels that precede the missing data of this message.
    pub(super) fn note_ahead(&mut self) {
        if let Some(message) = self.rpc.incoming_mut() {
            message.ahead = self.parts.downlink.ahead_of(message.lowest_level());
        }
    }
}
