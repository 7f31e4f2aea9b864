//! Endpoints on a virtual clock, joined by a network whose faults a test chooses.
//!
//! A test makes a [`Pair`] or a [`Net`], lets the applications act, drives the clock and examines the results. Nothing here sleeps,
//! and the same test sends the same packets every time.

#![allow(dead_code, reason = "every test file uses another part of this")]

mod sealed;
mod switch;

pub(crate) use switch::Switch;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use apus_proto::{
    CallError, CallFailed, CallOptions, Config, Counters, Endpoint, Event, Remote, ReplyError,
    RpcKey, SocketKey, Time,
};
use apus_wire::{
    Data, Header, Packet, PacketSink, PacketType, PathId, Priority, Stamp, Token, TraceContext,
    Transmit,
};
use bytes::Bytes;

/// The port that every node serves.
pub(crate) const PORT: u16 = 4000;
/// The first port that the core assigns, the port of every node's calling socket.
pub(crate) const CLIENT_PORT: u16 = 32_768;
/// Length of the Homa packet that fits an Ethernet frame in UDP over IPv4.
pub(crate) const ETHERNET: usize = 1472;
/// Upper bound on the turns at one instant; a test beyond it spins.
const TURNS_MAX: usize = 200_000;

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

pub(crate) fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Returns a body that differs at every offset and from every other seed's.
pub(crate) fn body(length: usize, seed: u64) -> Bytes {
    let mut random = Random::new(seed);
    let mut bytes: Vec<u8> = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes.into()
}

/// Random numbers, the same in every run (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns true `thousandths` times out of a thousand.
    pub(crate) fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}

/// A packet that is about to cross the network.
#[derive(Debug)]
pub(crate) struct Passing<'a> {
    pub(crate) at: Time,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) priority: Priority,
    pub(crate) packet: Packet<'a>,
}

impl Passing<'_> {
    pub(crate) fn is(&self, kind: PacketType, from: usize) -> bool {
        self.from == from && self.packet.packet_type() == kind
    }

    /// Returns the header of a DATA packet from this node.
    pub(crate) fn data(&self, from: usize) -> Option<Data> {
        match self.packet {
            Packet::Data { data, .. } if self.from == from => Some(data),
            _ => None,
        }
    }
}

/// Fate of a passing packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Pass,
    Drop,
    /// Arrives later by this time.
    Late(Duration),
    /// Arrives on time, and once more after this time.
    Twice(Duration),
}

/// Random faults, in thousandths of the packets.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplicate: u64,
    pub(crate) late: u64,
    pub(crate) lateness: Duration,
    pub(crate) random: Random,
}

/// A sent packet.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Time,
    pub(crate) from: usize,
    pub(crate) to: PathId,
    pub(crate) priority: Priority,
    pub(crate) bytes: Vec<u8>,
}

impl Sent {
    pub(crate) fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.bytes).expect("the core sends whole packets")
    }
}

/// Reaction of a node's application to a request.
pub(crate) enum App {
    /// Answers with the request.
    Echo,
    /// Answers with the result of the function.
    Answer(Box<dyn FnMut(&Bytes) -> Bytes>),
    /// Keeps the request in [`Node::requests`] for the test to answer.
    Hold,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Response(Bytes),
    Connected,
    Failed(CallFailed),
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) rpc: RpcKey,
    pub(crate) from: Remote,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) body: Bytes,
}

pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    /// The path to the node.
    pub(crate) path: PathId,
    /// Socket of its calls.
    pub(crate) socket: SocketKey,
    /// Socket that serves [`PORT`].
    pub(crate) service: SocketKey,
    pub(crate) app: App,
    /// Held requests.
    pub(crate) requests: Vec<Request>,
    /// Answers that found no room, to be sent once there is room.
    pub(crate) put_off: Vec<(RpcKey, Bytes)>,
    /// Requests that were passed to the application, held or not.
    pub(crate) executed: Vec<Bytes>,
    /// Watched requests that were reported as cancelled.
    pub(crate) cancelled: Vec<RpcKey>,
    pub(crate) outcomes: BTreeMap<RpcKey, (Time, Outcome)>,
    config: Config,
    /// Packets to a node that is down are lost.
    pub(crate) up: bool,
}

