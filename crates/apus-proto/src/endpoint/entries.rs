//! Compact bundles: short requests, responses and acknowledgements of one peer that arrive together.
//!
//! Budgets and sockets are looked up once for the requests to one port, and all charges and counters that RPCs of a bundle share change
//! once. A message that needs more than that takes the way of a DATA packet.

use apus_wire::compact::{self, AckRange, Entries, Entry, Envelope, Message};
use apus_wire::{DataFlags, Packet, PathId, Priority, RpcId, Stamp, Token};
use bytes::Bytes;

use crate::cookie::Cookie;
use crate::endpoint::Endpoint;
use crate::endpoint::batch::{ArrivedRequest, Inbox};
use crate::endpoint::data::Arrival;
use crate::endpoint::event::Event;
use crate::peer::Requests;
use crate::remote::Remote;
use crate::rpc::{Phase, Rpc};
use crate::slab::{PeerKey, RpcKey, SocketKey};
use crate::sockets::ServedBy;
use crate::time::{Time, nanos};
use crate::timer::Place;
use crate::trace::TraceEvent;
use crate::usage::{Account, Change, Charge, RPC_BYTES};

/// Number of unknown ids in a row at which a range of acknowledgements is read no further: a copy of one that has been read, or ids
/// that a hostile peer has chosen.
const UNKNOWN_ACKS_MAX: usize = 8;

/// The entries of one bundle. Its charges are exact again once it is settled.
struct Batch {
    now: Time,
    peer: PeerKey,
    requests: Option<Admitted>,
    ended: Option<EndedRpcs>,
    /// Time of the transmission of the last sampled request.
    sampled: Time,
    /// Bytes of the messages that took no other way.
    bytes: usize,
}

/// Makes events of messages.
struct EventInbox {
    path: PathId,
    events: Vec<Event>,
}

/// Requests to one port.
#[derive(Clone, Copy)]
struct Admitted {
    port: u16,
    socket: SocketKey,
    /// Bytes that amply fit each budget.
    plenty: u64,
    /// Bytes not charged yet.
    owed: u64,
    /// Place of the timers.
    place: Place,
}

/// Ended RPCs of one socket.
#[derive(Clone, Copy)]
struct EndedRpcs {
    socket: SocketKey,
    account: Account,
    /// Sum of their charges, which still count.
    charged: Charge,
}

impl Endpoint {
    /// Takes the entries of a compact bundle that arrived from the node at `from`. Each counts as a packet. Most messages for the
    /// application go to `inbox`; the others become events.
    pub fn handle_entries(
        &mut self,
        now: Time,
        from: PathId,
        entries: &mut Entries<'_>,
        inbox: &mut impl Inbox,
    ) {
        let Envelope { token, cutoff_version } = entries.envelope();
        let Some(peer_key) = self.recognize_token(from, Stamp::new(token)) else {
            return self.on_unusual_entries(now, from, entries);
        };
        let peer = &mut self.peers[peer_key];
        peer.received(now, entries.datagram_len());
        let mut is_current = cutoff_version == self.parts.version_for(peer.client.version_salt);
        let (requests, ended) = (None, None);
        let mut batch =
            Batch { now, peer: peer_key, requests, ended, sampled: Time::ZERO, bytes: 0 };
        for entry in &mut *entries {
            match entry {
                Entry::Acks(acks) => self.take_acks(&mut batch, acks),
                Entry::Message(message) => {
                    if !std::mem::replace(&mut is_current, true) {
                        self.on_other_table(now, peer_key, cutoff_version, &message);
                    }
                    self.take_message(&mut batch, &message, inbox);
                }
            }
        }
        self.parts.counters.packets_received += u64::from(entries.taken());
        self.settle(&mut batch);
        if batch.bytes > 0 {
            let bytes = compact::HEADER_LEN + batch.bytes;
            self.parts.downlink.arrived(now, Priority::HIGHEST, bytes);
        }
        self.release_deferred(peer_key);
    }

    /// Takes entries as [`handle_entries`](Self::handle_entries) does. All messages for the application become events.
    pub fn handle_entries_as_events(&mut self, now: Time, from: PathId, entries: &mut Entries<'_>) {
        let mut inbox = EventInbox { path: from, events: Vec::new() };
        self.handle_entries(now, from, entries, &mut inbox);
        // What became an event at once came later.
        inbox.events.into_iter().rev().for_each(|event| self.parts.events.push_front(event));
    }

