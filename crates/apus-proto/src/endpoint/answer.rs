//! What the peer misses, or says of an RPC without going on with it.

use std::time::Duration;

use apus_wire::{Acked, Header, Resend, RpcUnknown, UnknownReason};

use crate::control::Body;
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::Endpoint;
use crate::endpoint::receive::turned_round;
use crate::error::CallFailed;
use crate::rpc::{Phase, Preempted, Waiting};
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;

/// A server of a native link that does not know a request begun so long ago may have forgotten that it
/// executed it: half of the time after which it forgets an idle client.
const FORGETS_AFTER: Duration = Duration::from_secs(60);

impl Endpoint {
    /// Gives up a request in service because its handler panicked, and tells the client so, if that is an Apus node.
    /// Returns false when the request was not in service: answered, aborted, its client gone.
    pub fn reject(&mut self, key: RpcKey) -> bool {
        let Some(rpc) = self.rpcs.get(key).filter(|rpc| rpc.phase == Phase::InService) else {
            return false;
        };
        let (of, header) = (rpc.peer, rpc.header());
        //= docs/protocol.md#handler-1
        //= docs/protocol.md#linux-2
        if !self.peers.get(of).expect("an RPC has a peer").native {
            let reason = UnknownReason::HandlerPanicked;
            self.control(of, header, Body::Unknown(RpcUnknown { reason }));
        }
        self.abort(key)
    }

    /// The peer misses something of ours (rules `loss-4` to `loss-7`).
    pub(super) fn on_resend(&mut self, now: Time, of: PeerKey, header: &Header, resend: Resend) {
        self.counters.resends_received += 1;
        let id = header.sender_id.flipped();
        if self.rpc_index.find(&self.rpcs, &(of, id)).is_none() {
            return self.answer_unknown(of, header);
        }
        let Some(key) = self.rpc_of(of, header) else { return };
        let rpc = self.rpcs.get_mut(key).expect("found above");
        if rpc.phase != Phase::Incoming {
            rpc.note_alive(now); // Not the data that is missed here.
        }
        let Some(message) = rpc.outgoing.as_mut() else {
            return self.control_for(key, Body::Busy);
        };
        if message.is_blocked() {
            return self.ask_for_confirmation(now, key);
        }
        //= docs/protocol.md#loss-9
        if resend.length.is_none() && message.first_grant.is_some() {
            // Who has granted some of it names what is missing: this was asked before.
            return self.control_for(key, Body::Busy);
        }
        rpc.disturbed = true;
        let end = match resend.length {
            None => message.next,
            Some(length) => resend.offset.saturating_add(length).min(message.length()),
        };
        //= docs/protocol.md#loss-9
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let arrived = message.arrived(now, peer.under_way(&self.config));
        //= docs/protocol.md#loss-11
        let beyond = message.is_sent() && resend.offset >= message.length();
        let too_early = resend.offset >= arrived && !beyond;
        let start = if beyond { message.length() - 1 } else { resend.offset };
        let end_missed = if beyond { message.length() } else { end.min(arrived) };
        let missed = start..end_missed;
        let asked = message.request_again(now, missed, resend.priority, peer.again(&self.config));
        // A range beyond what was granted means that a GRANT was lost.
        //= docs/protocol.md#loss-5
        let granted = end > message.granted && message.grant(end, message.scheduled_priority);
        if asked || granted {
            self.requeue(key);
        }
        //= docs/protocol.md#loss-4
        if too_early {
            self.control_for(key, Body::Busy);
        } else if !asked {
            self.counters.resends_limited += 1;
        }
    }

    pub(super) fn answer_unknown(&mut self, of: PeerKey, header: &Header) {
        let id = header.sender_id;
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let peer_is_native = peer.native;
        let reason = if id.is_server() {
            UnknownReason::Unknown
        //= docs/protocol.md#life-7
        //= docs/protocol.md#loss-6
        } else if peer.has_taken(id) {
            UnknownReason::Finished
        } else if self.serves(header.dest_port).is_none() {
            if peer_is_native {
                return self.control(of, *header, Body::Refused);
            }
            UnknownReason::NoSuchPort
        } else {
            UnknownReason::Unknown
        };
        self.control(of, turned_round(header), Body::Unknown(RpcUnknown { reason }));
    }

