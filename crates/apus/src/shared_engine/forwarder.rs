//! The state of an engine that serves other processes: the processes, their ports, and their outstanding calls and requests.
//!
//! A call of a process becomes a call of this node, and a request to a port that a process serves is forwarded to the process. The
//! rest of the protocol, grants and order included, is that of the node, so it holds for all processes together.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use apus_proto::slab::{Handle, Slab};
use apus_proto::{
    CallFailed, FIRST_CLIENT_PORT, MessageKind, Moved, RpcKey, SocketKey, Time, Words,
};
use apus_shm::{MessageReceiver, WHOLE_MAX};
use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

use crate::delivery::parker::Waiter;
use crate::host::neighbour_key::NeighbourKey;
use crate::observe::publication::Section;
use crate::observe::stats::{MemoryCounters, ProcessCounters};
use crate::secure::peer::Peer;
use crate::shared_engine::messages::{AttachKind, VERSION, encode_address, encode_origin};
use crate::shared_engine::peers::{AnnouncedPeers, NO_PEER, PeerNumber};
use crate::sync::clock;

apus_proto::handle! {
    /// An outstanding call of a process, or a request to one.
    pub(crate) ForwardKey
}

/// An outstanding call or request of a process.
#[derive(Debug)]
pub(crate) enum Forwarded {
    /// A call of `client` to a node of the network.
    Call { client: Origin, rpc: RpcKey },
    /// A request from the network that `server` has.
    Request { server: NeighbourKey, rpc: RpcKey, again: Box<Again> },
    /// A call of one process to another, at `from`: the address of this node that the client has called.
    Direct { client: Origin, server: NeighbourKey, from: RequestOrigin },
}

/// The node that has sent a request, as its process knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin {
    pub(crate) address: SocketAddr,
    /// The number of the identity that the node has shown.
    pub(crate) peer: PeerNumber,
}

/// A call, as the process that made it knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) process: NeighbourKey,
    pub(crate) id: u64,
    /// Bytes that are charged to the process.
    pub(crate) charge: u64,
}

/// A request, to be sent again if the process has no room for it, or its response, if the node has none.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) from: RequestOrigin,
    /// The identity that the node has shown.
    pub(crate) peer: Option<Peer>,
    pub(crate) path: PathId,
    /// The ids of the client and of the server.
    pub(crate) ports: (u16, u16),
    pub(crate) deadline: Option<Time>,
    pub(crate) trace: Option<Box<TraceContext>>,
    pub(crate) body: Bytes,
    pub(crate) response: Option<Bytes>,
    /// The entry is in [`Forwarder::again`].
    pub(crate) waits: bool,
}

/// A process that uses this engine.
#[derive(Debug)]
pub(crate) struct ForwardedProcess {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// The number of its identity.
    pub(crate) identity: u8,
    /// Announced destinations of requests, by id.
    addresses: HashMap<u64, SocketAddr>,
    /// Announced trace contexts of requests, by id.
    traces: HashMap<u64, Box<TraceContext>>,
    /// Outstanding calls of the process.
    pub(crate) calls: HashMap<u64, ForwardKey>,
    /// Ports of the process, and the sockets of this node that stand for them.
    pub(crate) sockets: HashMap<u16, SocketKey>,
    /// Identities of peers that were announced to it.
    peers: AnnouncedPeers,
    /// The pieces of a rule that is not complete.
    pub(crate) rule: Vec<u8>,
    /// The numbers of rules for ports that the process is about to serve.
    pub(crate) rules: HashMap<u16, u8>,
    /// Ports that the process must not use, because this engine cannot keep the rules that a former one has kept.
    pub(crate) barred: HashSet<u16>,
    /// Bytes of the calls of the process.
    pub(crate) held: u64,
    /// Bytes of its responses for which the node has no room.
    pub(crate) kept: u64,
    /// Bytes that the pair keeps for the process.
    load: u64,
    /// Bytes that go to the pair in this turn.
    leaving: u64,
    /// The process violated the protocol, or its user may no longer attach. Its further messages are dropped.
    pub(crate) expelled: bool,
    pub(crate) counters: ProcessCounters,
    /// The published counters.
    section: Option<Section>,
    /// The counters as last published.
    published: ProcessCounters,
}