impl Node {
    fn new(config: &Config, index: usize, now: Time) -> Self {
        let seed = (index as u128) << 64 | u128::from(now.as_nanos());
        let mut endpoint = Endpoint::new(config.clone(), seed);
        let socket = endpoint.open(None).expect("the first client port is free");
        let service = endpoint.open(Some(PORT)).expect("no other socket serves yet");
        Self {
            endpoint,
            path: path(index),
            socket,
            service,
            app: App::Echo,
            requests: Vec::new(),
            put_off: Vec::new(),
            executed: Vec::new(),
            cancelled: Vec::new(),
            outcomes: BTreeMap::new(),
            config: config.clone(),
            up: true,
        }
    }
}

impl Node {
    /// Answers a request, now or once there is room. The request may have ended while its event was queued.
    pub(crate) fn answer(&mut self, now: Time, rpc: RpcKey, answer: Bytes) {
        let refused = self.endpoint.reply(now, rpc, answer.clone());
        if matches!(refused, Err(ReplyError::OverBudget { .. })) {
            self.put_off.push((rpc, answer));
        }
    }

    /// Passes a packet to the endpoint as a link does: in place if the endpoint has a target for it, otherwise by itself. Returns
    /// whether it was in place.
    fn take(&mut self, now: Time, from: PathId, packet: &[u8], receive_target: bool) -> bool {
        if receive_target
            && let Some((header, payload)) = packet.split_first_chunk()
            && let Some(receive_target) = self.endpoint.receive_target()
            && payload.len() <= receive_target.room
        {
            let before = receive_target.message.len();
            receive_target.message.extend_from_slice(payload);
            if self.endpoint.handle_in_place(now, from, header, payload.len()) {
                return true;
            }
            let receive_target = self.endpoint.receive_target().expect("nothing has changed");
            receive_target.message.truncate(before);
        }
        self.endpoint.handle_packet(now, from, packet);
        false
    }
}

/// Returns the path to a node, the same for every node.
pub(crate) fn path(index: usize) -> PathId {
    let index = u32::try_from(index).expect("few nodes");
    PathId::new(2 * index, name(index))
}

fn name(index: u32) -> u64 {
    0x0a00_0001 + u64::from(index)
}

/// Returns the sealed path to a node.
pub(crate) fn sealed_path(index: usize) -> PathId {
    path(index).sealed()
}

/// Returns the path to a node behind a native link that the other nodes do not know. Over UDP, an endpoint ignores unknown nodes.
pub(crate) fn native_path(index: usize) -> PathId {
    let index = u32::try_from(index).expect("few nodes");
    PathId::new(2 * index + 1, name(index)).native()
}

/// Returns the token in packets from `peer` to `node`.
pub(crate) fn token(node: PathId, peer: PathId) -> Token {
    Token(node.name() << 32 | peer.name())
}

#[derive(Clone, Debug)]
struct Flying {
    from: PathId,
    to: PathId,
    bytes: Vec<u8>,
}

type Hook = Box<dyn FnMut(&Passing<'_>) -> Fate>;

/// Nodes and the network between them.
pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<Node>,
    /// One-way delay.
    pub(crate) latency: Duration,
    /// Length of the longest Homa packet.
    pub(crate) mtu: usize,
    /// Length beyond which packets are dropped silently; the links fall back to it on a report.
    pub(crate) black_hole: Option<usize>,
    pub(crate) hook: Option<Hook>,
    pub(crate) faults: Option<Faults>,
    /// The switch that queues the packets; without one, packets never wait.
    pub(crate) switch: Option<Switch>,
    /// All sent packets, in order, including lost ones.
    pub(crate) sent: Vec<Sent>,
    /// False in tests that send very many packets.
    pub(crate) keep_sent: bool,
    /// Whether payloads are written in place where the endpoint has a target, as by a link that can do so.
    pub(crate) receive_target: bool,
    /// Number of payloads written in place.
    pub(crate) in_place: u64,
    /// Hash of the time, length and header of every packet (FNV-1a).
    pub(crate) trace_hash: u64,
    /// Number of turns of all nodes.
    pub(crate) turns: u64,
    /// Nodes, with the paths by which they were introduced.
    introduced: BTreeSet<(usize, PathId)>,
    /// Packets under way by time of arrival; the number orders simultaneous ones.
    flying: BTreeMap<(Time, u64), Flying>,
    flights: u64,
}

