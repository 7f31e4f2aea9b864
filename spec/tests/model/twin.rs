//! Two endpoints of `apus-proto` that take the same steps as the model, on a virtual clock.
//!
//! Each packet that is new in the model must be sent by the endpoints in the same step, and they send none that the model has
//! not sent. The steps are shorter than the timers, so the twin itself makes the packets that timers send: RESEND, and copies
//! after a move. It keeps the bytes of each packet, with the token that stands for each token of the model, and passes them to an
//! endpoint when the model delivers the packet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apus_model::{Action, Body, End, Packet, Phase, State, Token, Unknown};
use apus_proto::{
    CallFailed, CallOptions, Config, Cookie, Endpoint, Event, Remote, RpcKey, SocketKey, Time,
};
use apus_wire as wire;
use apus_wire::{
    Header, MAX_HEADER, PacketSink, PathId, Priority, Resend, RpcId, Stamp, Transmit, UnknownReason,
};
use bytes::Bytes;

const PORT: u16 = 4_000;
/// Length of the longest packet.
const PACKET: usize = 1_472;
/// Lengths of a message of one packet and of two, of which the second one needs a GRANT.
const SHORT: usize = 100;
const LONG: usize = 2_400;
/// Time of a step.
const STEP: Duration = Duration::from_millis(2);
/// A unit of the age of a TOKEN, in nanoseconds.
const UNIT: u64 = 1 << 30;
#[derive(Debug)]
struct Node {
    endpoint: Endpoint,
    socket: SocketKey,
    service: SocketKey,
    /// Requests by peer and number.
    requests: BTreeMap<(Token, u8), RpcKey>,
    calls: BTreeMap<RpcKey, usize>,
}

/// Two endpoints, and what the model calls their packets and tokens.
#[derive(Debug)]
pub(crate) struct Twin {
    now: Time,
    nodes: [Node; 2],
    runs: u128,
    tokens: BTreeMap<Token, wire::Token>,
    bytes: BTreeMap<Packet, Vec<u8>>,
    executed: Vec<u8>,
    ends: Vec<Option<End>>,
    /// Whether the endpoints left out a packet that the model has sent, because of a limit in time.
    pub(crate) is_limited: bool,
}

struct Wire(Vec<(PathId, Vec<u8>)>);

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        self.0.push((packet.path, [packet.header, packet.payload()].concat()));
    }

    fn max_packet(&self, _: PathId) -> usize {
        PACKET
    }
}

fn path(place: u8) -> PathId {
    PathId::new(u32::from(place), 0x0a00_0001 + u64::from(place))
}

fn node(seed: u128) -> Node {
    let mut config = Config::default();
    config
        .peer_timeout(Duration::from_secs(3_600))
        .resend_initial(Duration::from_secs(10))
        .resend_min(STEP / 4);
    config.unscheduled(1_000).unscheduled_min(1_000).unscheduled_max(1_000).pacing(false);
    let mut endpoint = Endpoint::new(config, seed);
    let socket = endpoint.open(None).expect("a port is free");
    let service = endpoint.open(Some(PORT)).expect("the port is free");
    Node { endpoint, socket, service, requests: BTreeMap::new(), calls: BTreeMap::new() }
}

impl Twin {
    pub(crate) fn new(state: &State) -> Self {
        Self {
            now: Time::from_nanos(UNIT),
            nodes: [node(1), node(2)],
            runs: 2,
            tokens: BTreeMap::new(),
            bytes: BTreeMap::new(),
            executed: vec![0; state.calls.len()],
            ends: vec![None; state.calls.len()],
            is_limited: false,
        }
    }

    /// Takes a step of the model. Returns a difference between the two, if there is one.
    pub(crate) fn step(
        &mut self,
        before: &State,
        action: Action,
        after: &State,
    ) -> Result<(), String> {
        self.now = self.now + STEP;
        self.act(before, action);
        let mut sent = Vec::new();
        for index in 0..2 {
            let place = after.nodes[index].place;
            sent.extend(self.turn(index, after).into_iter().map(|(to, bytes)| (place, to, bytes)));
        }
        self.compare_packets(before, action, after, sent)?;
        self.compare_calls(after)
    }

