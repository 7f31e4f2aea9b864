//! Arriving packets: the peer and the RPC of each, and its fields beside the message.

use apus_wire::{
    Acked, Cutoffs, DATA_HEADER_LEN, Data, DataFlags, Header, Packet, PacketType, ParseError,
    PathId, RpcId, RpcUnknown, Stamp, Token,
};

use crate::contact::Met;
use crate::control::{Body, Reply, turned_round};
use crate::endpoint::Endpoint;
use crate::endpoint::contact::is_about_tokens;
use crate::endpoint::data::Arrival;
use crate::endpoint::expire::Room;
use crate::endpoint::parts::{CUTOFFS_INTERVAL, Parts};
use crate::peer::{Peer, Requests};
use crate::rpc::Phase;
use crate::slab::PeerKey;
use crate::sockets::FIRST_CLIENT_PORT;
use crate::time::Time;
use crate::trace::{TraceEvent, of_received};

impl Endpoint {
    /// Takes one Homa packet that arrived from the node at `from`.
    ///
    /// Never fails: a malformed, unexpected or unaffordable packet is counted and dropped.
    pub fn handle_packet(&mut self, now: Time, from: PathId, packet: &[u8]) {
        self.parts.counters.packets_received += 1;
        if self.take_packet(now, from, packet).is_err() {
            self.parts.counters.dropped_malformed += 1;
        }
    }

    #[inline]
    fn take_packet(&mut self, now: Time, from: PathId, packet: &[u8]) -> Result<(), ParseError> {
        let (packet_type, header) = Header::parse(packet)?;
        if packet_type != PacketType::Data {
            let parsed = Packet::parse_after_header(packet_type, header, packet)?;
            self.take_control(now, from, packet, parsed);
            return Ok(());
        }
        let (data, payload) = Data::parse(packet)?;
        let is_extended = data.flags.contains(DataFlags::EXTENDED);
        let words = if is_extended { Data::extension_words(packet) } else { &[] };
        let arrival = Arrival { header, data, payload, words };
        let peer = if from.is_native() {
            self.peers.find(from).or_else(|| self.meet_native(now, from, &arrival))
        } else {
            self.recognize(now, from, packet, || Packet::Data { header, data, payload })
        };
        if let Some(peer) = peer {
            self.parts.counters.data_packets_received += 1;
            self.note_data_header(now, peer, &header, &data, payload.len());
            self.on_data(now, peer, &arrival);
        }
        Ok(())
    }

    /// Takes a packet without data.
    fn take_control(&mut self, now: Time, from: PathId, packet: &[u8], parsed: Packet<'_>) {
        let native = from.is_native();
        let found = if native {
            self.peers.find(from)
        } else if is_about_tokens(&parsed) {
            self.on_unusual(now, from, &parsed, packet);
            None
        } else {
            self.recognize(now, from, packet, || parsed)
        };
        match found {
            Some(peer) => self.on_control(now, peer, packet.len(), parsed),
            None if native => self.on_stray(from, &parsed),
            None => {}
        }
    }

    /// Handles a packet without data from a known peer.
    #[inline]
    fn on_control(&mut self, now: Time, key: PeerKey, length: usize, packet: Packet<'_>) {
        if let Some((event, id, a, b)) = of_received(&packet)
            && self.parts.tracer.chooses(id)
        {
            self.trace_received(key, event, id, [a, b]);
        }
        let peer = &mut self.peers[key];
        peer.received(now, length);
        if peer.grants.stalled.is_some() {
            self.parts.grants.reconsider(); // The peer may have stood still until now.
        }
        match packet {
            Packet::Data { .. }
            | Packet::Open { .. }
            | Packet::Token { .. }
            | Packet::Confirm { .. } => {}
            Packet::Freeze { header } => self.on_freeze(now, key, &header),
            Packet::Abort { header } => {
                self.parts.counters.aborts_received += 1;
                self.on_abort(now, key, &header);
            }
            Packet::Meet { meet, .. } => self.on_meet(key, meet),
            Packet::Grant { header, grant } => self.on_grant(now, key, &header, grant),
            Packet::Resend { header, resend } => self.on_resend(now, key, &header, resend),
            Packet::RpcUnknown { header, unknown } => self.on_unknown(now, key, &header, unknown),
            Packet::Busy { header } => {
                self.parts.counters.busy_received += 1;
                self.on_busy(now, key, &header);
            }
            Packet::Cutoffs { header, cutoffs } => {
                self.parts.counters.cutoffs_received += 1;
                self.on_cutoffs(key, &header, cutoffs);
            }
            Packet::NeedAck { header } => {
                self.parts.counters.need_acks_received += 1;
                self.on_need_ack(now, key, &header);
            }
            Packet::Ack { header, ack } => {
                self.parts.counters.acks_received += 1;
                self.on_acked(key, header.sender_id.client_form());
                for acked in ack.iter() {
                    self.on_acked(key, acked.client_id);
                }
            }
        }
    }

