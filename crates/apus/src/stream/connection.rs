//! One end of a stream in the engine: its state and its waiters.
//!
//! Locks: the state of a connection is locked after the engine, never before. Operations on bytes alone take only the state's lock,
//! so that a copy does not delay the engine.

use std::io;
use std::mem;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use apus_proto::{CallOptions, Remote, RpcKey, SocketKey, Time};
use apus_wire::PathId;
use bytes::Bytes;

use crate::address::Address;
use crate::delivery::Regime;
use crate::delivery::parker::{self, Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::waiting::Awaited;
use crate::engine::lock::Guard;
use crate::engine::{Engine, Handler, Next};
use crate::error::{CallError, ReplyError};
use crate::mail::{CompletionMode, Mail};
use crate::socket::{Socket, SocketInner};
use crate::stream::answerer::Answerer;
use crate::stream::caller::{CallBody, Caller};
use crate::stream::failure;
use crate::stream::halves::{Broken, Halves};
use crate::stream::message::{HEADER, Reason, SegmentHeader};
use crate::stream::options::StreamOptions;
use crate::stream::waiters::Waiters;
use crate::sync::clock;
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// One end of a stream.
pub(crate) struct Connection {
    end: Arc<SocketInner>,
    peer: Address,
    local: Address,
    state: Mutex<State>,
    /// The listener that accepted the connection, if it was accepted.
    acceptor: Option<Weak<dyn Acceptor>>,
    /// The port of the end that connected, with its ends in other shards.
    _socket: Option<Socket>,
}

/// An owner of connections beside the connection itself, which must forget them when they are over.
pub(crate) trait Acceptor: Send + Sync {
    /// The application has dropped the connection, and no bytes are left to send.
    fn forget(&self, engine: &mut Engine, peer: Address, id: u64);

    /// A timer of its connections is due at this time at the latest.
    fn look_at(&self, engine: &mut Engine, at: Time);
}

struct State {
    role: Role,
    readers: Waiters,
    writers: Waiters,
    timeouts: [Option<Duration>; 2],
    lost_after: Duration,
    /// Time of the last message of the peer.
    last_rx: Time,
    /// The application has dropped its last handle.
    dropped: bool,
    /// Time of the retry of refused responses.
    retry_at: Option<Time>,
    /// Whether the end of the stream was counted.
    counted: bool,
}

enum Role {
    Caller(Caller),
    Answerer(Answerer<HeldCall>),
}

/// A call that was not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldCall {
    pub(crate) rpc: RpcKey,
    pub(crate) path: PathId,
}

/// An operation of a thread or a task on a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Read = 0,
    Write = 1,
}

/// The event for which an operation waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goal {
    /// The listener has answered, or will not.
    Open,
    /// A read or write has a result.
    Ready(Operation),
    /// The peer has all written bytes.
    Delivered,
}

impl Goal {
    fn operation(self) -> Operation {
        match self {
            Self::Ready(operation) => operation,
            Self::Open | Self::Delivered => Operation::Write,
        }
    }
}

impl Role {
    fn halves(&self) -> &Halves {
        match self {
            Self::Caller(caller) => &caller.halves,
            Self::Answerer(answerer) => &answerer.halves,
        }
    }

    fn halves_mut(&mut self) -> &mut Halves {
        match self {
            Self::Caller(caller) => &mut caller.halves,
            Self::Answerer(answerer) => &mut answerer.halves,
        }
    }

    fn reset(&mut self, reason: Reason) {
        match self {
            Self::Caller(caller) => caller.reset(reason),
            Self::Answerer(answerer) => answerer.reset(reason),
        }
    }

    /// Whether a message is due now.
    fn has_message(&self) -> bool {
        match self {
            Self::Caller(caller) => caller.has_call(),
            Self::Answerer(answerer) => answerer.has_answer(),
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Caller(caller) => caller.is_open(),
            Self::Answerer(_) => true,
        }
    }

    /// Whether the peer needs no further message.
    fn is_done(&self) -> bool {
        match self {
            Self::Caller(caller) => caller.is_done(),
            Self::Answerer(answerer) => answerer.halves.is_over() && !answerer.has_answer(),
        }
    }
}

