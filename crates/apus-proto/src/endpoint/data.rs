//! DATA packets: arriving requests and responses.

use std::time::Duration;

use apus_wire::{
    Cutoffs, DATA_HEADER_LEN, Data, DataFlags, Extension, Header, MAX_LINUX_MESSAGE, PacketType,
    PathId, Priority, ReceiveTarget, RpcId, RpcUnknown, UnknownReason,
};
use bytes::Bytes;

use crate::config::Config;
use crate::control::{Body, turned_round};
use crate::endpoint::Endpoint;
use crate::endpoint::event::Event;
use crate::endpoint::parts::CUTOFFS_INTERVAL;
use crate::endpoint::step::{End, Step};
use crate::endpoint::sweeps::Swept;
use crate::error::CallFailed;
use crate::incarnations::{Admission, Echo, Incarnations};
use crate::incoming::{Added, Incoming};
use crate::peer::Requests;
use crate::remote::Remote;
use crate::rpc::{Phase, Rpc};
use crate::short_bodies::ShortBodies;
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::sockets::{ServedBy, Socket};
use crate::time::{Time, nanos};
use crate::trace::TraceEvent;
use crate::usage::{Account, RPC_BYTES};

/// One parsed DATA packet.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
    pub(super) header: Header,
    pub(super) data: Data,
    pub(super) payload: &'a [u8],
    /// The extension.
    pub(super) words: &'a [u8],
}

impl Arrival<'_> {
    /// Returns whether the packet contains the whole message.
    fn is_whole(&self) -> bool {
        self.payload.len() == self.data.message_length as usize
    }

    /// Returns the message of a packet that contains all of it.
    #[inline]
    fn whole_message(&self, native: bool, bodies: &mut ShortBodies) -> Bytes {
        //= docs/protocol.md#linux-2
        // To the Linux module, the flags are padding.
        if self.data.is_of_empty_message() && !native {
            return Bytes::new();
        }
        bodies.copy(self.payload)
    }

    /// Returns the bytes of the message that arrive without a grant, as its sender states.
    fn unasked(&self) -> u32 {
        self.data.incoming.max(self.payload.len() as u32)
    }
}

impl Endpoint {
    #[inline]
    pub(super) fn on_data(&mut self, now: Time, peer: PeerKey, arrival: &Arrival<'_>) {
        if arrival.header.sender_id.is_client() {
            self.on_request(now, peer, arrival);
        } else {
            self.on_response(now, peer, arrival);
        }
    }

