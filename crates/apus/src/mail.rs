//! Mail: places where messages wait for the application, and the threads and tasks that wait for messages.
//!
//! Each call has a slot for its result. Each socket has a queue of requests, and of responses to
//! [`Client::send`](crate::Client::send). A message is put in its place first; then the waiter that slept last there is woken, and
//! no other one. `queue.rs` has the queue of a socket, and `fair_queue.rs` the order of its requests: peers take turns.

mod fair_queue;
pub(crate) mod queue;
mod watchers;

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use apus_proto::slab::{Handle, Slab};
use apus_proto::{
    ArrivedRequest, CallFailed, Cookie, Event, Inbox, Moved, Remote, RpcKey, SocketKey, TraceEvent,
    TraceMark,
};
use apus_wire::PathId;
use bytes::Bytes;

use crate::address::Address;
use crate::delivery::cross_shard::CrossShardWaiters;
use crate::delivery::parker::{Parker, Waiter, WaiterId};
use crate::delivery::spin::Spin;
use crate::delivery::task_waits::TaskWaits;
use crate::error::CallError;
use crate::mail::queue::{Queue, Undelivered, WaitingRequest, WaitingResponse};
use crate::mail::watchers::Watchers;
use crate::observe::spans::SpanNumber;
use crate::observe::stats::PortStats;
use crate::observe::time_trace;
use crate::shared_engine::described;

/// The destination of a call's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CompletionMode {
    /// The holder of the call's handle takes the result.
    Handle,
    /// The queue of the socket, with this cookie.
    Queue(u64),
}

apus_proto::handle! {
    /// One call of the application.
    pub(crate) CallKey
}

#[derive(Debug)]
struct CallSlot {
    socket: SocketKey,
    /// `None` until the core has begun the call.
    rpc: Option<RpcKey>,
    completion: CompletionMode,
    waiter: Option<Waiter>,
    result: Option<Result<Bytes, CallError>>,
    /// Set if the result goes to a queue.
    span: SpanNumber,
    /// The mark of the call in the time trace, if it was chosen.
    mark: Option<TraceMark>,
}

/// One socket's side of delivery.
#[derive(Debug)]
pub(crate) struct Mailbox {
    key: SocketKey,
    pub(crate) queue: Queue,
    backlog: Backlog,
    waiters: Waiters,
    /// The end of this shard, if the socket has ends in other shards as well.
    cross_shard: Option<CrossShardEnd>,
    /// Whether the mailbox is in the list of those to settle.
    touched: bool,
    /// Whether messages go to a handler, and not to waiters.
    handled: bool,
    /// The number of the rule for peers.
    pub(crate) rule: u8,
    pub(crate) stats: PortStats,
    pub(crate) receive_spin: Spin,
    pub(crate) call_spin: Spin,
}

/// Responses that the application has not taken, and the report of them to the endpoint.
#[derive(Debug, Default)]
struct Backlog {
    /// Number of results that wait at the handles of their calls.
    results: Undelivered,
    /// Results and queued responses as last reported to the endpoint.
    reported: Undelivered,
    /// Whether the mailbox is in the list of those to report.
    changed: bool,
}

/// Threads and tasks that wait at a socket.
#[derive(Debug, Default)]
struct Waiters {
    /// Sleeping waiters, in the order in which they fell asleep.
    receivers: Vec<Waiter>,
    /// Number of woken waiters that have not run yet: each will take a message.
    coming: usize,
    /// Number of followers that poll for their wake-up.
    polling: usize,
}

/// The end of a socket in one of several shards.
#[derive(Debug)]
struct CrossShardEnd {
    waiters: Arc<CrossShardWaiters>,
    /// The shard of this end.
    shard: usize,
    /// Bytes held by this end, as last published to the other ends.
    held: u64,
    /// Number of threads woken in other shards that have not run yet.
    called: usize,
}

impl Mailbox {
    /// Wakes threads that wait in other shards for messages that have no waiter here.
    fn note(&mut self, wakes: &mut Vec<Waiter>) {
        let Some(end) = &mut self.cross_shard else { return };
        while self.queue.len() > self.waiters.coming + end.called {
            let Some(waiter) = end.waiters.note(end.shard) else { return };
            end.called += 1;
            wakes.push(waiter);
        }
    }