    /// Takes a message. Messages keep their order: as long as an event waits, later messages become events too.
    #[inline]
    fn take_message(&mut self, batch: &mut Batch, message: &Message<'_>, inbox: &mut impl Inbox) {
        self.parts.counters.data_packets_received += 1;
        let is_first = self.parts.events.is_empty();
        let is_request = message.header.sender_id.is_client();
        let is_taken = is_first
            && if is_request {
                self.take_request(batch, message, inbox)
            } else {
                self.take_response(batch, message, inbox)
            };
        if is_taken {
            batch.bytes += compact::ENTRY_LEN + message.body.len();
            return;
        }
        self.settle(batch);
        self.on_message(batch.now, batch.peer, message);
        // The mark of a request in the time trace is taken with its event.
        let has_mark = is_request && self.parts.tracer.chooses(message.header.sender_id);
        if is_first && !has_mark {
            self.pass_events_on(inbox);
        }
    }

    /// Passes messages that became events on to the inbox, up to an event that is no message.
    #[inline(never)]
    fn pass_events_on(&mut self, inbox: &mut impl Inbox) {
        while let Some(event) = self.poll_event() {
            match event {
                Event::Request { socket, rpc, from, deadline, trace, body } => {
                    let from = from.port;
                    inbox.request(ArrivedRequest { socket, rpc, from, deadline, trace, body });
                }
                Event::Response { socket, rpc, cookie, body } => {
                    inbox.response(socket, rpc, cookie, body);
                }
                other @ (Event::Cancelled { .. }
                | Event::Connected { .. }
                | Event::Failed { .. }) => {
                    return self.parts.events.push_front(other);
                }
            }
        }
    }

    /// Takes a request that is new and finds ample room. Returns `false`, with nothing changed, for any other one.
    #[inline(always)]
    fn take_request(
        &mut self,
        batch: &mut Batch,
        message: &Message<'_>,
        inbox: &mut impl Inbox,
    ) -> bool {
        let Message { header, flags, body, .. } = *message;
        let length = body.len() as u64;
        let cost = RPC_BYTES + length;
        let fits = |it: &Admitted| {
            it.port == header.dest_port && cost <= it.plenty.saturating_sub(it.owed)
        };
        if !batch.requests.as_ref().is_some_and(fits)
            && !self.admit_port(batch, header.dest_port, cost)
        {
            return false;
        }
        let Some(admitted) = &mut batch.requests else { return false };
        let (now, id) = (batch.now, header.sender_id.flipped());
        if flags.contains(DataFlags::EXTENDED)
            || self.parts.tracer.chooses(id)
            || self.rpcs.find(batch.peer, id).is_some()
        {
            return false;
        }
        let peer = &mut self.peers[batch.peer];
        let Requests::ByToken(history) = &mut peer.client.requests else { return false };
        //= docs/protocol.md#once-1
        if !history.take_next(header.sender_id.0 >> 1) {
            return false;
        }
        peer.rpcs = peer.rpcs.wrapping_add(1); // Fewer than 2^32 RPCs fit into their table.
        let ports = (header.dest_port, header.source_port);
        let mut rpc = Rpc::new(id, Phase::InService, batch.peer, admitted.socket, ports, now);
        rpc.incast = flags.contains(DataFlags::INCAST);
        rpc.probing.rto = nanos(self.parts.config.resend_min);
        rpc.charge = Charge { bytes: cost, ours: 0, unconfirmed: false };
        rpc.armed = admitted.place.expires();
        admitted.owed += cost;
        let (socket, place) = (admitted.socket, admitted.place);
        let rpc = self.rpcs.insert(rpc);
        self.parts.wheel.put(place, rpc);
        self.parts.note_short_message(body.len());
        self.parts.counters.requests += 1;
        self.parts.counters.requests_plain += u64::from(peer.path.is_plain());
        let is_empty = flags.contains(DataFlags::EMPTY) && length == 1;
        let body = self.parts.short_bodies.copy(if is_empty { &[] } else { body });
        let from = header.source_port;
        let (deadline, trace) = (None, None);
        inbox.request(ArrivedRequest { socket, rpc, from, deadline, trace, body });
        true
    }