    /// Returns the message whose next bytes probably arrive next, for a link that can write them in place. The last two packets of
    /// that message arrived in succession, so that two long messages that take turns are not mistaken for one.
    pub fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        self.rpcs.get_mut(self.receive_target?)?.incoming_mut()?.receive_target()
    }

    /// Takes a DATA packet from the node at `from`. The caller has appended its payload of `length` bytes to
    /// [`receive_target`](Self::receive_target); `header` is its header. Returns `false`, with nothing changed, if the payload is
    /// not that message's next piece.
    pub fn handle_in_place(
        &mut self,
        now: Time,
        from: PathId,
        header: &[u8; DATA_HEADER_LEN],
        length: usize,
    ) -> bool {
        let Ok((PacketType::Data, common)) = Header::parse(header) else { return false };
        let Ok(data) = Data::parse_fixed(header, length) else { return false };
        if data.flags.contains(DataFlags::EXTENDED) {
            return false;
        }
        let Some((key, peer)) = self.receive_target.zip(self.find_sender(from, header)) else {
            return false;
        };
        let expected = self.rpcs.get(key).is_some_and(|rpc| {
            (rpc.peer, rpc.id) == (peer, common.sender_id.flipped()) && rpc.has_ports_of(&common)
        });
        if !expected || !self.affords(key, length) {
            return false;
        }
        let Some(mut step) = self.step(key) else { return false };
        let Some(message) = step.rpc.incoming_mut() else { return false };
        let level = level_of(message, &data);
        if data.message_length != message.length
            || !message.append_in_place(data.offset, length as u32)
        {
            return false;
        }
        step.parts.downlink.arrived(now, level, DATA_HEADER_LEN + length);
        step.note_new_data(now, &data);
        step.parts.counters.packets_received += 1;
        step.parts.counters.data_packets_received += 1;
        step.parts.counters.data_bytes_received += length as u64;
        self.note_data_header(now, peer, &common, &data, length);
        let Some(mut step) = self.step(key) else { return true };
        let end = step.advance(now, &data);
        self.end(now, key, end);
        true
    }

    fn on_request(&mut self, now: Time, peer: PeerKey, arrival: &Arrival<'_>) {
        let id = arrival.header.sender_id.flipped();
        if let Some(key) = self.rpcs.find(peer, id) {
            let Some(rpc) = self.rpcs.get_mut(key) else { return };
            if !rpc.has_ports_of(&arrival.header) {
                self.parts.counters.dropped_mismatch += 1;
            } else if rpc.phase.is_incoming() {
                self.add_data(now, key, arrival);
            } else {
                rpc.note_progress(now);
                self.parts.counters.duplicate_packets += 1;
            }
            return;
        }
        let Some(socket) = self.admit_request(now, peer, arrival) else { return };
        if arrival.is_whole() {
            self.insert_whole_request(now, peer, socket, arrival);
        } else {
            self.insert_request(now, peer, socket, arrival);
        }
    }

    /// Returns the longest message that a peer may send, in bytes.
    fn message_max(&self, peer: PeerKey) -> u32 {
        //= docs/protocol.md#linux-1
        let most = if self.peers[peer].native { MAX_LINUX_MESSAGE } else { u32::MAX };
        self.parts.config.message_max.min(most)
    }

    /// Returns whether a new request may become an RPC. Counts every refusal.
    fn admit_request(
        &mut self,
        now: Time,
        peer: PeerKey,
        arrival: &Arrival<'_>,
    ) -> Option<SocketKey> {
        let Arrival { header, data, .. } = arrival;
        let sender = &self.peers[peer];
        let refused = sender.has_refused_any() && sender.has_refused(header.sender_id).is_some();
        let served = self.parts.sockets.serves(header.dest_port);
        //= docs/protocol.md#seal-6
        let may_send = |it: &ServedBy| sender.rights.requests & it.rule != 0 && !refused;
        let Some(ServedBy { socket, is_limited, .. }) = served.filter(may_send) else {
            self.refuse_for_good(peer, arrival);
            return None;
        };
        let cost = RPC_BYTES + u64::from(data.message_length);
        if is_limited && self.is_beyond_limits(peer, socket, arrival) {
            return None;
        }
        if data.message_length > self.message_max(peer) || cost > self.parts.config.least_budget() {
            self.parts.counters.refused_too_large += 1;
            self.refuse(peer, arrival, UnknownReason::TooLarge);
            return None;
        }
        match self.admit_id(peer, header.sender_id, data.cutoff_version) {
            Admission::Fresh => {}
            Admission::Begins => self.sweeps.push(Swept::Incarnation(peer, now)),
            Admission::Taken => {
                self.parts.counters.refused_duplicate_requests += 1;
                return None;
            }
            Admission::Stray => {
                self.parts.counters.refused_strays += 1;
                return None;
            }
            Admission::Lost => {
                //= docs/protocol.md#once-6
                // The next answer shows the client that its token is not known any more, and the client gets another one.
                self.parts.counters.refused_strays += 1;
                self.end_run(peer, Err(CallFailed::NoSuchPort));
                return None;
            }
            Admission::Stale => {
                self.parts.counters.refused_stale_incarnation += 1;
                self.challenge(now, peer, header);
                return None;
            }
        }
        let (length, unasked) = (data.message_length, arrival.unasked());
        if self.parts.has_plenty(&self.peers[peer], socket, cost) {
            return Some(socket);
        }
        self.give_up_slow(now, peer, socket, cost);
        if !self.admits(peer, socket, Account::Theirs, length, unasked) {
            self.parts.counters.refused_over_budget += 1;
            self.refuse(peer, arrival, UnknownReason::OverBudget);
            return None;
        }
        Some(socket)
    }

    /// Returns whether a request is beyond the limits of its socket, and refuses it then.
    #[cold]
    fn is_beyond_limits(
        &mut self,
        peer: PeerKey,
        socket: SocketKey,
        arrival: &Arrival<'_>,
    ) -> bool {
        //= docs/protocol.md#seal-4
        let Some(Socket { limits: Some(limits), usage, .. }) = self.parts.sockets.get(socket)
        else {
            return false;
        };
        let length = arrival.data.message_length;
        if length > limits.longest {
            self.parts.counters.refused_too_large += 1;
            self.refuse(peer, arrival, UnknownReason::TooLarge);
            return true;
        }
        let is_full = usage.charged + RPC_BYTES + u64::from(length) > limits.budget;
        if is_full {
            self.parts.counters.refused_over_budget += 1;
            self.refuse(peer, arrival, UnknownReason::OverBudget);
        }
        is_full
    }

    /// Refuses a request for a port that is not served or to which the peer has no right, or for which that was so when the request
    /// first arrived.
    #[cold]
    #[inline(never)]
    fn refuse_for_good(&mut self, peer: PeerKey, arrival: &Arrival<'_>) {
        let Arrival { header, data, .. } = arrival;
        let reason = self.refusal(peer, header);
        let counters = &mut self.parts.counters;
        match reason {
            Some(UnknownReason::NotAllowed | UnknownReason::SealedOnly) => {
                counters.refused_not_allowed += 1;
            }
            _ => counters.refused_no_port += 1,
        }
        if self.peers[peer].native {
            //= docs/protocol.md#linux-3
            if data.offset == 0 {
                self.parts.control(peer, *header, Body::Refused);
            }
        //= docs/protocol.md#life-6
        // A Linux client answers by retransmission, so a retransmitted packet gets no answer.
        } else if data.offset == 0 && !data.retransmit {
            self.answer_unknown(peer, header);
        }
    }

    /// Reports to a client, at the first packet, the reason why its request is refused. The Linux module would not understand the
    /// answer, and would retransmit the request at once.
    fn refuse(&mut self, peer: PeerKey, arrival: &Arrival<'_>, reason: UnknownReason) {
        //= docs/protocol.md#life-9
        if arrival.data.offset == 0 && !self.peers[peer].native {
            let header = turned_round(&arrival.header);
            self.parts.control(peer, header, Body::Unknown(RpcUnknown { reason }));
        }
    }

    /// Classifies a request by its id; `version` is the version in its packet.
    fn admit_id(&mut self, peer: PeerKey, id: RpcId, version: u16) -> Admission {
        let peer = &mut self.peers[peer];
        let echo = match &peer.client.requests {
            Requests::ByToken(_) => Echo::None,
            Requests::ByIncarnation(_)
                if version == self.parts.version_for(peer.client.version_salt) =>
            {
                Echo::Current
            }
            Requests::ByIncarnation(_) if version == 0 => Echo::None,
            Requests::ByIncarnation(incarnations) => {
                let incarnation = Incarnations::challenged_for(id);
                let challenge = self.secrets.challenge(peer.path, incarnation, incarnations.begun);
                if version == challenge { Echo::Challenge } else { Echo::Other }
            }
        };
        let before = peer.usage.charged;
        let admission = peer.admit(id, echo);
        if admission == Admission::Begins {
            // From now on, the version of its challenge is the current one.
            peer.client.version_salt = version.wrapping_sub(self.parts.traffic.current().version);
        }
        let total = &mut self.parts.total.usage;
        total.charged = total.charged - before + peer.usage.charged;
        admission
    }

    /// Challenges a request from another incarnation than the current one, on a native link. The client receives a version made for
    /// it and a request to retransmit. A packet with that version was not under way before, and comes from a node that receives at
    /// that address.
    fn challenge(&mut self, now: Time, key: PeerKey, request: &Header) {
        let peer = &mut self.peers[key];
        let rto = peer.rto(&self.parts.config).max(CUTOFFS_INTERVAL);
        let path = peer.path;
        let Requests::ByIncarnation(incarnations) = &mut peer.client.requests else { return };
        //= docs/protocol.md#once-3
        // One challenge per round trip, however many packets arrive: the answer takes that long.
        if !incarnations.challenge(now, request.sender_id, rto) {
            return;
        }
        let incarnation = Incarnations::challenged_for(request.sender_id);
        let version = self.secrets.challenge(path, incarnation, incarnations.begun);
        let cutoffs = Cutoffs { version, ..*self.parts.traffic.current() };
        self.parts.control(key, turned_round(request), Body::Cutoffs(cutoffs));
        let first = self.parts.first_packet();
        self.parts.control(key, turned_round(request), Body::Resend(first));
    }

    /// Begins to receive a request of several packets.
    fn insert_request(
        &mut self,
        now: Time,
        peer_key: PeerKey,
        socket: SocketKey,
        arrival: &Arrival<'_>,
    ) {
        let Data { message_length, incoming, .. } = arrival.data;
        let message = self.parts.incoming(message_length, incoming, now);
        let mut rpc = server_rpc(now, peer_key, socket, arrival);
        let peer = &mut self.peers[peer_key];
        peer.rpcs = peer.rpcs.saturating_add(1);
        rpc.probing.rto = peer.rto_nanos(&self.parts.config);
        //= docs/protocol.md#hostile-1
        let charged_socket = self.parts.sockets.get_mut(socket);
        let total = &mut self.parts.total;
        rpc.charge = total.charge_new(Account::Theirs, (RPC_BYTES, 0), peer, charged_socket);
        let key = self.rpcs.insert(rpc);
        let Some(mut step) = self.step(key) else { return };
        step.begin_arriving(message);
        step.arm(now);
        self.add_data(now, key, arrival);
    }

    /// Takes a request of one packet.
    fn insert_whole_request(
        &mut self,
        now: Time,
        peer_key: PeerKey,
        socket: SocketKey,
        arrival: &Arrival<'_>,
    ) {
        let length = arrival.data.message_length;
        let mut rpc = server_rpc(now, peer_key, socket, arrival);
        let (peer, parts) = (&mut self.peers[peer_key], &mut self.parts);
        peer.rpcs = peer.rpcs.wrapping_add(1); // Fewer than 2^32 RPCs fit into their table.
        let resend_min = nanos(parts.config.resend_min);
        rpc.probing.rto = resend_min;
        let charged_socket = parts.sockets.get_mut(socket);
        let cost = RPC_BYTES + u64::from(length);
        rpc.charge = parts.total.charge_new(Account::Theirs, (cost, 0), peer, charged_socket);
        parts.downlink.arrived(now, Priority::HIGHEST, DATA_HEADER_LEN + arrival.payload.len());
        parts.counters.data_bytes_received += u64::from(length);
        parts.counters.message_received(length.into());
        parts.traffic.message(length);
        let key = self.rpcs.insert(rpc);
        let Some(mut step) = self.step(key) else { return };
        // A lower bound, so that the response does not set the timer again.
        let due = now.after(resend_min);
        let due = step.rpc.expires.map_or(due, |expires| due.min(expires));
        step.parts.arm_at(now, due, key, step.rpc);
        let body = arrival.whole_message(step.peer.native, &mut step.parts.short_bodies);
        step.deliver_request(body);
    }

    fn on_response(&mut self, now: Time, peer: PeerKey, arrival: &Arrival<'_>) {
        let limit = self.message_max(peer);
        let Some(step) = self.step_for(peer, &arrival.header) else { return };
        let (key, socket) = (step.key, step.rpc.socket);
        if step.rpc.phase.is_incoming() {
            return self.add_data(now, key, arrival);
        }
        let length = arrival.data.message_length;
        if length > limit {
            self.parts.counters.refused_too_large += 1;
            return self.fail(key, CallFailed::ResponseTooLarge { length, limit });
        }
        if arrival.is_whole() {
            // The response waits for the application in place of its call.
            let more = (RPC_BYTES + u64::from(length)).saturating_sub(step.rpc.charge.bytes);
            if more > 0 && more > self.room(key, length) {
                return self.refuse_response(now, key, length);
            }
        }
        let Some(mut step) = self.step(key) else { return };
        step.measure_answer(now, &arrival.data);
        if arrival.is_whole() {
            let parts = step.parts;
            let request = step.rpc.outgoing().map_or(0, |request| request.length());
            parts.note_call(now, request.into(), length.into());
            parts.traffic.message(length);
            parts.downlink.arrived(now, Priority::HIGHEST, DATA_HEADER_LEN + length as usize);
            parts.counters.data_bytes_received += u64::from(length);
            parts.counters.message_received(length.into());
            let body = arrival.whole_message(step.peer.native, &mut parts.short_bodies);
            return self.end(now, key, Some(End::Responded(body)));
        }
        if !self.admits(peer, socket, Account::Own, length, arrival.unasked()) {
            return self.refuse_response(now, key, length);
        }
        let Some(mut step) = self.step(key) else { return };
        step.begin_response(now, &arrival.data);
        self.release_deferred(peer);
        self.add_data(now, key, arrival);
    }

    /// Refuses a response that finds no room. Its server is probed ever more rarely, unless the response will never fit.
    fn refuse_response(&mut self, now: Time, key: RpcKey, length: u32) {
        //= docs/protocol.md#hostile-9
        self.parts.counters.refused_over_budget += 1;
        let Config { peer_budget, socket_budget, total_budget, .. } = self.parts.config;
        let most = peer_budget.min(socket_budget).min(total_budget).saturating_sub(RPC_BYTES);
        if u64::from(length) > most {
            let limit = u32::try_from(most).expect("less than a length");
            return self.fail(key, CallFailed::ResponseTooLarge { length, limit });
        }
        if let Some(rpc) = self.rpcs.get_mut(key) {
            rpc.note_alive(now);
        }
    }

    /// Adds a packet to an arriving message.
    fn add_data(&mut self, now: Time, key: RpcKey, arrival: &Arrival<'_>) {
        let affordable = self.affords(key, arrival.payload.len());
        let Some(mut step) = self.step(key) else { return };
        if !affordable {
            //= docs/protocol.md#hostile-1
            step.parts.counters.dropped_over_budget += 1;
            return step.rpc.note_alive(now);
        }
        let end = match step.add_data(now, arrival) {
            Addition::New => step.advance(now, &arrival.data),
            Addition::Nothing => return,
            Addition::OtherLength => return self.begin_again(now, key, arrival),
        };
        let in_turn = self.last_long.replace(key) == Some(key);
        self.receive_target = in_turn.then_some(key);
        self.end(now, key, end);
    }

    /// Begins to receive a message again whose first packet had a damaged length.
    fn begin_again(&mut self, now: Time, key: RpcKey, arrival: &Arrival<'_>) {
        let Some(mut step) = self.step(key) else { return };
        let (peer, socket, account) = (step.rpc.peer, step.rpc.socket, step.rpc.account());
        let charged = step.rpc.charge.bytes;
        let Some(before) = step.end_arriving() else { return };
        step.charge(charged - u64::from(before.charged));
        let (length, unasked) = (arrival.data.message_length, arrival.unasked());
        let admitted =
            length <= self.message_max(peer) && self.admits(peer, socket, account, length, unasked);
        let Some(mut step) = self.step(key) else { return };
        if !admitted {
            step.charge(charged);
            step.begin_arriving(*before);
            if let Some(message) = step.rpc.incoming_mut() {
                step.parts.grants.mark(key, message);
            }
            return;
        }
        let message = step.parts.incoming(length, arrival.data.incoming, now);
        step.begin_arriving(message);
        self.receive_target = None;
        self.add_data(now, key, arrival);
    }
}

