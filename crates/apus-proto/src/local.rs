//! The tables of calls within a host: whole messages between processes that share memory.
//!
//! Such a path neither loses, repeats nor reorders anything, so a call needs no packets, grants, retransmissions or
//! acknowledgements. Its ids, deadlines, budgets and events are the same as those of other calls. [`crate::endpoint`] holds the
//! life cycle of a call.

use std::collections::VecDeque;
use std::time::Duration;

use apus_wire::{PathId, TraceContext, UnknownReason};

use crate::body::Body;
use crate::cookie::Cookie;
use crate::lookup::{Lookup, Named};
use crate::rights::Rights;
use crate::slab::{Handle, RpcKey, Slab, SocketKey};
use crate::time::Time;
use crate::timer::Wheel;
use crate::usage::{Account, Charge, Usage};

/// Two words that accompany a message within a host: its kind with parameters, and the id of its call.
pub type Words = [u64; 2];

/// Destination of an endpoint's messages within the host.
pub trait MessageSink {
    /// Takes a message to the peer at `path`.
    fn send(&mut self, path: PathId, words: Words, body: &Body);

    /// Withdraws a message for which `is_it` is true, unless the peer has received some of it. Returns `false` if there is no such
    /// message.
    fn withdraw(&mut self, path: PathId, is_it: &dyn Fn(Words) -> bool) -> bool {
        let _ = (path, is_it);
        false
    }

    /// Sends a message without a body. If the peer has received only a part of the message for which `is_it` is true, the new one
    /// follows that message.
    fn send_after(&mut self, path: PathId, words: Words, is_it: &dyn Fn(Words) -> bool) {
        let _ = is_it;
        self.send(path, words, &Body::default());
    }
}

/// Flag in the index of a call within the host; other RPCs never have it.
const LOCAL: u32 = 1 << 31;

pub(crate) fn is_local(key: RpcKey) -> bool {
    key.index() & LOCAL != 0
}

/// Converts a handle of [`LocalCalls`] to the application's.
fn outer(key: RpcKey) -> RpcKey {
    RpcKey::new(key.index() | LOCAL, key.generation())
}

/// Converts the application's handle to a handle of [`LocalCalls`].
fn inner(key: RpcKey) -> RpcKey {
    RpcKey::new(key.index() & !LOCAL, key.generation())
}

/// The kind of a message within the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// The body is a request.
    Request {
        /// The client's port.
        from: u16,
        /// The server's port.
        to: u16,
        /// Time until the client's deadline, rounded down.
        remaining: Option<Duration>,
    },
    /// The body is the response.
    Response,
    /// The body is the error of the call ([`CallFailed::encode`](crate::CallFailed::encode)), from an engine that made the call for
    /// another process.
    Failed,
    /// The request is not in service, for this reason.
    Refused(UnknownReason),
    /// The client gives the call up.
    Abort,
    /// The client probes the peer.
    Probe,
    /// The answer to a probe.
    Alive,
    /// The body is the trace context of the request with the same id, which follows.
    Trace,
}

impl MessageKind {
    /// Encodes a message about the call that its client knows by `id`.
    #[must_use]
    pub fn encode(self, id: u64) -> Words {
        let (kind, rest) = match self {
            Self::Request { from, to, remaining } => {
                let time = remaining.map_or(0, encode_time);
                (1, u64::from(to) << 8 | u64::from(from) << 24 | time << 40)
            }
            Self::Response => (2, 0),
            Self::Refused(reason) => (3, (reason as u64) << 4),
            Self::Abort => (4, 0),
            Self::Probe => (5, 0),
            Self::Alive => (6, 0),
            Self::Failed => (7, 0),
            Self::Trace => (13, 0), // 8 to 12 are messages of the library to a shared engine.
        };
        [kind | rest, id]
    }

