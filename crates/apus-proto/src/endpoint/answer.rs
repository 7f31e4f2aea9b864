//! Packets about an RPC without data: grants, requests for missing bytes, and other reports.

use std::time::Duration;

use apus_wire::{Acked, Grant, Header, Resend, RpcUnknown, UnknownReason};

use crate::control::{Body, turned_round};
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::Endpoint;
use crate::endpoint::parts::Parts;
use crate::endpoint::questions::Question;
use crate::endpoint::step::{End, Step};
use crate::error::CallFailed;
use crate::rpc::{AwaitedPacket, Phase, Preempted};
use crate::slab::PeerKey;
use crate::time::Time;
use crate::timer::is_over;

/// Age after which a server of a native link that does not know a request may have forgotten its execution: half of the time after
/// which it forgets an idle client.
const FORGETS_AFTER: Duration = Duration::from_secs(60);

impl Endpoint {
    /// Answers no RESEND and no NEED_ACK until [`answer_questions`](Self::answer_questions): for a caller that was not scheduled
    /// for a while, while it reads the packets of that time.
    #[inline]
    pub fn postpone_questions(&mut self) {
        self.questions.begin();
    }

    /// Returns whether such packets wait to be answered.
    #[must_use]
    #[inline]
    pub fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Answers the RESENDs and NEED_ACKs that were postponed, at most 256, and later ones at once.
    #[inline]
    pub fn answer_questions(&mut self, now: Time) {
        let waiting = self.questions.end();
        if !waiting.is_empty() {
            self.answer_waiting(now, waiting);
        }
    }

    #[cold]
    fn answer_waiting(&mut self, now: Time, waiting: Vec<(PeerKey, Header, Question)>) {
        //= docs/protocol.md#loss-15
        for (peer, header, question) in waiting {
            if self.peers.get(peer).is_none() {
                continue;
            }
            match question {
                Question::Resend(resend) => self.answer_resend(now, peer, &header, resend),
                Question::NeedAck => self.answer_need_ack(now, peer, &header),
            }
        }
    }

    pub(super) fn on_grant(&mut self, now: Time, peer: PeerKey, header: &Header, grant: Grant) {
        let Some(mut step) = self.step_for(peer, header) else { return };
        if step.on_grant(now, grant) {
            step.note_arrived();
            self.release_deferred(peer);
        }
    }

    /// Handles a request for missing bytes (rules `loss-4` to `loss-7`).
    pub(super) fn on_resend(&mut self, now: Time, peer: PeerKey, header: &Header, resend: Resend) {
        self.parts.counters.resends_received += 1;
        if !self.questions.postpone(peer, header, Question::Resend(resend)) {
            self.answer_resend(now, peer, header, resend);
        }
    }

    fn answer_resend(&mut self, now: Time, peer: PeerKey, header: &Header, resend: Resend) {
        if self.rpcs.find(peer, header.sender_id.flipped()).is_none() {
            return self.answer_unknown(peer, header);
        }
        if let Some(mut step) = self.step_for(peer, header) {
            step.on_resend(now, resend);
        }
    }

    /// Answers a packet about an RPC that this node does not know.
    pub(super) fn answer_unknown(&mut self, key: PeerKey, header: &Header) {
        let id = header.sender_id;
        let reason = if id.is_server() {
            UnknownReason::Unknown
        //= docs/protocol.md#life-7
        //= docs/protocol.md#loss-6
        } else if self.peers[key].has_refused(id).is_none() && self.peers[key].has_taken(id) {
            UnknownReason::Finished
        } else if let Some(reason) = self.refusal(key, header) {
            let peer = &mut self.peers[key];
            if peer.native {
                return self.parts.control(key, *header, Body::Refused);
            }
            self.parts.total.usage.add(peer.refuse_request(id, reason));
            reason
        } else {
            UnknownReason::Unknown
        };
        self.parts.control(key, turned_round(header), Body::Unknown(RpcUnknown { reason }));
    }

