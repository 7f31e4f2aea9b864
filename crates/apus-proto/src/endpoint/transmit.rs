//! Output: grants, control packets, then messages in their order.

use std::ops::Range;

use apus_wire::compact;
use apus_wire::{
    DATA_HEADER_LEN, Data, DataFlags, Extension, Header, MAX_HEADER, PacketSink, PathId, Priority,
    ShortTransmit, Stamp, TraceContext, Transmit,
};

use crate::body::PacketPayload;
use crate::control::Body;
use crate::counters::Counters;
use crate::cutoffs::unscheduled_priority;
use crate::endpoint::Endpoint;
use crate::endpoint::charge::Table;
use crate::endpoint::parts::Parts;
use crate::endpoint::step::Step;
use crate::flight;
use crate::grant::{How, Issued, Levels};
use crate::outgoing::{Outgoing, SAFE_PAYLOAD, SHORT, Turn};
use crate::pacer::Pacer;
use crate::peer::Peer;
use crate::rpc::Phase;
use crate::slab::{PeerKey, RpcKey};
use crate::time::Time;
use crate::trace::TraceEvent;

/// Upper bound on the control packets sent by one call of `poll_transmit`.
const CONTROL_MAX: usize = 256;

/// Upper bound on the bytes of a burst while short calls are under way: copying more at once would delay them.
const BURST_AMONG_SHORT: u64 = 32_000;

/// Upper bound on the payload of a packet while short calls are under way, for the same reason at the receiver. Half a packet of
/// the longest kind is a little less.
const PAYLOAD_AMONG_SHORT: u32 = 32_768;

/// Upper bound on the answers to unknown nodes sent by one call of `poll_transmit`.
const REPLIES_MAX: usize = 64;

/// Result of one turn of a message.
struct Sent {
    bytes: u64,
    /// The peer's credit ran out.
    blocked: bool,
}

impl Endpoint {
    /// Transmits the packets that may go now, at most about one burst of data. Returns true if more may go at once.
    pub fn poll_transmit<S: PacketSink + ?Sized>(&mut self, now: Time, sink: &mut S) -> bool {
        self.report_paths(sink);
        self.sweep(now);
        self.issue_grants(now);
        self.send_control(sink);
        self.send_replies(sink);
        //= docs/protocol.md#send-6
        let mut left = self.parts.config.burst;
        if self.parts.has_short_calls(now) {
            left = left.min(BURST_AMONG_SHORT);
        }
        while left > 0 {
            let paced = !self.parts.pacer.is_ready(now);
            let Some((key, turn)) = self.parts.order.choose(paced, self.packet_hint()) else {
                return !self.parts.outbox.is_empty();
            };
            let short = if turn == Turn::Short { self.send_short(now, key, sink) } else { None };
            let sent = match short {
                Some(sent) => sent,
                None => self.send_message(now, key, turn, left, sink),
            };
            left = left.saturating_sub(sent.max(1));
        }
        true
    }

    /// Returns the size of a full packet, for sharing turns between the shortest and the oldest message.
    fn packet_hint(&self) -> u64 {
        self.parts.config.burst.min(64 << 10)
    }

    #[inline]
    fn issue_grants(&mut self, now: Time) {
        let Parts { traffic, config, counters, grants, sockets, total, others, .. } =
            &mut self.parts;
        if traffic.is_due() && traffic.recompute(config.unscheduled) {
            counters.cutoffs_changed += 1;
        }
        if !grants.has_work() {
            return;
        }
        let mut issued = std::mem::take(&mut self.issued);
        let levels = Levels {
            max_scheduled: traffic.max_scheduled(),
            fifo: traffic.fifo(),
            table: traffic.current(),
        };
        let mut table = Table { config, rpcs: &mut self.rpcs, sockets, total, others: others.held };
        grants.issue(now, config, levels, &mut table, &mut self.peers, &mut issued);
        for grant in issued.drain(..) {
            if let Some(mut step) = self.step(grant.rpc) {
                step.send_grant(now, grant);
            }
        }
        self.issued = issued;
    }