struct Wire {
    mtu: usize,
    black_hole: Option<usize>,
    sent: Vec<(PathId, Priority, Vec<u8>)>,
}

impl PacketSink for Wire {
    fn send(&mut self, packet: Transmit<'_>) {
        let bytes = [packet.header, packet.payload()].concat();
        assert!(bytes.len() <= self.mtu, "a packet of {} bytes", bytes.len());
        self.sent.push((packet.path, packet.priority, bytes));
    }

    fn max_packet(&self, _: PathId) -> usize {
        self.mtu
    }

    fn swallowed(&mut self, _: PathId) {
        self.mtu = self.black_hole.unwrap_or(self.mtu);
    }
}

impl Net {
    /// Creates `n` nodes that know each other, with the default configuration as changed by `change`.
    pub(crate) fn new(n: usize, change: impl Fn(usize, &mut Config)) -> Self {
        let mut net = Self::unacquainted(n, change);
        for (one, other) in (0..n).flat_map(|one| (0..n).map(move |other| (one, other))) {
            if one != other {
                net.introduce(one, path(other));
            }
        }
        net
    }

    /// Creates nodes that have not met.
    pub(crate) fn unacquainted(n: usize, change: impl Fn(usize, &mut Config)) -> Self {
        let nodes = (0..n).map(|index| {
            let mut config = Config::default();
            change(index, &mut config);
            Node::new(&config, index, Time::ZERO)
        });
        Self {
            now: Time::ZERO,
            nodes: nodes.collect(),
            latency: micros(10),
            mtu: ETHERNET,
            black_hole: None,
            hook: None,
            faults: None,
            switch: None,
            sent: Vec::new(),
            keep_sent: true,
            receive_target: true,
            in_place: 0,
            trace_hash: 0xcbf2_9ce4_8422_2325,
            turns: 0,
            introduced: BTreeSet::new(),
            flying: BTreeMap::new(),
            flights: 0,
        }
    }

    pub(crate) fn counters(&self, node: usize) -> &Counters {
        self.nodes[node].endpoint.counters()
    }

    /// Returns the number of a node's RPCs in any state.
    pub(crate) fn active(&self, node: usize) -> usize {
        self.nodes[node].endpoint.active_rpcs()
    }

    pub(crate) fn endpoint(&mut self, node: usize) -> &mut Endpoint {
        &mut self.nodes[node].endpoint
    }

    /// Makes a call from `from` to the service of `to`.
    pub(crate) fn try_call(
        &mut self,
        from: usize,
        to: usize,
        body: Bytes,
        options: CallOptions,
    ) -> Result<RpcKey, CallError> {
        let (now, to) = (self.now, Remote::new(self.nodes[to].path, PORT));
        let node = &mut self.nodes[from];
        node.endpoint.call(now, node.socket, to, body, options)
    }

    pub(crate) fn call_from(&mut self, from: usize, to: usize, body: Bytes) -> RpcKey {
        self.try_call(from, to, body, CallOptions::default()).expect("the call is within limits")
    }

    /// Answers the oldest request that `node` holds.
    pub(crate) fn reply_from(&mut self, node: usize, body: Bytes) {
        let request = self.nodes[node].requests.remove(0);
        let now = self.now;
        self.endpoint(node).reply(now, request.rpc, body).expect("the request is in service");
    }

    pub(crate) fn outcome(&self, node: usize, call: RpcKey) -> Option<&Outcome> {
        self.nodes[node].outcomes.get(&call).map(|(_, outcome)| outcome)
    }

    /// Returns the time at which a call ended.
    pub(crate) fn ended_at(&self, node: usize, call: RpcKey) -> Time {
        self.nodes[node].outcomes.get(&call).expect("the call has ended").0
    }

    /// Restarts a node on its path, with new sockets on the same ports.
    pub(crate) fn restart(&mut self, node: usize) {
        let config = self.nodes[node].config.clone();
        self.nodes[node] = Node::new(&config, node, self.now);
    }

    /// Moves a node to another path; the old path leads to no node.
    pub(crate) fn move_node(&mut self, node: usize, path: PathId) {
        self.nodes[node].path = path;
    }