impl ForwardedProcess {
    fn publish(&mut self, now: Time) {
        if let Some(section) = &mut self.section
            && self.counters != self.published
        {
            section.write(now, self.counters.values());
            self.published = self.counters;
        }
    }

    /// Takes the announcement of the request with this id: address and trace context.
    #[inline]
    fn take_announced(&mut self, id: u64) -> Option<(SocketAddr, Option<Box<TraceContext>>)> {
        let trace = if self.traces.is_empty() { None } else { self.traces.remove(&id) };
        Some((self.addresses.remove(&id)?, trace))
    }

    /// Bytes of unread messages to the process, and of messages that arrive from it in parts.
    pub(crate) fn unread(&self) -> u64 {
        self.load + self.leaving
    }
}

/// Users that may use an engine, and their limits.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Users whose processes may attach. `None`: all users that can connect.
    pub(crate) users: Option<Vec<u32>>,
    /// Users that may serve ports. All users may serve ports without an entry.
    pub(crate) ports: Vec<(RangeInclusive<u16>, Vec<u32>)>,
    /// Upper bound on the bytes of outstanding calls of a process.
    pub(crate) process_budget: u64,
    /// Upper bound on bytes that all pairs keep for their processes.
    pub(crate) total_budget: u64,
    pub(crate) processes_max: usize,
    /// Users and the numbers of their identities. Without an entry, all users have the engine's own, which has the number 0.
    pub(crate) identities: Vec<(Vec<u32>, u8)>,
}

/// The number of no identity.
pub(crate) const NOBODY: u8 = u8::MAX;

impl Limits {
    //= docs/protocol.md#seal-18
    /// The number of the identity under which the processes of a user call and serve.
    pub(crate) fn identity_of(&self, uid: u32) -> u8 {
        if self.identities.is_empty() {
            return 0;
        }
        let named = self.identities.iter().find(|(users, _)| users.contains(&uid));
        named.map_or(NOBODY, |&(_, number)| number)
    }

    /// Whether processes of a user may attach.
    pub(crate) fn admit(&self, uid: u32) -> bool {
        self.users.as_ref().is_none_or(|users| users.contains(&uid))
    }

    /// Whether a user may serve a port.
    pub(crate) fn allow(&self, uid: u32, port: u16) -> bool {
        let mut rules = self.ports.iter().filter(|(ports, _)| ports.contains(&port)).peekable();
        rules.peek().is_none() || rules.any(|(_, uids)| uids.contains(&uid))
    }

    /// Bytes of the longest request to a process: its pair has room for it beside one budget.
    pub(crate) fn request_max(&self) -> u64 {
        self.process_budget.saturating_mul(LOAD_BUDGETS - 1)
    }

    /// Upper bound on bytes that a pair keeps for its process.
    pub(crate) fn load_max(&self) -> u64 {
        self.process_budget.saturating_mul(LOAD_BUDGETS)
    }
}

/// A socket of the node that stands for a port of a process.
#[derive(Clone, Copy, Debug)]
struct Owned {
    socket: SocketKey,
    process: NeighbourKey,
    /// The port that the process knows.
    port: u16,
    /// The number of its rule for peers.
    rule: u8,
}

/// The processes that use an engine.
#[derive(Debug)]
pub(crate) struct Forwarder {
    pub(crate) limits: Limits,
    /// Refused processes: of users that may not attach, and beyond `processes_max`.
    pub(crate) refused: [u64; 2],
    /// Bytes that all pairs keep for their processes.
    load: u64,
    pub(crate) processes: HashMap<NeighbourKey, ForwardedProcess>,
    pub(crate) under_way: Slab<ForwardKey, Forwarded>,
    /// The owners of the node's sockets, by [`SocketKey::index`].
    owners: Vec<Option<Owned>>,
    /// The process that serves each port.
    servers: HashMap<u16, NeighbourKey>,
    /// Messages of processes, to be handled in this turn.
    pub(crate) arrived: VecDeque<(NeighbourKey, Words, Bytes)>,
    /// Messages to processes.
    outgoing: VecDeque<(NeighbourKey, Words, Bytes)>,
    /// Requests and responses that had no room, in the order of time.
    pub(crate) again: VecDeque<(Time, ForwardKey)>,
    /// Calls and requests of processes that have ended, to be cleared away in parts.
    pub(crate) left: VecDeque<ForwardKey>,
    /// Its sockets, to be closed then, each with the number of its rule.
    pub(crate) closing: Vec<(SocketKey, u8)>,
    /// Numbers of rules that no socket has got.
    pub(crate) unused_rules: Vec<u8>,
    /// For users that have sent new rules: the begin of a second, and the number of their rules in it.
    new_rules: HashMap<u32, (Time, u32)>,
    /// Slots of [`under_way`](Self::under_way) that remain to be checked for requests whose caller has given up.
    pub(crate) unlooked: usize,
    /// Requests that the node had given up when that search began.
    pub(crate) given_up: u64,
    /// Messages were moved since the last check by the engine's thread.
    pub(crate) moved: bool,
    /// The engine's thread must return.
    pub(crate) stopped: bool,
    pub(crate) waiter: Option<Waiter>,
    /// Whether the counters of processes are published.
    pub(crate) publishes: bool,
}