impl State {
    /// Takes received bytes; empty at the end of the stream. `None` if no byte has arrived.
    fn take(&mut self, max: usize) -> Option<io::Result<Bytes>> {
        let halves = self.role.halves_mut();
        if let Some(bytes) = halves.incoming.take(max) {
            return Some(Ok(bytes));
        }
        if halves.incoming.is_complete() || halves.incoming.discards() {
            return Some(Ok(Bytes::new()));
        }
        halves.broken.as_ref().map(|broken| Err(failure::broken(broken)))
    }

    /// Takes bytes to send, up to the free room. `None` if there is no room.
    fn write(&mut self, bytes: &[u8]) -> Option<io::Result<usize>> {
        let halves = self.role.halves_mut();
        if let Some(broken) = &halves.broken {
            return Some(Err(failure::broken(broken)));
        }
        if halves.outgoing.is_finished() {
            return Some(Err(failure::finished()));
        }
        Some(halves.outgoing.write(bytes)).filter(|count| *count > 0).map(Ok)
    }

    fn has_reached(&self, goal: Goal) -> bool {
        let halves = self.role.halves();
        let broken = halves.broken.is_some();
        broken
            || match goal {
                Goal::Open => self.role.is_open(),
                Goal::Ready(Operation::Read) => {
                    let incoming = &halves.incoming;
                    incoming.readable() > 0 || incoming.is_complete() || incoming.discards()
                }
                Goal::Ready(Operation::Write) => {
                    halves.outgoing.room() > 0 || halves.outgoing.is_finished()
                }
                Goal::Delivered => halves.outgoing.is_complete(),
            }
    }

    fn waiters(&mut self, operation: Operation) -> &mut Waiters {
        match operation {
            Operation::Read => &mut self.readers,
            Operation::Write => &mut self.writers,
        }
    }

    /// Wakes the waiters that can continue.
    fn wake(&mut self, mail: &mut Mail) {
        if self.has_reached(Goal::Ready(Operation::Read)) {
            self.readers.wake(mail);
        }
        let reached = [Goal::Ready(Operation::Write), Goal::Open, Goal::Delivered];
        if reached.into_iter().any(|goal| self.has_reached(goal)) {
            self.writers.wake(mail);
        }
    }

    /// Handles the timer of a stream.
    fn handle_time(&mut self, engine: &Engine, now: Time) {
        let is_silent = match &mut self.role {
            Role::Caller(_) => self.dropped,
            Role::Answerer(answerer) => {
                let alone = answerer.retain_calls(|call| engine.endpoint.is_active(call.rpc));
                alone || self.dropped
            }
        };
        if is_silent && now.saturating_since(self.last_rx) >= self.lost_after {
            self.role.reset(Reason::Lost);
        }
    }

    /// Counts the end of the stream by its reason.
    fn count(&mut self, engine: &mut Engine) {
        let broken = self.role.halves().broken.as_ref();
        let Some(broken) = broken.filter(|_| !self.counted) else { return };
        self.counted = true;
        let counters = &mut engine.streams;
        *match broken {
            Broken::ByPeer(_) => &mut counters.reset_by_peer,
            Broken::ByUs(Reason::Violation) => &mut counters.violations,
            Broken::ByUs(Reason::Lost) | Broken::Failed(_) | Broken::NotOpened(_) => {
                &mut counters.lost
            }
            Broken::ByUs(_) => &mut counters.reset,
            Broken::Closed => return,
        } += 1;
    }

    /// Bytes that arrive after the application has dropped the stream are never read.
    fn reset_if_unread(&mut self) {
        if self.dropped && self.role.halves().incoming.readable() > 0 {
            self.role.reset(Reason::Dropped);
        }
    }

    /// Time of the next timer.
    fn next(&self) -> Next {
        let due = match &self.role {
            Role::Caller(caller) => {
                let lost = self.dropped.then(|| self.last_rx + self.lost_after);
                [caller.due(), lost].into_iter().flatten().min()
            }
            Role::Answerer(_) => self.retry_at,
        };
        due.map_or(Next::Message, Next::At)
    }
}