/// Creates an RPC at the server, whose request begins to arrive.
#[inline]
fn server_rpc(now: Time, peer: PeerKey, socket: SocketKey, arrival: &Arrival<'_>) -> Rpc {
    let Arrival { header, data, .. } = arrival;
    let ports = (header.dest_port, header.source_port);
    let id = header.sender_id.flipped();
    let mut rpc = Rpc::new(id, Phase::InService, peer, socket, ports, now);
    rpc.incast = data.flags.contains(DataFlags::INCAST);
    rpc.note_extension(now, arrival);
    rpc
}

impl Rpc {
    /// Server: takes over the extension of a packet of the request. Only the first value of each item counts.
    #[inline]
    fn note_extension(&mut self, now: Time, arrival: &Arrival<'_>) {
        if arrival.data.flags.contains(DataFlags::EXTENDED) {
            self.set_extension(now, Data::parse_extension(arrival.words));
        }
    }

    fn set_extension(&mut self, now: Time, Extension { deadline, trace }: Extension) {
        //= docs/protocol.md#life-3
        let after = |micros: u32| now + Duration::from_micros(micros.into());
        self.expires = self.expires.or_else(|| deadline.map(after));
        //= docs/protocol.md#life-10
        self.trace = self.trace.take().or_else(|| trace.map(Box::new));
    }
}