    /// Handles the request of a peer that has seen a slow call: this node must keep its records.
    #[cold]
    fn on_freeze(&mut self, now: Time, key: PeerKey, header: &Header) {
        //= docs/protocol.md#trace-1
        self.parts.counters.freezes_received += 1;
        let peer = &self.peers[key];
        if !peer.is_confirmed() || !self.parts.tracer.may_freeze(now, true) {
            self.parts.counters.freezes_refused += 1;
            return;
        }
        let mark = peer.trace_mark(header.sender_id.flipped());
        self.parts.tracer.record(TraceEvent::FreezeReceived, mark, 0, 0);
        self.parts.tracer.freeze_for_peer();
    }

    /// Makes the node at an address of a native link known, if its first packet is part of a request to a port that is served.
    fn meet_native(&mut self, now: Time, from: PathId, arrival: &Arrival<'_>) -> Option<PeerKey> {
        let header = arrival.header;
        if from.is_barred() {
            self.parts.counters.dropped_plain += 1;
            return None;
        }
        if !header.sender_id.is_client() {
            self.parts.counters.dropped_unknown_rpc += 1;
            return None;
        }
        //= docs/protocol.md#hostile-4
        if self.refuses_contact(from, header.dest_port).is_some() {
            //= docs/protocol.md#linux-3
            if arrival.data.offset == 0 {
                let reply = Reply { path: from, token: Token::NONE, header, body: Body::Refused };
                self.parts.reply_to_unknown(reply);
            }
            return None;
        }
        if !self.make_room(now, Room::ForClient(from)) {
            self.parts.counters.dropped_peers_full += 1;
            return None;
        }
        let peer = self.insert_native(now, from);
        self.peers.take_path(peer);
        Some(peer)
    }

    /// Handles a packet other than DATA from an unknown address of a native link.
    fn on_stray(&mut self, from: PathId, packet: &Packet<'_>) {
        if from.is_barred() {
            self.parts.counters.dropped_plain += 1;
            return;
        }
        let Packet::Resend { header, .. } = packet else {
            self.parts.counters.dropped_unknown_rpc += 1;
            return;
        };
        self.parts.counters.resends_received += 1;
        let requests = self.rights.of(from).requests;
        let served = self.parts.sockets.serves(header.dest_port);
        let is_taken = served.is_some_and(|it| requests & it.rule != 0);
        let (header, body) = if is_taken || header.sender_id.is_server() {
            (turned_round(header), Body::Unknown(RpcUnknown::default()))
        } else {
            (*header, Body::Refused)
        };
        self.parts.reply_to_unknown(Reply { path: from, token: Token::NONE, header, body });
    }

    /// Records the arrival of a peer's packet about a chosen call, with the peer's id of the call.
    #[cold]
    #[inline(never)]
    pub(super) fn trace_received(
        &mut self,
        key: PeerKey,
        event: TraceEvent,
        id: RpcId,
        [a, b]: [u32; 2],
    ) {
        let mark = self.peers[key].trace_mark(id.flipped());
        self.parts.tracer.record(event, mark, a, b);
    }

    /// Takes over the fields of a DATA packet with a payload of `length` bytes that are not about its message.
    #[inline(always)]
    pub(super) fn note_data_header(
        &mut self,
        now: Time,
        key: PeerKey,
        header: &Header,
        data: &Data,
        length: usize,
    ) {
        if self.parts.tracer.chooses(header.sender_id) {
            let of_packet = [data.offset, length as u32];
            self.trace_received(key, TraceEvent::DataReceived, header.sender_id, of_packet);
        }
        let peer = &mut self.peers[key];
        peer.received(now, DATA_HEADER_LEN + length);
        peer.measured.packet_payload = peer.measured.packet_payload.max(length as u32);
        if data.cutoff_version != self.parts.version_for(peer.client.version_salt) {
            self.parts.on_other_version(now, key, peer, header, data, length);
        } else if !peer.is_confirmed() {
            self.confirm_peer(key);
        }
        if let Some(Acked { client_id, .. }) = data.ack {
            self.on_acked(key, client_id);
        }
    }

    /// Returns the peer whose packet begins with `header`, if the packet arrived by the peer's path.
    #[inline]
    pub(super) fn find_sender(
        &mut self,
        from: PathId,
        header: &[u8; DATA_HEADER_LEN],
    ) -> Option<PeerKey> {
        if from.is_native() {
            return self.peers.find(from);
        }
        let stamp = Stamp::read(header).filter(|stamp| stamp.version == Stamp::VERSION)?;
        let key = self.peers.find_token(stamp.token)?;
        let peer = self.peers.get(key)?;
        (peer.path == from && peer.contact.met().is_some_and(Met::knows_us)).then_some(key)
    }