    /// Its undelivered responses have changed since the last report.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.backlog.changed
    }

    /// Records that a thread has checked the queue. `home`: the thread waits in this shard.
    #[inline]
    pub(crate) fn looked(&mut self, home: bool) {
        let Some(end) = &mut self.cross_shard else { return };
        end.called = end.called.saturating_sub(usize::from(!home));
        if self.queue.is_empty() {
            // Other woken threads see that no message is left, and take none.
            end.called = 0;
            end.waiters.taken(end.shard);
        }
    }
}

/// All slots and queues of a node.
#[derive(Debug)]
pub(crate) struct Mail {
    calls: Slab<CallKey, CallSlot>,
    /// By [`SocketKey::index`].
    boxes: Vec<Option<Mailbox>>,
    /// Mailboxes with sleepers that got messages since [`Mail::settle`]; beside an event loop that sleeps, all mailboxes.
    touched: Vec<SocketKey>,
    /// An event loop sleeps, which is notified of messages without a waiter. One that is awake looks again before it sleeps.
    pub(crate) event_loop_sleeps: bool,
    /// A message was left without a waiter, since [`Mail::take_unclaimed`].
    unclaimed: bool,
    /// Mailboxes whose undelivered responses have changed since [`Mail::report_backlog`].
    changed: Vec<SocketKey>,
    /// Mailboxes with a handler that got messages since [`Mail::take_handled`].
    handled: Vec<SocketKey>,
    /// Waiters whose message has arrived, to be woken when the lock is released.
    pub(crate) wakes: Vec<Waiter>,
    /// Wakers of tasks that no longer wait, to be dropped when the lock is released: dropping a waker may run any code, even ours.
    pub(crate) discarded: Vec<Waiter>,
    /// Tasks registered anywhere.
    tasks: usize,
    /// Waits of the tasks of an event loop.
    pub(crate) task_waits: TaskWaits,
    /// Tasks that wait for the end of requests.
    watchers: Watchers,
    /// The socket whose ends exchanged their loads last.
    exchanged: usize,
    /// Counters of all sockets, closed ones included.
    all: PortStats,
    /// Whether services skip requests whose caller has given up.
    pub(crate) skips_unwanted: bool,
}

impl Mail {
    pub(crate) const fn new() -> Self {
        Self {
            calls: Slab::new(),
            boxes: Vec::new(),
            touched: Vec::new(),
            event_loop_sleeps: false,
            unclaimed: false,
            changed: Vec::new(),
            handled: Vec::new(),
            wakes: Vec::new(),
            discarded: Vec::new(),
            tasks: 0,
            task_waits: TaskWaits::new(),
            watchers: Watchers::new(),
            exchanged: 0,
            all: PortStats { messages: 0, handoffs: 0 },
            skips_unwanted: true,
        }
    }

    /// Opens the mailbox of a socket. `cross_shard`: the state shared with the ends in other shards, and the number of this shard.
    pub(crate) fn open(
        &mut self,
        key: SocketKey,
        cross_shard: Option<(Arc<CrossShardWaiters>, usize)>,
    ) {
        let index = key.index();
        if index >= self.boxes.len() {
            self.boxes.resize_with(index + 1, || None);
        }
        self.boxes[index] = Some(Mailbox {
            key,
            queue: Queue::new(self.skips_unwanted),
            backlog: Backlog::default(),
            waiters: Waiters::default(),
            cross_shard: cross_shard.map(|(waiters, shard)| CrossShardEnd {
                waiters,
                shard,
                held: 0,
                called: 0,
            }),
            touched: false,
            handled: false,
            rule: 0,
            stats: PortStats::default(),
            receive_spin: Spin::new(),
            call_spin: Spin::new(),
        });
    }

