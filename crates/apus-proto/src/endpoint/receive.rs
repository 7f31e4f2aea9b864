//! What arrives: one function per packet type.

use std::net::SocketAddr;
use std::time::Duration;

use apus_wire::{
    Acked, Cutoffs, DATA_HEADER_LEN, Data, DataFlags, Grant, Header, MAX_LINUX_MESSAGE, Packet,
    PacketType, Priority, ReceiveTarget, Resend, RpcId, RpcUnknown, Stamp, Token, UnknownReason,
    is_native,
};
use bytes::Bytes;

use crate::budget::{Account, RPC_BYTES};
use crate::config::Config;
use crate::control::Body;
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::{Ended, Endpoint, Event, Sweep, Swept, expire};
use crate::error::CallFailed;
use crate::incarnations::{Admission, Echo, Incarnations};
use crate::incoming::{Added, Incoming};
use crate::peer::Requests;
use crate::rpc::{Phase, Rpc};
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::time::Time;

/// A CUTOFFS packet to one peer at most this often.
const CUTOFFS_INTERVAL: Duration = Duration::from_millis(1);

/// One DATA packet, taken apart.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    header: Header,
    data: Data,
    payload: &'a [u8],
}

impl Endpoint {
    /// Takes one Homa packet that came from the node at `from`.
    ///
    /// Never fails: what is malformed, unexpected or unaffordable is counted and dropped.
    pub fn handle_packet(&mut self, now: Time, from: SocketAddr, packet: &[u8]) {
        self.counters.packets_received += 1;
        let Ok(parsed) = Packet::parse(packet) else {
            self.counters.dropped_malformed += 1;
            return;
        };
        let native = is_native(from);
        let found =
            if native { self.find_peer(from) } else { self.recognize(now, from, packet, &parsed) };
        if let Packet::Data { header, data, payload } = parsed {
            let arrival = Arrival { header, data, payload };
            let of =
                found.or_else(|| if native { self.meet_native(now, from, &arrival) } else { None });
            return if let Some(of) = of {
                self.on_data(now, of, arrival)
            };
        }
        let Some(of) = found else {
            if native {
                self.on_stray(from, &parsed);
            }
            return;
        };
        let peer = self.peers.get_mut(of).expect("found above");
        peer.received(now, packet.len());
        if peer.stalled.is_some() {
            self.grants.reconsider(); // It may have stood still until now.
        }
        match parsed {
            Packet::Data { .. }
            | Packet::Freeze { .. }
            | Packet::Open { .. }
            | Packet::Token { .. }
            | Packet::Confirm { .. }
            | Packet::Abort { .. } => {}
            Packet::Grant { header, grant } => self.on_grant(now, of, &header, grant),
            Packet::Resend { header, resend } => self.on_resend(now, of, &header, resend),
            Packet::RpcUnknown { header, unknown } => self.on_unknown(now, of, &header, unknown),
            Packet::Busy { header } => self.on_busy(now, of, &header),
            Packet::Cutoffs { header, cutoffs } => self.on_cutoffs(of, &header, cutoffs),
            Packet::NeedAck { header } => self.on_need_ack(now, of, &header),
            Packet::Ack { header, ack } => {
                self.on_acked(of, header.sender_id.client_form());
                for acked in ack.iter() {
                    self.on_acked(of, acked.client_id);
                }
            }
        }
    }

    /// The RPC a packet is about, if its ports and direction fit.
    pub(super) fn rpc_of(&mut self, of: PeerKey, header: &Header) -> Option<RpcKey> {
        let Some(key) = self.rpc_index.find(&self.rpcs, &(of, header.sender_id.flipped())) else {
            self.counters.dropped_unknown_rpc += 1;
            return None;
        };
        let rpc = self.rpcs.get(key).expect("the index names RPCs that exist");
        //= docs/protocol.md#life-1
        if rpc.remote_port != header.source_port || rpc.local_port != header.dest_port {
            self.counters.dropped_mismatch += 1;
            return None;
        }
        Some(key)
    }