    /// Introduces a peer to a node, without a first contact.
    pub(crate) fn introduce(&mut self, node: usize, peer: PathId) {
        let now = self.now;
        if self.introduced.insert((node, peer)) {
            let (ours, theirs) = (token(path(node), peer), token(peer, path(node)));
            self.endpoint(node).introduce(now, peer, ours, theirs);
        }
    }

    /// Passes a packet to a node as if it came from `from`, bypassing the network. The node knows `from`, unless that is a path of
    /// a native link.
    pub(crate) fn inject(&mut self, from: PathId, to: usize, packet: &[u8]) {
        let mut packet = packet.to_vec();
        if from.is_native() {
            return self.inject_raw(from, to, &packet);
        }
        self.introduce(to, from);
        if packet.len() >= apus_wire::COMMON_LEN && packet[8] == 0 {
            Stamp::new(token(path(to), from)).write(&mut packet);
        }
        self.inject_raw(from, to, &packet);
    }

    /// Passes these very bytes to a node.
    pub(crate) fn inject_raw(&mut self, from: PathId, to: usize, packet: &[u8]) {
        let now = self.now;
        self.endpoint(to).handle_packet(now, from, packet);
    }

    /// Sends a copy of a sent packet once more.
    pub(crate) fn repeat(&mut self, sent: &Sent) {
        self.flights += 1;
        let from = self.nodes[sent.from].path;
        let flying = Flying { from, to: sent.to, bytes: sent.bytes.clone() };
        self.flying.insert((self.now + self.latency, self.flights), flying);
    }

    /// Returns the packets of one type that one node sent.
    pub(crate) fn sent_by(&self, node: usize, kind: PacketType) -> Vec<&Sent> {
        let wanted = |sent: &&Sent| sent.from == node && sent.packet().packet_type() == kind;
        self.sent.iter().filter(wanted).collect()
    }

    /// Returns the payload bytes of DATA that one node sent.
    pub(crate) fn data_sent_by(&self, node: usize) -> u64 {
        let data = self.sent_by(node, PacketType::Data);
        data.iter().map(|sent| sent.bytes.len() as u64 - 56).sum()
    }

    /// Runs until all nodes are idle.
    ///
    /// # Panics
    ///
    /// If that takes more than a minute of virtual time.
    pub(crate) fn drive(&mut self) {
        self.drive_until(Self::is_idle);
    }