    fn send_control<S: PacketSink + ?Sized>(&mut self, sink: &mut S) {
        let parts = &mut self.parts;
        let priority = parts.traffic.control();
        let mut buffer = [0; MAX_HEADER];
        for _ in 0..CONTROL_MAX {
            let Some(control) = parts.outbox.control.pop_front() else { return };
            let Some(peer) = self.peers.get_mut(control.peer) else { continue };
            let stamp = match control.body {
                Body::Open(_) => Some(Stamp::new(peer.token)),
                _ => peer.contact.stamp(),
            };
            if stamp.is_none() && !peer.native {
                continue; // The destination's run is over.
            }
            if matches!(control.body, Body::AckRanges) {
                send_ack_ranges(peer, priority, &control.header, &mut parts.counters, sink);
                continue;
            }
            let length = control.body.emit(&control.header, peer.native, &mut buffer);
            if let Some(stamp) = stamp {
                stamp.write(&mut buffer);
            }
            if !peer.may_send(length) {
                parts.counters.dropped_unconfirmed += 1;
                if matches!(control.body, Body::Cutoffs(_)) {
                    peer.client.cutoffs_sent = None; // They were not sent; the next occasion may be better.
                }
                continue;
            }
            parts.counters.packets_sent += 1;
            if let Some(counter) = control.body.counter(&mut parts.counters) {
                *counter += 1;
            }
            if matches!(control.body, Body::Refused) {
                let head = buffer.first_chunk().expect("a header has 28 bytes");
                sink.refuse(peer.path, *head);
                continue;
            }
            sink.send(Transmit::control(peer.path, priority, &buffer[..length]));
        }
    }

    /// Answers nodes without state here, after all packets for peers.
    fn send_replies<S: PacketSink + ?Sized>(&mut self, sink: &mut S) {
        let parts = &mut self.parts;
        let priority = parts.traffic.control();
        let mut buffer = [0; MAX_HEADER];
        for _ in 0..REPLIES_MAX {
            let Some(reply) = parts.outbox.replies.pop_front() else { return };
            let native = reply.path.is_native();
            let length = reply.body.emit(&reply.header, native, &mut buffer);
            if !native {
                Stamp::new(reply.token).write(&mut buffer);
            }
            parts.counters.packets_sent += 1;
            if matches!(reply.body, Body::Refused) {
                sink.refuse(reply.path, *buffer.first_chunk().expect("a header has 28 bytes"));
                continue;
            }
            parts.counters.unknown_sent += u64::from(matches!(reply.body, Body::Unknown(_)));
            sink.send(Transmit::control(reply.path, priority, &buffer[..length]));
        }
    }

    /// Lets a short message transmit all its bytes in a compact bundle. Returns their number, or `None` if that is not possible now.
    #[inline]
    fn send_short<S: PacketSink + ?Sized>(
        &mut self,
        now: Time,
        key: RpcKey,
        sink: &mut S,
    ) -> Option<u64> {
        let sent = self.step(key)?.send_short(now, sink)?;
        self.parts.order.pop_short();
        Some(sent)
    }

    /// Lets one message transmit up to `budget` bytes. Returns the number of transmitted bytes.
    fn send_message<S: PacketSink + ?Sized>(
        &mut self,
        now: Time,
        key: RpcKey,
        turn: Turn,
        budget: u64,
        sink: &mut S,
    ) -> u64 {
        if turn == Turn::Short {
            self.parts.order.pop_short();
        }
        let Some(mut step) = self.step(key) else { return 0 }; // The RPC ended while it waited.
        let budget = if turn == Turn::Oldest { 1 } else { budget };
        let (sent, wants_sign) = step.send(now, turn, budget, sink);
        if wants_sign {
            let peer = step.rpc.peer;
            self.request_progress_report(now, peer);
        }
        sent
    }