impl Connection {
    /// Creates the end that connects, from a client's port, and sends nothing yet.
    pub(crate) fn connecting(
        socket: Socket,
        peer: Address,
        local: Address,
        options: &StreamOptions,
    ) -> io::Result<Self> {
        let end = Arc::clone(socket.end(peer.host));
        let segment_max = segment_max(&*end.shared.enter().map_err(failure::unusable)?);
        let halves = Halves::new(random_id(), options.window, segment_max);
        let role = Role::Caller(Caller::new(halves, options.lost_after));
        let connection = Self::new(&end, peer, local, role, options.lost_after, None);
        Ok(Self { _socket: Some(socket), ..connection })
    }

    /// Creates the accepted end.
    pub(crate) fn accepting(
        end: &Arc<SocketInner>,
        peer: Address,
        local: Address,
        halves: Halves,
        lost_after: Duration,
        acceptor: Weak<dyn Acceptor>,
    ) -> Self {
        let role = Role::Answerer(Answerer::new(halves));
        Self::new(end, peer, local, role, lost_after, Some(acceptor))
    }

    fn new(
        end: &Arc<SocketInner>,
        peer: Address,
        local: Address,
        role: Role,
        lost_after: Duration,
        acceptor: Option<Weak<dyn Acceptor>>,
    ) -> Self {
        let state = Mutex::new(State {
            role,
            readers: Waiters::default(),
            writers: Waiters::default(),
            timeouts: [None; 2],
            lost_after,
            last_rx: clock::now(),
            dropped: false,
            retry_at: None,
            counted: false,
        });
        Self { end: Arc::clone(end), peer, local, state, acceptor, _socket: None }
    }

    pub(crate) fn peer(&self) -> Address {
        self.peer
    }

    pub(crate) fn local(&self) -> Address {
        self.local
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's lock.
    fn enter(&self) -> io::Result<Guard<'_>> {
        self.end.shared.enter().map_err(failure::unusable)
    }

    /// An error in a forked child of the process that has the stream, where the state may be locked for ever.
    pub(crate) fn check_process(&self) -> io::Result<()> {
        if self.end.shared.is_forked() { self.enter().map(drop) } else { Ok(()) }
    }

    pub(crate) fn timeout(&self, operation: Operation) -> Option<Duration> {
        self.state().timeouts[operation as usize]
    }

    pub(crate) fn set_timeout(&self, operation: Operation, timeout: Option<Duration>) {
        self.state().timeouts[operation as usize] = timeout;
    }

    /// Opens the stream, and waits until the listener has answered.
    pub(crate) fn open(self: &Arc<Self>) -> io::Result<()> {
        let engine = self.begin()?;
        self.wait(engine, Goal::Open, clock::now(), None)?;
        self.opened()
    }

    /// The same as a future's `poll`. `begun`: this is not the first poll.
    pub(crate) fn poll_open(
        self: &Arc<Self>,
        begun: &mut bool,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !*begun {
            self.begin()?.transmit_due(clock::now());
            *begun = true;
        }
        self.poll_goal(Goal::Open, context)?.map(|()| self.opened())
    }