    /// Returns whether the effect of a message depends on the time of its arrival: it is a request with a deadline, or the end of a
    /// call.
    #[inline]
    #[must_use]
    pub fn depends_on_time([word, _]: Words) -> bool {
        match word & 0xf {
            1 => word >> 40 != 0,
            kind => kind == 3,
        }
    }

    /// Decodes the kind of a message and the id of its call. Returns `None` for other words.
    #[must_use]
    pub fn decode([word, id]: Words) -> Option<(Self, u64)> {
        let kind = match word & 0xf {
            1 => Self::Request {
                to: (word >> 8) as u16,
                from: (word >> 24) as u16,
                remaining: decode_time(word >> 40),
            },
            2 => Self::Response,
            3 => Self::Refused(UnknownReason::from_byte((word >> 4) as u8 & 0xf)),
            4 => Self::Abort,
            5 => Self::Probe,
            6 => Self::Alive,
            7 => Self::Failed,
            13 => Self::Trace,
            _ => return None,
        };
        Some((kind, id))
    }
}

/// Number of bits of a time's mantissa. Five bits of exponent lie above it.
const MANTISSA: u32 = 19;

/// Encodes microseconds in 24 bits, rounded down by at most a 250,000th. 0 stands for no time.
fn encode_time(time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
    let exponent =
        u64::BITS.saturating_sub(micros.leading_zeros()).saturating_sub(MANTISSA).min(31);
    (micros >> exponent).min((1 << MANTISSA) - 1) | u64::from(exponent) << MANTISSA
}

fn decode_time(bits: u64) -> Option<Duration> {
    let micros = (bits & ((1 << MANTISSA) - 1)) << (bits >> MANTISSA & 31);
    (micros > 0).then(|| Duration::from_micros(micros))
}

/// A call of this node, or a request that it serves.
#[derive(Debug)]
pub(crate) struct LocalCall {
    /// Index of the peer's path.
    pub(crate) peer: usize,
    /// Id of the call at its client.
    pub(crate) id: u64,
    pub(crate) socket: SocketKey,
    pub(crate) started: Time,
    pub(crate) expires: Option<Time>,
    pub(crate) charge: Charge,
    /// Whether a request in service is found by its hash, because its [place](LocalPeer::places) is taken or beyond the last one.
    is_hashed: bool,
    pub(crate) role: CallRole,
}

#[derive(Debug)]
pub(crate) enum CallRole {
    Client(ClientCall),
    /// `cancelled`: the client no longer waits. `watched`: the application wants an event when that happens.
    Server {
        cancelled: bool,
        watched: bool,
    },
}

/// The client's state of a call.
#[derive(Debug)]
pub(crate) struct ClientCall {
    pub(crate) cookie: Cookie,
    /// The local and the remote port.
    pub(crate) ports: (u16, u16),
    /// The request, kept in case that the server has no room for it yet.
    pub(crate) body: Body,
    pub(crate) trace: Option<Box<TraceContext>>,
    pub(crate) refusals: u8,
    /// Whether the request was refused and must be sent again.
    pub(crate) waits: bool,
}

impl LocalCall {
    /// A call with the peer of this index, which its client knows by `id`.
    #[inline]
    pub(crate) fn new(
        (peer, id): (usize, u64),
        socket: SocketKey,
        (started, expires): (Time, Option<Time>),
        charge: Charge,
        role: CallRole,
    ) -> Self {
        Self { peer, id, socket, started, expires, charge, is_hashed: false, role }
    }

    pub(crate) fn account(&self) -> Account {
        match self.role {
            CallRole::Client(_) => Account::Own,
            CallRole::Server { .. } => Account::Theirs,
        }
    }

    pub(crate) fn client_mut(&mut self) -> Option<&mut ClientCall> {
        match &mut self.role {
            CallRole::Client(client) => Some(client),
            CallRole::Server { .. } => None,
        }
    }
}

impl Named<(usize, u64)> for LocalCall {
    fn name(&self) -> (usize, u64) {
        (self.peer, self.id)
    }
}

