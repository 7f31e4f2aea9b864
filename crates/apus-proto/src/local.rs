//! The tables of calls within a host: whole messages, between processes that share memory.
//!
//! Such a path loses, repeats and reorders nothing, so a call needs no packets, grants, retransmission or acknowledgements. Its ids,
//! deadlines, budgets and events are those of other calls. [`crate::endpoint`] has what happens to a call.

use std::collections::VecDeque;
use std::time::Duration;

use apus_wire::{PathId, TraceContext, UnknownReason};
use bytes::Bytes;

use crate::lookup::{Lookup, Named};
use crate::slab::{Handle, RpcKey, Slab, SocketKey};
use crate::time::Time;
use crate::timer::Wheel;
use crate::usage::{Account, Charge, Usage};

/// Two words that go with a message within a host: what it is about, and whose it is.
pub type Words = [u64; 2];

/// Takes the messages that an endpoint sends within the host.
pub trait MessageSink {
    /// A message to the peer at `path`.
    fn send(&mut self, path: PathId, words: Words, body: &Bytes);

    /// Takes back a message for which `is_it` is true, if the peer has got nothing of it. False if there is none.
    fn withdraw(&mut self, path: PathId, is_it: &dyn Fn(Words) -> bool) -> bool {
        let _ = (path, is_it);
        false
    }

    /// Sends a message without a body, after the one for which `is_it` is true if the peer has a part of that only.
    fn send_after(&mut self, path: PathId, words: Words, is_it: &dyn Fn(Words) -> bool) {
        let _ = is_it;
        self.send(path, words, &Bytes::new());
    }
}

/// Set in the index of a call within the host, which no other RPC has.
const LOCAL: u32 = 1 << 31;

pub(crate) fn is_local(key: RpcKey) -> bool {
    key.index() & LOCAL != 0
}

/// A handle as the application knows it.
fn outer(key: RpcKey) -> RpcKey {
    RpcKey::new(key.index() | LOCAL, key.generation())
}

/// A handle of [`LocalCalls`].
fn inner(key: RpcKey) -> RpcKey {
    RpcKey::new(key.index() & !LOCAL, key.generation())
}

/// What a message within the host is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// The body is a request.
    Request {
        /// The client's port.
        from: u16,
        /// The server's port.
        to: u16,
        /// Time until the client's deadline, never too long.
        remaining: Option<Duration>,
    },
    /// The body is the response.
    Response,
    /// The body says how the call failed ([`CallFailed::encode`](crate::CallFailed::encode)): from an engine that made the call for
    /// another process.
    Failed,
    /// The request is not in service, for this reason.
    Refused(UnknownReason),
    /// The client has given the call up.
    Abort,
    /// The client asks for a sign of the peer,
    Probe,
    /// which is this.
    Alive,
    /// The body is the trace context of the request with the same id, which comes after it.
    Trace,
}

impl MessageKind {
    /// The words of a message about the call that its client knows by `id`.
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
            Self::Trace => (13, 0), // 8 to 12 are what the library tells a shared engine.
        };
        [kind | rest, id]
    }

    /// What the words of a message say, and the id of the call. `None` for words that are none of these.
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

/// Bits of a time's mantissa; five bits of exponent lie above.
const MANTISSA: u32 = 19;

/// Microseconds as a number of 24 bits, at most a 250,000th too short and never too long; 0 is no time.
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
    /// Of the call, as its client knows it.
    pub(crate) id: u64,
    pub(crate) socket: SocketKey,
    pub(crate) started: Time,
    pub(crate) expires: Option<Time>,
    pub(crate) charge: Charge,
    pub(crate) side: Side,
}

#[derive(Debug)]
pub(crate) enum Side {
    Client(Client),
    /// `cancelled`: the client does not wait any more.
    Server {
        cancelled: bool,
    },
}

/// What a client keeps of a call.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) cookie: u64,
    /// The local and the remote one.
    pub(crate) ports: (u16, u16),
    /// The request, in case that the server has no room for it yet.
    pub(crate) body: Bytes,
    pub(crate) trace: Option<Box<TraceContext>>,
    pub(crate) refusals: u8,
    /// The request was refused and is to be sent again.
    pub(crate) waits: bool,
}

impl LocalCall {
    pub(crate) fn account(&self) -> Account {
        match self.side {
            Side::Client(_) => Account::Own,
            Side::Server { .. } => Account::Theirs,
        }
    }