    fn act(&mut self, before: &State, action: Action) {
        let now = self.now;
        match action {
            Action::Call(call) => {
                let from = usize::from(before.calls[call].from);
                let to = Remote::new(path(before.nodes[1 - from].place), PORT);
                let length = if before.calls[call].is_long { LONG } else { SHORT };
                let body = Bytes::from(vec![call as u8; length]);
                let options =
                    CallOptions { cookie: Cookie::Key(call as u64), ..CallOptions::default() };
                let node = &mut self.nodes[from];
                let key = node.endpoint.call(now, node.socket, to, body, options).expect("room");
                node.calls.insert(key, call);
            }
            Action::Deliver(packet) => self.deliver(before, packet, packet.from),
            Action::Forge(packet) => self.deliver(before, packet, apus_model::ATTACKER),
            Action::Answer(index, ours, seq) => {
                let node = &mut self.nodes[index];
                let key = node.requests[&(ours, seq)];
                // The answer has the length of the request. A cancelled request ends without one.
                let peer = before.nodes[index].peers.iter().find(|peer| peer.ours == ours);
                let request = peer.and_then(|peer| peer.requests.iter().find(|it| it.seq == seq));
                let call = request.expect("a request").call;
                let length = if before.calls[usize::from(call)].is_long { LONG } else { SHORT };
                let _ = node.endpoint.reply(now, key, Bytes::from(vec![call; length]));
            }
            Action::Abandon(index, ours, seq) => {
                let node = &mut self.nodes[index];
                let key = node.requests[&(ours, seq)];
                node.endpoint.abort(key);
            }
            Action::GiveUp(call) => {
                let node = &mut self.nodes[usize::from(before.calls[call].from)];
                let key = node.calls.iter().find(|&(_, it)| *it == call).map(|(key, _)| *key);
                node.endpoint.abort(key.expect("a call"));
            }
            Action::Restart(index) => {
                self.runs += 1;
                self.nodes[index] = node(self.runs);
            }
            Action::Second => self.pass(1),
            Action::Late => self.pass(6),
            Action::Pause => self.pass(122),
            Action::Close => {
                let service = self.nodes[1].service;
                self.nodes[1].endpoint.close(service);
            }
            Action::Open => {
                let node = &mut self.nodes[1];
                node.service = node.endpoint.open(Some(PORT)).expect("the port is free");
            }
            Action::Move(_) => {}
            _ => panic!("{action:?} has no equivalent"),
        }
    }

    /// Goes on to the beginning of a later unit.
    fn pass(&mut self, units: u64) {
        let unit = self.now.as_nanos() / UNIT + units;
        self.now = Time::from_nanos(unit * UNIT);
    }

    fn deliver(&mut self, before: &State, packet: Packet, from: u8) {
        let Some(index) = before.nodes.iter().position(|it| it.place == packet.to) else { return };
        let bytes = &self.bytes[&packet];
        let (now, node) = (self.now, &mut self.nodes[index]);
        // A node asks an unknown address for a proof once 48 bytes have come from there, which are two RESENDs (contact-7).
        let copies = if matches!(packet.body, Body::Resend { .. }) { 2 } else { 1 };
        for _ in 0..copies {
            node.endpoint.handle_packet(now, path(from), bytes);
        }
    }

    /// Runs an endpoint until it has nothing more to do. Returns its packets.
    fn turn(&mut self, index: usize, after: &State) -> Vec<(PathId, Vec<u8>)> {
        let (now, node) = (self.now, &mut self.nodes[index]);
        let mut wire = Wire(Vec::new());
        for _ in 0..20 {
            node.endpoint.handle_timeout(now);
            node.endpoint.poll_transmit(now, &mut wire);
            while let Some(event) = node.endpoint.poll_event() {
                match event {
                    Event::Request { rpc, body, .. } => {
                        let call = body[0];
                        self.executed[usize::from(call)] += 1;
                        // The model has the number of the request that has just begun.
                        for peer in &after.nodes[index].peers {
                            let request = peer.requests.iter().find(|it| it.call == call);
                            if let Some(request) = request {
                                node.requests.insert((peer.ours, request.seq), rpc);
                            }
                        }
                    }
                    Event::Response { rpc, .. } => {
                        self.ends[node.calls[&rpc]] = Some(End::Answered);
                        node.endpoint.acknowledge();
                    }
                    Event::Failed { rpc, error, .. } => {
                        self.ends[node.calls[&rpc]] = Some(end_of(&error));
                    }
                    _ => {}
                }
            }
        }
        wire.0
    }

    // ---- packets