impl Forwarder {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            refused: [0; 2],
            load: 0,
            processes: HashMap::new(),
            under_way: Slab::new(),
            owners: Vec::new(),
            servers: HashMap::new(),
            arrived: VecDeque::new(),
            outgoing: VecDeque::new(),
            again: VecDeque::new(),
            left: VecDeque::new(),
            closing: Vec::new(),
            unused_rules: Vec::new(),
            new_rules: HashMap::new(),
            unlooked: 0,
            given_up: 0,
            moved: false,
            stopped: false,
            waiter: None,
            publishes: false,
        }
    }

    /// Adds a process. The engine's node has this address.
    pub(crate) fn add(&mut self, key: NeighbourKey, (pid, uid): (i32, u32), node: SocketAddr) {
        let process = ForwardedProcess {
            pid,
            uid,
            identity: self.limits.identity_of(uid),
            addresses: HashMap::new(),
            traces: HashMap::new(),
            calls: HashMap::new(),
            sockets: HashMap::new(),
            peers: AnnouncedPeers::default(),
            rule: Vec::new(),
            rules: HashMap::new(),
            barred: HashSet::new(),
            held: 0,
            kept: 0,
            load: 0,
            leaving: 0,
            expelled: false,
            counters: ProcessCounters::default(),
            section: self.publishes.then(|| Section::of_attached(pid, uid)).flatten(),
            published: ProcessCounters::default(),
        };
        self.processes.insert(key, process);
        let address = Bytes::copy_from_slice(&encode_address(node));
        self.send(key, AttachKind::Welcome { version: VERSION }.encode(), address);
    }

    /// Publishes the counters of processes.
    pub(crate) fn publish(&mut self, now: Time) {
        for process in self.processes.values_mut() {
            process.publish(now);
        }
    }

    /// Handles the end of a process.
    pub(crate) fn remove(&mut self, key: NeighbourKey) {
        let Some(mut process) = self.processes.remove(&key) else { return };
        self.load -= process.load;
        process.publish(clock::now());
        self.left.extend(process.calls.into_values());
        let serves = |forwarder: &ForwardKey| match self.under_way.get(*forwarder) {
            Some(Forwarded::Request { server, .. } | Forwarded::Direct { server, .. }) => {
                *server == key
            }
            _ => false,
        };
        self.left.extend(self.under_way.keys().filter(serves));
        self.outgoing.retain(|(to, ..)| *to != key);
        let sockets: Vec<_> = process.sockets.into_values().collect();
        for socket in sockets {
            let rule = self.disown(socket);
            self.closing.push((socket, rule));
        }
        self.unused_rules.extend(process.rules.into_values());
    }

    /// Registers a socket of the node for a port of a process.
    pub(crate) fn own(&mut self, socket: SocketKey, key: NeighbourKey, port: u16) {
        let index = socket.index();
        if self.owners.len() <= index {
            self.owners.resize(index + 1, None);
        }
        self.owners[index] = Some(Owned { socket, process: key, port, rule: 0 });
        if port < FIRST_CLIENT_PORT {
            self.servers.insert(port, key);
        }
        if let Some(process) = self.processes.get_mut(&key) {
            process.sockets.insert(port, socket);
        }
    }

    /// Removes the registration of a socket, and returns the number of its rule.
    pub(crate) fn disown(&mut self, socket: SocketKey) -> u8 {
        let Some(&Owned { port, rule, .. }) = self.owned(socket) else { return 0 };
        self.owners[socket.index()] = None;
        self.servers.remove(&port);
        rule
    }

    #[inline]
    fn owned(&self, socket: SocketKey) -> Option<&Owned> {
        self.owners.get(socket.index())?.as_ref().filter(|owned| owned.socket == socket)
    }

    /// The number of the rule of a process's socket.
    pub(crate) fn rule(&self, socket: SocketKey) -> u8 {
        self.owned(socket).map_or(0, |owned| owned.rule)
    }

    /// Registers the number of a socket's rule, and returns the one before.
    pub(crate) fn set_rule(&mut self, socket: SocketKey, rule: u8) -> u8 {
        let owned = self.owners.get_mut(socket.index()).and_then(Option::as_mut);
        match owned.filter(|owned| owned.socket == socket) {
            Some(owned) => mem::replace(&mut owned.rule, rule),
            None => rule,
        }
    }

    /// Whether a user may have all peers compared with a new rule, which takes time in proportion to them. Counts it.
    pub(crate) fn may_compare(&mut self, now: Time, uid: u32) -> bool {
        let is_recent = |since: Time| now < since + Duration::from_secs(1);
        self.new_rules.retain(|_, (since, _)| is_recent(*since));
        let (_, count) = self.new_rules.entry(uid).or_insert((now, 0));
        *count += 1;
        *count <= NEW_RULES_MAX
    }

    /// The numbers of the rules that some processes have, among them those of the configuration and of identities.
    pub(crate) fn rules_of(&self, is_one: impl Fn(&ForwardedProcess) -> bool) -> HashSet<u8> {
        let processes = self.processes.values().filter(|process| is_one(process));
        let rules = processes.flat_map(|process| {
            let set = process.sockets.values().map(|&socket| self.rule(socket));
            set.chain(process.rules.values().copied())
        });
        rules.filter(|&rule| rule != 0).collect()
    }

    /// The process that a socket of the node stands for, and its port there.
    #[inline]
    pub(crate) fn owner(&self, socket: SocketKey) -> Option<(NeighbourKey, u16)> {
        self.owned(socket).map(|owned| (owned.process, owned.port))
    }

    /// The number of the identity of the process that serves a port. `None`: nobody does, or a process without an identity.
    #[cfg(feature = "secure")]
    pub(crate) fn identity_at(&self, port: u16) -> Option<u8> {
        let server = self.processes.get(self.servers.get(&port)?)?;
        Some(server.identity).filter(|&identity| identity != NOBODY)
    }

    /// The number of a process's identity.
    pub(crate) fn identity(&self, process: NeighbourKey) -> u8 {
        self.processes.get(&process).map_or(NOBODY, |process| process.identity)
    }

    /// The process that serves a port.
    pub(crate) fn server(&self, port: u16) -> Option<NeighbourKey> {
        self.servers.get(&port).copied()
    }

    /// Charges the bytes that the pair keeps for a process. Returns `false` if they are many times its budget: it sends requests
    /// but never reads the responses.
    #[must_use]
    pub(crate) fn set_load(&mut self, key: NeighbourKey, load: u64) -> bool {
        let Some(process) = self.processes.get_mut(&key) else { return true };
        let before = mem::replace(&mut process.load, load);
        self.load = self.load - before + load;
        load <= self.limits.load_max()
    }

    /// Upper bound on unread bytes of a process, given the unread bytes of others. All users together get the total budget, and
    /// each of them half of it. A process that uses less than an equal part always gets it.
    #[inline]
    fn share(&self, key: NeighbourKey) -> u64 {
        if self.load <= self.limits.total_budget / 2 { u64::MAX } else { self.equal_part(key) }
    }

    #[cold]
    fn equal_part(&self, key: NeighbourKey) -> u64 {
        let Some(process) = self.processes.get(&key) else { return u64::MAX };
        let total = self.limits.total_budget;
        let loaded = || self.processes.values().filter(|process| process.load > 0);
        let of_user = || loaded().filter(|of| of.uid == process.uid);
        let part = |budget: u64, count: usize| budget / (count as u64).max(1);
        let sum: u64 = of_user().map(|process| process.load).sum();
        let of_all = if self.load > total { part(total, loaded().count()) } else { u64::MAX };
        match sum > total / 2 {
            true => of_all.min(part(total / 2, of_user().count())),
            false => of_all,
        }
    }

    /// Bytes that all pairs keep for their processes.
    pub(crate) fn load(&self) -> u64 {
        self.load
    }

    #[inline]
    pub(crate) fn send(&mut self, to: NeighbourKey, words: Words, body: Bytes) {
        if let Some(process) = self.processes.get_mut(&to) {
            process.counters.bytes_received += body.len() as u64;
            process.leaving += body.len() as u64;
            self.outgoing.push_back((to, words, body));
            self.moved = true;
        }
    }

    /// Takes the next message to a process.
    #[inline]
    pub(crate) fn next_outgoing(&mut self) -> Option<(NeighbourKey, Words, Bytes)> {
        let (to, words, body) = self.outgoing.pop_front()?;
        if let Some(process) = self.processes.get_mut(&to) {
            process.leaving -= body.len() as u64;
        }
        Some((to, words, body))
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Ends a call of a process, and answers it. A response without room beside the unread messages of the process becomes an
    /// error.
    #[inline]
    pub(crate) fn answer(&mut self, client: Origin, kind: MessageKind, body: Bytes) {
        let load_max = self.limits.load_max().min(self.share(client.process));
        let Some(process) = self.processes.get_mut(&client.process) else { return };
        process.calls.remove(&client.id);
        process.held -= client.charge;
        let room = load_max.saturating_sub(process.unread() + process.held);
        if body.len() as u64 <= room {
            return self.send(client.process, kind.encode(client.id), body);
        }
        let [length, limit] =
            [body.len() as u64, room].map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let error = CallFailed::ResponseTooLarge { length, limit }.encode();
        let words = MessageKind::Failed.encode(client.id);
        self.send(client.process, words, error.into());
    }

    /// Removes an entry that has ended.
    pub(crate) fn take(&mut self, key: ForwardKey) -> Option<Forwarded> {
        let taken = self.under_way.take(key)?;
        if let Forwarded::Request { server, again, .. } = &taken
            && let Some(process) = self.processes.get_mut(server)
        {
            process.kept -= again.response.as_ref().map_or(0, |body| body.len() as u64);
        }
        Some(taken)
    }

    /// Registers another RPC for a call of a process.
    pub(crate) fn moved(&mut self, moved: Moved) {
        if let Some(Forwarded::Call { rpc, .. }) =
            self.under_way.get_mut(ForwardKey::from_bits(moved.cookie.number()))
        {
            *rpc = moved.rpc;
        }
    }

    /// Ends a failed call of a process.
    pub(crate) fn fail(&mut self, client: Origin, error: CallFailed) {
        self.answer(client, MessageKind::Failed, Bytes::from(error.encode()));
    }

    /// Returns the number of a peer's identity for a process, to which a new one is announced.
    pub(crate) fn peer_number(&mut self, to: NeighbourKey, peer: Option<&Peer>) -> PeerNumber {
        let process = self.processes.get_mut(&to);
        let (Some(peer), Some(process)) = (peer, process) else { return NO_PEER };
        let mut pieces = Vec::new();
        let number = process.peers.number(peer, |number, is_last, piece| {
            pieces.push((AttachKind::Peer { number, is_last }.encode(), piece));
        });
        pieces.into_iter().for_each(|(words, piece)| self.send(to, words, piece));
        number
    }

    /// Sends a process a request, from a port of the node at `from`.
    pub(crate) fn send_request(
        &mut self,
        to: NeighbourKey,
        key: ForwardKey,
        (from, kind): (RequestOrigin, MessageKind),
        trace: Option<Box<TraceContext>>,
        body: Bytes,
    ) {
        let id = key.to_bits();
        let address = Bytes::copy_from_slice(&encode_origin(from.address, from.peer));
        self.send(to, AttachKind::Address { id }.encode(), address);
        if let Some(trace) = trace {
            let trace = Bytes::copy_from_slice(&trace.to_bytes());
            self.send(to, MessageKind::Trace.encode(id), trace);
        }
        self.send(to, kind.encode(id), body);
    }

    /// Sends an outstanding request to its process, again or for the first time.
    pub(crate) fn send_again(&mut self, now: Time, key: ForwardKey) {
        let Some(Forwarded::Request { server, again, .. }) = self.under_way.get(key) else {
            return;
        };
        let unread = self.processes.get(server).map_or(0, ForwardedProcess::unread);
        if unread > self.limits.process_budget.min(self.share(*server)) {
            return self.try_again(now, key);
        }
        let (server, peer) = (*server, again.peer.clone());
        let peer = self.peer_number(server, peer.as_ref());
        let Some(Forwarded::Request { again, .. }) = self.under_way.get_mut(key) else { return };
        again.from.peer = peer;
        let remaining = again.deadline.map(|at| at.saturating_since(now));
        let (from, to) = again.ports;
        let kind = MessageKind::Request { from, to, remaining };
        let (from, body, trace) = (again.from, again.body.clone(), again.trace.clone());
        self.send_request(server, key, (from, kind), trace, body);
    }

    /// Whether responses of a process without room in the node may wait.
    pub(crate) fn may_keep(&self, server: NeighbourKey) -> bool {
        self.processes.get(&server).is_some_and(|it| it.kept <= self.limits.process_budget)
    }

    /// Schedules a retry of an entry.
    pub(crate) fn try_again(&mut self, now: Time, key: ForwardKey) {
        if let Some(Forwarded::Request { again, .. }) = self.under_way.get_mut(key)
            && !mem::replace(&mut again.waits, true)
        {
            self.again.push_back((now + AGAIN, key));
        }
    }

    /// Takes the next entry whose retry is due.
    #[inline]
    pub(crate) fn next_again(&mut self, now: Time) -> Option<ForwardKey> {
        if self.again.front()?.0 > now {
            return None;
        }
        let (_, key) = self.again.pop_front()?;
        if let Some(Forwarded::Request { again, .. }) = self.under_way.get_mut(key) {
            again.waits = false;
        }
        Some(key)
    }

    /// Time of the next timer.
    #[inline]
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let left = !self.left.is_empty() || !self.closing.is_empty() || self.unlooked > 0;
        if left || !self.arrived.is_empty() || !self.outgoing.is_empty() {
            return Some(now);
        }
        self.again.front().map(|&(due, _)| due)
    }

    /// Takes the announced address and trace context of a request.
    #[inline]
    pub(crate) fn take_announced(
        &mut self,
        from: NeighbourKey,
        id: u64,
    ) -> Option<(SocketAddr, Option<Box<TraceContext>>)> {
        self.processes.get_mut(&from)?.take_announced(id)
    }

    /// Records the trace context of the announced request with this id. Returns `false` if the process has announced too many
    /// without a request, or if the context is malformed.
    #[must_use]
    pub(crate) fn announce_trace(&mut self, from: NeighbourKey, id: u64, trace: &[u8]) -> bool {
        let Some(process) = self.processes.get_mut(&from) else { return true };
        let Some(trace) = TraceContext::from_bytes(trace) else { return false };
        process.traces.insert(id, Box::new(trace));
        process.traces.len() <= ADDRESSES_MAX
    }

    /// Records the destination of the announced request with this id. Returns `false` if the process has announced too many without
    /// a request.
    #[must_use]
    pub(crate) fn announce_address(&mut self, from: NeighbourKey, id: u64, to: SocketAddr) -> bool {
        let Some(process) = self.processes.get_mut(&from) else { return true };
        process.addresses.insert(id, to);
        process.addresses.len() <= ADDRESSES_MAX
    }

    /// The answer to a call that the node refuses.
    pub(crate) fn refusal(error: apus_proto::CallError) -> Result<UnknownReason, CallFailed> {
        use apus_proto::CallError;
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        match error {
            CallError::MessageTooLarge { length: bytes, .. }
            | CallError::TooLargeForLinux { length: bytes } => {
                Err(CallFailed::RequestTooLarge { length: length(bytes) })
            }
            CallError::EmptyForLinux => Err(CallFailed::EmptyForLinux),
            CallError::NotExpected => Err(CallFailed::NotExpected),
            CallError::PathEnded | CallError::SocketClosed => Err(CallFailed::NotSent),
            // The process tries again until there is room.
            _ => Ok(UnknownReason::OverBudget),
        }
    }
}

