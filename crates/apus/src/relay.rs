//! What an engine knows that works for other processes: the processes, their ports, and what is under way for them.
//!
//! A call of a process becomes a call of this node, and a request to a port that a process serves goes on to the process. The rest
//! of the protocol, grants and order included, is the node's own: so it holds over all processes.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use apus_proto::slab::{Handle, Slab};
use apus_proto::{CallFailed, MessageKind, RpcKey, SocketKey, Time, Words};
use apus_shm::MessageReceiver;
use apus_wire::{PathId, UnknownReason};
use bytes::Bytes;

use crate::attach::{AttachKind, VERSION, encode_address};
use crate::neighbour_key::NeighbourKey;
use crate::parker::Waiter;
use crate::stats::MemoryCounters;

apus_proto::handle! {
    /// A call of a process, or a request to one, under way.
    pub(crate) RelayKey
}

/// Something under way for a process.
#[derive(Debug)]
pub(crate) enum Relayed {
    /// A call of `client` to a node of the network.
    Call { client: Origin, rpc: RpcKey },
    /// A request from the network that `server` has.
    Request { server: NeighbourKey, rpc: RpcKey, again: Box<Again> },
    /// A call of one process to another.
    Direct { client: Origin, server: NeighbourKey },
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
    pub(crate) from: SocketAddr,
    pub(crate) path: PathId,
    /// The client's and the server's.
    pub(crate) ports: (u16, u16),
    pub(crate) deadline: Option<Time>,
    pub(crate) body: Bytes,
    pub(crate) response: Option<Bytes>,
}

/// A process that uses this engine.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// Where the requests with these ids go.
    addresses: HashMap<u64, SocketAddr>,
    /// Its calls that are under way.
    pub(crate) calls: HashMap<u64, RelayKey>,
    /// Its ports and the sockets of this node that stand for them.
    pub(crate) sockets: HashMap<u16, SocketKey>,
    /// Bytes of its calls.
    pub(crate) held: u64,
    /// Bytes that the pair keeps for it.
    pub(crate) load: u64,
    pub(crate) counters: ProcessCounters,
}

/// What an engine counts for each process that uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ProcessCounters {
    /// Calls that the process has made.
    pub calls: u64,
    /// Requests that it was given.
    pub requests: u64,
    /// Calls that were put off because the process had too much under way.
    pub over_budget: u64,
    /// Bytes of requests and responses that it has sent,
    pub bytes_sent: u64,
    /// and that it was sent.
    pub bytes_received: u64,
}

/// Who may use an engine, and how far.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Users that may serve ports; ports that are not named are for everyone.
    pub(crate) ports: Vec<(RangeInclusive<u16>, Vec<u32>)>,
    /// Bytes of calls that a process may have under way.
    pub(crate) process_budget: u64,
    pub(crate) processes_max: usize,
}

impl Limits {
    /// Whether a user may serve a port.
    pub(crate) fn allow(&self, uid: u32, port: u16) -> bool {
        let mut rules = self.ports.iter().filter(|(ports, _)| ports.contains(&port)).peekable();
        rules.peek().is_none() || rules.any(|(_, uids)| uids.contains(&uid))
    }
}

/// The processes that use an engine.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) limits: Limits,
    pub(crate) processes: HashMap<NeighbourKey, Process>,
    pub(crate) under_way: Slab<RelayKey, Relayed>,
    /// Whose the sockets of the node are, by [`SocketKey::index`], with the port that the process knows.
    owners: Vec<Option<(SocketKey, NeighbourKey, u16)>>,
    /// What processes have sent, to be looked at in this turn.
    pub(crate) arrived: VecDeque<(NeighbourKey, Words, Bytes)>,
    /// To processes.
    pub(crate) outgoing: VecDeque<(NeighbourKey, Words, Bytes)>,
    /// Requests and responses that had no room, in the order of time.
    pub(crate) again: VecDeque<(Time, RelayKey)>,
    /// What processes have left behind, to be cleared away a part at a time.
    pub(crate) left: VecDeque<RelayKey>,
    /// Messages were moved since the thread of the engine looked last.
    pub(crate) moved: bool,
    /// The thread of the engine is to return.
    pub(crate) stopped: bool,
    pub(crate) waiter: Option<Waiter>,
}