    /// Makes the first call.
    fn begin(self: &Arc<Self>) -> io::Result<Guard<'_>> {
        let (mut engine, _) =
            self.end.shared.enter_towards(self.peer).map_err(failure::call_failed)?;
        engine.add_handler(self.end.key, Arc::clone(self) as Arc<dyn Handler>);
        engine.streams.opened += 1;
        let now = clock::now();
        self.pump(&mut engine, now);
        engine.transmit(now);
        Ok(engine)
    }

    fn opened(&self) -> io::Result<()> {
        self.state()
            .role
            .halves()
            .broken
            .as_ref()
            .map_or(Ok(()), |broken| Err(failure::broken(broken)))
    }

    /// Notes that the application has accepted the stream: the peer may send up to `window` bytes.
    pub(crate) fn accepted(&self, window: u64) {
        self.state().role.halves_mut().incoming.set_window(window);
        self.send();
    }

    /// Moves received bytes into `buffer`, without waiting. Returns 0 at the end of the stream.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let mut count = 0;
        while count < buffer.len() {
            // The copy is made without the lock.
            let taken = self.state().take(buffer.len() - count);
            match taken {
                Some(Ok(bytes)) if !bytes.is_empty() => {
                    buffer[count..count + bytes.len()].copy_from_slice(&bytes);
                    count += bytes.len();
                }
                _ if count > 0 => break,
                Some(Ok(_)) => return Some(Ok(0)),
                Some(Err(error)) => return Some(Err(error)),
                None => return None,
            }
        }
        self.send();
        Some(Ok(count))
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check_process()?;
        loop {
            if let Some(result) = self.try_read(buffer) {
                return result;
            }
            self.wait_ready(Operation::Read)?;
        }
    }

    /// Takes bytes to send, up to the free room, without waiting.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> Option<io::Result<usize>> {
        let mut count = 0;
        while count < bytes.len() {
            // One segment at a time, so that the first is transmitted while the second is copied.
            let part = &bytes[count..bytes.len().min(count + SEGMENT)];
            let written = self.state().write(part);
            match written {
                Some(Ok(written)) => count += written,
                _ if count > 0 => break,
                Some(Err(error)) => return Some(Err(error)),
                None => return None,
            }
            self.send();
        }
        Some(Ok(count))
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.check_process()?;
        loop {
            if let Some(result) = self.try_write(bytes) {
                return result;
            }
            self.wait_ready(Operation::Write)?;
        }
    }

    fn wait_ready(&self, operation: Operation) -> io::Result<()> {
        let timeout = self.timeout(operation);
        let engine = self.enter()?;
        self.wait(engine, Goal::Ready(operation), clock::now(), timeout)
    }

    /// Ends the written half.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.check_process()?;
        {
            let mut state = self.state();
            let outgoing = &mut state.role.halves_mut().outgoing;
            if outgoing.is_finished() {
                return Ok(()); // A task that polls for the delivery would wake itself.
            }
            outgoing.finish();
        }
        self.send();
        // Waiting writers must return.
        let mut engine = self.enter()?;
        self.state().wake(&mut engine.mail);
        Ok(())
    }

    /// Ends the read half.
    pub(crate) fn discard(&self) -> io::Result<()> {
        self.check_process()?;
        self.state().role.halves_mut().incoming.discard();
        self.send();
        let mut engine = self.enter()?;
        self.state().wake(&mut engine.mail);
        Ok(())
    }

    /// Ends this half and waits until the peer has received all bytes.
    pub(crate) fn deliver(&self) -> io::Result<()> {
        self.finish()?;
        let timeout = self.timeout(Operation::Write);
        let engine = self.enter()?;
        self.wait(engine, Goal::Delivered, clock::now(), timeout)?;
        self.delivered()
    }

    /// Whether the peer has received all bytes, after the wait for that.
    pub(crate) fn delivered(&self) -> io::Result<()> {
        let state = self.state();
        let halves = state.role.halves();
        match &halves.broken {
            Some(broken) if !halves.outgoing.is_complete() => Err(failure::broken(broken)),
            _ => Ok(()),
        }
    }

    /// Waits with the engine's lock, and releases it meanwhile.
    fn wait<'a>(
        &'a self,
        engine: Guard<'a>,
        goal: Goal,
        now: Time,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let until = timeout.map(|timeout| now + timeout);
        let mut awaited = AwaitGoal { connection: self, goal };
        let waited = self.end.shared.wait(engine, &mut awaited, now, until);
        waited.map_err(failure::unusable)?.ok_or_else(failure::timed_out)
    }

    /// As a future's `poll`: registers the task until a read or write may have a result.
    pub(crate) fn poll_ready(
        &self,
        operation: Operation,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_goal(Goal::Ready(operation), context)
    }

    /// The same until the peer has received all written bytes.
    pub(crate) fn poll_delivered(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_goal(Goal::Delivered, context)
    }

    fn poll_goal(&self, goal: Goal, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut engine = self.enter()?;
        let now = clock::now();
        let always_polls = self.end.shared.regime == Regime::AlwaysPolls;
        if engine.holds_back() || always_polls {
            engine.turn(now);
        }
        let mut state = self.state();
        if state.has_reached(goal) {
            return Poll::Ready(Ok(()));
        }
        if always_polls {
            drop((state, engine));
            context.waker().wake_by_ref();
        } else {
            let waiter = Waiter::task(parker::next_id(), context.waker());
            state.waiters(goal.operation()).enlist(waiter, &mut engine.mail);
            drop(state);
            engine.need_progress();
            engine.transmit_due(now);
        }
        Poll::Pending
    }

    /// Sends the segments that are due, for a thread that does not wait.
    fn send(&self) {
        if !self.state().role.has_message() {
            return;
        }
        // A handle's next wait reports an unusable engine.
        let Ok(mut engine) = self.enter() else { return };
        let now = clock::now();
        self.pump(&mut engine, now);
        engine.transmit(now);
        engine.transmit_due(now);
    }

    /// Handles the drop of the last handle. Written bytes are still sent.
    pub(crate) fn dropped(&self) {
        let Ok(mut engine) = self.enter() else { return };
        let now = clock::now();
        self.abandon(&mut engine, now);
        engine.transmit(now);
        engine.transmit_due(now);
    }

    /// The same with the engine's lock. Nothing is transmitted yet.
    pub(crate) fn abandon(&self, engine: &mut Engine, now: Time) {
        let mut state = self.state();
        (state.dropped, state.last_rx) = (true, now);
        state.readers.discard(&mut engine.mail);
        state.writers.discard(&mut engine.mail);
        state.role.halves_mut().outgoing.finish();
        if !state.role.is_open() {
            state.role.reset(Reason::Dropped);
        }
        state.reset_if_unread();
        drop(state);
        self.pump(engine, now);
    }

    /// Handles a call of the peer.
    pub(crate) fn handle_call(
        &self,
        engine: &mut Engine,
        now: Time,
        header: &SegmentHeader,
        payload: Bytes,
        call: HeldCall,
    ) {
        let mut state = self.state();
        state.last_rx = now;
        if let Role::Answerer(answerer) = &mut state.role {
            answerer.handle_call(header, payload, call);
        }
        state.reset_if_unread();
        drop(state);
        self.pump(engine, now);
    }

    /// Handles the timer of an accepted stream.
    pub(crate) fn look(&self, engine: &mut Engine, now: Time) {
        self.state().handle_time(engine, now);
        self.pump(engine, now);
    }

    /// Ends the stream at once.
    pub(crate) fn reset(&self, engine: &mut Engine, now: Time, reason: Reason) {
        self.state().role.reset(reason);
        self.pump(engine, now);
    }

    /// Handles the close of the socket.
    pub(crate) fn socket_closed(&self, engine: &mut Engine) {
        let mut state = self.state();
        state.role.halves_mut().end(Broken::Closed);
        state.wake(&mut engine.mail);
    }

    /// Makes the calls or answers that are due, and wakes the waiters that can continue. Transmits nothing.
    fn pump(&self, engine: &mut Engine, now: Time) {
        let mut state = self.state();
        match &mut state.role {
            Role::Caller(caller) => self.make_calls(engine, now, caller),
            Role::Answerer(answerer) => {
                let taken = give_answers(engine, now, self.end.key, answerer);
                state.retry_at = if taken { None } else { Some(now + RETRY_AFTER) };
            }
        }
        state.count(engine);
        state.wake(&mut engine.mail);
        let done = state.dropped && state.role.is_done();
        let (id, next) = (state.role.halves().id, state.next());
        drop(state);
        let acceptor = self.acceptor.as_ref().map(Weak::upgrade);
        match (acceptor, next) {
            (None, _) if done => engine.remove_handler(self.end.key),
            (None, Next::At(due)) => engine.handler_is_due(self.end.key, due),
            (Some(Some(acceptor)), _) if done => acceptor.forget(engine, self.peer, id),
            (Some(Some(acceptor)), Next::At(due)) => acceptor.look_at(engine, due),
            _ => {}
        }
    }

    fn make_calls(&self, engine: &mut Engine, now: Time, caller: &mut Caller) {
        while let Some(CallBody { body, segment }) = caller.poll_call(now) {
            let completion = CompletionMode::Queue(segment.unwrap_or(NO_SEGMENT));
            let begun = engine.resolve(self.peer).and_then(|path| {
                let to = Remote::new(path, self.peer.port);
                let body = body.into();
                engine.call(now, self.end.key, (to, None), body, completion, CallOptions::default())
            });
            if let Err(error) = begun {
                caller.handle_failure(now, segment, error);
            }
        }
    }

    /// Handles the end of a call.
    fn handle_result(&self, now: Time, cookie: u64, result: Result<Bytes, CallError>) {
        let mut state = self.state();
        state.last_rx = now;
        let Role::Caller(caller) = &mut state.role else { return };
        match result {
            Ok(response) => caller.handle_response(&response),
            Err(error) => {
                let segment = Some(cookie).filter(|cookie| *cookie != NO_SEGMENT);
                caller.handle_failure(now, segment, error);
            }
        }
        state.reset_if_unread();
    }
}