    /// Looks up the socket of requests to a port, and the room for them. Returns `false` if a request of this cost does not fit, or is
    /// to be refused.
    #[inline(never)]
    fn admit_port(&mut self, batch: &mut Batch, port: u16, cost: u64) -> bool {
        self.settle(batch);
        let peer = &self.peers[batch.peer];
        let Some(ServedBy { socket, rule, .. }) = self.parts.sockets.serves(port) else {
            return false;
        };
        //= docs/protocol.md#seal-6
        if peer.rights.requests & rule == 0 {
            return false;
        }
        let config = &self.parts.config;
        let most = config.least_budget().min(RPC_BYTES + u64::from(config.message_max));
        let plenty = self.parts.plenty(peer, socket);
        if peer.native || peer.has_refused_any() || cost > plenty || cost > most {
            return false;
        }
        // A lower bound, so that the response does not set the timer again.
        let due = batch.now.after(nanos(config.resend_min));
        let place = self.parts.wheel.place(batch.now, due);
        let plenty = plenty.min(most);
        batch.requests = Some(Admitted { port, socket, plenty, owed: 0, place });
        true
    }

    /// Takes a response that is no longer than the room for it. Returns `false`, with nothing changed, for any other one.
    #[inline(always)]
    fn take_response(
        &mut self,
        batch: &mut Batch,
        message: &Message<'_>,
        inbox: &mut impl Inbox,
    ) -> bool {
        let Message { header, flags, body, .. } = *message;
        let (now, id) = (batch.now, header.sender_id.flipped());
        let Some(key) = self.rpcs.find(batch.peer, id) else { return false };
        let length = body.len() as u32;
        let tracer = &self.parts.tracer;
        let is_watched = tracer.chooses(id) || tracer.watches();
        if is_watched
            || flags.contains(DataFlags::EXTENDED)
            || length > self.parts.config.message_max
        {
            return false;
        }
        let Some(rpc) = self.rpcs.get_mut(key) else { return false };
        let (disturbed, cookie, local_port) = (rpc.disturbed, rpc.cookie, rpc.local_port);
        let socket = rpc.socket;
        let Phase::Outgoing(request) = &rpc.phase else { return false };
        let (sent, requested) = (request.sent, request.length());
        let is_plain = rpc.has_ports_of(&header)
            && request.is_sent_once()
            && RPC_BYTES + u64::from(length) <= rpc.charge.bytes
            && self.parts.sockets.get(socket).is_some();
        if !is_plain {
            return false;
        }
        if self.parts.sampler.chooses(self.parts.counters.calls_completed) {
            let took = now.saturating_since(rpc.started);
            self.parts.counters.call_timed(took);
        }
        self.end_short(batch, key, Account::Own);
        let peer = &mut self.peers[batch.peer];
        if !disturbed && std::mem::replace(&mut batch.sampled, sent) != sent {
            //= docs/protocol.md#measure-2
            peer.measured.answers.sample(now, now.saturating_since(sent));
        }
        peer.server.calls = peer.server.calls.saturating_sub(1);
        if peer.server.ack_ranges.push(id) {
            self.parts.send_ack_ranges(batch.peer, local_port, header.source_port);
        }
        self.parts.outstanding = self.parts.outstanding.saturating_sub(1);
        self.parts.note_call(now, requested.into(), length.into());
        self.parts.note_short_message(body.len());
        self.parts.counters.calls_completed += 1;
        let is_empty = flags.contains(DataFlags::EMPTY) && length == 1;
        let body = self.parts.short_bodies.copy(if is_empty { &[] } else { body });
        inbox.response(socket, key, cookie, body);
        true
    }

    /// Handles acknowledgements.
    fn take_acks(&mut self, batch: &mut Batch, acks: AckRange) {
        self.parts.counters.acks_received += 1;
        let mut unknown = 0_usize;
        for id in acks.ids() {
            //= docs/wire.md#W55
            if self.take_ack(batch, id) {
                unknown = 0;
                continue;
            }
            unknown += 1;
            if unknown == UNKNOWN_ACKS_MAX {
                return;
            }
        }
    }

    /// Handles an acknowledgement. Returns whether its call is known.
    #[inline(always)]
    fn take_ack(&mut self, batch: &mut Batch, client_id: RpcId) -> bool {
        let id = client_id.flipped();
        let Some(key) = self.rpcs.find(batch.peer, id) else { return false };
        //= docs/protocol.md#ack-1
        let is_plain = client_id.is_client()
            && !self.parts.tracer.chooses(id)
            && self.rpcs.get(key).is_some_and(|rpc| match &rpc.phase {
                Phase::Outgoing(response) => response.is_sent_once(),
                _ => false,
            });
        if is_plain {
            self.end_short(batch, key, Account::Theirs);
            return true;
        }
        self.settle(batch);
        self.on_acked(batch.peer, client_id)
    }

