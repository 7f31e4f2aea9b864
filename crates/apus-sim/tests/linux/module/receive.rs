//! Handling of arriving packets.

use std::time::Duration;

use apus_wire::PathId;

use super::format::{Header, Kind, u16_at, u32_at, u64_at};
use super::inspect::inspect;
use super::message::{Incoming, Taken};
use super::settings::MESSAGE_MAX;
use super::{
    ACKS, CUTOFF_VERSION, CUTOFFS, CUTOFFS_INTERVAL, Emitted, Happened, Key, Module, PRIORITY_MAX,
    Rpc, State, unscheduled_priority,
};

/// The id in the other side's form.
fn turned(id: u64) -> u64 {
    id ^ 1
}

impl Module {
    /// Handles a packet of protocol 146.
    pub(crate) fn handle_packet(&mut self, now: Duration, from: PathId, packet: &[u8]) {
        if let Err(complaint) = inspect(packet) {
            self.complaints.push(complaint);
        }
        let kind = match packet.get(11).map(|&byte| Kind::of(byte)) {
            Some(Some(kind)) if packet.len() >= 28 => kind,
            Some(None) if packet.len() >= 28 => return self.counts.unknown_type += 1,
            _ => return self.counts.short += 1,
        };
        let stripped = self.settings.stripped;
        if stripped && matches!(kind, Kind::Grant | Kind::Cutoffs | Kind::Freeze) {
            return self.counts.unknown_type += 1;
        }
        if packet.len() < kind.least(stripped) {
            return self.counts.short += 1;
        }
        let header = Header {
            source: u16_at(packet, 0),
            dest: u16_at(packet, 2),
            kind,
            id: u64_at(packet, 20),
        };
        if kind == Kind::Freeze {
            return;
        }
        let id = turned(header.id);
        if header.dest != super::CLIENT_PORT && !self.ports.contains(&header.dest) {
            let head = *packet.first_chunk().expect("at least 28 bytes");
            return self.emitted.push_back(Emitted::Unreachable { to: from, head });
        }
        let key = if id & 1 == 0 { (None, id) } else { (Some(from), id) };
        match kind {
            Kind::Data => self.on_data(now, from, key, header, packet),
            Kind::Grant => self.on_grant(key, u32_at(packet, 28), packet[32]),
            Kind::Resend => self.on_resend(from, key, header, packet),
            Kind::Unknown => self.on_unknown(key),
            Kind::Busy => match self.rpcs.get_mut(&key) {
                Some(rpc) => rpc.silent = 0,
                None => self.counts.unknown_rpc += 1,
            },
            Kind::Cutoffs => self.on_cutoffs(from, packet),
            Kind::NeedAck => self.on_need_ack(from, key, header),
            Kind::Ack => self.on_ack(from, header.id, packet),
            Kind::Freeze => {}
        }
    }

    /// Handles an ICMP port unreachable from a host, about one of its ports.
    pub(crate) fn handle_unreachable(&mut self, from: PathId, port: u16) {
        let hit = |rpc: &Rpc| rpc.peer == from && rpc.peer_port == port;
        let keys: Vec<Key> =
            self.rpcs.iter().filter(|(_, rpc)| hit(rpc)).map(|(&key, _)| key).collect();
        for key in keys {
            if let Some(rpc) = self.end(key)
                && rpc.is_client()
            {
                self.happened.push_back(Happened::Failed { id: rpc.id, error: "ENOTCONN" });
            }
        }
    }

    fn on_data(&mut self, now: Duration, from: PathId, key: Key, header: Header, packet: &[u8]) {
        let length = u32_at(packet, 28);
        if length as usize > MESSAGE_MAX {
            return;
        }
        self.check_version(now, from, header, u16_at(packet, 46));
        let ack = (u64_at(packet, 36), u16_at(packet, 44));
        if ack.0 != 0 {
            self.acked(from, ack.0);
        }
        if key.0.is_some() {
            let (id, births) = (key.1, &mut self.births);
            self.rpcs.entry(key).or_insert_with(|| {
                *births += 1;
                Rpc {
                    id,
                    peer: from,
                    local_port: header.dest,
                    peer_port: header.source,
                    state: State::Incoming,
                    outgoing: None,
                    incoming: None,
                    silent: 0,
                    sent_at: None,
                    asked: false,
                }
            });
        }
        let birth = self.births;
        let stripped = self.settings.stripped;
        let Some(rpc) = self.rpcs.get_mut(&key) else {
            return self.counts.unknown_rpc += 1;
        };
        rpc.silent = 0;
        if rpc.state == State::InService || (rpc.state == State::Outgoing && !rpc.is_client()) {
            return self.counts.duplicates += 1;
        }
        rpc.state = State::Incoming;
        let granted = if stripped { length } else { u32_at(packet, 32) };
        let message = rpc.incoming.get_or_insert_with(|| Incoming::new(length, granted, birth));
        let offset = match u32_at(packet, 52) {
            u32::MAX if self.settings.gro => u32_at(packet, 4),
            offset => offset,
        };
        match message.take(offset, &packet[56..]) {
            Taken::New => {}
            Taken::Duplicate => self.counts.duplicates += 1,
            Taken::Overlap => self.counts.overlaps += 1,
            Taken::PastEnd => self.counts.past_end += 1,
        }
        let unscheduled = message.length() <= u32_at(packet, 32);
        if message.is_complete() {
            self.complete(key);
        } else if !stripped && !unscheduled {
            self.grant(now, key);
        }
    }