impl Relay {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            processes: HashMap::new(),
            under_way: Slab::new(),
            owners: Vec::new(),
            arrived: VecDeque::new(),
            outgoing: VecDeque::new(),
            again: VecDeque::new(),
            left: VecDeque::new(),
            moved: false,
            stopped: false,
            waiter: None,
        }
    }

    /// A process may use the engine from now on, whose node has this address.
    pub(crate) fn add(&mut self, key: NeighbourKey, (pid, uid): (i32, u32), node: SocketAddr) {
        let process = Process {
            pid,
            uid,
            addresses: HashMap::new(),
            calls: HashMap::new(),
            sockets: HashMap::new(),
            held: 0,
            load: 0,
            counters: ProcessCounters::default(),
        };
        self.processes.insert(key, process);
        let address = Bytes::copy_from_slice(&encode_address(node));
        self.send(key, AttachKind::Welcome { version: VERSION }.encode(), address);
    }

    /// A process has ended. Returns its sockets, to be closed.
    pub(crate) fn remove(&mut self, key: NeighbourKey) -> Vec<SocketKey> {
        let Some(process) = self.processes.remove(&key) else { return Vec::new() };
        self.left.extend(process.calls.into_values());
        let serves = |relay: &RelayKey| match self.under_way.get(*relay) {
            Some(Relayed::Request { server, .. } | Relayed::Direct { server, .. }) => {
                *server == key
            }
            _ => false,
        };
        self.left.extend(self.under_way.keys().filter(serves));
        self.outgoing.retain(|(to, ..)| *to != key);
        let sockets: Vec<_> = process.sockets.into_values().collect();
        sockets.iter().for_each(|&socket| self.disown(socket));
        sockets
    }

    /// A socket of the node stands for a port of a process.
    pub(crate) fn own(&mut self, socket: SocketKey, key: NeighbourKey, port: u16) {
        let index = socket.index();
        if self.owners.len() <= index {
            self.owners.resize(index + 1, None);
        }
        self.owners[index] = Some((socket, key, port));
        if let Some(process) = self.processes.get_mut(&key) {
            process.sockets.insert(port, socket);
        }
    }

    /// It stands for none any more.
    pub(crate) fn disown(&mut self, socket: SocketKey) {
        if self.owner(socket).is_some() {
            self.owners[socket.index()] = None;
        }
    }

    /// The process that a socket of the node stands for, and its port there.
    #[inline]
    pub(crate) fn owner(&self, socket: SocketKey) -> Option<(NeighbourKey, u16)> {
        let &(owned, key, port) = self.owners.get(socket.index())?.as_ref()?;
        (owned == socket).then_some((key, port))
    }

    /// The process that serves a port.
    pub(crate) fn server(&self, port: u16) -> Option<NeighbourKey> {
        let found = self.owners.iter().flatten().find(|(_, _, served)| *served == port);
        found.map(|&(_, key, _)| key)
    }

    /// The pair keeps so many bytes for a process. False if they are many times its budget: it reads nothing and calls ever more.
    #[must_use]
    pub(crate) fn set_load(&mut self, key: NeighbourKey, load: u64) -> bool {
        if let Some(process) = self.processes.get_mut(&key) {
            process.load = load;
        }
        load <= self.limits.process_budget.saturating_mul(LOAD_BUDGETS)
    }

    #[inline]
    pub(crate) fn send(&mut self, to: NeighbourKey, words: Words, body: Bytes) {
        if let Some(process) = self.processes.get_mut(&to) {
            process.counters.bytes_received += body.len() as u64;
            self.outgoing.push_back((to, words, body));
            self.moved = true;
        }
    }

    /// Ends a call of a process that has begun, and answers it.
    #[inline]
    pub(crate) fn answer(&mut self, client: Origin, kind: MessageKind, body: Bytes) {
        if let Some(process) = self.processes.get_mut(&client.process) {
            process.calls.remove(&client.id);
            process.held -= client.charge;
        }
        self.send(client.process, kind.encode(client.id), body);
    }

    /// The same, if the call has failed.
    pub(crate) fn fail(&mut self, client: Origin, error: CallFailed) {
        self.answer(client, MessageKind::Failed, Bytes::copy_from_slice(&error.encode()));
    }

    /// Sends a process a request, from a port of the node at `from`.
    pub(crate) fn send_request(
        &mut self,
        to: NeighbourKey,
        key: RelayKey,
        (from, kind): (SocketAddr, MessageKind),
        body: Bytes,
    ) {
        let id = key.to_bits();
        let address = Bytes::copy_from_slice(&encode_address(from));
        self.send(to, AttachKind::Address { id }.encode(), address);
        self.send(to, kind.encode(id), body);
    }

    /// Sends a process again a request that is under way, or for the first time.
    pub(crate) fn send_again(&mut self, now: Time, key: RelayKey) {
        let Some(Relayed::Request { server, again, .. }) = self.under_way.get(key) else { return };
        let load = self.processes.get(server).map_or(0, |process| process.load);
        if load > self.limits.process_budget {
            return self.try_again(now, key);
        }
        let remaining = again.deadline.map(|at| at.saturating_since(now));
        let (from, to) = again.ports;
        let kind = MessageKind::Request { from, to, remaining };
        let (server, from, body) = (*server, again.from, again.body.clone());
        self.send_request(server, key, (from, kind), body);
    }

    /// Something is to be tried again in a moment.
    pub(crate) fn try_again(&mut self, now: Time, key: RelayKey) {
        self.again.push_back((now + AGAIN, key));
    }

    /// When there is something to do although no message comes.
    #[inline]
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        if !self.left.is_empty() || !self.arrived.is_empty() || !self.outgoing.is_empty() {
            return Some(now);
        }
        self.again.front().map(|&(due, _)| due)
    }

    /// The node that a request goes to, which the process has told before.
    #[inline]
    pub(crate) fn take_address(&mut self, from: NeighbourKey, id: u64) -> Option<SocketAddr> {
        self.processes.get_mut(&from)?.addresses.remove(&id)
    }

    /// A process tells where the request with this id will go. False if it has told too many without a request.
    #[must_use]
    pub(crate) fn tell_address(&mut self, from: NeighbourKey, id: u64, to: SocketAddr) -> bool {
        let Some(process) = self.processes.get_mut(&from) else { return true };
        process.addresses.insert(id, to);
        process.addresses.len() <= ADDRESSES_MAX
    }

    /// The answer to a call that the node does not take.
    pub(crate) fn refusal(error: apus_proto::CallError) -> Result<UnknownReason, CallFailed> {
        use apus_proto::CallError;
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        match error {
            CallError::MessageTooLarge { length: bytes, .. }
            | CallError::TooLargeForLinux { length: bytes } => {
                Err(CallFailed::RequestTooLarge { length: length(bytes) })
            }
            CallError::PathEnded | CallError::SocketClosed => Err(CallFailed::MayHaveExecuted),
            // The process tries again until there is room.
            _ => Ok(UnknownReason::OverBudget),
        }
    }
}