    /// Probes the peer about its progress, if messages wait for that and no probe is outstanding.
    fn request_progress_report(&mut self, now: Time, key: PeerKey) {
        let peer = &mut self.peers[key];
        if !peer.flight.defers_any() {
            return;
        }
        let rto = peer.rto(&self.parts.config);
        //= docs/protocol.md#unsched-2
        let last = peer.flight.progress_report_due(now, self.parts.flight_max, rto);
        let Some(mut step) = last.and_then(|key| self.step(key)) else { return };
        if !step.rpc.is_client() {
            return step.control(Body::NeedAck);
        }
        let is_lost = !step.is_nothing_lost();
        step.rpc.probing.by_doubt = !is_lost;
        step.probe_progress(is_lost);
    }
}

/// Sends all acknowledgements that wait for a peer that reads compact bundles.
fn send_ack_ranges<S: PacketSink + ?Sized>(
    peer: &mut Peer,
    priority: Priority,
    header: &Header,
    counters: &mut Counters,
    sink: &mut S,
) {
    let Some(envelope) = peer.envelope() else { return };
    while let Some(acks) = peer.server.ack_ranges.pop() {
        counters.packets_sent += 1;
        counters.acks_sent += 1;
        sink.send_acks(peer.path, priority, &envelope, header, acks);
    }
}