    fn complete(&mut self, key: Key) {
        self.grants.forget(key);
        let Some(rpc) = self.rpcs.get_mut(&key) else { return };
        let Some(message) = rpc.incoming.take() else { return };
        let body = message.into_bytes();
        if !rpc.is_client() {
            rpc.state = State::InService;
            let (from, id) = (rpc.peer, rpc.id);
            return self.happened.push_back(Happened::Request { from, id, body });
        }
        let Some(rpc) = self.end(key) else { return };
        self.happened.push_back(Happened::Response { id: rpc.id, body });
        let peer = self.peers.entry(rpc.peer).or_default();
        if peer.acks.len() < ACKS {
            peer.acks.push((rpc.id, rpc.peer_port));
        } else {
            let acks = std::mem::take(&mut peer.acks);
            self.send_ack(rpc.peer, rpc.header(Kind::Ack), &acks);
        }
    }

    fn send_ack(&mut self, to: PathId, header: Header, acks: &[(u64, u16)]) {
        let mut body = vec![0; 52];
        body[..2].copy_from_slice(&(acks.len() as u16).to_be_bytes());
        for (place, (id, port)) in acks.iter().enumerate() {
            let entry = &mut body[2 + 10 * place..][..10];
            entry[..8].copy_from_slice(&id.to_be_bytes());
            entry[8..].copy_from_slice(&port.to_be_bytes());
        }
        self.control(to, header, &body);
    }

    fn check_version(&mut self, now: Duration, from: PathId, header: Header, version: u16) {
        let peer = self.peers.entry(from).or_default();
        let lately = peer.cutoffs_sent.is_some_and(|at| now < at + CUTOFFS_INTERVAL);
        if self.settings.stripped || version == CUTOFF_VERSION || lately {
            return;
        }
        peer.cutoffs_sent = Some(now);
        let answer = Header {
            source: header.dest,
            dest: header.source,
            kind: Kind::Cutoffs,
            id: turned(header.id),
        };
        let mut body: Vec<u8> = CUTOFFS.iter().flat_map(|cutoff| cutoff.to_be_bytes()).collect();
        body.extend_from_slice(&CUTOFF_VERSION.to_be_bytes());
        self.control(from, answer, &body);
    }

    fn on_cutoffs(&mut self, from: PathId, packet: &[u8]) {
        let table = std::array::from_fn(|level| match level {
            0 => u32::MAX,
            _ => u32_at(packet, 28 + 4 * level),
        });
        self.peers.entry(from).or_default().cutoffs = Some((table, u16_at(packet, 60)));
    }

    fn on_grant(&mut self, key: Key, offset: u32, priority: u8) {
        let Some(rpc) = self.rpcs.get_mut(&key) else { return self.counts.unknown_rpc += 1 };
        rpc.silent = 0;
        if rpc.state == State::Outgoing
            && let Some(message) = &mut rpc.outgoing
        {
            message.granted = message.granted.max(offset.min(message.length()));
            message.scheduled_priority = priority;
            self.transmit(key);
        }
    }

    fn on_resend(&mut self, from: PathId, key: Key, header: Header, packet: &[u8]) {
        let (offset, length) = (u32_at(packet, 28), u32_at(packet, 32));
        let priority = packet.get(36).copied().unwrap_or(PRIORITY_MAX);
        let answer =
            |kind| Header { source: header.dest, dest: header.source, kind, id: turned(header.id) };
        let Some(rpc) = self.rpcs.get_mut(&key) else {
            return self.control(from, answer(Kind::Unknown), &[]);
        };
        let (Some(message), true) =
            (&mut rpc.outgoing, rpc.id & 1 == 0 || rpc.state == State::Outgoing)
        else {
            return self.control(from, answer(Kind::Busy), &[]);
        };
        let sent = message.sent();
        let end = if length == u32::MAX { sent } else { offset.saturating_add(length) };
        if end > message.granted {
            message.granted = end.min(message.length());
        }
        self.retransmit(key, (offset, end.min(sent)), priority);
        self.transmit(key);
        if offset >= sent {
            self.control(from, answer(Kind::Busy), &[]);
        }
    }

    fn on_unknown(&mut self, key: Key) {
        let Some(rpc) = self.rpcs.get(&key) else { return self.counts.unknown_rpc += 1 };
        self.counts.unasked_unknown += u64::from(!rpc.asked);
        if !rpc.is_client() {
            self.end(key);
        } else if rpc.state == State::Outgoing
            && let Some(message) = &rpc.outgoing
        {
            let (sent, length) = (message.sent(), message.length());
            let known = self.peers.get(&rpc.peer).and_then(|peer| peer.cutoffs.as_ref());
            let priority = unscheduled_priority(known, length);
            self.retransmit(key, (0, sent), priority);
        }
    }

    fn on_need_ack(&mut self, from: PathId, key: Key, header: Header) {
        if self.rpcs.contains_key(&key) {
            return self.request_retransmission(key); // Some bytes are missing.
        }
        let acks = std::mem::take(&mut self.peers.entry(from).or_default().acks);
        let answer = Header {
            source: header.dest,
            dest: header.source,
            kind: Kind::Ack,
            id: turned(header.id),
        };
        self.send_ack(from, answer, &acks);
    }

    fn on_ack(&mut self, from: PathId, id: u64, packet: &[u8]) {
        self.acked(from, id);
        for place in 0..usize::from(u16_at(packet, 28)).min(ACKS) {
            self.acked(from, u64_at(packet, 30 + 10 * place));
        }
    }

    /// Handles an acknowledgement: the client has the response, or does not want it.
    fn acked(&mut self, from: PathId, client_id: u64) {
        self.end((Some(from), turned(client_id)));
    }
}