    /// Runs for this time.
    pub(crate) fn drive_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while self.advance(end) {
            self.settle();
        }
        self.now = end;
    }

    /// Runs until `done` or a minute has passed.
    pub(crate) fn drive_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + secs(60);
        self.settle();
        while !done(self) {
            assert!(self.advance(end), "not done after a minute: {}", self.describe());
            self.settle();
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.flying.is_empty() && self.nodes.iter().all(|node| node.endpoint.is_idle())
    }

    fn describe(&self) -> String {
        let active = self.nodes.iter().map(|node| node.endpoint.active_rpcs());
        format!("active RPCs {:?}, {} packets", active.collect::<Vec<_>>(), self.flying.len())
    }

    /// Advances to the next event. Returns `false` if there is none before `end`.
    fn advance(&mut self, end: Time) -> bool {
        let timeouts = self.nodes.iter().filter_map(|node| node.endpoint.poll_timeout());
        let arrival = self.flying.keys().next().map(|&(at, _)| at);
        let departure = self.switch.as_ref().and_then(Switch::next).map(|at| at.max(self.now));
        let Some(next) = timeouts.chain(arrival).chain(departure).min() else { return false };
        if next >= end {
            return false;
        }
        assert!(next > self.now, "nothing moves at {}", self.now);
        self.now = next;
        true
    }

    /// Lets every node receive and send everything that it can now.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turns += 1;
            let arrived = self.arrive();
            let mut busy = arrived;
            for index in 0..self.nodes.len() {
                busy |= self.turn(index);
            }
            if !busy {
                return;
            }
        }
        panic!("the endpoints spin at {}: {}", self.now, self.describe());
    }

    fn arrive(&mut self) -> bool {
        let mut arrived = false;
        let forwarded = self.switch.as_mut().map(|switch| switch.forward(self.now));
        for (at, flying) in forwarded.into_iter().flatten() {
            self.flights += 1;
            self.flying.insert((at + self.latency, self.flights), flying);
        }
        while let Some(entry) = self.flying.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let flying = entry.remove();
            arrived = true;
            let to = self.nodes.iter_mut().find(|node| node.path == flying.to && node.up);
            if let Some(node) = to {
                let in_place = node.take(self.now, flying.from, &flying.bytes, self.receive_target);
                self.in_place += u64::from(in_place);
            }
        }
        arrived
    }

    /// Runs one turn of a node's engine and application. Returns true if it wants another at once.
    fn turn(&mut self, index: usize) -> bool {
        let (now, mtu, black_hole) = (self.now, self.mtu, self.black_hole);
        let node = &mut self.nodes[index];
        if node.endpoint.poll_timeout().is_some_and(|due| due <= now) {
            node.endpoint.handle_timeout(now);
        }
        for (rpc, answer) in std::mem::take(&mut node.put_off) {
            node.answer(now, rpc, answer);
        }
        let mut wire = Wire { mtu, black_hole, sent: Vec::new() };
        let mut busy = node.endpoint.poll_transmit(now, &mut wire);
        self.mtu = wire.mtu;
        while let Some(event) = node.endpoint.poll_event() {
            busy = true;
            Self::serve(node, now, event);
        }
        busy |= !wire.sent.is_empty();
        busy |= node.endpoint.poll_timeout().is_some_and(|due| due <= now);
        for (to, priority, bytes) in wire.sent {
            self.pass(Sent { at: now, from: index, to, priority, bytes });
        }
        busy
    }

    fn serve(node: &mut Node, now: Time, event: Event) {
        match event {
            Event::Request { rpc, from, trace, body, .. } => {
                let trace = trace.map(|trace| *trace);
                node.executed.push(body.clone());
                let answer = match &mut node.app {
                    App::Echo => body,
                    App::Answer(answer) => answer(&body),
                    App::Hold => return node.requests.push(Request { rpc, from, trace, body }),
                };
                node.answer(now, rpc, answer);
            }
            Event::Response { rpc, body, .. } => {
                let before = node.outcomes.insert(rpc, (now, Outcome::Response(body)));
                assert_eq!(before, None, "a call ends once");
            }
            Event::Cancelled { rpc, .. } => node.cancelled.push(rpc),
            Event::Connected { rpc, .. } => {
                let before = node.outcomes.insert(rpc, (now, Outcome::Connected));
                assert_eq!(before, None, "a call ends once");
            }
            Event::Failed { rpc, error, .. } => {
                let before = node.outcomes.insert(rpc, (now, Outcome::Failed(error)));
                assert_eq!(before, None, "a call ends once");
            }
        }
    }

    /// Sends a packet through the faults onto the wire.
    fn pass(&mut self, sent: Sent) {
        let to = self.nodes.iter().position(|node| node.path == sent.to).unwrap_or(usize::MAX);
        let passing = Passing {
            at: sent.at,
            from: sent.from,
            to,
            priority: sent.priority,
            packet: sent.packet(),
        };
        let mut fate = self.hook.as_mut().map_or(Fate::Pass, |hook| hook(&passing));
        if self.black_hole.is_some_and(|longest| sent.bytes.len() > longest) {
            fate = Fate::Drop;
        }
        if let Some(faults) = self.faults.as_mut().filter(|_| fate == Fate::Pass) {
            let lateness =
                Duration::from_nanos(faults.random.below(faults.lateness.as_nanos().max(1) as u64));
            fate = if faults.random.chance(faults.loss) {
                Fate::Drop
            } else if faults.random.chance(faults.duplicate) {
                Fate::Twice(lateness)
            } else if faults.random.chance(faults.late) {
                Fate::Late(lateness)
            } else {
                Fate::Pass
            };
        }
        let usual = self.now + self.latency;
        let arrivals: &[Time] = match fate {
            Fate::Drop => &[],
            Fate::Pass => &[usual],
            Fate::Late(late) => &[usual + late],
            Fate::Twice(late) => &[usual, usual + late],
        };
        for &at in arrivals {
            self.flights += 1;
            let from = self.nodes[sent.from].path;
            let flying = Flying { from, to: sent.to, bytes: sent.bytes.clone() };
            if let Some(switch) = &mut self.switch {
                switch.take(usize::from(sent.priority.get()), flying);
                continue;
            }
            self.flying.insert((at, self.flights), flying);
        }
        let head = &sent.bytes[..sent.bytes.len().min(90)];
        let at = sent.at.as_nanos().to_le_bytes();
        for &byte in at.iter().chain(&sent.bytes.len().to_le_bytes()).chain(head) {
            self.trace_hash = (self.trace_hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.keep_sent {
            self.sent.push(sent);
        }
    }
}

/// A client, node 0, and a server, node 1. Both can call, and both echo by default.
pub(crate) struct Pair {
    pub(crate) net: Net,
}

impl Deref for Pair {
    type Target = Net;

    fn deref(&self) -> &Net {
        &self.net
    }
}

impl DerefMut for Pair {
    fn deref_mut(&mut self) -> &mut Net {
        &mut self.net
    }
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    /// Creates both with a changed configuration.
    pub(crate) fn with(change: impl Fn(&mut Config)) -> Self {
        Self { net: Net::new(2, |_, config| change(config)) }
    }

    /// Creates nodes that have not met.
    pub(crate) fn unacquainted() -> Self {
        Self { net: Net::unacquainted(2, |_, _| {}) }
    }

    /// Creates nodes after an exchange: peers, cutoffs and delay are known, and the packets sent until then are forgotten.
    pub(crate) fn acquainted(change: impl Fn(&mut Config)) -> Self {
        Self::acquainted_by_node(|_, config| change(config))
    }

    /// Creates such nodes, each with a configuration of its own.
    pub(crate) fn acquainted_by_node(change: impl Fn(usize, &mut Config)) -> Self {
        let mut pair = Self { net: Net::new(2, change) };
        for _ in 0..3 {
            pair.call_from(CLIENT, SERVER, body(100, 0));
            pair.call_from(SERVER, CLIENT, body(100, 0));
            pair.drive();
        }
        pair.sent.clear();
        for node in &mut pair.nodes {
            node.executed.clear();
            node.outcomes.clear();
        }
        pair
    }

    /// Makes a call of the client with a body of this length.
    pub(crate) fn call(&mut self, length: usize) -> RpcKey {
        self.call_from(CLIENT, SERVER, body(length, length as u64))
    }

    pub(crate) fn response(&self, call: RpcKey) -> &Bytes {
        match self.outcome(CLIENT, call) {
            Some(Outcome::Response(body)) => body,
            other => panic!("expected a response, got {other:?}"),
        }
    }

    pub(crate) fn failure(&self, call: RpcKey) -> CallFailed {
        match self.outcome(CLIENT, call) {
            Some(Outcome::Failed(error)) => error.clone(),
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    /// Makes the server answer every request with this many bytes.
    pub(crate) fn answer_with(&mut self, length: usize) {
        self.nodes[SERVER].app = App::Answer(Box::new(move |_| body(length, length as u64)));
    }

    pub(crate) fn hold(&mut self) {
        self.nodes[SERVER].app = App::Hold;
    }

    /// Loses the first packet for which `chosen` is true.
    pub(crate) fn lose_first(&mut self, mut chosen: impl FnMut(&Passing<'_>) -> bool + 'static) {
        let mut lost = false;
        self.hook = Some(Box::new(move |passing| {
            if !lost && chosen(passing) {
                lost = true;
                return Fate::Drop;
            }
            Fate::Pass
        }));
    }

    /// Asserts that every call is over on both sides, and only histories are held.
    pub(crate) fn assert_clean(&self) {
        for node in &self.nodes {
            assert_eq!(node.endpoint.active_rpcs(), 0);
            assert!(node.endpoint.held_bytes() < 4096, "{} held", node.endpoint.held_bytes());
        }
    }
}

/// Returns the levels of a node's DATA packets.
pub(crate) fn levels(net: &Net, node: usize) -> BTreeSet<u8> {
    net.sent_by(node, PacketType::Data).iter().map(|sent| sent.priority.get()).collect()
}

/// Returns a DATA packet as a hostile peer would make it.
pub(crate) fn data_packet(header: Header, data: Data, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; apus_wire::DATA_HEADER_LEN];
    data.emit(&header, &mut head);
    [&head[..], payload].concat()
}