    /// Closes a socket: drops its queue, ends its calls with [`CallError::Closed`], and wakes all its waiters.
    pub(crate) fn close(&mut self, key: SocketKey) {
        let Some(mailbox) =
            self.boxes.get_mut(key.index()).and_then(|slot| slot.take_if(|open| open.key == key))
        else {
            return;
        };
        if let Some(end) = &mailbox.cross_shard {
            end.waiters.hold(end.held, 0);
        }
        for waiter in mailbox.waiters.receivers {
            Self::wake(&mut self.wakes, &mut self.tasks, waiter);
        }
        for waiter in self.watchers.take_of(key) {
            Self::wake(&mut self.wakes, &mut self.tasks, waiter);
        }
        self.calls.retain(|call| {
            if call.socket != key || call.result.is_some() {
                return true;
            }
            call.result = Some(Err(CallError::Closed));
            if let Some(waiter) = call.waiter.take() {
                Self::wake(&mut self.wakes, &mut self.tasks, waiter);
            }
            call.completion == CompletionMode::Handle
        });
    }

    /// Publishes the bytes that this end of a socket holds to its ends in other shards, and returns the bytes that they hold. Each
    /// call does so for the next socket.
    pub(crate) fn exchange_held(
        &mut self,
        held: impl FnOnce(SocketKey) -> u64,
    ) -> Option<(SocketKey, u64)> {
        self.exchanged = (self.exchanged + 1) % self.boxes.len().max(1);
        let mailbox = self.boxes.get_mut(self.exchanged)?.as_mut()?;
        let end = mailbox.cross_shard.as_mut()?;
        let held = held(mailbox.key);
        let others = end.waiters.hold(mem::replace(&mut end.held, held), held);
        Some((mailbox.key, others))
    }

    /// The sockets that are open.
    pub(crate) fn sockets(&self) -> Vec<SocketKey> {
        self.boxes.iter().flatten().map(|mailbox| mailbox.key).collect()
    }

    /// The mailbox of a socket; `None` if the socket is closed.
    #[inline]
    pub(crate) fn mailbox(&mut self, key: SocketKey) -> Option<&mut Mailbox> {
        self.boxes.get_mut(key.index())?.as_mut().filter(|mailbox| mailbox.key == key)
    }

    #[inline]
    pub(crate) fn expect_call(&mut self, socket: SocketKey, completion: CompletionMode) -> CallKey {
        let (rpc, waiter, result, mark) = (None, None, None, None);
        let span = SpanNumber::NONE;
        self.calls.insert(CallSlot { socket, rpc, completion, waiter, result, span, mark })
    }

    #[inline]
    pub(crate) fn call_started(&mut self, call: CallKey, rpc: RpcKey, mark: Option<TraceMark>) {
        let slot = self.calls.get_mut(call).expect("made a moment ago, under the same lock");
        (slot.rpc, slot.mark) = (Some(rpc), mark);
    }

    /// The result of the call goes to a queue, with the number of its span.
    pub(crate) fn set_span(&mut self, call: CallKey, span: SpanNumber) {
        if let Some(slot) = self.calls.get_mut(call) {
            slot.span = span;
        }
    }

    /// Whether a call is known and has no result yet.
    pub(crate) fn is_expected(&self, call: CallKey) -> bool {
        self.calls.get(call).is_some_and(|slot| slot.result.is_none())
    }

    /// Whether responses wait for the application.
    pub(crate) fn has_undelivered(&self) -> bool {
        let mut boxes = self.boxes.iter().flatten();
        boxes.any(|mailbox| {
            mailbox.backlog.results.responses + mailbox.queue.undelivered().responses > 0
        })
    }

    /// Ends a call that has not begun.
    pub(crate) fn fail(&mut self, call: CallKey, error: CallError) {
        self.finish(call, Err(error));
    }

    /// The RPC of a call that has not ended.
    pub(crate) fn rpc(&self, call: CallKey) -> Option<RpcKey> {
        self.calls.get(call)?.rpc
    }

    /// Registers another RPC for a call.
    pub(crate) fn moved(&mut self, moved: Moved) {
        if let Some(slot) = self.calls.get_mut(CallKey::from_bits(moved.cookie.number())) {
            slot.rpc = Some(moved.rpc);
        }
    }

    /// Forgets a call. Returns its RPC if that has not ended.
    pub(crate) fn forget_call(&mut self, call: CallKey) -> Option<RpcKey> {
        let slot = self.calls.take(call)?;
        if let Some(result) = &slot.result {
            self.count_taken(slot.socket, slot.completion, result);
        }
        self.discard(slot.waiter);
        if slot.result.is_none() { slot.rpc } else { None }
    }