/// Receives messages of a process.
pub(crate) struct FromProcess<'a> {
    pub(crate) forwarder: &'a mut Forwarder,
    pub(crate) key: NeighbourKey,
    /// Bytes of the longest message that the node accepts.
    pub(crate) message_max: usize,
    /// Bytes that the pair keeps.
    pub(crate) load: u64,
    pub(crate) counters: &'a mut MemoryCounters,
}

impl MessageReceiver for FromProcess<'_> {
    fn admits(&mut self, words: Words, length: usize) -> bool {
        let Some((kind, id)) = MessageKind::decode(words) else { return false };
        let Some(process) = self.forwarder.processes.get_mut(&self.key) else { return false };
        let limits = &self.forwarder.limits;
        let arriving = if length > WHOLE_MAX { length as u64 } else { 0 };
        let fits = self.load + arriving <= limits.load_max();
        let refusal = match kind {
            MessageKind::Request { .. } if length > self.message_max => UnknownReason::TooLarge,
            MessageKind::Request { .. }
                if !fits || process.held + length as u64 > limits.process_budget =>
            {
                process.counters.over_budget += 1;
                UnknownReason::OverBudget
            }
            MessageKind::Response if !fits || length > self.message_max => {
                // The request cannot be delivered.
                let given_up = MessageKind::Refused(UnknownReason::Finished).encode(id);
                self.forwarder.arrived.push_back((self.key, given_up, Bytes::new()));
                return false;
            }
            MessageKind::Request { .. } | MessageKind::Response => {
                self.load += arriving;
                return true;
            }
            _ => return false,
        };
        process.take_announced(id);
        self.forwarder.send(self.key, MessageKind::Refused(refusal).encode(id), Bytes::new());
        false
    }

    #[inline]
    fn message(&mut self, words: Words, body: Bytes) {
        self.counters.messages_received += 1;
        self.counters.bytes_received += body.len() as u64;
        self.forwarder.arrived.push_back((self.key, words, body));
    }
}

