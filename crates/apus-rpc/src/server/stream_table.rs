//! The calls with streams of a server, by client and id.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::Duration;

use apus::{Address, Bytes};

use crate::code::Code;
use crate::envelope::{RequestHead, ResponseHead};
use crate::server::server_stream::ServerStream;
use crate::server::stream_buffers::StreamBuffers;
use crate::spawning::Spawn;
use crate::status::Status;
use crate::timer::sleep;
use crate::transport::Incoming;

/// A client's port and the id of its call.
type Key = (Address, u64);

/// Most messages of a client that have overtaken their OPEN.
//= docs/rpc-wire.md#E26
const EARLY_MAX: usize = 64;

/// Most such messages of a node, which has many clients.
//= docs/rpc-wire.md#E26
const EARLY_OF_NODE_MAX: usize = 256;

/// The time for which such a message waits for its OPEN.
//= docs/rpc-wire.md#E26
const EARLY_FOR: Duration = Duration::from_secs(10);

/// The calls with streams that go on.
pub(crate) struct StreamTable {
    state: Mutex<KnownStreams>,
    per_peer: usize,
    pub(crate) buffers: Arc<StreamBuffers>,
}

#[derive(Default)]
struct KnownStreams {
    streams: HashMap<Key, Arc<ServerStream>>,
    /// Number of streams of each node.
    peers: HashMap<SocketAddr, usize>,
    early: HashMap<Address, Vec<Early>>,
    /// Number of such messages of each node.
    early_of: HashMap<SocketAddr, usize>,
    next: u64,
    over: Over,
}

/// The last calls that ended or were refused, so that later messages about them do not wait for an OPEN.
#[derive(Default)]
struct Over {
    known: HashSet<Key>,
    in_order: VecDeque<Key>,
}

/// Number of calls in [`Over`].
const OVER_MAX: usize = 1024;

