//! A process with which memory is shared.

use std::collections::HashSet;
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use apus_proto::slab::Handle;
use apus_proto::{Arrivals, Endpoint, MessageKind, Time, Words};
use apus_shm::{MessageReceiver, Pair};
use apus_wire::PathId;
use bytes::Bytes;

use crate::host::neighbour_key::NeighbourKey;
use crate::mail::Mail;
use crate::observe::stats::MemoryCounters;
use crate::shared_engine::forwarder::Forwarder;
use crate::sync::clock;

/// A process with which memory is shared.
#[derive(Debug)]
pub(crate) struct Paired {
    pub(crate) pair: Pair,
    pub(crate) role: Role,
    /// Time of the last message in either direction.
    pub(crate) used: Time,
    pub(crate) active: bool,
    /// Whether the pair is in the list of pairs with messages to send.
    pub(crate) sends: bool,
    /// Position at which the neighbour has stopped reading, and the time since then.
    pub(crate) stopped: Option<(u64, Time)>,
    /// Bytes kept for the neighbour, as last reported to the endpoint.
    pub(crate) load: u64,
}

/// The role of the process at the other end of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// The node at this address. The path to it by UDP is held.
    Node { address: SocketAddr, udp: PathId },
    /// A process that uses the engine of this one.
    Process,
    /// The engine that this process uses.
    Engine,
}

impl Paired {
    /// The path to the same node over UDP.
    pub(crate) fn udp(&self) -> Option<PathId> {
        match self.role {
            Role::Node { udp, .. } => Some(udp),
            Role::Process | Role::Engine => None,
        }
    }

    /// Returns a function that returns `true` for the id of a request that has not reached the neighbour as a whole.
    pub(crate) fn unsent_requests(&self) -> impl Fn(u64) -> bool + use<> {
        let request = |words| match MessageKind::decode(words)? {
            (MessageKind::Request { .. }, id) => Some(id),
            _ => None,
        };
        let ids: HashSet<u64> = self.pair.unsent().filter_map(request).collect();
        move |id| ids.contains(&id)
    }

    /// Returns whether the neighbour has read no message for `timeout` although messages wait for it.
    pub(crate) fn reads_nothing(&mut self, now: Time, timeout: Duration) -> bool {
        let unread = self.pair.unread_from();
        let before = self.stopped.filter(|(from, _)| Some(*from) == unread);
        self.stopped = before.or_else(|| unread.map(|from| (from, now)));
        self.stopped.is_some_and(|(_, since)| since + timeout <= now)
    }

    /// Charges the bytes kept for the neighbour to its budget. Returns false if they exceed it.
    #[inline]
    pub(crate) fn charge_load(
        &mut self,
        key: NeighbourKey,
        endpoint: &mut Endpoint,
        forwarder: Option<&mut Box<Forwarder>>,
    ) -> bool {
        let load = self.pair.load() as u64;
        if mem::replace(&mut self.load, load) == load {
            return true;
        }
        match (self.role, forwarder) {
            (Role::Node { .. }, _) => endpoint.set_local_load(path(key), load),
            (Role::Process, Some(forwarder)) => forwarder.set_load(key, load),
            _ => true, // The own budgets of this process bound its messages.
        }
    }

    /// Charges the memory created for messages to the neighbour to its budget, after the memory may have changed.
    pub(crate) fn charge_memory(&self, key: NeighbourKey, endpoint: &mut Endpoint) {
        if let Role::Node { .. } = self.role {
            endpoint.set_local_memory(path(key), self.pair.extra_memory() as u64);
        }
    }
}

/// The path to a neighbour.
pub(crate) fn path(key: NeighbourKey) -> PathId {
    PathId::new(key.index(), key.to_bits()).local()
}

/// Receives messages of a node.
pub(crate) struct FromNode<'a> {
    pub(crate) arrivals: Arrivals<'a>,
    pub(crate) path: PathId,
    pub(crate) now: Time,
    /// Bytes that the pair keeps.
    pub(crate) load: u64,
    /// Length above which a message is admitted before it arrives.
    pub(crate) short_max: usize,
    pub(crate) counters: &'a mut MemoryCounters,
    /// Takes requests and responses at once. Without it they become events of the endpoint.
    pub(crate) mail: Option<&'a mut Mail>,
    /// The node's address.
    pub(crate) address: SocketAddr,
}

impl FromNode<'_> {
    /// Charges the bytes that the pair keeps. An excess is detected after all messages are taken.
    fn keep(&mut self, load: u64) {
        self.load = load;
        let _ = self.arrivals.endpoint().set_local_load(self.path, load);
    }
}

impl MessageReceiver for FromNode<'_> {
    #[inline]
    fn admits(&mut self, words: Words, length: usize) -> bool {
        let admits = self.arrivals.endpoint().admits_message(self.path, words, length);
        if admits {
            self.keep(self.load + length as u64);
        }
        admits
    }

    #[inline]
    fn message(&mut self, words: Words, body: Bytes) {
        self.counters.messages_received += 1;
        self.counters.bytes_received += body.len() as u64;
        if body.len() > self.short_max {
            // The message itself is charged now, and no longer as a part that the pair keeps.
            self.keep(self.load.saturating_sub(body.len() as u64));
        }
        if MessageKind::depends_on_time(words) {
            self.now = clock::now();
            self.arrivals.note_time(self.now);
        }
        let Some(mail) = &mut self.mail else {
            return self.arrivals.endpoint().handle_message(self.now, self.path, words, body);
        };
        self.arrivals.take(words, body, &mut mail.inbox(self.address, self.path));
    }
}