    /// Removes an RPC whose message was transmitted completely, and waits for nothing.
    #[inline(always)]
    fn end_short(&mut self, batch: &mut Batch, key: RpcKey, account: Account) {
        let (peer, spent) = (&mut self.peers[batch.peer], &mut self.parts.spent.0);
        let ended = self.rpcs.remove_with(key, |rpc| {
            if let Phase::Outgoing(message) = &mut rpc.phase {
                peer.flight.arrived(message.mark);
                spent.push(std::mem::take(&mut message.body));
            }
            (rpc.socket, rpc.charge)
        });
        let Some((socket, charge)) = ended else { return };
        peer.rpcs = peer.rpcs.saturating_sub(1);
        let is_same = |it: &&mut EndedRpcs| (it.socket, it.account) == (socket, account);
        match batch.ended.as_mut().filter(is_same) {
            Some(ended) if !charge.unconfirmed => {
                ended.charged.bytes += charge.bytes;
                ended.charged.ours += charge.ours;
            }
            _ => {
                self.settle(batch);
                batch.ended = Some(EndedRpcs { socket, account, charged: charge });
                if charge.unconfirmed {
                    self.settle(batch);
                }
            }
        }
    }

    /// Makes the charges exact.
    #[inline]
    fn settle(&mut self, batch: &mut Batch) {
        if batch.requests.is_some() || batch.ended.is_some() {
            self.settle_any(batch);
        }
    }

    #[inline(never)]
    fn settle_any(&mut self, batch: &mut Batch) {
        let (parts, peer) = (&mut self.parts, &mut self.peers[batch.peer]);
        if let Some(Admitted { socket, owed: bytes, .. }) = batch.requests.take() {
            let charge = Charge { bytes, ours: 0, unconfirmed: false };
            let change = Change::new(Charge::default(), charge, Account::Theirs);
            parts.total.apply(change, peer, parts.sockets.get_mut(socket));
        }
        if let Some(EndedRpcs { socket, account, charged }) = batch.ended.take() {
            let change = Change::new(charged, Charge::default(), account);
            parts.total.apply(change, peer, parts.sockets.get_mut(socket));
            parts.total.end_unconfirmed(charged);
            parts.grants.make_room();
        }
    }

    /// Takes a message as a DATA packet is taken.
    #[inline(never)]
    fn on_message(&mut self, now: Time, key: PeerKey, message: &Message<'_>) {
        let Message { header, words, body, .. } = *message;
        if self.parts.tracer.chooses(header.sender_id) {
            let of_packet = [0, body.len() as u32];
            self.trace_received(key, TraceEvent::DataReceived, header.sender_id, of_packet);
        }
        let envelope = Envelope { token: Token::NONE, cutoff_version: 0 };
        let data = message.data(&envelope, None);
        self.on_data(now, key, &Arrival { header, data, payload: body, words });
    }

    /// Handles a message with another version of the cutoffs than the peer should have.
    #[cold]
    fn on_other_table(
        &mut self,
        now: Time,
        key: PeerKey,
        cutoff_version: u16,
        message: &Message<'_>,
    ) {
        let data = message.data(&Envelope { token: Token::NONE, cutoff_version }, None);
        let (peer, length) = (&mut self.peers[key], message.body.len());
        self.parts.on_other_version(now, key, peer, &message.header, &data, length);
    }

    /// Handles a compact bundle whose sender is not a known peer at its address: as one packet, so that it has at most one answer.
    #[cold]
    fn on_unusual_entries(&mut self, now: Time, from: PathId, entries: &mut Entries<'_>) {
        //= docs/wire.md#W56
        self.parts.counters.packets_received += 1;
        let envelope = entries.envelope();
        let first = entries.find_map(|entry| match entry {
            Entry::Message(message) => Some(message),
            Entry::Acks(_) => None,
        });
        let Some(message) = first else {
            self.parts.counters.dropped_token += 1;
            return;
        };
        let (header, data) = (message.header, message.data(&envelope, None));
        let packet = Packet::Data { header, data, payload: message.body };
        let stamp = Stamp::new(envelope.token);
        self.on_unusual_packet(now, from, stamp, &packet, entries.datagram_len());
    }
}

impl Inbox for EventInbox {
    fn request(&mut self, request: ArrivedRequest) {
        let ArrivedRequest { socket, rpc, from, deadline, trace, body } = request;
        let from = Remote::new(self.path, from);
        self.events.push(Event::Request { socket, rpc, from, deadline, trace, body });
    }

    fn response(&mut self, socket: SocketKey, rpc: RpcKey, cookie: Cookie, body: Bytes) {
        self.events.push(Event::Response { socket, rpc, cookie, body });
    }
}