    fn compare_packets(
        &mut self,
        before: &State,
        action: Action,
        after: &State,
        mut sent: Vec<(u8, PathId, Vec<u8>)>,
    ) -> Result<(), String> {
        let new: Vec<_> = after.packets.difference(&before.packets).copied().collect();
        // Packets that choose tokens come first.
        for &packet in &new {
            let found = sent.iter().position(|(from, to, bytes)| {
                *from == packet.from && *to == path(packet.to) && self.is_it(packet.body, bytes)
            });
            let bytes = match found {
                Some(index) => sent.remove(index).2,
                None => match packet.body {
                    // A timer sends RESEND, on behalf of a request that was sent.
                    Body::Resend { stamp, seq } if has_request(after, packet.from, stamp, seq) => {
                        self.resend(stamp, seq)
                    }
                    // A node asks for a proof once in an RTO (contact-7), which is longer than a walk. The walk ends.
                    Body::Token { offered, .. } if is_elsewhere(after, offered, packet.to) => {
                        self.is_limited = true;
                        return Ok(());
                    }
                    // A timer sends them, with the same bytes.
                    body if is_left_to_timer(action, body)
                        && self.bytes.keys().any(|known| known.body == body) =>
                    {
                        let known = self.bytes.iter().find(|(known, _)| known.body == body);
                        known.expect("a packet").1.clone()
                    }
                    body => {
                        let kinds: Vec<_> = sent.iter().map(|it| kind(&it.2)).collect();
                        return Err(format!("only the model sends {body:?}; {kinds:?}"));
                    }
                },
            };
            self.bind(packet.body, &bytes);
            self.bytes.insert(packet, bytes);
        }
        let known: BTreeSet<_> = after.packets.iter().copied().collect();
        for (from, to, bytes) in sent {
            let is_known = known.iter().any(|packet| {
                let is_there = packet.from == from && path(packet.to) == to;
                is_there && self.is_it(packet.body, &bytes)
            });
            if !is_known && !is_ignored(&bytes) {
                return Err(format!("only the endpoints send {:?}", wire::Packet::parse(&bytes)));
            }
        }
        Ok(())
    }

    /// Returns whether a token of the model is this one, or has no equivalent yet.
    fn is_token(&self, token: Token, it: wire::Token) -> bool {
        match self.tokens.get(&token) {
            Some(&known) => known == it,
            None => self.tokens.values().all(|&other| other != it),
        }
    }

    fn is_it(&self, body: Body, bytes: &[u8]) -> bool {
        let (Ok(packet), Some(stamp)) = (wire::Packet::parse(bytes), Stamp::read(bytes)) else {
            return false;
        };
        let id = packet.header().sender_id;
        let is_about = |seq: u8, of_client: bool| id == id_of(seq, of_client);
        match (body, packet) {
            (Body::Open { token, known, .. }, wire::Packet::Open { open, .. }) => {
                let knows = known
                    .map_or(open.known == wire::Token::NONE, |it| self.is_token(it, open.known));
                knows && self.is_token(token, stamp.token)
            }
            (Body::Token { stamp: it, offered, .. }, wire::Packet::Token { credentials, .. }) => {
                self.is_token(it, stamp.token) && self.is_token(offered, credentials.token)
            }
            (
                Body::Confirm { stamp: it, theirs, .. },
                wire::Packet::Confirm { credentials, .. },
            ) => self.is_token(it, stamp.token) && self.is_token(theirs, credentials.token),
            (Body::Request { stamp: it, seq, part, .. }, wire::Packet::Data { data, .. }) => {
                is_about(seq, true)
                    && (part == 0) == (data.offset == 0)
                    && self.is_token(it, stamp.token)
            }
            (Body::Response { stamp: it, seq, part, .. }, wire::Packet::Data { data, .. }) => {
                is_about(seq, false)
                    && (part == 0) == (data.offset == 0)
                    && self.is_token(it, stamp.token)
            }
            (Body::Grant { stamp: it, seq, of_request }, wire::Packet::Grant { .. }) => {
                is_about(seq, !of_request) && self.is_token(it, stamp.token)
            }
            (Body::Resend { stamp: it, seq }, wire::Packet::Resend { .. })
            | (Body::Ack { stamp: it, seq }, wire::Packet::Ack { .. })
            | (Body::Abort { stamp: it, seq }, wire::Packet::Abort { .. }) => {
                is_about(seq, true) && self.is_token(it, stamp.token)
            }
            (
                Body::Unknown { stamp: it, seq, reason },
                wire::Packet::RpcUnknown { unknown, .. },
            ) => {
                is_about(seq, false)
                    && reason_of(reason) == unknown.reason
                    && self.is_token(it, stamp.token)
            }
            (Body::NoContact { stamp: it, .. }, wire::Packet::RpcUnknown { unknown, .. }) => {
                unknown.reason == UnknownReason::NoContact && self.is_token(it, stamp.token)
            }
            (Body::TokenUnknown { about, .. }, wire::Packet::RpcUnknown { unknown, .. }) => {
                unknown.reason == UnknownReason::TokenUnknown && self.is_token(about, stamp.token)
            }
            _ => false,
        }
    }