impl Step<'_> {
    /// Transmits a message of one packet, which has not begun, in a compact bundle. Returns its length, or `None` with nothing
    /// changed if the message must go as DATA, or must wait.
    #[inline]
    fn send_short<S: PacketSink + ?Sized>(&mut self, now: Time, sink: &mut S) -> Option<u64> {
        let Step { key, rpc, peer, parts } = self;
        if peer.flight.defers_any() {
            return None;
        }
        let envelope = peer.envelope()?;
        let (header, is_client) = (rpc.header(), rpc.is_client());
        let has_items = is_client && (rpc.expires.is_some() || rpc.trace.is_some());
        let items = RequestItems::of(now, rpc.trace.as_deref(), rpc.expires, has_items);
        let flags = rpc.incast_flag();
        let Phase::Outgoing(message) = &mut rpc.phase else { return None };
        let length = message.whole_short()?;
        let payload = if length <= SAFE_PAYLOAD && !has_items {
            length
        } else {
            payload_max(sink, peer.path, items.head)
        };
        let takes = flight::takes(length, payload, length);
        if length > payload || !peer.flight.has_room(parts.flight_max, takes) {
            return None;
        }
        message.begin_whole(now, payload);
        message.mark = peer.flight.begin(*key, takes);
        parts.order.unrank(*key, message);
        let acks = peer.server.ack_ranges.pop();
        let priority = message.unscheduled_priority;
        let (bytes, level) = (u64::from(length), usize::from(priority.get()));
        let counters = &mut parts.counters;
        counters.data_bytes_sent += bytes;
        counters.packets_sent += 1;
        counters.data_packets_sent += 1;
        counters.acks_piggybacked += acks.map_or(0, |acks| u64::from(acks.count));
        counters.bytes_by_priority[level] += bytes;
        counters.packets_by_priority[level] += 1;
        //= docs/protocol.md#pace-2
        if !peer.loopback {
            parts.pacer.charge(now, compact::ENTRY_LEN + length as usize);
        }
        rpc.last_rx = rpc.last_rx.max(now); // Time spent sending is not the peer's silence.
        sink.send_short(&ShortTransmit {
            path: peer.path,
            priority,
            envelope,
            header,
            flags: flags.with(message.marks),
            extension: items.is_anything().then(|| items.extension()),
            acks,
            body: message.body.short(),
        });
        self.trace_sent(false, 0, length, bytes);
        Some(bytes)
    }

    fn send_grant(&mut self, now: Time, grant: Issued) {
        let counters = &mut self.parts.counters;
        counters.granted_bytes += grant.bytes;
        counters.fifo_granted_bytes += if grant.how == How::Fifo { grant.bytes } else { 0 };
        let is_probe = grant.how == How::Probe;
        self.rpc.probing.last_probe = now; // The granted data is due a round trip later.
        self.rpc.probing.probes_unanswered =
            self.rpc.probing.probes_unanswered.saturating_add(is_probe.into());
        self.rpc.disturbed |= is_probe;
        self.note_ahead();
        //= docs/protocol.md#hostile-1
        self.charge_arriving(grant.grant.offset);
        self.control(if is_probe { grant.as_probe() } else { Body::Grant(grant.grant) });
    }

    /// Transmits up to `budget` bytes of the message. Returns their number, and whether deferred messages need a progress report of
    /// the peer.
    fn send<S: PacketSink + ?Sized>(
        &mut self,
        now: Time,
        turn: Turn,
        budget: u64,
        sink: &mut S,
    ) -> (u64, bool) {
        let Step { key, rpc, peer, parts } = self;
        let key = *key;
        //= docs/protocol.md#linux-2
        let flags = if peer.native { DataFlags::NONE } else { rpc.incast_flag() };
        let limited = rpc.incast && !rpc.is_client();
        let header = rpc.header();
        let (is_client, expires) = (rpc.is_client(), rpc.expires);
        let items = RequestItems::of(now, rpc.trace.as_deref(), expires, is_client && !peer.native);
        let Some(message) = rpc.phase.outgoing_mut() else { return (0, false) };
        let flags = flags.with(message.marks);
        if !peer.contact.may_send() {
            if !message.is_deferred() {
                parts.order.unrank(key, message); // The run of its peer is over, so the RPC will end.
            }
            return (0, false);
        }
        let mut payload_max = payload_max(sink, peer.path, items.head);
        if payload_max > PAYLOAD_AMONG_SHORT && parts.has_short_calls(now) {
            payload_max = PAYLOAD_AMONG_SHORT;
        }
        let begins = message.packet_payload == 0;
        if begins && !parts.begin_message(now, key, message, peer, payload_max, limited) {
            return (0, true);
        }
        message.narrow(payload_max);
        if !message.is_one_packet() {
            message.note_sending(now, peer.under_way(&parts.config));
        }
        let (pacer, counters) = (&mut parts.pacer, &mut parts.counters);
        let rising = parts.config.priority_by_rest.then_some(parts.config.priorities);
        let stamp = peer.contact.stamp();
        let mut sending =
            Sending { now, header, stamp, flags, items, rising, peer, sink, pacer, counters };
        let again = message.has_resends();
        let (before, unscheduled) = (message.next, message.unscheduled);
        //= docs/protocol.md#send-3
        let sent =
            if again { sending.again(message, budget) } else { sending.onward(message, budget) };
        let was_deferred = begins && message.was_deferred;
        if sent.blocked {
            message.forget_resends();
            parts.order.block(key, message);
        } else {
            if turn == Turn::Short {
                parts.order.unrank(key, message);
            }
            parts.order.update(key, message);
        }
        parts.order.sent(turn, sent.bytes, u64::from(parts.config.fifo_share));
        if !again && sent.bytes > 0 {
            rpc.last_rx = rpc.last_rx.max(now); // Time spent sending is not the peer's silence.
        }
        self.trace_sent(again, before, unscheduled, sent.bytes);
        if sent.blocked {
            self.on_blocked(now);
        }
        if was_deferred {
            self.arm(now);
        }
        (sent.bytes, begins && self.peer.flight.defers_any())
    }

    /// Records that bytes of the message were passed to the link, from `before` on unless they were retransmitted.
    #[inline]
    fn trace_sent(&mut self, again: bool, before: u32, unscheduled: u32, bytes: u64) {
        if !self.parts.tracer.chooses(self.rpc.id) || bytes == 0 {
            return;
        }
        let event = match again {
            true => TraceEvent::Retransmit,
            false if before < unscheduled => TraceEvent::DataXmit,
            false => TraceEvent::GrantedXmit,
        };
        self.trace(event, before, bytes as u32);
    }

    /// Handles a response that has used up the credit of an unconfirmed client.
    #[cold]
    fn on_blocked(&mut self, now: Time) {
        self.peer.note_blocked(self.key);
        self.parts.counters.responses_blocked += 1;
        self.request_confirmation(now);
    }
}