/// An unguessable number, so that no other peer can name the stream.
fn random_id() -> u64 {
    let mut id = [0; 8];
    getrandom::fill(&mut id).expect("the kernel has random numbers once it has started");
    u64::from_le_bytes(id)
}

/// Bytes of the longest segment that fits a message of a node.
pub(crate) fn segment_max(engine: &Engine) -> usize {
    SEGMENT.min(engine.endpoint.longest_message().saturating_sub(HEADER)).max(1)
}

/// Gives the answers that are due. Returns `false` if the core refused one for lack of room.
fn give_answers(
    engine: &mut Engine,
    now: Time,
    socket: SocketKey,
    answerer: &mut Answerer<HeldCall>,
) -> bool {
    while let Some(mut answer) = answerer.poll_answer() {
        let body = mem::take(&mut answer.body);
        match engine.reply(now, socket, answer.call.rpc, answer.call.path, body.into()) {
            Ok(()) => {}
            Err(ReplyError::OverBudget { .. }) => {
                answerer.not_answered(answer, true);
                return false;
            }
            Err(_) => answerer.not_answered(answer, false),
        }
    }
    true
}

/// The end that connected has a socket of its own.
impl Handler for Connection {
    fn handle(&self, engine: &mut Engine, now: Time) -> Next {
        while let Some(response) = engine.mail.hand_over_response(self.end.key) {
            self.handle_result(now, response.cookie, response.result);
        }
        self.state().handle_time(engine, now);
        self.pump(engine, now);
        let state = self.state();
        if state.dropped && state.role.is_done() { Next::Never } else { state.next() }
    }