/// A process of this host.
#[derive(Debug)]
pub(crate) struct LocalPeer {
    pub(crate) path: PathId,
    /// Copy of the rights of its path.
    pub(crate) rights: Rights,
    pub(crate) usage: Usage,
    /// Calls to this process that have not ended.
    pub(crate) calls: u32,
    pub(crate) last_rx: Time,
    /// Number of probes since `last_rx`.
    pub(crate) probes: u32,
    /// Whether the driver is to say if its process runs.
    pub(crate) doubted: bool,
    /// Bytes of messages that the path holds for this peer.
    load: u64,
    /// Bytes of memory that the path has created for messages to this peer, as far as they are charged.
    memory: u64,
    /// Sum of `load` and `memory`.
    pub(crate) held: u64,
    /// Trace contexts of requests that have not arrived yet, by their ids, oldest first.
    traces: VecDeque<(u64, Box<TraceContext>)>,
    /// Requests in service: for each slot of the client's table the slot in this node's table and 1, or 0.
    places: Vec<u32>,
}

impl LocalPeer {
    /// Keeps the trace context of a request that will arrive with this id.
    pub(crate) fn put_trace(&mut self, id: u64, trace: TraceContext) {
        //= docs/protocol.md#local-9
        if self.traces.len() >= TRACES_MAX {
            self.traces.pop_front();
        }
        self.traces.push_back((id, Box::new(trace)));
    }

    /// Removes and returns the trace context of the request with this id, which has arrived or never will.
    #[inline]
    pub(crate) fn take_trace(&mut self, id: u64) -> Option<Box<TraceContext>> {
        if self.traces.is_empty() { None } else { self.find_trace(id) }
    }

    #[cold]
    fn find_trace(&mut self, id: u64) -> Option<Box<TraceContext>> {
        // The context mostly arrived just before its request.
        let index = self.traces.iter().rposition(|(request, _)| *request == id)?;
        self.traces.remove(index).map(|(_, trace)| trace)
    }
}

/// Upper bound on the places of a peer, which take 16 KiB. Requests in higher slots of their client's table are found by a hash.
const PLACES_MAX: usize = 4_096;

/// Returns the slot of a call in its client's table.
#[inline]
fn place_of(id: u64) -> usize {
    (RpcKey::from_bits(id).index() & !LOCAL) as usize
}

/// Upper bound on the trace contexts kept for a peer's future requests. Beyond it, the oldest are dropped.
const TRACES_MAX: usize = 1_024;

/// A call that has ended with its response.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) socket: SocketKey,
    pub(crate) started: Time,
    pub(crate) charge: Charge,
    pub(crate) cookie: Cookie,
    pub(crate) request: Body,
}

/// A message that waits for [`Endpoint::poll_messages`](crate::Endpoint::poll_messages).
#[derive(Debug)]
pub(crate) enum OutboundMessage {
    /// The request of a call.
    Request(RpcKey),
    Response(PathId, u64, Body),
    Control(PathId, MessageKind, u64),
}

/// All calls within the host, of both sides.
#[derive(Debug)]
pub(crate) struct LocalCalls {
    calls: Slab<RpcKey, LocalCall>,
    /// Requests in service, by path index and the client's id.
    requests: Lookup<RpcKey, (usize, u64)>,
    /// Peers by [`PathId::index`].
    peers: Vec<Option<LocalPeer>>,
    /// Bytes that all paths hold for their peers.
    pub(crate) load: u64,
    /// Number of peers for which paths hold any.
    loaded: u64,
    pub(crate) outbound: VecDeque<OutboundMessage>,
    pub(crate) wheel: Wheel,
    pub(crate) expired: Vec<RpcKey>,
    /// Time of the next check for silent peers, while there are calls.
    pub(crate) next_check: Option<Time>,
    /// Paths to doubted peers, for the driver.
    pub(crate) doubted: Vec<PathId>,
}