impl Parts {
    /// Begins to transmit a message, or defers it if too much is in flight to its peer.
    fn begin_message(
        &mut self,
        now: Time,
        key: RpcKey,
        message: &mut Outgoing,
        peer: &mut Peer,
        payload_max: u32,
        limit_unscheduled: bool,
    ) -> bool {
        //= docs/protocol.md#unsched-2
        let takes = flight::takes(message.unscheduled, payload_max, message.length());
        if !peer.flight.has_room(self.flight_max, takes) {
            self.order.defer(key, message);
            peer.flight.defer(message.srpt_key(key), takes);
            self.counters.messages_deferred += 1;
            return false;
        }
        message.begin(now, payload_max, limit_unscheduled);
        message.mark = peer.flight.begin(key, takes);
        true
    }
}

/// Optional items in the packets with the first byte of a request.
#[derive(Clone, Copy)]
struct RequestItems<'a> {
    /// Remaining time of the call, in microseconds.
    deadline: Option<u32>,
    trace: Option<&'a TraceContext>,
    /// Upper bound on the bytes before the payload of such a packet.
    head: usize,
}

impl<'a> RequestItems<'a> {
    /// `has_items` means that the message is a request, and not for a Linux host.
    #[inline]
    fn of(
        now: Time,
        trace: Option<&'a TraceContext>,
        expires: Option<Time>,
        has_items: bool,
    ) -> Self {
        if (trace.is_none() && expires.is_none()) || !has_items {
            return Self { deadline: None, trace: None, head: DATA_HEADER_LEN };
        }
        //= docs/protocol.md#life-3
        // A time that is too long for the field is no reason to hurry.
        let micros = |at: Time| u32::try_from(at.saturating_since(now).as_micros()).ok();
        let deadline = expires.and_then(micros);
        //= docs/protocol.md#life-10
        let length = Extension::len_with(expires.is_some(), trace.is_some());
        Self { deadline, trace, head: DATA_HEADER_LEN + length }
    }

    /// Returns whether a packet with the first byte carries any item.
    #[inline]
    fn is_anything(&self) -> bool {
        self.deadline.is_some() || self.trace.is_some()
    }

    fn extension(&self) -> Extension {
        Extension { deadline: self.deadline, trace: self.trace.copied() }
    }
}

/// Returns the payload that fits a packet to the peer now, after a head of `head` bytes.
fn payload_max<S: PacketSink + ?Sized>(sink: &S, path: PathId, head: usize) -> u32 {
    let payload = sink.max_packet(path).saturating_sub(head);
    u32::try_from(payload).unwrap_or(u32::MAX).max(1)
}

/// One message's turn: the state that its packets share and change.
struct Sending<'a, S: PacketSink + ?Sized> {
    now: Time,
    header: Header,
    stamp: Option<Stamp>,
    flags: DataFlags,
    items: RequestItems<'a>,
    /// Number of levels through which unscheduled packets rise as less is left; otherwise they keep theirs.
    rising: Option<u8>,
    peer: &'a mut Peer,
    sink: &'a mut S,
    pacer: &'a mut Pacer,
    counters: &'a mut Counters,
}

