//! A port that accepts streams, in one engine: its streams, and those that wait to be accepted.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Weak};

use apus_proto::{SocketKey, Time};
use bytes::Bytes;

use crate::address::Address;
use crate::delivery::parker::{Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::engine::{Engine, Handler, Next};
use crate::mail::Mail;
use crate::mail::queue::WaitingRequest;
use crate::socket::SocketInner;
use crate::stream::connection::{Acceptor, Connection, HeldCall, LOOK_EVERY, segment_max};
use crate::stream::halves::Halves;
use crate::stream::message::{OPEN, RESET, Reason, SegmentHeader};
use crate::stream::options::{StreamOptions, WINDOW_MIN};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// One end of the port of a listener. A node with several shards has one in each of them.
pub(crate) struct Listening {
    end: Arc<SocketInner>,
    local: Address,
    options: StreamOptions,
    segment_max: usize,
    backlog: Arc<Backlog>,
    /// Locked after the engine, and never together with a connection.
    streams: Mutex<Streams>,
    this: Weak<Self>,
}

struct Streams {
    /// Streams by the client's address and the number that the client chose.
    by_peer: HashMap<(Address, u64), Arc<Connection>>,
    look_at: Time,
    /// The application has dropped the listener.
    closed: bool,
}

/// Streams that wait to be accepted, of all ends of a listener.
pub(crate) struct Backlog {
    queue: Mutex<AcceptQueue>,
    max: usize,
}

#[derive(Default)]
struct AcceptQueue {
    streams: VecDeque<Arc<Connection>>,
    waiters: Vec<Waiter>,
    /// Whether the port is closed, so that no stream comes.
    closed: bool,
}

impl Backlog {
    pub(crate) fn new(max: usize) -> Self {
        Self { queue: Mutex::default(), max }
    }

    fn lock(&self) -> MutexGuard<'_, AcceptQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next stream; `None` once the port is closed.
    pub(crate) fn take(&self) -> Option<Option<Arc<Connection>>> {
        let mut waiting = self.lock();
        match waiting.streams.pop_front() {
            Some(stream) => Some(Some(stream)),
            None => waiting.closed.then_some(None),
        }
    }

    fn is_full(&self) -> bool {
        self.lock().streams.len() >= self.max
    }

    /// Adds a stream. Returns the waiters to wake; each checks for itself.
    fn push(&self, stream: Arc<Connection>) -> Vec<Waiter> {
        let mut waiting = self.lock();
        waiting.streams.push_back(stream);
        mem::take(&mut waiting.waiters)
    }

    /// Closes the port. Returns the streams that were not accepted, and the waiters to wake.
    fn close(&self) -> (VecDeque<Arc<Connection>>, Vec<Waiter>) {
        let mut waiting = self.lock();
        waiting.closed = true;
        (mem::take(&mut waiting.streams), mem::take(&mut waiting.waiters))
    }

    pub(crate) fn enlist(&self, waiter: Waiter) {
        self.lock().waiters.push(waiter);
    }

    /// Returns `true` if the waiter had been chosen to be woken.
    pub(crate) fn delist(&self, id: WaiterId) -> bool {
        let mut waiting = self.lock();
        let before = waiting.waiters.len();
        waiting.waiters.retain(|waiter| waiter.id() != id);
        waiting.waiters.len() == before
    }
}

impl Listening {
    /// Becomes the handler of a socket.
    pub(crate) fn begin(
        engine: &mut Engine,
        end: &Arc<SocketInner>,
        local: Address,
        options: StreamOptions,
        backlog: &Arc<Backlog>,
    ) -> Arc<Self> {
        let segment_max = segment_max(engine);
        let streams = Streams { by_peer: HashMap::new(), look_at: Time::ZERO, closed: false };
        let listening = Arc::new_cyclic(|this| Self {
            end: Arc::clone(end),
            local,
            options,
            segment_max,
            backlog: Arc::clone(backlog),
            streams: Mutex::new(streams),
            this: Weak::clone(this),
        });
        engine.add_handler(end.key, Arc::clone(&listening) as Arc<dyn Handler>);
        listening
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_request(
        &self,
        engine: &mut Engine,
        now: Time,
        from: Address,
        call: HeldCall,
        body: &Bytes,
    ) {
        let Some((header, payload)) = SegmentHeader::parse(body) else {
            engine.streams.refused_malformed += 1;
            return self.refuse(engine, now, call, 0, Reason::Violation);
        };
        let known = self.streams().by_peer.get(&(from, header.id)).cloned();
        if let Some(stream) = known {
            return stream.handle_call(engine, now, &header, payload, call);
        }
        if !header.has(OPEN) || header.has(RESET) {
            engine.streams.refused_unknown += 1;
            return self.refuse(engine, now, call, header.id, Reason::Unknown);
        }
        if self.streams().closed || self.backlog.is_full() {
            engine.streams.refused_backlog += 1;
            return self.refuse(engine, now, call, header.id, Reason::Refused);
        }
        let stream = self.add(from, header.id);
        engine.streams.accepted += 1;
        stream.handle_call(engine, now, &header, payload, call);
        engine.mail.wakes.extend(self.backlog.push(stream));
    }

    fn refuse(&self, engine: &mut Engine, now: Time, call: HeldCall, id: u64, reason: Reason) {
        let body = Bytes::copy_from_slice(&SegmentHeader::reset(id, reason).encode());
        if engine.reply(now, self.end.key, call.rpc, call.path, body.into()).is_err() {
            engine.endpoint.abort(call.rpc);
        }
    }

    fn add(&self, peer: Address, id: u64) -> Arc<Connection> {
        let StreamOptions { window, lost_after, .. } = self.options;
        let mut halves = Halves::new(id, window, self.segment_max);
        halves.incoming.set_window(WINDOW_MIN as u64);
        let acceptor = Weak::clone(&self.this) as Weak<dyn Acceptor>;
        let stream =
            Connection::accepting(&self.end, peer, self.local, halves, lost_after, acceptor);
        let stream = Arc::new(stream);
        self.streams().by_peer.insert((peer, id), Arc::clone(&stream));
        stream
    }

    /// Handles the drop of the listener. Accepted streams continue.
    pub(crate) fn close(&self, engine: &mut Engine, now: Time) {
        self.streams().closed = true;
        let (unaccepted, wakes) = self.backlog.close();
        engine.mail.wakes.extend(wakes);
        for stream in unaccepted {
            stream.reset(engine, now, Reason::Dropped);
            stream.abandon(engine, now);
        }
        self.end_if_unused(engine);
    }

    /// Closes the port when the listener and its last stream are gone.
    fn end_if_unused(&self, engine: &mut Engine) {
        let streams = self.streams();
        if streams.closed && streams.by_peer.is_empty() {
            engine.remove_handler(self.end.key);
        }
    }
}

impl Acceptor for Listening {
    fn forget(&self, engine: &mut Engine, peer: Address, id: u64) {
        self.streams().by_peer.remove(&(peer, id));
        self.end_if_unused(engine);
    }

    fn look_at(&self, engine: &mut Engine, at: Time) {
        let mut streams = self.streams();
        streams.look_at = streams.look_at.min(at);
        engine.handler_is_due(self.end.key, streams.look_at);
    }
}

impl Handler for Listening {
    fn handle(&self, engine: &mut Engine, now: Time) -> Next {
        while let Some(request) = engine.mail.hand_over_request(self.end.key) {
            let WaitingRequest { rpc, from, path, body, .. } = request;
            self.handle_request(engine, now, from, HeldCall { rpc, path }, &body);
        }
        let streams: Vec<_> = {
            let mut streams = self.streams();
            if now < streams.look_at {
                return Next::At(streams.look_at);
            }
            streams.look_at = now + LOOK_EVERY;
            streams.by_peer.values().cloned().collect()
        };
        for stream in &streams {
            stream.look(engine, now);
        }
        let streams = self.streams();
        if streams.by_peer.is_empty() { Next::Message } else { Next::At(streams.look_at) }
    }

    fn closed(&self, engine: &mut Engine) {
        let (_, wakes) = self.backlog.close();
        engine.mail.wakes.extend(wakes);
        let streams: Vec<_> = self.streams().by_peer.drain().collect();
        for (_, stream) in &streams {
            stream.socket_closed(engine);
        }
    }
}

/// A wait for the next stream.
pub(crate) struct AwaitStream<'a> {
    pub(crate) backlog: &'a Backlog,
    pub(crate) socket: SocketKey,
}

impl Awaited for AwaitStream<'_> {
    type Output = Option<Arc<Connection>>;

    fn take(&mut self, _: &mut Engine) -> Option<Self::Output> {
        self.backlog.take()
    }

    fn enlist(&self, _: &mut Engine, waiter: Waiter) {
        self.backlog.enlist(waiter);
    }

    fn delist(&self, _: &mut Engine, id: WaiterId) -> bool {
        self.backlog.delist(id)
    }

    fn socket(&self) -> Option<SocketKey> {
        Some(self.socket)
    }

    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin> {
        mail.mailbox(self.socket).map(|mailbox| &mut mailbox.receive_spin)
    }
}