    fn bind(&mut self, body: Body, bytes: &[u8]) {
        let (Ok(packet), Some(stamp)) = (wire::Packet::parse(bytes), Stamp::read(bytes)) else {
            return;
        };
        match (body, packet) {
            (Body::Open { token, .. }, _) => drop(self.tokens.insert(token, stamp.token)),
            (Body::Token { offered, .. }, wire::Packet::Token { credentials, .. }) => {
                self.tokens.insert(offered, credentials.token);
            }
            _ => {}
        }
    }

    /// A RESEND as the client's timer sends it.
    fn resend(&self, stamp: Token, seq: u8) -> Vec<u8> {
        let mut bytes = [0; MAX_HEADER];
        let header = Header { source_port: 32_768, dest_port: PORT, sender_id: id_of(seq, true) };
        let priority = Priority::new(7).expect("a level");
        let length = Resend { offset: 0, length: None, priority }.emit(&header, &mut bytes);
        Stamp::new(self.tokens[&stamp]).write(&mut bytes);
        bytes[..length].to_vec()
    }

    // ---- calls

    fn compare_calls(&self, after: &State) -> Result<(), String> {
        for (number, call) in after.calls.iter().enumerate() {
            let expected = match call.phase {
                // These ends are the application's, and there is no event.
                Phase::Ended(End::GivenUp | End::Gone) => None,
                Phase::Ended(end) => Some(end),
                _ => None,
            };
            if self.ends[number] != expected {
                return Err(format!(
                    "call {number} ends as {:?}, in the model as {expected:?}",
                    self.ends[number]
                ));
            }
            if self.executed[number] != call.executed {
                let (it, model) = (self.executed[number], call.executed);
                return Err(format!(
                    "call {number} was executed {it} times, in the model {model} times"
                ));
            }
        }
        Ok(())
    }
}

/// Returns whether the node at an address has sent the first packet of a request, or has done so before it moved.
fn has_request(state: &State, place: u8, of: Token, number: u8) -> bool {
    state.packets.iter().any(|packet| {
        let Body::Request { stamp, seq, .. } = packet.body else { return false };
        packet.from % 2 == place % 2 && (stamp, seq) == (of, number)
    })
}

/// Returns whether the core leaves a copy to a timer: those of a node that has just moved, the GRANT after RESEND, which it
/// answers with BUSY until a RESEND of its own grants the rest (loss-5), and the request after *unknown* if it has not probed
/// since (loss-9).
fn is_left_to_timer(action: Action, body: Body) -> bool {
    match action {
        Action::Move(_) => true,
        Action::Deliver(Packet { body: Body::Resend { .. }, .. }) => {
            matches!(body, Body::Grant { of_request: true, .. })
        }
        Action::Deliver(Packet { body: Body::Unknown { reason, .. }, .. }) => {
            reason == Unknown::Unknown && matches!(body, Body::Request { .. })
        }
        _ => false,
    }
}

/// Returns whether the peer with this token is at another address.
fn is_elsewhere(state: &State, ours: Token, place: u8) -> bool {
    let mut peers = state.nodes.iter().flat_map(|node| &node.peers);
    peers.any(|peer| peer.ours == ours && peer.place != place)
}

fn id_of(seq: u8, of_client: bool) -> RpcId {
    RpcId(u64::from(seq) << 1 | u64::from(!of_client))
}

fn reason_of(reason: Unknown) -> UnknownReason {
    match reason {
        Unknown::Unknown => UnknownReason::Unknown,
        Unknown::Finished => UnknownReason::Finished,
        Unknown::NoSuchPort => UnknownReason::NoSuchPort,
    }
}

fn end_of(error: &CallFailed) -> End {
    match error {
        CallFailed::MayHaveExecuted => End::MayHaveExecuted,
        CallFailed::ResponseLost => End::ResponseLost,
        CallFailed::NoSuchPort => End::NoSuchPort,
        CallFailed::NotSent => End::NotSent,
        other => panic!("{other:?} is not in the model"),
    }
}

fn kind(bytes: &[u8]) -> Option<wire::PacketType> {
    Some(wire::Packet::parse(bytes).ok()?.packet_type())
}

/// Probes, signs of life and cutoffs, which have no part in the model.
fn is_ignored(bytes: &[u8]) -> bool {
    use wire::PacketType::{Busy, Cutoffs, NeedAck, Resend};
    kind(bytes).is_some_and(|kind| [Busy, Cutoffs, NeedAck, Resend].contains(&kind))
}