    pub(crate) fn client_mut(&mut self) -> Option<&mut Client> {
        match &mut self.side {
            Side::Client(client) => Some(client),
            Side::Server { .. } => None,
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
    /// Calls to it that have not ended.
    pub(crate) calls: u32,
    pub(crate) last_rx: Time,
    /// Probes since then.
    pub(crate) probes: u32,
    /// Bytes that the path keeps for it.
    pub(crate) load: u64,
    /// Trace contexts of its requests that have not come yet, by their ids, the oldest first.
    traces: VecDeque<(u64, Box<TraceContext>)>,
}

impl LocalPeer {
    /// A request with this id will come, and belongs to this trace.
    pub(crate) fn put_trace(&mut self, id: u64, trace: TraceContext) {
        //= docs/protocol.md#local-9
        if self.traces.len() >= TRACES_MAX {
            self.traces.pop_front();
        }
        self.traces.push_back((id, Box::new(trace)));
    }

    /// The trace of the request with this id, which has come or will not come any more.
    #[inline]
    pub(crate) fn take_trace(&mut self, id: u64) -> Option<Box<TraceContext>> {
        if self.traces.is_empty() { None } else { self.find_trace(id) }
    }

    #[cold]
    fn find_trace(&mut self, id: u64) -> Option<Box<TraceContext>> {
        // It mostly came just before its request.
        let index = self.traces.iter().rposition(|(of, _)| *of == id)?;
        self.traces.remove(index).map(|(_, trace)| trace)
    }
}

/// Trace contexts kept for a peer whose requests have not come. Of more, those that came first are forgotten.
const TRACES_MAX: usize = 1_024;

/// A message that waits for [`Endpoint::poll_messages`](crate::Endpoint::poll_messages).
#[derive(Debug)]
pub(crate) enum Waiting {
    /// The request of a call.
    Request(RpcKey),
    Response(PathId, u64, Bytes),
    Control(PathId, MessageKind, u64),
}

/// All calls within the host, of both sides.
#[derive(Debug)]
pub(crate) struct LocalCalls {
    calls: Slab<RpcKey, LocalCall>,
    /// Requests in service, by what their clients call them.
    requests: Lookup<RpcKey, (usize, u64)>,
    /// By [`PathId::index`].
    peers: Vec<Option<LocalPeer>>,
    /// Bytes that all paths keep for their peers.
    pub(crate) load: u64,
    /// Peers for which they keep any.
    loaded: u64,
    pub(crate) waiting: VecDeque<Waiting>,
    pub(crate) wheel: Wheel,
    pub(crate) expired: Vec<RpcKey>,
    /// When to look which peers are silent, while there are calls.
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
            waiting: VecDeque::new(),
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
        let peer = LocalPeer { path, usage, calls: 0, last_rx: now, probes: 0, load: 0, traces };
        self.peers[path.index()] = Some(peer);
    }

    pub(crate) fn remove(&mut self, path: PathId) {
        self.set_load(path, 0);
        if self.peer(path).is_some() {
            self.peers[path.index()] = None;
        }
    }

    /// The path keeps so many bytes for a peer.
    pub(crate) fn set_load(&mut self, path: PathId, load: u64) {
        if let Some(peer) = self.peer_mut(path) {
            let before = std::mem::replace(&mut peer.load, load);
            self.load = self.load - before + load;
            self.loaded = self.loaded + u64::from(load > 0) - u64::from(before > 0);
        }
    }

    /// Peers for which something is kept.
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

    /// The peer of a call.
    #[inline]
    pub(crate) fn peer_at(&mut self, index: usize) -> Option<&mut LocalPeer> {
        self.peers.get_mut(index)?.as_mut()
    }

    pub(crate) fn path_at(&self, index: usize) -> Option<PathId> {
        Some(self.peers.get(index)?.as_ref()?.path)
    }

    /// Whether calls of this node are under way.
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

    /// A call and its peer.
    #[inline]
    pub(crate) fn with_peer(&mut self, key: RpcKey) -> Option<(&mut LocalCall, &mut LocalPeer)> {
        let call = self.calls.get_mut(inner(key))?;
        let peer = self.peers.get_mut(call.peer)?.as_mut()?;
        Some((call, peer))
    }

    /// A request of a peer that is in service.
    pub(crate) fn find_request(&self, path: PathId, id: u64) -> Option<RpcKey> {
        self.requests.find(&self.calls, &(path.index(), id)).map(outer)
    }

    /// Adds the call of this node that `make` makes, given its id.
    #[inline]
    pub(crate) fn insert_call(&mut self, make: impl FnOnce(u64) -> LocalCall) -> RpcKey {
        outer(self.calls.insert_with(|key| make(outer(key).to_bits())))
    }

    /// Adds a request, unless one with its name is there.
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
        if matches!(call.side, Side::Server { .. }) {
            self.requests.remove(key, call.name());
        }
        Some(call)
    }

    /// The calls for which `wanted` is true.
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
    fn times_are_never_told_too_long_and_hardly_too_short() {
        for time in (0..50).map(|power| Duration::from_micros((1 << power) + 12_345)) {
            let told = decode_time(encode_time(time)).unwrap();
            assert!(
                told <= time && time - told <= time / 250_000 + Duration::from_micros(1),
                "{time:?} {told:?}"
            );
        }
        assert_eq!(decode_time(encode_time(Duration::ZERO)), Some(Duration::from_micros(1)));
        assert!(
            decode_time(encode_time(Duration::MAX)).unwrap() > Duration::from_secs(1_000_000_000)
        );
    }
}