impl LocalCalls {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            calls: Slab::new(),
            requests: Lookup::new(seed),
            peers: Vec::new(),
            load: 0,
            loaded: 0,
            outbound: VecDeque::new(),
            wheel: Wheel::new(),
            expired: Vec::new(),
            next_check: None,
            doubted: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn add(&mut self, now: Time, path: PathId, rights: Rights) {
        if self.peers.len() <= path.index() {
            self.peers.resize_with(path.index() + 1, || None);
        }
        let usage = Usage::default();
        let (traces, places) = (VecDeque::new(), Vec::new());
        let (load, memory, held) = (0, 0, 0);
        let (calls, last_rx, probes) = (0, now, 0);
        self.peers[path.index()] = Some(LocalPeer {
            path,
            rights,
            usage,
            calls,
            last_rx,
            probes,
            doubted: false,
            load,
            memory,
            held,
            traces,
            places,
        });
    }

    pub(crate) fn remove(&mut self, path: PathId) {
        self.set_load(path, 0);
        if self.peer(path).is_some() {
            self.peers[path.index()] = None;
        }
    }

    /// Sets the number of bytes of memory that the path has created for a peer.
    pub(crate) fn set_memory(&mut self, path: PathId, memory: u64) {
        if let Some(peer) = self.peer_mut(path) {
            peer.memory = memory;
            peer.held = peer.load + memory;
        }
    }

    /// Sets the number of bytes of messages that the path holds for a peer.
    pub(crate) fn set_load(&mut self, path: PathId, load: u64) {
        if let Some(peer) = self.peer_mut(path) {
            let before = std::mem::replace(&mut peer.load, load);
            peer.held = peer.memory + load;
            self.load = self.load - before + load;
            self.loaded = self.loaded + u64::from(load > 0) - u64::from(before > 0);
        }
    }

    /// Returns the number of peers for which paths hold bytes.
    pub(crate) fn loaded(&self) -> u64 {
        self.loaded
    }

    #[inline]
    pub(crate) fn peer(&self, path: PathId) -> Option<&LocalPeer> {
        self.peers.get(path.index())?.as_ref().filter(|peer| peer.path == path)
    }

    #[inline]
    pub(crate) fn peer_mut(&mut self, path: PathId) -> Option<&mut LocalPeer> {
        self.peers.get_mut(path.index())?.as_mut().filter(|peer| peer.path == path)
    }

    /// Returns the peer with this index.
    #[inline]
    pub(crate) fn peer_at(&mut self, index: usize) -> Option<&mut LocalPeer> {
        self.peers.get_mut(index)?.as_mut()
    }

    pub(crate) fn path_at(&self, index: usize) -> Option<PathId> {
        Some(self.peers.get(index)?.as_ref()?.path)
    }