    fn on_cutoffs(&mut self, peer: PeerKey, header: &Header, mut cutoffs: Cutoffs) {
        //= docs/protocol.md#hostile-10
        if self.peers[peer].native && self.step_for(peer, header).is_none() {
            return;
        }
        cutoffs.cutoffs[0] = u32::MAX;
        self.peers[peer].server.cutoffs = Some(cutoffs);
    }

    /// Handles the client's acknowledgement of the response of this call. Returns whether the call is known.
    pub(super) fn on_acked(&mut self, peer: PeerKey, client_id: RpcId) -> bool {
        if !client_id.is_client() {
            return false;
        }
        let Some(key) = self.rpcs.find(peer, client_id.flipped()) else { return false };
        if self.parts.tracer.chooses(client_id)
            && let Some(mut step) = self.step(key)
        {
            step.trace(TraceEvent::Acked, 0, 0);
        }
        let Some(rpc) = self.rpcs.get(key) else { return false };
        match rpc.phase {
            Phase::InService if rpc.cancelled => {}
            //= docs/protocol.md#ack-1
            Phase::Outgoing(_) => {
                self.remove_rpc(key);
            }
            //= docs/protocol.md#server-2
            Phase::InService if rpc.probing.probes_unanswered > 0 => {
                self.parts.counters.requests_timed_out += 1;
                self.remove_rpc(key);
            }
            // Acknowledged before there was a response.
            Phase::Incoming { .. } | Phase::InService | Phase::Connecting => {
                self.parts.counters.dropped_mismatch += 1;
            }
        }
        true
    }

    /// Acknowledges every finished call now, and not with the next request to its server. For a node about to stop, whose servers
    /// would otherwise keep its last responses until their next NEED_ACK. Makes work for every peer, so it does not belong on the
    /// path of a packet.
    pub fn acknowledge(&mut self) {
        //= docs/protocol.md#ack-5
        let source_port = self.parts.sockets.first_port().unwrap_or(FIRST_CLIENT_PORT);
        for key in self.peers.keys() {
            let peer = &mut self.peers[key];
            if peer.server.ack_ranges.is_empty() {
                let acks = peer.take_acks();
                self.parts.send_acks(key, source_port, acks);
            } else {
                self.parts.send_ack_ranges(key, source_port, 1);
            }
        }
    }
}

impl Parts {
    /// Handles a DATA packet with another version of the cutoffs than the peer should have.
    pub(super) fn on_other_version(
        &mut self,
        now: Time,
        key: PeerKey,
        peer: &mut Peer,
        header: &Header,
        data: &Data,
        length: usize,
    ) {
        if let Requests::ByIncarnation(incarnations) = &mut peer.client.requests
            && header.sender_id.is_client()
            && !incarnations.know(header.sender_id)
        {
            return; // It receives them once it is known, or challenged.
        }
        //= docs/protocol.md#hostile-2
        // The credit from an unconfirmed client's request is kept for its response.
        let packets = (data.message_length as usize).div_ceil(length);
        let request = DATA_HEADER_LEN * packets + data.message_length as usize;
        if peer.credit().is_some_and(|credit| credit < (Cutoffs::LEN + request) as u64) {
            return;
        }
        self.send_cutoffs(now, key, peer, turned_round(header));
    }

    /// Sends the cutoffs to a peer, at most once every [`CUTOFFS_INTERVAL`].
    pub(super) fn send_cutoffs(
        &mut self,
        now: Time,
        key: PeerKey,
        peer: &mut Peer,
        header: Header,
    ) {
        //= docs/protocol.md#prio-3
        let native = if peer.native { peer.rto(&self.config) } else { CUTOFFS_INTERVAL };
        let spacing = native.max(CUTOFFS_INTERVAL);
        if peer.client.cutoffs_sent.is_some_and(|at| now.saturating_since(at) < spacing) {
            return;
        }
        peer.client.cutoffs_sent = Some(now);
        let version = self.version_for(peer.client.version_salt);
        let cutoffs = Cutoffs { version, ..*self.traffic.current() };
        self.control(key, header, Body::Cutoffs(cutoffs));
    }

    /// Acknowledges finished calls to a peer that reads compact bundles, without a message: all that wait when it is transmitted.
    #[cold]
    pub(super) fn send_ack_ranges(&mut self, peer: PeerKey, source_port: u16, server_port: u16) {
        let header = Header { source_port, dest_port: server_port, sender_id: RpcId(0) };
        self.control(peer, header, Body::AckRanges);
    }

    /// Acknowledges finished calls in a packet of its own; its header names the first one.
    pub(super) fn send_acks(&mut self, peer: PeerKey, source_port: u16, mut acks: Vec<Acked>) {
        let Some(first) = acks.pop() else { return };
        let header =
            Header { source_port, dest_port: first.server_port, sender_id: first.client_id };
        self.control(peer, header, Body::Ack(acks));
    }
}