    pub(super) fn on_unknown(
        &mut self,
        now: Time,
        peer: PeerKey,
        header: &Header,
        unknown: RpcUnknown,
    ) {
        let Some(mut step) = self.step_for(peer, header) else { return };
        let key = step.key;
        let end = step.on_unknown(now, unknown.reason);
        self.release_deferred(peer);
        self.end(now, key, end);
    }

    /// Handles the end of a call that the client gives up.
    pub(super) fn on_abort(&mut self, now: Time, peer: PeerKey, header: &Header) {
        let Some(mut step) = self.step_for(peer, header) else { return };
        if step.rpc.is_client() || step.peer.native {
            step.parts.counters.dropped_mismatch += 1;
            return;
        }
        //= docs/protocol.md#life-8
        step.parts.counters.requests_cancelled += u64::from(!step.rpc.cancelled);
        let (key, end) = (step.key, step.cancel());
        self.end(now, key, end);
    }

    pub(super) fn on_busy(&mut self, now: Time, peer: PeerKey, header: &Header) {
        if let Some(mut step) = self.step_for(peer, header) {
            step.on_busy(now);
            self.release_deferred(peer);
        }
    }

    pub(super) fn on_need_ack(&mut self, now: Time, peer: PeerKey, header: &Header) {
        if !header.sender_id.is_server() {
            self.parts.counters.dropped_mismatch += 1;
            return;
        }
        if !self.questions.postpone(peer, header, Question::NeedAck) {
            self.answer_need_ack(now, peer, header);
        }
    }

    fn answer_need_ack(&mut self, now: Time, peer: PeerKey, header: &Header) {
        let client_id = header.sender_id.client_form();
        if let Some(key) = self.rpcs.find(peer, client_id) {
            if let Some(mut step) = self.step(key) {
                step.answer_need_ack(now);
            }
            return;
        }
        let node = &mut self.peers[peer];
        if node.compact {
            node.server.ack_ranges.ensure(client_id);
            return self.parts.send_ack_ranges(peer, header.dest_port, header.source_port);
        }
        let mut acks = node.take_acks();
        acks.retain(|acked| acked.client_id != client_id);
        acks.push(Acked { client_id, server_port: header.source_port });
        self.parts.send_acks(peer, header.dest_port, acks);
    }
}

impl Parts {
    /// Returns the request for the first packet of a message.
    pub(super) fn first_packet(&self) -> Resend {
        Resend { offset: 0, length: Some(1), priority: self.traffic.control() }
    }
}

