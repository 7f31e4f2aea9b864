//! Probes: packets that check whether a peer is alive, or how far it got.

use std::time::Duration;

use apus_wire::Resend;

use crate::control::Body;
use crate::endpoint::Endpoint;
use crate::endpoint::step::Step;
use crate::rpc::AwaitedPacket;
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;

/// Upper bound on the RPCs with pending probes that are examined in one tick.
const QUEUED_MAX: usize = 1_024;

/// Number of unanswered probes after which a sender counts as silent: its grants go to other senders.
const SILENT_AFTER: u8 = 2;

/// Upper bound on the ranges requested at once.
const RANGES_MAX: usize = 16;

impl Endpoint {
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

    /// Probes the peer for the missing packet (rules `loss-1` to `loss-3`).
    pub(super) fn probe(&mut self, now: Time) {
        self.probe_for(now, u32::MAX);
    }

    /// Probes as [`probe`](Self::probe), for at most `most` bytes of missing data; the peer sends whole packets.
    pub(super) fn probe_for(&mut self, now: Time, most: u32) {
        let awaited = self.rpc.awaited_packet();
        self.rpc.probing.last_probe = now;
        self.rpc.probing.probes_unanswered = self.rpc.probing.probes_unanswered.saturating_add(1);
        self.rpc.disturbed |= awaited == AwaitedPacket::Data;
        self.peer.prober.note(now, Duration::from_nanos(self.rpc.probing.rto));
        match awaited {
            //= docs/protocol.md#server-2
            AwaitedPacket::Nothing if self.rpc.phase.is_in_service() => self.control(Body::NeedAck),
            AwaitedPacket::Nothing => {}
            AwaitedPacket::Response => self.probe_progress(),
            //= docs/protocol.md#ack-3
            AwaitedPacket::Acknowledgement | AwaitedPacket::Grant => self.control(Body::NeedAck),
            AwaitedPacket::Confirmation => self.request_confirmation(now),
            AwaitedPacket::Data => self.request_data(now, most),
        }
    }

    /// Requests the server's progress with the request.
    pub(super) fn probe_progress(&mut self) {
        let priority = self.parts.traffic.control();
        self.control(Body::Resend(Resend { offset: 0, length: None, priority }));
    }

    fn request_data(&mut self, now: Time, most: u32) {
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
            self.parts.control(peer_key, header, Body::Resend(resend));
        }
    }

    /// Records the bytes that the link has delivered at the levels that precede the missing data of this message.
    pub(super) fn note_ahead(&mut self) {
        if let Some(message) = self.rpc.incoming_mut() {
            message.ahead = self.parts.downlink.ahead_of(message.lowest_level());
        }
    }
}