    fn closed(&self, engine: &mut Engine) {
        self.socket_closed(engine);
    }
}

/// A wait for an event of a stream.
struct AwaitGoal<'a> {
    connection: &'a Connection,
    goal: Goal,
}

impl Awaited for AwaitGoal<'_> {
    type Output = ();

    fn take(&mut self, _: &mut Engine) -> Option<()> {
        self.connection.state().has_reached(self.goal).then_some(())
    }

    fn enlist(&self, engine: &mut Engine, waiter: Waiter) {
        let mut state = self.connection.state();
        state.waiters(self.goal.operation()).enlist(waiter, &mut engine.mail);
    }

    fn delist(&self, _: &mut Engine, id: WaiterId) -> bool {
        self.connection.state().waiters(self.goal.operation()).delist(id)
    }

    fn socket(&self) -> Option<SocketKey> {
        Some(self.connection.end.key)
    }

    fn spin<'m>(&self, mail: &'m mut Mail) -> Option<&'m mut Spin> {
        let mailbox = mail.mailbox(self.connection.end.key)?;
        Some(match self.goal {
            Goal::Ready(Operation::Read) => &mut mailbox.receive_spin,
            _ => &mut mailbox.call_spin,
        })
    }
}

/// Upper bound on the bytes of one message. A shorter message waits for the copy of at most one such message, and a full one is
/// scheduled as a message of this length.
pub(crate) const SEGMENT: usize = 64 << 10;

/// The cookie of a call without a segment.
const NO_SEGMENT: u64 = u64::MAX;

/// Interval at which the answerer checks whether its peer still calls.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time after which a response that was refused for lack of room is given again.
const RETRY_AFTER: Duration = Duration::from_millis(1);