impl Step<'_> {
    /// Returns `false` if the RPC has nothing that can be granted now.
    fn on_grant(&mut self, now: Time, grant: Grant) -> bool {
        if self.rpc.phase.is_outgoing() {
            self.rpc.note_progress(now);
        }
        let disturbed = self.rpc.disturbed;
        let Phase::Outgoing(message) = &mut self.rpc.phase else {
            self.parts.counters.dropped_mismatch += 1;
            return false;
        };
        self.parts.counters.grants_received += 1;
        self.peer.carried.note(now, message);
        let offset = grant.offset.min(message.length());
        match message.first_grant() {
            None if message.next > 0 => {
                message.note_first_grant(now, offset);
                //= docs/protocol.md#measure-3
                if !disturbed {
                    // The receiver may have had shorter messages to grant first.
                    self.peer.measured.delay.bound(now, now.saturating_since(message.began));
                }
            }
            Some((at, from)) if offset > from => {
                let elapsed = now.saturating_since(at);
                // Grants arrive in steps of a window; over four round trips that evens out.
                if self.peer.round_trip().is_some_and(|least| elapsed > 4 * least) {
                    self.peer.sample_rate(now, u64::from(offset.saturating_sub(from)), elapsed);
                }
            }
            _ => {}
        }
        if message.grant(grant.offset, grant.priority) {
            self.parts.order.update(self.key, message);
        } else {
            self.parts.counters.grants_late += 1;
        }
        true
    }

    fn on_resend(&mut self, now: Time, resend: Resend) {
        if !self.rpc.phase.is_incoming() {
            self.rpc.note_alive(now); // The RESEND does not concern data that this node expects.
        }
        let Some(message) = self.rpc.outgoing_mut() else { return self.control(Body::Busy) };
        if message.is_blocked() {
            return self.request_confirmation(now);
        }
        //= docs/protocol.md#loss-9
        if resend.length.is_none() && message.first_grant().is_some() {
            // A receiver that has granted some of the message names its missing bytes: this RESEND was sent earlier.
            return self.control(Body::Busy);
        }
        let end = match resend.length {
            None => message.next,
            Some(length) => resend.offset.saturating_add(length).min(message.length()),
        };
        //= docs/protocol.md#loss-9
        let config = &self.parts.config;
        // Within the host, the system call that sends a packet puts it into the receive buffer.
        let is_here = self.peer.loopback;
        let under_way = if is_here { Duration::ZERO } else { self.peer.under_way(config) };
        let arrived = message.arrived(now, under_way);
        //= docs/protocol.md#loss-11
        let beyond = message.is_sent() && resend.offset >= message.length();
        let too_early = resend.offset >= arrived && !beyond;
        let start = if beyond { message.length().saturating_sub(1) } else { resend.offset };
        let end_missed = if beyond { message.length() } else { end.min(arrived) };
        let again = self.peer.again(config);
        let asked = message.request_again(now, start..end_missed, resend.priority, again);
        // A range beyond the granted bytes means that a GRANT was lost.
        //= docs/protocol.md#loss-5
        let granted = end > message.granted && message.grant(end, message.scheduled_priority);
        if asked || granted {
            self.parts.order.update(self.key, message);
        }
        self.rpc.disturbed = true;
        //= docs/protocol.md#loss-4
        if too_early {
            self.control(Body::Busy);
        } else if !asked {
            self.parts.counters.resends_limited += 1;
        }
    }

    fn on_unknown(&mut self, now: Time, reason: UnknownReason) -> Option<End> {
        if !self.rpc.is_client() {
            return self.cancel(); // The client no longer knows its call.
        }
        self.parts.counters.unknown_received += 1;
        //= docs/protocol.md#loss-9
        // A probe overtook the request, which is not lost.
        let under_way = self.peer.under_way(&self.parts.config);
        let request = self.rpc.outgoing();
        let crossed = request.is_some_and(|request| request.arrived(now, under_way) == 0);
        // The packet answers an earlier probe than those answered since.
        let late = self.rpc.probing.probes_unanswered == 0
            && !self.peer.flight.was_probed_since(self.rpc.started);
        if reason == UnknownReason::Unknown && (crossed || late) {
            return None;
        }
        self.note_arrived();
        //= docs/protocol.md#life-9
        match (reason, &self.rpc.phase) {
            (UnknownReason::NoSuchPort, _) => return Some(End::Failed(CallFailed::NoSuchPort)),
            //= docs/protocol.md#seal-6
            (UnknownReason::NotAllowed, _) => return Some(End::Failed(CallFailed::NotAllowed)),
            (UnknownReason::SealedOnly, _) => return Some(End::Failed(CallFailed::SealedOnly)),
            (UnknownReason::Finished, _) => return Some(End::Failed(self.given_up(now))),
            //= docs/protocol.md#handler-1
            (UnknownReason::HandlerPanicked, _) => {
                return Some(End::Failed(CallFailed::HandlerPanicked));
            }
            (UnknownReason::TooLarge, Phase::Outgoing(request)) => {
                let length = request.length();
                return Some(End::Failed(CallFailed::RequestTooLarge { length }));
            }
            (UnknownReason::OverBudget, _) => {
                self.rpc.refused = true; // The next probe will have it sent again.
                return None;
            }
            _ => {}
        }
        let probes = self.rpc.probing.probes_unanswered;
        self.rpc.probing.probes_unknown =
            self.rpc.probing.probes_unknown.saturating_add(1).min(probes);
        if self.rpc.gives_up_on_unknown(self.peer.native) {
            return Some(End::Failed(CallFailed::ResponseLost));
        }
        self.send_request_again(now)
    }

    /// Returns the error for a call whose request the server has given up.
    fn given_up(&self, now: Time) -> CallFailed {
        //= docs/protocol.md#life-3
        match self.rpc.expires {
            Some(expires) if is_over(now, self.rpc.started, expires) => {
                let after = expires.saturating_since(self.rpc.started);
                CallFailed::DeadlineExceeded { after, story: self.story(now) }
            }
            _ => CallFailed::ResponseLost,
        }
    }

    /// Retransmits the part of the request that was sent, because the server does not have it. Only the first packet finds out whether
    /// a server that had no room has some now.
    pub(super) fn send_request_again(&mut self, now: Time) -> Option<End> {
        let (peer, config) = (&*self.peer, &self.parts.config);
        let Phase::Outgoing(message) = &mut self.rpc.phase else { return None };
        //= docs/protocol.md#once-5
        if peer.native && message.next > 0 && now.saturating_since(message.began) > FORGETS_AFTER {
            return Some(End::Failed(CallFailed::MayHaveExecuted));
        }
        //= docs/protocol.md#life-9
        let most = if self.rpc.refused { message.packet_payload } else { u32::MAX };
        let (length, sent) = (message.length(), message.next.min(most));
        let priority =
            unscheduled_priority(peer.server.cutoffs.as_ref(), config.priorities, length);
        if message.request_again(now, 0..sent, priority, peer.again(config)) {
            self.parts.order.update(self.key, message);
        }
        self.rpc.disturbed = true;
        self.rpc.probing.probes_answered = 0; // The server no longer has it, if it ever had.
        None
    }

    fn on_busy(&mut self, now: Time) {
        // The peer is alive and has not progressed: the next probe may wait longer still.
        //= docs/protocol.md#measure-5
        if self.rpc.is_first_answer() && !self.peer.flight.was_probed_since(self.rpc.started) {
            self.peer.measured.delay.bound(now, now.saturating_since(self.rpc.probing.last_probe));
        }
        self.parts.counters.probes_busy += u64::from(self.rpc.probing.by_doubt);
        self.rpc.note_alive(now);
        self.rpc.refused = false;
        self.note_ahead();
        self.note_arrived();
    }

    /// Answers NEED_ACK for an incomplete response. Requests the missing part from the server. If that part waits for this node's
    /// grant or was requested just now, only reports that the response is still wanted.
    fn answer_need_ack(&mut self, now: Time) {
        let rpc = &mut *self.rpc;
        //= docs/protocol.md#ack-4
        let incoming = rpc.phase.is_incoming();
        let last =
            if incoming { rpc.probing.last_probe.max(rpc.last_rx) } else { rpc.probing.last_probe };
        let probed = last > rpc.started
            && now.saturating_since(last) < Duration::from_nanos(rpc.probing.rto);
        let waits = match rpc.awaited_packet() {
            AwaitedPacket::Nothing => true,
            AwaitedPacket::Data => {
                let timeout = self.parts.config.peer_timeout;
                rpc.preempted(now, timeout, &self.parts.downlink) == Preempted::Yes
            }
            _ => false,
        };
        if probed || waits { self.control(Body::Busy) } else { self.probe(now) }
    }

    /// Requests that a client with a blocked response prove that it receives at its address: sends a version that only this client
    /// can know, and requests a packet that will carry it (rule `hostile-3`).
    pub(super) fn request_confirmation(&mut self, now: Time) {
        //= docs/protocol.md#hostile-3
        self.parts.send_cutoffs(now, self.rpc.peer, self.peer, self.rpc.header());
        let first = self.parts.first_packet();
        self.control(Body::Resend(first));
    }
}