    /// Cancels a call and wakes its waiter. Returns its RPC if that is still active.
    pub(crate) fn cancel_call(&mut self, call: CallKey) -> Option<RpcKey> {
        let slot = self.calls.get_mut(call).filter(|slot| slot.result.is_none())?;
        let rpc = slot.rpc;
        self.finish(call, Err(CallError::Cancelled));
        rpc
    }

    /// Calls with a slot whose results go to the queue of a socket with this cookie: those with a span.
    pub(crate) fn find_sent(&self, socket: SocketKey, cookie: u64) -> Vec<CallKey> {
        let is_it = |key: &CallKey| {
            let is_sent = |slot: &CallSlot| {
                slot.socket == socket && slot.completion == CompletionMode::Queue(cookie)
            };
            self.calls.get(*key).is_some_and(is_sent)
        };
        self.calls.keys().filter(is_it).collect()
    }

    /// Takes the call's result, if it has arrived, and forgets the call.
    #[inline]
    pub(crate) fn take_result(&mut self, call: CallKey) -> Option<Result<Bytes, CallError>> {
        let slot = self.calls.get_mut(call)?;
        let result = slot.result.take()?;
        let (socket, completion, mark) = (slot.socket, slot.completion, slot.mark);
        self.calls.remove(call);
        self.count_taken(socket, completion, &result);
        if mark.is_some() {
            trace_taken(mark, &result);
        }
        Some(result)
    }

    /// Forgets a call and its result.
    #[inline]
    fn count_taken(
        &mut self,
        socket: SocketKey,
        completion: CompletionMode,
        result: &Result<Bytes, CallError>,
    ) {
        if completion == CompletionMode::Handle
            && let Some(mailbox) = self.mailbox(socket)
        {
            mailbox.backlog.results.take(result);
            self.note_change(socket);
        }
    }

    /// Notes that the undelivered responses of a socket have changed.
    #[inline]
    pub(crate) fn note_change(&mut self, socket: SocketKey) {
        if let Some(mailbox) = self.mailbox(socket)
            && !mem::replace(&mut mailbox.backlog.changed, true)
        {
            self.changed.push(socket);
        }
    }

    /// Reports the bytes of responses that wait for the application, of each socket where they have changed.
    #[inline]
    pub(crate) fn report_backlog(&mut self, mut report: impl FnMut(SocketKey, Undelivered)) {
        while let Some(socket) = self.changed.pop() {
            let Some(mailbox) = self.mailbox(socket) else { continue };
            mailbox.backlog.changed = false;
            let (queued, held) = (mailbox.queue.undelivered(), mailbox.backlog.results);
            let undelivered = Undelivered {
                responses: queued.responses + held.responses,
                bytes: queued.bytes + held.bytes,
            };
            if mem::replace(&mut mailbox.backlog.reported, undelivered) != undelivered {
                report(socket, undelivered);
            }
        }
    }