impl<S: PacketSink + ?Sized> Sending<'_, S> {
    /// Transmits new bytes, as far as they are granted.
    #[inline]
    fn onward(&mut self, message: &mut Outgoing, budget: u64) -> Sent {
        let mut sent = Sent { bytes: 0, blocked: false };
        while sent.bytes < budget && message.may_send() {
            let packet = message.packet_around(message.next);
            let piece = message.next..message.piece_end(&packet, message.next);
            let priority = self.priority(message);
            let Some(bytes) = self.piece(message, &piece, priority, false) else {
                sent.blocked = true;
                break;
            };
            self.counters.data_bytes_sent += bytes;
            sent.bytes += bytes;
            message.next = piece.end;
            if message.length() >= SHORT && !self.pacer.is_ready(self.now) {
                break;
            }
        }
        if message.is_sent() {
            message.sent = self.now;
        }
        sent
    }

    /// Returns the level of a message's next packet.
    #[inline]
    fn priority(&self, message: &Outgoing) -> Priority {
        if message.next >= message.unscheduled {
            return message.scheduled_priority;
        }
        match self.rising {
            //= docs/protocol.md#prio-6
            Some(priorities) if message.next > 0 => {
                let rest = message.length().saturating_sub(message.next);
                unscheduled_priority(self.peer.server.cutoffs.as_ref(), priorities, rest)
            }
            _ => message.unscheduled_priority,
        }
    }

    /// Retransmits the ranges that the peer requested.
    fn again(&mut self, message: &mut Outgoing, budget: u64) -> Sent {
        let mut sent = Sent { bytes: 0, blocked: false };
        while sent.bytes < budget {
            let Some((packet, asked, priority)) = message.pop_resend() else { break };
            if message.is_swallowed(self.now, &packet, &self.peer.carried) {
                self.counters.black_holes += 1;
                self.sink.swallowed(self.peer.path);
                message.narrow(payload_max(self.sink, self.peer.path, self.items.head));
            }
            let Some(bytes) = self.pieces_again(message, &packet, &asked, priority) else {
                sent.blocked = true;
                break;
            };
            self.counters.retransmitted_bytes += bytes;
            sent.bytes += bytes;
            if !self.pacer.is_ready(self.now) {
                break;
            }
        }
        sent
    }

    /// Retransmits the pieces of an original packet that hold some of the bytes in `asked`: one piece, unless the path has become
    /// narrower. Returns the transmitted bytes, or `None` if the peer's credit does not allow them.
    fn pieces_again(
        &mut self,
        message: &Outgoing,
        packet: &Range<u32>,
        asked: &Range<u32>,
        priority: Priority,
    ) -> Option<u64> {
        let (mut start, mut sent) = (packet.start, 0);
        while start < asked.end {
            let end = message.piece_end(packet, start);
            if end > asked.start {
                sent += self.piece(message, &(start..end), priority, true)?;
            }
            start = end;
        }
        Some(sent)
    }

    /// Transmits one packet. Returns the bytes of its payload, or `None` if the peer's credit does not allow it.
    #[inline]
    fn piece(
        &mut self,
        message: &Outgoing,
        piece: &Range<u32>,
        priority: Priority,
        retransmit: bool,
    ) -> Option<u64> {
        let bytes = piece.end.saturating_sub(piece.start);
        if !self.peer.may_send(DATA_HEADER_LEN + bytes as usize) {
            return None;
        }
        let ack = if retransmit { None } else { self.peer.pop_ack(self.header.dest_port) };
        let data = Data {
            message_length: message.length(),
            incoming: message.granted,
            ack,
            cutoff_version: self.peer.server.cutoffs.as_ref().map_or(0, |table| table.version),
            retransmit,
            flags: self.flags,
            offset: piece.start,
        };
        let mut extended;
        let mut plain = [0; DATA_HEADER_LEN];
        let head = if piece.start == 0 && self.items.is_anything() {
            extended = [0; Data::LEN_MAX];
            let length = data.emit_extended(&self.header, &self.items.extension(), &mut extended);
            &mut extended[..length]
        } else {
            data.emit(&self.header, &mut plain);
            &mut plain[..]
        };
        if let Some(stamp) = self.stamp {
            stamp.write(head);
        }
        self.counters.packets_sent += 1;
        self.counters.data_packets_sent += 1;
        self.counters.acks_piggybacked += u64::from(ack.is_some());
        self.counters.bytes_by_priority[usize::from(priority.get())] += u64::from(bytes);
        self.counters.packets_by_priority[usize::from(priority.get())] += 1;
        //= docs/protocol.md#pace-2
        if !self.peer.loopback {
            self.pacer.charge(self.now, DATA_HEADER_LEN + bytes as usize);
        }
        let range = piece.start as usize..piece.end as usize;
        let PacketPayload { before, part: body, range } = message.body.packet(range);
        let joined;
        let header = match before {
            [] => &*head,
            _ => {
                joined = [&*head, before].concat();
                &joined[..]
            }
        };
        self.sink.send(Transmit { path: self.peer.path, priority, header, body, range });
        Some(bytes.into())
    }
}