    /// The first packet from an address of a native link makes its node known if it is part of a request
    /// to a port that is served.
    fn meet_native(
        &mut self,
        now: Time,
        from: SocketAddr,
        arrival: &Arrival<'_>,
    ) -> Option<PeerKey> {
        let header = &arrival.header;
        if !header.sender_id.is_client() {
            self.counters.dropped_unknown_rpc += 1;
            return None;
        }
        //= docs/protocol.md#hostile-4
        if self.serves(header.dest_port).is_none() {
            self.counters.refused_no_port += 1;
            //= docs/protocol.md#linux-3
            if arrival.data.offset == 0 {
                self.reply_to_stranger(from, Token::NONE, *header, Body::Refused);
            }
            return None;
        }
        if !self.make_room(now, expire::Room::ForClient) {
            self.counters.dropped_peers_full += 1;
            return None;
        }
        let of = self.insert_native(now, from);
        self.peer_index.insert(&self.peers, of);
        Some(of)
    }

    /// A packet other than DATA from an address of a native link of which nothing is known.
    fn on_stray(&mut self, from: SocketAddr, packet: &Packet<'_>) {
        let Packet::Resend { header, .. } = packet else {
            self.counters.dropped_unknown_rpc += 1;
            return;
        };
        self.counters.resends_received += 1;
        let (header, body) =
            if self.serves(header.dest_port).is_some() || header.sender_id.is_server() {
                (turned_round(header), Body::Unknown(RpcUnknown::default()))
            } else {
                (*header, Body::Refused)
            };
        self.reply_to_stranger(from, Token::NONE, header, body);
    }

    fn on_data(&mut self, now: Time, of: PeerKey, arrival: Arrival<'_>) {
        self.meet(now, of, &arrival.header, &arrival.data, arrival.payload.len());
        if arrival.header.sender_id.is_client() {
            self.on_request(now, of, arrival);
        } else {
            self.on_response(now, of, arrival);
        }
    }

    /// What a DATA packet with a payload of `length` bytes says beside its message.
    #[inline]
    fn meet(&mut self, now: Time, of: PeerKey, header: &Header, data: &Data, length: usize) {
        let peer = self.peers.get_mut(of).expect("found above");
        peer.received(now, DATA_HEADER_LEN + length);
        peer.packet_payload = peer.packet_payload.max(length as u32);
        self.check_version(now, of, header, data, length);
        if let Some(Acked { client_id, .. }) = data.ack {
            self.on_acked(of, client_id);
        }
    }