    pub(super) fn on_unknown(
        &mut self,
        now: Time,
        of: PeerKey,
        header: &Header,
        unknown: RpcUnknown,
    ) {
        let Some(key) = self.rpc_of(of, header) else { return };
        let rpc = self.rpcs.get(key).expect("found above");
        if !rpc.is_client() {
            self.remove_rpc(key); // The client has forgotten its call.
            return;
        }
        self.counters.unknown_received += 1;
        //= docs/protocol.md#loss-9
        // A question overtook the request, which is not lost.
        let peer = self.peers.get(of).expect("the caller found it");
        let under_way = peer.under_way(&self.config);
        let crossed =
            rpc.outgoing.as_ref().is_some_and(|request| request.arrived(now, under_way) == 0);
        // It answers an earlier question than those that were answered since.
        let late = rpc.probes_unanswered == 0 && !peer.flight.was_asked_since(rpc.started);
        if unknown.reason == UnknownReason::Unknown && (crossed || late) {
            return;
        }
        self.note_arrived(key);
        match unknown.reason {
            UnknownReason::NoSuchPort => return self.fail(key, CallFailed::NoSuchPort),
            UnknownReason::Finished => return self.fail(key, CallFailed::ResponseLost),
            //= docs/protocol.md#handler-1
            UnknownReason::HandlerPanicked => return self.fail(key, CallFailed::HandlerPanicked),
            _ => {}
        }
        let rpc = self.rpcs.get_mut(key).expect("found above");
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let request = rpc.outgoing.as_ref().filter(|_| rpc.phase == Phase::Outgoing);
        //= docs/protocol.md#life-9
        match (unknown.reason, request) {
            (UnknownReason::TooLarge, Some(request)) => {
                let length = request.length();
                return self.fail(key, CallFailed::RequestTooLarge { length });
            }
            (UnknownReason::OverBudget, _) => {
                rpc.refused = true; // The next question will have it sent again.
                return;
            }
            _ => {}
        }
        rpc.unknown = rpc.unknown.saturating_add(1).min(rpc.probes_unanswered);
        if rpc.gives_up_on_unknown(peer.native) {
            return self.fail(key, CallFailed::ResponseLost);
        }
        self.send_request_again(now, of, key);
    }

    /// The server does not have the request: what was sent of it is sent once more.
    pub(super) fn send_request_again(&mut self, now: Time, of: PeerKey, key: RpcKey) {
        let Some(rpc) = self.rpcs.get_mut(key) else { return };
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let Some(message) = rpc.outgoing.as_mut().filter(|_| rpc.phase == Phase::Outgoing) else {
            return;
        };
        //= docs/protocol.md#once-5
        if peer.native && message.next > 0 && now.saturating_since(message.began) > FORGETS_AFTER {
            return self.fail(key, CallFailed::MayHaveExecuted);
        }
        rpc.disturbed = true;
        rpc.probes_answered = 0; // The server has it no more, if it ever had.
        let length = message.length();
        let priority = unscheduled_priority(peer.cutoffs.as_ref(), self.config.priorities, length);
        let sent = message.next;
        if message.request_again(now, 0..sent, priority, peer.again(&self.config)) {
            self.requeue(key);
        }
    }

    pub(super) fn on_busy(&mut self, now: Time, of: PeerKey, header: &Header) {
        if let Some(key) = self.rpc_of(of, header) {
            // Alive, but no further: the next question may wait longer still.
            let rpc = self.rpcs.get_mut(key).expect("found above");
            let peer = self.peers.get_mut(of).expect("the caller found it");
            //= docs/protocol.md#measure-5
            if rpc.is_first_answer() && !peer.flight.was_asked_since(rpc.started) {
                peer.delay.bound(now, now.saturating_since(rpc.last_probe));
            }
            rpc.note_alive(now);
            rpc.refused = false;
            if let Some(message) = &mut rpc.incoming {
                message.ahead = self.downlink.ahead_of(message.lowest_level());
            }
            self.note_arrived(key);
        }
    }

    pub(super) fn on_need_ack(&mut self, now: Time, of: PeerKey, header: &Header) {
        let client_id = header.sender_id.client_form();
        if !header.sender_id.is_server() {
            self.counters.dropped_mismatch += 1;
            return;
        }
        if let Some(key) = self.rpc_index.find(&self.rpcs, &(of, client_id)) {
            return self.answer_need_ack(now, key);
        }
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let mut acks = peer.take_acks();
        acks.retain(|acked| acked.client_id != client_id);
        acks.push(Acked { client_id, server_port: header.source_port });
        self.send_acks(of, header.dest_port, acks);
    }

    /// The response is not complete: the server is asked for what is missing, or, if that is only a
    /// grant of ours or was asked for just now, told that it is still wanted.
    pub(super) fn answer_need_ack(&mut self, now: Time, key: RpcKey) {
        let rpc = self.rpcs.get_mut(key).expect("the index names RPCs that exist");
        //= docs/protocol.md#ack-4
        let last = if rpc.phase == Phase::Incoming {
            rpc.last_probe.max(rpc.last_rx)
        } else {
            rpc.last_probe
        };
        let asked = last > rpc.started && now.saturating_since(last) < rpc.rto;
        let waits = match rpc.waiting() {
            Waiting::Nobody => true,
            Waiting::Data => {
                rpc.preempted(now, self.config.peer_timeout, &self.downlink) == Preempted::Yes
            }
            _ => false,
        };
        if asked || waits {
            return self.control_for(key, Body::Busy);
        }
        self.probe(now, key);
    }

    /// Has a client with a blocked response show that it receives at its address: it is told a
    /// version only it can know, and asked for a packet that will carry it (rule `hostile-3`).
    pub(super) fn ask_for_confirmation(&mut self, now: Time, key: RpcKey) {
        let Some(rpc) = self.rpcs.get(key) else { return };
        //= docs/protocol.md#hostile-3
        let (of, header) = (rpc.peer, rpc.header());
        self.send_cutoffs(now, of, header);
        let priority = self.traffic.control();
        let first = Resend { offset: 0, length: Some(1), priority };
        self.control(of, header, Body::Resend(first));
    }
}