/// Takes what comes from a process.
pub(crate) struct FromProcess<'a> {
    pub(crate) relay: &'a mut Relay,
    pub(crate) key: NeighbourKey,
    /// Bytes of the longest message that the node takes.
    pub(crate) message_max: usize,
    pub(crate) counters: &'a mut MemoryCounters,
}

impl MessageReceiver for FromProcess<'_> {
    fn admits(&mut self, words: Words, length: usize) -> bool {
        let Some((kind, id)) = MessageKind::decode(words) else { return false };
        let Some(process) = self.relay.processes.get_mut(&self.key) else { return false };
        let budget = self.relay.limits.process_budget;
        let refusal = match kind {
            MessageKind::Request { .. } if length > self.message_max => UnknownReason::TooLarge,
            MessageKind::Request { .. } if process.held + length as u64 > budget => {
                process.counters.over_budget += 1;
                UnknownReason::OverBudget
            }
            MessageKind::Request { .. } => return true,
            MessageKind::Response => return length <= self.message_max,
            _ => return false,
        };
        process.addresses.remove(&id);
        self.relay.send(self.key, MessageKind::Refused(refusal).encode(id), Bytes::new());
        false
    }

    #[inline]
    fn message(&mut self, words: Words, body: Bytes) {
        self.counters.messages_received += 1;
        self.counters.bytes_received += body.len() as u64;
        self.relay.arrived.push_back((self.key, words, body));
    }
}

/// Budgets of a process that its pair may keep for it.
const LOAD_BUDGETS: u64 = 4;

/// Addresses that a process may tell in advance.
const ADDRESSES_MAX: usize = 65_536;

/// How long a request waits that a process has no room for.
const AGAIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_named_are_for_those_that_are_named() {
        let ports = vec![(1..=99, vec![0]), (50..=59, vec![7]), (200..=200, vec![])];
        let limits = Limits { ports, process_budget: 0, processes_max: 0 };
        let allowed = [(0, 1), (0, 50), (7, 50), (7, 100), (0, 100)];
        assert!(allowed.into_iter().all(|(uid, port)| limits.allow(uid, port)));
        let forbidden = [(7, 1), (8, 50), (0, 200), (7, 99)];
        assert!(forbidden.into_iter().all(|(uid, port)| !limits.allow(uid, port)));
    }
}