    /// The message whose next bytes probably come next, for a link that can put them there. Only a message whose last two
    /// packets came one after the other, so that two long messages that take turns are not mistaken for one.
    pub fn receive_target(&mut self) -> Option<ReceiveTarget<'_>> {
        let key = self.receive_target?;
        self.rpcs.get_mut(key)?.incoming.as_deref_mut()?.receive_target()
    }

    /// Takes the DATA packet from the node at `from` whose header is `header` and whose payload of `length` bytes was appended
    /// to what [`receive_target`](Self::receive_target) gave. False, and nothing changed, if it is not that message's next piece.
    pub fn handle_in_place(
        &mut self,
        now: Time,
        from: SocketAddr,
        header: &[u8; DATA_HEADER_LEN],
        length: usize,
    ) -> bool {
        let Ok((PacketType::Data, common)) = Header::parse(header) else { return false };
        let Ok(data) = Data::parse_fixed(header, length) else { return false };
        if data.flags.contains(DataFlags::EXTENDED) {
            return false;
        }
        let Some((key, of)) = self.receive_target.zip(self.find_sender(from, header)) else {
            return false;
        };
        let expected = self.rpcs.get(key).is_some_and(|rpc| {
            (rpc.peer, rpc.id) == (of, common.sender_id.flipped())
                && (rpc.remote_port, rpc.local_port) == (common.source_port, common.dest_port)
        });
        if !expected || !self.affords(key, length) {
            return false;
        }
        let Some(rpc) = self.rpcs.get_mut(key) else { return false };
        let Some(message) = rpc.incoming.as_deref_mut() else { return false };
        let level = level_of(message, &data);
        if data.message_length != message.length
            || !message.append_in_place(data.offset, length as u32)
        {
            return false;
        }
        self.downlink.arrived(now, level, DATA_HEADER_LEN + length);
        rpc.note_progress(now);
        self.counters.packets_received += 1;
        self.counters.data_bytes_received += length as u64;
        self.meet(now, of, &common, &data, length);
        self.advance(now, key, &data);
        true
    }

    /// The peer whose packet begins with `header`, if that came from where the peer is.
    #[inline]
    fn find_sender(&mut self, from: SocketAddr, header: &[u8; DATA_HEADER_LEN]) -> Option<PeerKey> {
        if is_native(from) {
            return self.find_peer(from);
        }
        let stamp = Stamp::read(header).filter(|stamp| stamp.version == Stamp::VERSION)?;
        let of = self.find_token(stamp.token)?;
        let peer = self.peers.get(of)?;
        (peer.addr == from && peer.contact.met().is_some_and(|met| met.knows_us)).then_some(of)
    }

    /// The version a peer should echo in its DATA. It differs from peer to peer, so that an echo
    /// shows that the peer receives at its address.
    pub(super) fn version_for(&self, of: PeerKey) -> u16 {
        let salt = self.peers.get(of).map_or(0, |peer| peer.version_salt);
        self.traffic.current().version.wrapping_add(salt).max(1)
    }

    #[inline]
    fn check_version(
        &mut self,
        now: Time,
        of: PeerKey,
        header: &Header,
        data: &Data,
        length: usize,
    ) {
        let expected = self.version_for(of);
        let peer = self.peers.get_mut(of).expect("the caller found it");
        if data.cutoff_version == expected {
            if !peer.is_confirmed() {
                let blocked = peer.confirm();
                self.grants.bring_forward(peer, of);
                self.unblock(blocked);
            }
            return;
        }
        if let Requests::ByIncarnation(lives) = &mut peer.requests
            && header.sender_id.is_client()
            && !lives.know(header.sender_id)
        {
            return; // It is told when it is known, or challenged.
        }
        //= docs/protocol.md#hostile-2
        // What a stranger's request brings in credit is kept for its response.
        let packets = (data.message_length as usize).div_ceil(length);
        let brought = DATA_HEADER_LEN * packets + data.message_length as usize;
        if peer.credit().is_some_and(|credit| credit < (Cutoffs::LEN + brought) as u64) {
            return;
        }
        self.send_cutoffs(now, of, turned_round(header));
    }

    /// Tells a peer the cutoffs; not more often than every [`CUTOFFS_INTERVAL`].
    pub(super) fn send_cutoffs(&mut self, now: Time, of: PeerKey, header: Header) {
        let version = self.version_for(of);
        let peer = self.peers.get_mut(of).expect("the caller found it");
        //= docs/protocol.md#prio-3
        let native = if peer.native { peer.rto(&self.config) } else { CUTOFFS_INTERVAL };
        let spacing = native.max(CUTOFFS_INTERVAL);
        if peer.cutoffs_sent.is_some_and(|at| now.saturating_since(at) < spacing) {
            return;
        }
        peer.cutoffs_sent = Some(now);
        let mut cutoffs = *self.traffic.current();
        cutoffs.version = version;
        self.control(of, header, Body::Cutoffs(cutoffs));
    }

    fn on_cutoffs(&mut self, of: PeerKey, header: &Header, mut cutoffs: Cutoffs) {
        //= docs/protocol.md#hostile-10
        if self.peers.get(of).is_some_and(|peer| peer.native) && self.rpc_of(of, header).is_none() {
            return;
        }
        cutoffs.cutoffs[0] = u32::MAX;
        self.peers.get_mut(of).expect("the caller found it").cutoffs = Some(cutoffs);
    }

    fn on_request(&mut self, now: Time, of: PeerKey, arrival: Arrival<'_>) {
        let id = arrival.header.sender_id.flipped();
        if let Some(key) = self.rpc_index.find(&self.rpcs, &(of, id)) {
            let rpc = self.rpcs.get_mut(key).expect("the index names RPCs that exist");
            if rpc.remote_port != arrival.header.source_port
                || rpc.local_port != arrival.header.dest_port
            {
                self.counters.dropped_mismatch += 1;
            } else if rpc.phase == Phase::Incoming {
                self.add_data(now, key, &arrival);
            } else {
                rpc.note_progress(now);
                self.counters.duplicate_packets += 1;
            }
            return;
        }
        let Some(socket) = self.admit_request(now, of, &arrival) else { return };
        let key = self.insert_request(now, of, socket, &arrival);
        if arrival.payload.len() == arrival.data.message_length as usize {
            self.downlink.arrived(now, Priority::HIGHEST, DATA_HEADER_LEN + arrival.payload.len());
            self.counters.data_bytes_received += arrival.payload.len() as u64;
            self.traffic.message(arrival.data.message_length);
            self.deliver_request(key, Bytes::copy_from_slice(arrival.payload));
        } else {
            self.add_data(now, key, &arrival);
        }
    }

    /// Longest message a peer may send.
    fn message_max(&self, of: PeerKey) -> u32 {
        //= docs/protocol.md#linux-1
        let native = self.peers.get(of).is_some_and(|peer| peer.native);
        self.config.message_max.min(if native { MAX_LINUX_MESSAGE } else { u32::MAX })
    }

    /// The socket that serves a port.
    pub(super) fn serves(&self, port: u16) -> Option<SocketKey> {
        let socket = self.ports.get(&port).copied();
        socket.filter(|&key| self.sockets.get(key).is_some_and(super::Socket::is_server))
    }

    /// Whether a request that is new here may become an RPC; every refusal is counted.
    fn admit_request(
        &mut self,
        now: Time,
        of: PeerKey,
        arrival: &Arrival<'_>,
    ) -> Option<SocketKey> {
        let Arrival { header, data, payload } = arrival;
        let Some(socket) = self.serves(header.dest_port) else {
            self.counters.refused_no_port += 1;
            if self.peers.get(of).is_some_and(|peer| peer.native) {
                //= docs/protocol.md#linux-3
                if data.offset == 0 {
                    self.control(of, *header, Body::Refused);
                }
                return None;
            }
            //= docs/protocol.md#life-6
            // A Linux client answers by sending again, so that is not answered in turn.
            if data.offset == 0 && !data.retransmit {
                self.answer_unknown(of, header);
            }
            return None;
        };
        let cost = RPC_BYTES + u64::from(data.message_length);
        if data.message_length > self.message_max(of) || cost > self.config.least_budget() {
            self.counters.refused_too_large += 1;
            self.refuse(of, arrival, UnknownReason::TooLarge);
            return None;
        }
        match self.admit_id(of, header.sender_id, data.cutoff_version) {
            Admission::Fresh => {}
            Admission::Begins => {
                self.sweeps.push_back(Sweep { of: Swept::Incarnation(of, now), slot: 0 });
            }
            Admission::Taken => {
                self.counters.refused_duplicate_requests += 1;
                return None;
            }
            Admission::Stranger => {
                self.counters.refused_stale_incarnation += 1;
                self.challenge(now, of, header);
                return None;
            }
        }
        if !self.admits(of, socket, Account::Theirs, data.message_length, unasked(data, payload)) {
            self.counters.refused_over_budget += 1;
            self.refuse(of, arrival, UnknownReason::OverBudget);
            return None;
        }
        Some(socket)
    }

    /// Tells a client why its request is not taken, at the first packet. The Linux module would not
    /// understand it, and would send the request again at once.
    fn refuse(&mut self, of: PeerKey, arrival: &Arrival<'_>, reason: UnknownReason) {
        //= docs/protocol.md#life-9
        let native = self.peers.get(of).is_some_and(|peer| peer.native);
        if arrival.data.offset == 0 && !native {
            let header = turned_round(&arrival.header);
            self.control(of, header, Body::Unknown(RpcUnknown { reason }));
        }
    }

    /// Whether a request of this id was not taken yet; `version` is the one its packet carries.
    fn admit_id(&mut self, of: PeerKey, id: RpcId, version: u16) -> Admission {
        let (expected, base) = (self.version_for(of), self.traffic.current().version);
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let echo = match &peer.requests {
            Requests::ByToken(_) => Echo::None,
            Requests::ByIncarnation(_) if version == expected => Echo::Current,
            Requests::ByIncarnation(_) if version == 0 => Echo::None,
            Requests::ByIncarnation(lives) => {
                let life = Incarnations::challenged_for(id);
                let challenge = self.secrets.challenge(peer.addr, life, lives.begun);
                if version == challenge { Echo::Challenge } else { Echo::Other }
            }
        };
        let held = peer.held;
        let admission = peer.admit(id, echo);
        if admission == Admission::Begins {
            peer.version_salt = version.wrapping_sub(base); // From now on the current one.
        }
        self.total.held = self.total.held - held + peer.held;
        admission
    }

    /// A request from another incarnation than the current one, on a native link. The client is told a
    /// version made for it and asked for the request once more: what then carries the version was not
    /// under way before, and comes from who receives at that address.
    fn challenge(&mut self, now: Time, of: PeerKey, request: &Header) {
        let spacing = CUTOFFS_INTERVAL;
        let peer = self.peers.get_mut(of).expect("the caller found it");
        let rto = peer.rto(&self.config).max(spacing);
        let addr = peer.addr;
        let Requests::ByIncarnation(lives) = &mut peer.requests else { return };
        //= docs/protocol.md#once-3
        // One probe for a round trip, whatever comes: the answer takes that long.
        if !lives.challenge(now, request.sender_id, rto) {
            return;
        }
        let life = Incarnations::challenged_for(request.sender_id);
        let version = self.secrets.challenge(addr, life, lives.begun);
        let cutoffs = Cutoffs { version, ..*self.traffic.current() };
        self.control(of, turned_round(request), Body::Cutoffs(cutoffs));
        let priority = self.traffic.control();
        let first = Resend { offset: 0, length: Some(1), priority };
        self.control(of, turned_round(request), Body::Resend(first));
    }

    fn insert_request(
        &mut self,
        now: Time,
        of: PeerKey,
        socket: SocketKey,
        arrival: &Arrival<'_>,
    ) -> RpcKey {
        let Arrival { header, data, payload } = arrival;
        let whole = payload.len() == data.message_length as usize;
        let incoming = (!whole).then(|| self.incoming(data.message_length, data.incoming, now));
        self.births += 1;
        let peer = self.peers.get_mut(of).expect("the caller found it");
        peer.rpcs += 1;
        // For the rest of the request. If there is none, the least, so that the timer is not set again
        // for the response.
        let rto = if whole { self.config.resend_min } else { peer.rto(&self.config) };
        let ports = (header.dest_port, header.source_port);
        let mut rpc = Rpc::new(header.sender_id.flipped(), Phase::Incoming, of, socket, ports, now);
        rpc.incast = data.flags.contains(DataFlags::INCAST);
        rpc.rto = rto;
        //= docs/protocol.md#hostile-1
        let cost = RPC_BYTES + if whole { u64::from(data.message_length) } else { 0 };
        self.total.charge(&mut rpc, cost, peer, self.sockets.get_mut(socket));
        let key = self.insert_rpc(now, rpc);
        if let Some(incoming) = incoming {
            self.begin_arriving(key, incoming);
        }
        key
    }

    fn on_response(&mut self, now: Time, of: PeerKey, arrival: Arrival<'_>) {
        let Some(key) = self.rpc_of(of, &arrival.header) else { return };
        let limit = self.message_max(of);
        let rpc = self.rpcs.get_mut(key).expect("found above");
        if rpc.phase == Phase::Incoming {
            return self.add_data(now, key, &arrival);
        }
        let length = arrival.data.message_length;
        if length > limit {
            self.counters.refused_too_large += 1;
            return self.fail(key, CallFailed::ResponseTooLarge { length, limit });
        }
        let socket = rpc.socket;
        let whole = arrival.payload.len() == length as usize;
        let unasked = unasked(&arrival.data, arrival.payload);
        if whole {
            // It waits for the application in place of its call.
            let more = (RPC_BYTES + u64::from(length)).saturating_sub(rpc.held);
            if more > 0 && more > self.room(key).bytes {
                return self.put_off(now, key, length);
            }
        }
        let rpc = self.rpcs.get_mut(key).expect("found above");
        let peer = self.peers.get_mut(of).expect("the caller found it");
        if let Some(request) = rpc.outgoing.as_ref().filter(|request| request.is_sent())
            && !rpc.disturbed
            && !arrival.data.retransmit
        {
            //= docs/protocol.md#measure-2
            peer.answers.sample(now, now.saturating_since(request.sent));
        }
        if whole {
            self.traffic.message(length);
            self.downlink.arrived(now, Priority::HIGHEST, DATA_HEADER_LEN + arrival.payload.len());
            self.counters.data_bytes_received += u64::from(length);
            return self.complete_call(key, Bytes::copy_from_slice(arrival.payload));
        }
        let rto = peer.rto(&self.config);
        if !self.admits(of, socket, Account::Own, length, unasked) {
            return self.put_off(now, key, length);
        }
        let incoming = self.incoming(length, arrival.data.incoming, now);
        self.births += 1;
        self.begin_arriving(key, incoming);
        let rpc = self.rpcs.get_mut(key).expect("found above");
        rpc.rto = rto;
        rpc.phase = Phase::Incoming;
        rpc.queued = false;
        if let Some(request) = rpc.outgoing.as_ref().filter(|request| request.is_sent()) {
            let peer = self.peers.get_mut(of).expect("the caller found it");
            peer.carried.note(now, request);
        }
        self.note_arrived(key);
        self.arm(now, key); // Until now it was only asked about now and then.
        self.add_data(now, key, &arrival);
    }

    /// A response finds no room. Its server is asked for it ever more rarely, unless it will never fit.
    fn put_off(&mut self, now: Time, key: RpcKey, length: u32) {
        //= docs/protocol.md#hostile-9
        self.counters.refused_over_budget += 1;
        let Config { peer_budget, socket_budget, total_budget, .. } = self.config;
        let most = peer_budget.min(socket_budget).min(total_budget).saturating_sub(RPC_BYTES);
        if u64::from(length) > most {
            let limit = u32::try_from(most).expect("less than a length");
            return self.fail(key, CallFailed::ResponseTooLarge { length, limit });
        }
        if let Some(rpc) = self.rpcs.get_mut(key) {
            rpc.note_alive(now);
        }
    }

    /// A message that begins to arrive, born next.
    fn incoming(&self, length: u32, granted: u32, now: Time) -> Incoming {
        //= docs/protocol.md#unsched-1
        let granted = granted.max(1);
        let mut message = if self.config.keep_payload {
            Incoming::new(length, granted, self.births, now)
        } else {
            Incoming::counted(length, granted, self.births, now)
        };
        let table = self.traffic.current();
        message.grant(
            message.granted,
            unscheduled_priority(Some(table), self.config.priorities, length),
        );
        message
    }

    /// Adds a packet to a message that is arriving.
    fn add_data(&mut self, now: Time, key: RpcKey, arrival: &Arrival<'_>) {
        let affordable = self.affords(key, arrival.payload.len());
        let rpc = self.rpcs.get_mut(key).expect("the caller found it");
        if !affordable {
            //= docs/protocol.md#hostile-1
            self.counters.dropped_over_budget += 1;
            return rpc.note_alive(now);
        }
        let message = rpc.incoming.as_deref_mut().expect("Phase::Incoming has a message");
        let level = level_of(message, &arrival.data);
        self.downlink.arrived(now, level, DATA_HEADER_LEN + arrival.payload.len());
        let length = arrival.data.message_length;
        if length != message.length {
            self.counters.dropped_inconsistent += 1;
            if message.contradicted.replace(length) == Some(length) {
                self.begin_again(now, key, arrival);
            }
            return;
        }
        message.contradicted = None;
        let offset = arrival.data.offset;
        match message.add(offset, arrival.payload) {
            Added::Duplicate => {
                self.counters.duplicate_packets += 1;
                return;
            }
            Added::TooManyGaps => {
                self.counters.dropped_gaps += 1;
                return;
            }
            Added::New { bytes, gap } => {
                //= docs/protocol.md#grant-7
                rpc.note_progress(now);
                self.counters.data_bytes_received += u64::from(bytes);
                self.counters.gaps += u64::from(gap);
            }
        }
        let in_turn = self.last_long.replace(key) == Some(key);
        self.receive_target = in_turn.then_some(key);
        self.advance(now, key, &arrival.data);
    }

    /// The length of a message was damaged in its first packet: it arrives anew.
    fn begin_again(&mut self, now: Time, key: RpcKey, arrival: &Arrival<'_>) {
        let length = arrival.data.message_length;
        let rpc = self.rpcs.get_mut(key).expect("the caller found it");
        let (of, socket, account, held) = (rpc.peer, rpc.socket, rpc.account(), rpc.held);
        let Some(before) = self.end_arriving(key) else { return };
        self.charge(key, held - u64::from(before.charged));
        let unasked = unasked(&arrival.data, arrival.payload);
        if length > self.message_max(of) || !self.admits(of, socket, account, length, unasked) {
            self.charge(key, held);
            self.begin_arriving(key, *before);
            let message = self.rpcs.get_mut(key).and_then(|rpc| rpc.incoming.as_deref_mut());
            return self.grants.mark(key, message.expect("it has begun to arrive"));
        }
        let incoming = self.incoming(length, arrival.data.incoming, now);
        self.births += 1;
        self.receive_target = None;
        self.begin_arriving(key, incoming);
        self.add_data(now, key, arrival);
    }

    /// A message has more bytes than before.
    fn advance(&mut self, now: Time, key: RpcKey, data: &Data) {
        let received = self
            .rpcs
            .get(key)
            .and_then(|rpc| rpc.incoming.as_ref())
            .map_or(0, |message| message.received);
        self.charge_arriving(key, received);
        let rpc = self.rpcs.get_mut(key).expect("the caller found it");
        let message = rpc.incoming.as_deref_mut().expect("the caller found it");
        message.ahead = self.downlink.ahead_of(message.lowest_level());
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        message.progress = now;
        if peer.stalled.is_some() {
            self.grants.bring_forward(peer, rpc.peer);
        }
        if now == message.began.0 {
            message.began.1 = message.received;
        }
        if let Some((at, before)) = message.grant_sent
            && data.offset >= before
        {
            message.grant_sent = None;
            if !data.retransmit && !rpc.disturbed {
                peer.delay.sample(now, now.saturating_since(at));
            }
        }
        if !message.is_complete() {
            if message.length > message.granted || message.expected > 0 {
                self.grants.mark(key, message);
            }
            return;
        }
        let bytes = u64::from(message.received - message.began.1);
        peer.sample_rate(now, bytes, now.saturating_since(message.began.0));
        //= docs/protocol.md#prio-1
        self.traffic.message(message.length);
        let is_client = rpc.is_client();
        let message = self.end_arriving(key).expect("looked at above");
        let body = Bytes::from(message.into_bytes());
        if is_client { self.complete_call(key, body) } else { self.deliver_request(key, body) }
    }

    /// A request is whole: from now on it counts as taken, whatever becomes of it.
    fn deliver_request(&mut self, key: RpcKey, body: Bytes) {
        let rpc = self.rpcs.get_mut(key).expect("the caller found it");
        rpc.phase = Phase::InService;
        let peer = self.peers.get_mut(rpc.peer).expect("peers outlive their RPCs");
        //= docs/protocol.md#once-1
        let change = peer.take_request(rpc.id.client_form());
        self.total.held = self.total.held.saturating_add_signed(change);
        self.counters.requests += 1;
        self.events.push_back(Event::Request {
            socket: rpc.socket,
            rpc: key,
            from: crate::Address::new(peer.addr, rpc.remote_port),
            body,
        });
    }

    fn complete_call(&mut self, key: RpcKey, body: Bytes) {
        let Some(ended) = self.remove_rpc(key) else { return };
        self.counters.calls_completed += 1;
        let peer = self.peers.get_mut(ended.peer).expect("peers outlive their RPCs");
        if let Some(acks) = peer.push_ack(ended.acked) {
            self.send_acks(ended.peer, ended.local_port, acks);
        }
        let Ended { socket, cookie, .. } = ended;
        self.events.push_back(Event::Response { socket, rpc: key, cookie, body });
    }

    /// Acknowledges every finished call now instead of with the next request to its server: for a
    /// node about to stop, whose servers would otherwise hold its last responses until they ask.
    /// Work for every peer, so nothing for the path of a packet.
    pub fn acknowledge(&mut self) {
        //= docs/protocol.md#ack-5
        let source_port = self.ports.keys().next().copied().unwrap_or(super::FIRST_CLIENT_PORT);
        for slot in 0..self.peers.slots() {
            let Some((of, _)) = self.peers.at(slot) else { continue };
            let peer = self.peers.get_mut(of).expect("looked at above");
            let acks = peer.take_acks();
            self.send_acks(of, source_port, acks);
        }
    }

    /// Acknowledges finished calls in a packet of its own; the first one is named in its header.
    pub(super) fn send_acks(&mut self, of: PeerKey, source_port: u16, mut acks: Vec<Acked>) {
        let Some(first) = acks.pop() else { return };
        let header =
            Header { source_port, dest_port: first.server_port, sender_id: first.client_id };
        self.control(of, header, Body::Ack(acks));
    }

    fn on_acked(&mut self, of: PeerKey, client_id: RpcId) {
        if !client_id.is_client() {
            return;
        }
        let Some(key) = self.rpc_index.find(&self.rpcs, &(of, client_id.flipped())) else { return };
        let rpc = self.rpcs.get(key).expect("the index names RPCs that exist");
        match rpc.phase {
            //= docs/protocol.md#ack-1
            Phase::Outgoing => {
                self.remove_rpc(key);
            }
            //= docs/protocol.md#server-2
            Phase::InService if rpc.probes_unanswered > 0 => {
                self.counters.requests_timed_out += 1;
                self.remove_rpc(key);
            }
            // Acknowledged before there was a response.
            Phase::Incoming | Phase::InService | Phase::Connecting => {
                self.counters.dropped_mismatch += 1;
            }
        }
    }

    fn on_grant(&mut self, now: Time, of: PeerKey, header: &Header, grant: Grant) {
        let Some(key) = self.rpc_of(of, header) else { return };
        let rpc = self.rpcs.get_mut(key).expect("found above");
        if rpc.phase == Phase::Outgoing {
            rpc.note_progress(now);
        }
        let Some(message) = rpc.outgoing.as_mut().filter(|_| rpc.phase == Phase::Outgoing) else {
            self.counters.dropped_mismatch += 1;
            return;
        };
        self.counters.grants_received += 1;
        let peer = self.peers.get_mut(of).expect("the caller found it");
        peer.carried.note(now, message);
        let offset = grant.offset.min(message.length());
        match message.first_grant {
            None if message.next > 0 => {
                message.first_grant = Some((now, offset));
                //= docs/protocol.md#measure-3
                if !rpc.disturbed {
                    // The receiver may have had shorter messages to grant first.
                    peer.delay.bound(now, now.saturating_since(message.began));
                }
            }
            Some((at, from)) if offset > from => {
                let elapsed = now.saturating_since(at);
                // Grants come in steps of a window; over four round trips that evens out.
                if peer.round_trip().is_some_and(|least| elapsed > 4 * least) {
                    peer.sample_rate(now, u64::from(offset - from), elapsed);
                }
            }
            _ => {}
        }
        if message.grant(grant.offset, grant.priority) {
            self.requeue(key);
        } else {
            self.counters.grants_late += 1;
        }
        self.note_arrived(key);
    }
}

/// The level at which a packet of the message came.
#[inline]
fn level_of(message: &Incoming, data: &Data) -> Priority {
    //= docs/protocol.md#prio-5
    if data.retransmit { Priority::HIGHEST } else { message.level_at(data.offset) }
}

/// Bytes of a message that come without a grant, as its sender says.
fn unasked(data: &Data, payload: &[u8]) -> u32 {
    data.incoming.max(payload.len() as u32)
}

/// The header of an answer to an RPC that is not known here.
pub(super) fn turned_round(header: &Header) -> Header {
    Header {
        source_port: header.dest_port,
        dest_port: header.source_port,
        sender_id: header.sender_id.flipped(),
    }
}