/// Effect of a DATA packet on its message.
enum Addition {
    New,
    Nothing,
    /// The packet states a different length of the message for the second time.
    OtherLength,
}

impl Step<'_> {
    /// Measures the time of an answer, including the service's, by the first packet of a response.
    fn measure_answer(&mut self, now: Time, data: &Data) {
        if let Some(request) = self.rpc.outgoing().filter(|request| request.is_sent())
            && !self.rpc.disturbed
            && !data.retransmit
        {
            //= docs/protocol.md#measure-2
            self.peer.measured.answers.sample(now, now.saturating_since(request.sent));
        }
    }

    /// Begins to receive a response of several packets.
    fn begin_response(&mut self, now: Time, data: &Data) {
        let message = self.parts.incoming(data.message_length, data.incoming, now);
        self.begin_arriving(message);
        self.rpc.probing.rto = self.peer.rto_nanos(&self.parts.config);
        self.rpc.probing.queued = false;
        self.rpc.probing.by_doubt = false;
        if let Some(request) = self.rpc.outgoing().filter(|request| request.is_sent()) {
            self.peer.carried.note(now, request);
        }
        self.note_arrived();
        self.arm(now); // Until now it was only probed now and then.
    }

    fn add_data(&mut self, now: Time, arrival: &Arrival<'_>) -> Addition {
        let Arrival { data, payload, .. } = arrival;
        if !self.rpc.is_client() {
            self.rpc.note_extension(now, arrival);
        }
        let counters = &mut self.parts.counters;
        let Some(message) = self.rpc.incoming_mut() else { return Addition::Nothing };
        let level = level_of(message, data);
        self.parts.downlink.arrived(now, level, DATA_HEADER_LEN + payload.len());
        let length = data.message_length;
        if length != message.length {
            counters.dropped_inconsistent += 1;
            let again = message.contradicted.replace(length) == Some(length);
            return if again { Addition::OtherLength } else { Addition::Nothing };
        }
        message.contradicted = None;
        match message.add(data.offset, payload) {
            Added::Duplicate => counters.duplicate_packets += 1,
            Added::TooManyGaps => counters.dropped_gaps += 1,
            Added::New { bytes, gap } => {
                //= docs/protocol.md#grant-7
                counters.data_bytes_received += u64::from(bytes);
                counters.gaps += u64::from(gap);
                self.note_new_data(now, data);
                return Addition::New;
            }
        }
        Addition::Nothing
    }

    /// Records that new bytes of the message have arrived.
    #[inline]
    fn note_new_data(&mut self, now: Time, data: &Data) {
        let probing = &mut self.rpc.probing;
        if std::mem::take(&mut probing.by_doubt) && data.retransmit {
            //= docs/protocol.md#loss-14
            self.peer.loses_unseen |= self.parts.drops.none_since(probing.last_probe);
        }
        self.rpc.note_progress(now);
    }

    /// Handles the arrival of new bytes of the message.
    fn advance(&mut self, now: Time, data: &Data) -> Option<End> {
        let received = self.rpc.incoming().map_or(0, |message| message.received);
        self.charge_arriving(received);
        let (peer_key, disturbed) = (self.rpc.peer, self.rpc.disturbed);
        let (peer, parts) = (&mut *self.peer, &mut *self.parts);
        let message = self.rpc.incoming_mut()?;
        message.ahead = parts.downlink.ahead_of(message.lowest_level());
        message.note_progress(now, parts.config.slow_interval());
        if peer.grants.stalled.is_some() {
            parts.grants.bring_forward(peer, peer_key);
        }
        if now == message.began.0 {
            message.began.1 = message.received;
        }
        if let Some((at, before)) = message.grant_sent
            && data.offset >= before
        {
            message.grant_sent = None;
            if !data.retransmit && !disturbed {
                peer.measured.delay.sample(now, now.saturating_since(at));
            }
        }
        if !message.is_complete() {
            if message.length > message.granted || message.expected > 0 {
                parts.grants.mark(self.key, message);
            }
            return None;
        }
        let bytes = u64::from(message.received.saturating_sub(message.began.1));
        peer.sample_rate(now, bytes, now.saturating_since(message.began.0));
        //= docs/protocol.md#prio-1
        parts.traffic.message(message.length);
        parts.counters.message_received(message.length.into());
        let body = Bytes::from(self.end_arriving()?.into_bytes());
        if self.rpc.is_client() {
            return Some(End::Responded(body));
        }
        self.deliver_request(body);
        None
    }

    /// Delivers a complete request, which is in service now. It counts as taken from now on, whatever its end.
    fn deliver_request(&mut self, body: Bytes) {
        //= docs/protocol.md#once-1
        let change = self.peer.take_request(self.rpc.id.client_form());
        self.parts.total.usage.add(change);
        self.parts.counters.requests += 1;
        self.parts.counters.requests_plain += u64::from(self.peer.path.is_plain());
        let from = Remote::new(self.peer.path, self.rpc.remote_port);
        self.trace(TraceEvent::RequestComplete, body.len() as u32, 0);
        let (socket, rpc, deadline) = (self.rpc.socket, self.key, self.rpc.expires);
        let trace = self.rpc.trace.take();
        self.parts.events.push_back(Event::Request { socket, rpc, from, deadline, trace, body });
    }
}

/// Returns the level at which a packet of the message arrived.
#[inline]
fn level_of(message: &Incoming, data: &Data) -> Priority {
    //= docs/protocol.md#prio-5
    if data.retransmit { Priority::HIGHEST } else { message.level_at(data.offset) }
}