    /// Puts a message in its place. `address` returns the address of its sender.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        event: Event,
        mark: Option<TraceMark>,
        address: impl FnOnce(PathId) -> Option<SocketAddr>,
    ) {
        match event {
            Event::Request { socket, rpc, from: Remote { path, port }, deadline, trace, body } => {
                let host = address(path);
                debug_assert!(host.is_some(), "the path to a peer with a request is held");
                let Some(host) = host else { return };
                let from = Address::new(host, port);
                let request = WaitingRequest { rpc, from, path, deadline, trace, body, mark };
                self.enqueue(socket, |queue| queue.push_request(request));
            }
            Event::Cancelled { rpc, .. } => {
                if let Some(task) = self.watchers.remove(rpc) {
                    Self::wake(&mut self.wakes, &mut self.tasks, task);
                }
            }
            Event::Response { socket, cookie, body, .. } => {
                self.complete(socket, cookie, Ok(body));
            }
            Event::Connected { cookie, .. } => self.connected(CallKey::from_bits(cookie.number())),
            Event::Failed { socket, cookie, error, .. } => {
                let error = match error {
                    CallFailed::Described(text) => described::read(&text),
                    error => CallError::failed(error),
                };
                self.fail_call(socket, cookie, error);
            }
        }
    }

    /// Returns the number of a socket's rule for peers.
    pub(crate) fn rule(&mut self, socket: SocketKey) -> u8 {
        self.mailbox(socket).map_or(0, |mailbox| mailbox.rule)
    }

    /// Handles the end of a call without a response.
    #[cold]
    pub(crate) fn fail_call(&mut self, socket: SocketKey, cookie: Cookie, error: CallError) {
        self.complete(socket, cookie, Err(error));
    }

    /// Returns the inbox for messages of the node at `host` that arrive by `path`. They have no marks in the time trace.
    #[inline]
    pub(crate) fn inbox(&mut self, host: SocketAddr, path: PathId) -> DirectInbox<'_> {
        DirectInbox { mail: self, host, path }
    }

    /// Handles the event that a `connect` has made its peer known.
    pub(crate) fn connected(&mut self, call: CallKey) {
        self.finish(call, Ok(Bytes::new()));
    }

    /// Handles the end of a call.
    #[inline]
    fn complete(&mut self, socket: SocketKey, cookie: Cookie, result: Result<Bytes, CallError>) {
        match cookie {
            Cookie::Key(call) => self.finish(CallKey::from_bits(call), result),
            Cookie::Queue(cookie) => {
                let (span, mark) = (SpanNumber::NONE, None);
                self.enqueue_response(socket, WaitingResponse { cookie, result, span, mark });
            }
        }
    }

    #[inline]
    fn finish(&mut self, call: CallKey, result: Result<Bytes, CallError>) {
        let Some(slot) = self.calls.get_mut(call) else {
            return;
        };
        match slot.completion {
            CompletionMode::Handle => {
                let waiter = slot.waiter.take();
                let handoffs = waiter.as_ref().map_or(0, |waiter| u64::from(waiter.is_task()));
                let stats = PortStats { messages: 1, handoffs };
                self.all.add(stats);
                if let Some(Some(mailbox)) = self.boxes.get_mut(slot.socket.index())
                    && mailbox.key == slot.socket
                {
                    mailbox.backlog.results.add(&result);
                    if !mem::replace(&mut mailbox.backlog.changed, true) {
                        self.changed.push(slot.socket);
                    }
                    mailbox.stats.add(stats);
                }
                slot.result = Some(result);
                if let Some(waiter) = waiter {
                    Self::wake(&mut self.wakes, &mut self.tasks, waiter);
                }
            }
            CompletionMode::Queue(cookie) => {
                let (socket, span, mark) = (slot.socket, slot.span, slot.mark);
                self.calls.remove(call);
                self.enqueue_response(socket, WaitingResponse { cookie, result, span, mark });
            }
        }
    }

    #[inline]
    fn enqueue_response(&mut self, socket: SocketKey, response: WaitingResponse) {
        self.enqueue(socket, |queue| queue.push_response(response));
        self.note_change(socket);
    }

    #[inline]
    fn enqueue(&mut self, socket: SocketKey, push: impl FnOnce(&mut Queue)) {
        let Some(mailbox) = self.boxes.get_mut(socket.index()).and_then(Option::as_mut) else {
            return;
        };
        if mailbox.key != socket {
            return;
        }
        push(&mut mailbox.queue);
        mailbox.stats.messages += 1;
        self.all.messages += 1;
        if mailbox.handled {
            if mailbox.queue.len() == 1 {
                self.handled.push(socket);
            }
            return;
        }
        if !mailbox.touched
            && (!mailbox.waiters.receivers.is_empty()
                || mailbox.cross_shard.is_some()
                || self.event_loop_sleeps)
        {
            mailbox.touched = true;
            self.touched.push(socket);
        }
    }

    /// Sends the messages of a socket to its handler.
    pub(crate) fn hand_to_handler(&mut self, socket: SocketKey) {
        if let Some(mailbox) = self.mailbox(socket) {
            mailbox.handled = true;
        }
    }

    #[inline]
    pub(crate) fn has_handled(&self) -> bool {
        !self.handled.is_empty()
    }

    /// A socket whose handler has messages.
    #[inline]
    pub(crate) fn take_handled(&mut self) -> Option<SocketKey> {
        self.handled.pop()
    }

    /// The next request for the handler of a socket.
    #[inline]
    pub(crate) fn hand_over_request(&mut self, socket: SocketKey) -> Option<WaitingRequest> {
        self.mailbox(socket)?.queue.pop_request()
    }

    /// The next response for the handler of a socket.
    #[inline]
    pub(crate) fn hand_over_response(&mut self, socket: SocketKey) -> Option<WaitingResponse> {
        let response = self.mailbox(socket)?.queue.pop_response()?;
        self.note_change(socket);
        Some(response)
    }

    /// Notes that a waiter is registered with a handler.
    pub(crate) fn register(&mut self, waiter: &Waiter) {
        self.tasks += usize::from(waiter.is_task());
    }

    /// Removes a [registered](Self::register) task that no longer waits.
    pub(crate) fn unregister_task(&mut self) {
        self.tasks -= 1;
    }

    /// Wakes a [registered](Self::register) waiter.
    pub(crate) fn wake_registered(&mut self, waiter: Waiter) {
        Self::wake(&mut self.wakes, &mut self.tasks, waiter);
    }

    /// Chooses the waiters to wake for messages that remain after the thread that turned the engine has taken its own.
    #[inline]
    pub(crate) fn settle(&mut self) {
        while let Some(key) = self.touched.pop() {
            let Some(mailbox) = self.boxes.get_mut(key.index()).and_then(Option::as_mut) else {
                continue;
            };
            mailbox.touched = false;
            while mailbox.queue.len() > mailbox.waiters.coming {
                let Some(waiter) = mailbox.waiters.receivers.pop() else {
                    break;
                };
                mailbox.waiters.coming += 1;
                mailbox.stats.handoffs += u64::from(waiter.is_task());
                self.all.handoffs += u64::from(waiter.is_task());
                Self::wake(&mut self.wakes, &mut self.tasks, waiter);
            }
            self.unclaimed |=
                self.event_loop_sleeps && mailbox.queue.len() > mailbox.waiters.coming;
            mailbox.note(&mut self.wakes);
        }
    }

    /// Whether an event loop must be notified of a message, because no thread or task waits for it.
    #[inline]
    pub(crate) fn take_unclaimed(&mut self) -> bool {
        mem::take(&mut self.unclaimed)
    }

    /// Chooses all waiters of all calls and sockets.
    pub(crate) fn wake_all(&mut self) {
        for mailbox in self.boxes.iter_mut().flatten() {
            self.wakes.append(&mut mailbox.waiters.receivers);
        }
        self.wakes.extend(self.watchers.take_all());
        self.calls.retain(|call| {
            self.wakes.extend(call.waiter.take());
            true
        });
        self.tasks = 0;
    }

    fn wake(wakes: &mut Vec<Waiter>, tasks: &mut usize, waiter: Waiter) {
        if waiter.is_task() {
            *tasks -= 1;
        }
        wakes.push(waiter);
    }

    /// Whether tasks wait, so that the engine must be turned although no thread waits.
    pub(crate) fn tasks_wait(&self) -> bool {
        self.tasks > 0
    }

    /// Removes a registered waiter.
    pub(crate) fn discard(&mut self, waiter: Option<Waiter>) {
        if let Some(waiter) = waiter.filter(Waiter::is_task) {
            self.tasks -= 1;
            self.discarded.push(waiter);
        }
    }

    /// Registers `waiter` for the result of a call without one.
    pub(crate) fn wait_for_call(&mut self, call: CallKey, waiter: Waiter) {
        let Some(slot) = self.calls.get_mut(call) else {
            return;
        };
        self.tasks += usize::from(waiter.is_task());
        let before = slot.waiter.replace(waiter);
        self.discard(before);
    }

    /// Registers a task that waits for the end of a request, in place of an earlier one.
    pub(crate) fn watch(&mut self, socket: SocketKey, request: RpcKey, task: Waiter) {
        self.tasks += usize::from(task.is_task());
        let before = self.watchers.insert(socket, request, task);
        self.discard(before);
    }

    /// Removes the task that waits for the end of a request, if there is one.
    pub(crate) fn end_watch(&mut self, request: RpcKey) {
        let task = self.watchers.remove(request);
        self.discard(task);
    }

    /// Removes the call's waiter, which is awake. Returns `true` if it had been chosen to be woken.
    pub(crate) fn leave_call(&mut self, call: CallKey) -> bool {
        let waiter = self.calls.get_mut(call).and_then(|slot| slot.waiter.take());
        let chosen = waiter.is_none();
        self.discard(waiter);
        chosen
    }

    /// Asks whether a follower may poll for its wake-up. Returns `false` if enough followers poll.
    pub(crate) fn begin_polling(&mut self, socket: SocketKey, thread: &Parker) -> bool {
        let Some(mailbox) = self.mailbox(socket) else {
            return false;
        };
        let may = mailbox.waiters.polling < FOLLOWERS_POLLING.min(thread.other_cores());
        mailbox.waiters.polling += usize::from(may);
        may
    }

    pub(crate) fn end_polling(&mut self, socket: SocketKey) {
        if let Some(mailbox) = self.mailbox(socket) {
            mailbox.waiters.polling -= 1;
        }
    }

    /// Counts a sleep that ended with a message of this socket.
    pub(crate) fn count_handoff(&mut self, socket: Option<SocketKey>) {
        if let Some(mailbox) = socket.and_then(|socket| self.mailbox(socket)) {
            mailbox.stats.handoffs += 1;
            self.all.handoffs += 1;
        }
    }

    /// Counters of all sockets, closed ones included.
    pub(crate) fn stats(&self) -> PortStats {
        self.all
    }

    /// Registers `waiter` for a message of the socket.
    pub(crate) fn wait_for_mail(&mut self, socket: SocketKey, waiter: Waiter) {
        let task = waiter.is_task();
        if let Some(mailbox) = self.mailbox(socket) {
            mailbox.waiters.receivers.push(waiter);
            self.tasks += usize::from(task);
        }
    }

    /// Removes a waiter that is awake and checks the queue under this lock. If it does not take the message for which it was woken,
    /// [`pass_on`](Self::pass_on) wakes another one. Returns true if the waiter was chosen.
    pub(crate) fn leave_mail(&mut self, socket: SocketKey, id: WaiterId) -> bool {
        let Some(mailbox) = self.mailbox(socket) else {
            return true;
        };
        let Some(at) = mailbox.waiters.receivers.iter().rposition(|waiter| waiter.id() == id)
        else {
            mailbox.waiters.coming = mailbox.waiters.coming.saturating_sub(1);
            return true;
        };
        let waiter = mailbox.waiters.receivers.remove(at);
        self.discard(Some(waiter));
        false
    }

    /// Handles a woken waiter that leaves without a check of the queue.
    pub(crate) fn pass_on(&mut self, socket: SocketKey) {
        let Some(mailbox) = self.mailbox(socket) else {
            return;
        };
        if !mailbox.queue.is_empty() && !mem::replace(&mut mailbox.touched, true) {
            self.touched.push(socket);
        }
    }
}