/// Number of budgets that a pair keeps for its process. Messages without room beside them fail, and a process that makes the engine
/// send more without reading is detached.
const LOAD_BUDGETS: u64 = 4;

/// Upper bound on the addresses, and on the trace contexts, that a process may announce ahead of its requests.
const ADDRESSES_MAX: usize = 65_536;

/// Upper bound on the new rules of a user in a second.
const NEW_RULES_MAX: u32 = 64;

/// Time after which a request without room in its process is sent again.
const AGAIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    //= docs/protocol.md#seal-18
    #[test]
    fn a_user_has_the_identity_of_the_first_entry_that_names_it() {
        let (ports, users) = (Vec::new(), None);
        let mut limits = Limits {
            users,
            ports,
            process_budget: 0,
            total_budget: 0,
            processes_max: 0,
            identities: Vec::new(),
        };
        assert_eq!([0, 7].map(|uid| limits.identity_of(uid)), [0, 0]);
        limits.identities = vec![(vec![7, 8], 1), (vec![8, 9], 2), (vec![10], 0)];
        assert_eq!([7, 8, 9, 10, 0].map(|uid| limits.identity_of(uid)), [1, 1, 2, 0, NOBODY]);
    }

    #[test]
    fn a_user_has_64_new_rules_compared_in_a_second() {
        let (ports, users) = (Vec::new(), None);
        let limits = Limits {
            users,
            ports,
            process_budget: 0,
            total_budget: 0,
            processes_max: 0,
            identities: Vec::new(),
        };
        let mut forwarder = Forwarder::new(limits);
        let start = clock::now();
        let mut allowed = |millis, uid| {
            let now = start + Duration::from_millis(millis);
            (0..100).filter(|_| forwarder.may_compare(now, uid)).count()
        };
        assert_eq!([allowed(0, 7), allowed(999, 7), allowed(999, 8)], [64, 0, 64]);
        assert_eq!([allowed(1_000, 7), allowed(1_500, 8)], [64, 0]);
    }

    #[test]
    fn ports_that_are_named_are_for_those_that_are_named() {
        let ports = vec![(1..=99, vec![0]), (50..=59, vec![7]), (200..=200, vec![])];
        let limits = Limits {
            users: None,
            ports,
            process_budget: 0,
            total_budget: 0,
            processes_max: 0,
            identities: Vec::new(),
        };
        let allowed = [(0, 1), (0, 50), (7, 50), (7, 100), (0, 100)];
        assert!(allowed.into_iter().all(|(uid, port)| limits.allow(uid, port)));
        let forbidden = [(7, 1), (8, 50), (0, 200), (7, 99)];
        assert!(forbidden.into_iter().all(|(uid, port)| !limits.allow(uid, port)));
    }
}