    /// Returns whether calls of this node are in progress.
    pub(crate) fn has_calls(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.calls > 0)
    }

    pub(crate) fn peers(&mut self) -> impl Iterator<Item = &mut LocalPeer> {
        self.peers.iter_mut().flatten()
    }

    #[inline]
    pub(crate) fn get(&self, key: RpcKey) -> Option<&LocalCall> {
        self.calls.get(inner(key))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: RpcKey) -> Option<&mut LocalCall> {
        self.calls.get_mut(inner(key))
    }

    /// Returns a call and its peer.
    #[inline]
    pub(crate) fn with_peer(&mut self, key: RpcKey) -> Option<(&mut LocalCall, &mut LocalPeer)> {
        let call = self.calls.get_mut(inner(key))?;
        let peer = self.peers.get_mut(call.peer)?.as_mut()?;
        Some((call, peer))
    }

    /// Returns a request of a peer that is in service.
    pub(crate) fn find_request(&self, path: PathId, id: u64) -> Option<RpcKey> {
        let place = self.peer(path)?.places.get(place_of(id)).copied().unwrap_or(0);
        let placed = place.checked_sub(1).and_then(|slot| self.calls.at(slot as usize));
        match placed.filter(|(_, call)| call.id == id) {
            Some((key, _)) => Some(outer(key)),
            None => self.requests.find(&self.calls, &(path.index(), id)).map(outer),
        }
    }

    /// Adds a call of this node, which `make` creates from the new id.
    #[inline]
    pub(crate) fn insert_call(&mut self, make: impl FnOnce(u64) -> LocalCall) -> RpcKey {
        outer(self.calls.insert_with(|key| make(outer(key).to_bits())))
    }

    /// Adds a request, unless one with its name exists.
    #[inline]
    pub(crate) fn insert_request(&mut self, call: LocalCall) -> Option<RpcKey> {
        let index = place_of(call.id);
        let places = &mut self.peers.get_mut(call.peer)?.as_mut()?.places;
        if index >= places.len() && index < PLACES_MAX {
            places.resize((index + 1).next_power_of_two(), 0);
        }
        match places.get_mut(index) {
            Some(place) if *place == 0 && self.requests.is_empty() => {
                let key = self.calls.insert(call);
                *place = key.index().wrapping_add(1); // Fewer than 2^31 calls fit into memory.
                Some(outer(key))
            }
            _ => self.insert_hashed(call),
        }
    }

    /// Adds a request whose place is taken or beyond the last one, or while there are such requests.
    #[cold]
    fn insert_hashed(&mut self, call: LocalCall) -> Option<RpcKey> {
        let path = self.path_at(call.peer)?;
        if self.find_request(path, call.id).is_some() {
            return None;
        }
        let key = self.calls.insert(LocalCall { is_hashed: true, ..call });
        self.requests.insert(&self.calls, key);
        Some(outer(key))
    }

    /// Forgets the name of a request that is no longer in service.
    #[inline]
    fn forget_request(&mut self, key: RpcKey, (peer, id): (usize, u64), is_hashed: bool) {
        if is_hashed {
            self.requests.remove(key, (peer, id));
        } else if let Some(peer) = self.peer_at(peer)
            && let Some(place) = peer.places.get_mut(place_of(id))
        {
            *place = 0;
        }
    }

    #[inline]
    pub(crate) fn take(&mut self, key: RpcKey) -> Option<LocalCall> {
        let key = inner(key);
        let call = self.calls.take(key)?;
        if matches!(call.role, CallRole::Server { .. }) {
            self.forget_request(key, call.name(), call.is_hashed);
        }
        Some(call)
    }

    /// Ends a request of this peer to this socket that its client waits for. Returns its id and its charge.
    #[inline]
    pub(crate) fn end_request(
        &mut self,
        key: RpcKey,
        peer: usize,
        socket: SocketKey,
    ) -> Option<(u64, Charge)> {
        let key = inner(key);
        let call = self.calls.get(key)?;
        if call.peer != peer
            || call.socket != socket
            || !matches!(call.role, CallRole::Server { cancelled: false, .. })
        {
            return None;
        }
        let (id, charge, is_hashed) = (call.id, call.charge, call.is_hashed);
        self.forget_request(key, (peer, id), is_hashed);
        self.calls.remove(key);
        Some((id, charge))
    }

    /// Ends the call that a peer answers, if it is one, and if its charge covers the response, whose cost is given.
    #[inline]
    pub(crate) fn end_answered(&mut self, key: RpcKey, peer: usize, cost: u64) -> Option<Answered> {
        let call = self.calls.get(inner(key))?;
        let is_client = matches!(call.role, CallRole::Client(_));
        if !is_local(key) || !is_client || call.peer != peer || cost > call.charge.bytes {
            return None;
        }
        self.calls.remove_with(inner(key), |call| {
            let client = call.client_mut();
            let (cookie, request) = client
                .map_or_else(Default::default, |it| (it.cookie, std::mem::take(&mut it.body)));
            let (socket, started, charge) = (call.socket, call.started, call.charge);
            Answered { socket, started, charge, cookie, request }
        })
    }

    /// Returns the calls for which `wanted` is true.
    pub(crate) fn find(&self, wanted: impl Fn(&LocalCall) -> bool) -> Vec<RpcKey> {
        let calls = (0..self.calls.slots()).filter_map(|slot| self.calls.at(slot));
        calls.filter(|(_, call)| wanted(call)).map(|(key, _)| outer(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request is one of a name, however its client numbers its calls.
    #[test]
    fn requests_are_found_by_their_place_or_their_hash() {
        let mut calls = LocalCalls::new(1);
        let path = PathId::new(0, 0).local();
        calls.add(Time::ZERO, path, Rights::ALL);
        let request = |id| {
            let role = CallRole::Server { cancelled: false, watched: false };
            let (socket, charge) = (SocketKey::new(0, 0), Charge::default());
            LocalCall::new((0, id), socket, (Time::ZERO, None), charge, role)
        };
        let of = |slot: u64, generation: u64| generation << 32 | u64::from(LOCAL) | slot;
        let far = PLACES_MAX as u64;
        // The second has the place of the first, and the last two are beyond all places.
        let ids = [of(5, 0), of(5, 1), of(6, 0), of(far, 0), of(u64::from(LOCAL) - 1, 9)];
        let keys = ids.map(|id| calls.insert_request(request(id)).unwrap());
        for (id, key) in ids.into_iter().zip(keys) {
            assert_eq!(calls.find_request(path, id), Some(key));
            assert!(calls.insert_request(request(id)).is_none(), "{id} is in service");
        }
        let first = calls.take(keys[0]).map(|call| call.id);
        assert_eq!((first, calls.find_request(path, ids[0])), (Some(ids[0]), None));
        assert!(
            calls.insert_request(request(ids[1])).is_none(),
            "its place is free, and it is not"
        );
        let socket = SocketKey::new(0, 0);
        for (id, key) in ids.into_iter().zip(keys).skip(1) {
            assert!(calls.end_request(key, 0, SocketKey::new(1, 0)).is_none());
            assert_eq!(calls.end_request(key, 0, socket).map(|(id, _)| id), Some(id));
            assert_eq!(calls.find_request(path, id), None);
        }
        assert!(calls.len() == 0 && calls.requests.is_empty());
    }

    #[test]
    fn words_say_what_a_message_is_about() {
        let micros = Duration::from_micros;
        for remaining in [None, Some(micros(1)), Some(micros(300_000))] {
            let kind = MessageKind::Request { from: 40_000, to: 7, remaining };
            assert_eq!(MessageKind::decode(kind.encode(9)), Some((kind, 9)));
        }
        for kind in [
            MessageKind::Response,
            MessageKind::Refused(UnknownReason::HandlerPanicked),
            MessageKind::Abort,
            MessageKind::Probe,
            MessageKind::Alive,
            MessageKind::Failed,
            MessageKind::Trace,
        ] {
            assert_eq!(MessageKind::decode(kind.encode(u64::MAX)), Some((kind, u64::MAX)));
        }
        assert_eq!(MessageKind::decode([0, 0]), None);
    }

    #[test]
    fn times_are_never_encoded_too_long_and_hardly_too_short() {
        for time in (0..50).map(|power| Duration::from_micros((1 << power) + 12_345)) {
            let decoded = decode_time(encode_time(time)).unwrap();
            assert!(
                decoded <= time && time - decoded <= time / 250_000 + Duration::from_micros(1),
                "{time:?} {decoded:?}"
            );
        }
        assert_eq!(decode_time(encode_time(Duration::ZERO)), Some(Duration::from_micros(1)));
        assert!(
            decode_time(encode_time(Duration::MAX)).unwrap() > Duration::from_secs(1_000_000_000)
        );
    }
}