/// Puts messages of a node in their places.
pub(crate) struct DirectInbox<'a> {
    mail: &'a mut Mail,
    host: SocketAddr,
    path: PathId,
}

impl Inbox for DirectInbox<'_> {
    #[inline]
    fn request(&mut self, request: ArrivedRequest) {
        let ArrivedRequest { socket, rpc, from, deadline, trace, body } = request;
        let (from, path, mark) = (Address::new(self.host, from), self.path, None);
        let request = WaitingRequest { rpc, from, path, deadline, trace, body, mark };
        self.mail.enqueue(socket, |queue| queue.push_request(request));
    }

    #[inline]
    fn response(&mut self, socket: SocketKey, _: RpcKey, cookie: Cookie, body: Bytes) {
        self.mail.complete(socket, cookie, Ok(body));
    }
}

/// Followers of a socket that poll for their wake-up, beside the leader. The next message is for the one that slept last. Every
/// further one polls for a less likely message, on a core that other work may need (lesson 28).
const FOLLOWERS_POLLING: usize = 2;

/// Records that the application takes the result of a chosen call.
#[cold]
fn trace_taken(mark: Option<TraceMark>, result: &Result<Bytes, CallError>) {
    let length = result.as_ref().map_or(0, Bytes::len);
    time_trace::record_of(TraceEvent::RecvmsgResponse, mark, length);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apus_proto::{Config, Endpoint};

    use super::*;

    /// A mail with one socket, and threads asleep at it.
    fn mail(sleepers: usize) -> (Mail, SocketKey, Vec<WaiterId>) {
        let mut endpoint = Endpoint::new(Config::default(), 1);
        let socket = endpoint.open(Some(7)).unwrap();
        let mut mail = Mail::new();
        mail.open(socket, None);
        let ids = (0..sleepers).map(|_| {
            let parker = Arc::new(Parker::new());
            let id = parker.id();
            mail.wait_for_mail(socket, Waiter::Thread(parker));
            id
        });
        let ids = ids.collect();
        (mail, socket, ids)
    }

    fn arrive(mail: &mut Mail, socket: SocketKey, cookie: u64) {
        let result = Err(CallError::Cancelled);
        mail.enqueue_response(
            socket,
            WaitingResponse { cookie, result, span: SpanNumber::NONE, mark: None },
        );
    }

    fn woken(mail: &mut Mail) -> Vec<WaiterId> {
        mail.settle();
        mail.wakes.drain(..).map(|waiter| waiter.id()).collect()
    }

    #[test]
    fn one_wake_up_a_message_and_the_last_to_sleep_is_first() {
        let (mut mail, socket, ids) = mail(3);
        arrive(&mut mail, socket, 1);
        arrive(&mut mail, socket, 2);
        assert_eq!(woken(&mut mail), [ids[2], ids[1]]);
        assert_eq!(woken(&mut mail), []);
    }

    #[test]
    fn nobody_is_woken_for_what_the_polling_thread_takes() {
        let (mut mail, socket, _) = mail(1);
        arrive(&mut mail, socket, 1);
        mail.mailbox(socket).unwrap().queue.pop_response();
        assert_eq!(woken(&mut mail), []);
    }

    #[test]
    fn a_waiter_on_its_way_counts() {
        let (mut mail, socket, ids) = mail(2);
        arrive(&mut mail, socket, 1);
        assert_eq!(woken(&mut mail), [ids[1]]);
        // Somebody else takes the message, and another comes: the thread on its way will take it.
        mail.mailbox(socket).unwrap().queue.pop_response();
        arrive(&mut mail, socket, 2);
        assert_eq!(woken(&mut mail), []);
        // It goes without taking anything: the next is woken.
        mail.leave_mail(socket, ids[1]);
        mail.pass_on(socket);
        assert_eq!(woken(&mut mail), [ids[0]]);
    }

    #[test]
    fn who_was_called_from_another_shard_in_vain_is_called_again() {
        let mut endpoint = Endpoint::new(Config::default(), 1);
        let socket = endpoint.open(Some(7)).unwrap();
        let cross_shard = Arc::new(CrossShardWaiters::default());
        let mut mail = Mail::new();
        mail.open(socket, Some((Arc::clone(&cross_shard), 1)));
        let sleep = || {
            let parker = Arc::new(Parker::new());
            parker.prepare();
            let id = parker.id();
            cross_shard.enlist(Waiter::Thread(parker));
            id
        };
        let (first, second) = (sleep(), sleep());
        arrive(&mut mail, socket, 1);
        arrive(&mut mail, socket, 2);
        assert_eq!(woken(&mut mail), [second, first]);
        // One takes all; the other finds nothing noted and sleeps again.
        let mailbox = mail.mailbox(socket).unwrap();
        while mailbox.queue.pop_response().is_some() {}
        mailbox.looked(false);
        let again = sleep();
        arrive(&mut mail, socket, 3);
        assert_eq!(woken(&mut mail), [again]);
    }

    #[test]
    fn closing_ends_calls_and_wakes_everybody() {
        let (mut mail, socket, ids) = mail(2);
        let held = mail.expect_call(socket, CompletionMode::Handle);
        let queued = mail.expect_call(socket, CompletionMode::Queue(9));
        mail.close(socket);
        assert_eq!(woken(&mut mail), ids);
        assert_eq!(mail.take_result(held), Some(Err(CallError::Closed)));
        assert!(mail.take_result(queued).is_none());
        assert!(mail.mailbox(socket).is_none());
        assert!(mail.sockets().is_empty());
    }
}
