//! The tables of calls within a host: whole messages between processes that share memory.
//!
//! Such a path neither loses, repeats nor reorders anything, so a call needs no packets, grants, retransmissions or
//! acknowledgements. Its ids, deadlines, budgets and events are the same as those of other calls. [`crate::endpoint`] holds the
//! life cycle of a call.

use std::collections::VecDeque;
use std::time::Duration;

use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

use crate::lookup::{Lookup, Named};
use crate::slab::{Handle, RpcKey, Slab, SocketKey};
use crate::time::Time;
use crate::timer::Wheel;
use crate::usage::{Account, Charge, Usage};

/// Two words that accompany a message within a host: its kind with parameters, and the id of its call.
pub type Words = [u64; 2];

/// Destination of an endpoint's messages within the host.
pub trait MessageSink {
    /// Takes a message to the peer at `path`.
    fn send(&mut self, path: PathId, words: Words, body: &Bytes);

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
        self.send(path, words, &Bytes::new());
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
    pub(crate) role: CallRole,
}

#[derive(Debug)]
pub(crate) enum CallRole {
    Client(ClientCall),
    /// `cancelled`: the client no longer waits.
    Server {
        cancelled: bool,
    },
}

/// The client's state of a call.
#[derive(Debug)]
pub(crate) struct ClientCall {
    pub(crate) cookie: u64,
    /// The local and the remote port.
    pub(crate) ports: (u16, u16),
    /// The request, kept in case that the server has no room for it yet.
    pub(crate) body: Bytes,
    pub(crate) trace: Option<Box<TraceContext>>,
    pub(crate) refusals: u8,
    /// Whether the request was refused and must be sent again.
    pub(crate) waits: bool,
}

impl LocalCall {
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
    pub(crate) usage: Usage,
    /// Calls to this process that have not ended.
    pub(crate) calls: u32,
    pub(crate) last_rx: Time,
    /// Number of probes since `last_rx`.
    pub(crate) probes: u32,
    /// Bytes of messages that the path holds for this peer.
    load: u64,
    /// Bytes of memory that the path has created for messages to this peer, as far as they are charged.
    memory: u64,
    /// Sum of `load` and `memory`.
    pub(crate) held: u64,
    /// Trace contexts of requests that have not arrived yet, by their ids, oldest first.
    traces: VecDeque<(u64, Box<TraceContext>)>,
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

/// Upper bound on the trace contexts kept for a peer's future requests. Beyond it, the oldest are dropped.
const TRACES_MAX: usize = 1_024;

/// A message that waits for [`Endpoint::poll_messages`](crate::Endpoint::poll_messages).
#[derive(Debug)]
pub(crate) enum OutboundMessage {
    /// The request of a call.
    Request(RpcKey),
    Response(PathId, u64, Bytes),
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
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn add(&mut self, now: Time, path: PathId) {
        if self.peers.len() <= path.index() {
            self.peers.resize_with(path.index() + 1, || None);
        }
        let usage = Usage::default();
        let traces = VecDeque::new();
        let (load, memory, held) = (0, 0, 0);
        let (calls, last_rx, probes) = (0, now, 0);
        let peer = LocalPeer { path, usage, calls, last_rx, probes, load, memory, held, traces };
        self.peers[path.index()] = Some(peer);
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
        self.requests.find(&self.calls, &(path.index(), id)).map(outer)
    }

    /// Adds a call of this node, which `make` creates from the new id.
    #[inline]
    pub(crate) fn insert_call(&mut self, make: impl FnOnce(u64) -> LocalCall) -> RpcKey {
        outer(self.calls.insert_with(|key| make(outer(key).to_bits())))
    }

    /// Adds a request, unless one with its name exists.
    #[inline]
    pub(crate) fn insert_request(&mut self, call: LocalCall) -> Option<RpcKey> {
        let key = self.calls.insert(call);
        if self.requests.try_insert(&self.calls, key) {
            return Some(outer(key));
        }
        self.calls.remove(key);
        None
    }

    #[inline]
    pub(crate) fn take(&mut self, key: RpcKey) -> Option<LocalCall> {
        let key = inner(key);
        let call = self.calls.take(key)?;
        if matches!(call.role, CallRole::Server { .. }) {
            self.requests.remove(key, call.name());
        }
        Some(call)
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