impl Over {
    fn push(&mut self, key: Key) {
        if self.known.insert(key) {
            self.in_order.push_back(key);
        }
        if self.in_order.len() > OVER_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// A PUSH or a HOLD that has overtaken its OPEN.
struct Early {
    number: u64,
    id: u64,
    head: RequestHead,
    chunk: Bytes,
    held: Arc<Mutex<HeldEarly>>,
}

/// The request of an early message until it is taken. Its lock is that of one message, because a request asks its engine whether it was
/// given up.
struct HeldEarly {
    request: Option<Incoming>,
    /// The task that watches it.
    watcher: Option<Waker>,
}

impl HeldEarly {
    /// Ready when the request is given up, or was taken.
    fn poll_over(held: &Mutex<Self>, task: &task::Context<'_>) -> Poll<()> {
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(request) = &held.request else { return Poll::Ready(()) };
        let polled = request.poll_cancelled(task);
        held.watcher = Some(task.waker().clone());
        polled
    }

    /// Takes the request, and lets the task that watches it end.
    fn take(held: &Mutex<Self>) -> Option<Incoming> {
        let (request, watcher) = {
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            (held.request.take(), held.watcher.take())
        };
        watcher.into_iter().for_each(Waker::wake);
        request
    }
}

impl Early {
    /// Answers the message, unless that was done.
    fn answer(self, answer: impl FnMut(Incoming)) {
        HeldEarly::take(&self.held).into_iter().for_each(answer);
    }
}

/// The entry of a stream, which leaves the table when it is dropped.
pub(crate) struct Registered {
    table: Arc<StreamTable>,
    key: Key,
}

impl StreamTable {
    pub(crate) fn new(per_peer: usize, buffers: StreamBuffers) -> Self {
        Self { state: Mutex::default(), per_peer, buffers: Arc::new(buffers) }
    }

    fn state(&self) -> MutexGuard<'_, KnownStreams> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream, and gives it the messages that have overtaken its OPEN.
    //= docs/rpc-wire.md#E26
    pub(crate) fn register(
        self: &Arc<Self>,
        from: Address,
        id: u64,
        stream: &Arc<ServerStream>,
    ) -> Result<Registered, Status> {
        let key = (from, id);
        let early = {
            let mut state = self.state();
            if state.streams.contains_key(&key) {
                let text = "another call of this client has the id";
                return Err(Status::new(Code::Internal, text).not_executed());
            }
            //= docs/rpc-wire.md#E29
            if state.over.known.contains(&key) {
                let text = "the client has given the call up";
                return Err(Status::new(Code::Cancelled, text).not_executed());
            }
            let count = state.peers.entry(from.host).or_default();
            //= docs/rpc-wire.md#E28
            if *count >= self.per_peer {
                if *count == 0 {
                    state.peers.remove(&from.host);
                    let text = "no calls with streams are allowed (streams_per_peer)";
                    return Err(Status::new(Code::ResourceExhausted, text).not_executed());
                }
                let text = format!(
                    "{count} streams of this peer are open: at most {} are allowed (streams_per_peer)",
                    self.per_peer
                );
                return Err(Status::new(Code::ResourceExhausted, text).not_executed());
            }
            *count += 1;
            state.streams.insert(key, Arc::clone(stream));
            state.take_early(from, |early| early.id == id)
        };
        for Early { head, chunk, held, .. } in early {
            if let Some(request) = HeldEarly::take(&held) {
                give(stream, &head, chunk, request);
            }
        }
        Ok(Registered { table: Arc::clone(self), key })
    }

    /// The call was refused: messages about it do not wait.
    pub(crate) fn note_over(&self, from: Address, id: u64) {
        let early = {
            let mut state = self.state();
            state.over.push((from, id));
            state.take_early(from, |early| early.id == id)
        };
        early.into_iter().for_each(|early| early.answer(unknown));
    }

    /// Takes a message about a stream.
    pub(crate) fn take(
        self: &Arc<Self>,
        head: RequestHead,
        chunk: Bytes,
        request: Incoming,
        spawner: &dyn Spawn,
    ) {
        let from = request.from();
        let id = match head {
            RequestHead::Push { id, .. }
            | RequestHead::Pull { id, .. }
            | RequestHead::Hold { id } => id,
            RequestHead::Cancel { id } => {
                self.cancel(from, id);
                return unknown(request);
            }
            RequestHead::Open(_) => return,
        };
        let mut state = self.state();
        if let Some(stream) = state.streams.get(&(from, id)).cloned() {
            drop(state);
            return give(&stream, &head, chunk, request);
        }
        let number = state.next;
        let is_over = state.over.known.contains(&(from, id));
        let waiting = state.early.get(&from).map_or(0, Vec::len);
        let of_node = state.early_of.get(&from.host).copied().unwrap_or(0);
        let is_full = waiting >= EARLY_MAX || of_node >= EARLY_OF_NODE_MAX;
        if is_over || matches!(head, RequestHead::Pull { .. }) {
            drop(state);
            return unknown(request);
        }
        if is_full {
            drop(state);
            return no_room(request);
        }
        let held = HeldEarly { request: Some(request), watcher: None };
        let held = Arc::new(Mutex::new(held));
        let early = Early { number, id, head, chunk, held: Arc::clone(&held) };
        state.early.entry(from).or_default().push(early);
        *state.early_of.entry(from.host).or_default() += 1;
        state.next += 1;
        drop(state);
        spawner.spawn(Box::pin(Arc::clone(self).watch_early(from, number, held)));
    }

    /// Gives a call up that no request may stand for.
    //= docs/rpc-wire.md#E29
    fn cancel(&self, from: Address, id: u64) {
        let stream = self.state().streams.get(&(from, id)).cloned();
        match stream {
            Some(stream) => stream.cancel(),
            None => self.note_over(from, id),
        }
    }

    /// Waits until a message has its stream, is given up, or has waited long enough.
    async fn watch_early(self: Arc<Self>, from: Address, number: u64, held: Arc<Mutex<HeldEarly>>) {
        let mut time = pin!(sleep(EARLY_FOR));
        poll_fn(|task| match HeldEarly::poll_over(&held, task) {
            Poll::Ready(()) => Poll::Ready(()),
            Poll::Pending => time.as_mut().poll(task),
        })
        .await;
        let early = self.state().take_early(from, |early| early.number == number);
        early.into_iter().for_each(|early| early.answer(no_room));
    }
}

impl KnownStreams {
    fn take_early(&mut self, from: Address, is_it: impl Fn(&Early) -> bool) -> Vec<Early> {
        let Some(waiting) = self.early.get_mut(&from) else { return Vec::new() };
        let taken: Vec<_> = waiting.extract_if(.., |early| is_it(early)).collect();
        if waiting.is_empty() {
            self.early.remove(&from);
        }
        if let Some(count) = self.early_of.get_mut(&from.host) {
            *count -= taken.len();
            if *count == 0 {
                self.early_of.remove(&from.host);
            }
        }
        taken
    }
}

/// Gives a message to its stream.
fn give(stream: &ServerStream, head: &RequestHead, chunk: Bytes, request: Incoming) {
    match *head {
        RequestHead::Push { seq, ends, .. } => stream.push(seq, ends, chunk, request),
        RequestHead::Pull { seq, .. } => stream.pull(seq, request),
        _ => stream.hold(request),
    }
}

/// Answers a message about a call that is over or was never known.
//= docs/rpc-wire.md#E25
fn unknown(request: Incoming) {
    let status = Status::new(Code::Cancelled, "the call is over, or not known");
    let head = ResponseHead { end: Some(status), ..ResponseHead::default() };
    // The client may have gone.
    let _ = request.reply(head.encode(0));
}

/// Answers a message that has overtaken its OPEN and cannot wait for it. Its client sends it again.
//= docs/rpc-wire.md#E26
#[cold]
fn no_room(request: Incoming) {
    let text =
        "too many messages wait for the beginning of their calls, or this one has waited too long";
    let status = Status::new(Code::Unavailable, text).not_executed();
    let head = ResponseHead { end: Some(status), ..ResponseHead::default() };
    // The client may have gone.
    let _ = request.reply(head.encode(0));
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut state = self.table.state();
        let stream = state.streams.remove(&self.key);
        state.over.push(self.key);
        let host = self.key.0.host;
        if let Some(count) = state.peers.get_mut(&host) {
            *count -= 1;
            if *count == 0 {
                state.peers.remove(&host);
            }
        }
        drop(state);
        drop(stream);
    }
}
