//! The server's side of a call with streams.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Waker};

use apus::{Body, Bytes};

use crate::body;
use crate::code::Code;
use crate::context::Context;
use crate::envelope::{EnvelopeError, EnvelopeLimits, ResponseHead};
use crate::metadata::Metadata;
use crate::server::answer;
use crate::server::counters::{ServerCounters, count};
use crate::server::in_service::InService;
use crate::server::stream_buffers::{BufferShare, StreamBuffers};
use crate::status::{Execution, Status};
use crate::streaming::chunks::{CHUNK_MAX, ChunkQueue};
use crate::streaming::in_order::{InOrder, SeqPlace};
use crate::streaming::reader::ChunkSource;
use crate::streaming::sender::ChunkSink;
use crate::transport::Incoming;

/// Bytes of a client's stream beyond which its PUSHes wait for their answers.
//= docs/rpc-wire.md#E24
const INBOX_MAX: usize = 256 << 10;

/// Bytes by which a chunk counts more than it has: it keeps its message.
const CHUNK_COST: usize = 256;

/// Bytes beyond which a handler waits until its client has pulled.
const OUTBOX_MAX: usize = 128 << 10;

/// A call with streams. Its request OPEN, and later HOLD, is that of the context.
pub(crate) struct ServerStream {
    context: Context,
    counters: Arc<ServerCounters>,
    limits: EnvelopeLimits,
    state: Mutex<Sides>,
}

struct Sides {
    inbox: RequestSide,
    outbox: ResponseSide,
}

/// The client's messages.
struct RequestSide {
    pushes: InOrder<Pushed>,
    chunks: VecDeque<Bytes>,
    bytes: usize,
    has_end: bool,
    /// PUSHes that are in order and wait for room.
    full: VecDeque<Unanswered>,
    /// Bytes of the chunk of an OPEN without an answer. The budgets of the node have it, as those of PUSHes without an answer.
    opening: usize,
    /// The other bytes.
    share: BufferShare,
    reader: Option<Waker>,
    is_read: bool,
}

struct Pushed {
    chunk: Bytes,
    ends: bool,
    request: Incoming,
}

/// A PUSH without an answer.
struct Unanswered {
    request: Incoming,
    /// Bytes of its chunk, until the handler takes it.
    bytes: usize,
    /// The buffers had no room for it.
    is_withheld: bool,
}

/// The handler's messages.
struct ResponseSide {
    chunks: ChunkQueue,
    /// Their bytes between two polls of the handler.
    share: BufferShare,
    pulls: InOrder<Incoming>,
    is_opened: bool,
    /// The metadata is sent before the first message is there.
    is_head_due: bool,
    /// The HOLD follows the OPEN and has not arrived.
    is_hold_due: bool,
    /// The HOLD that arrived before the OPEN was answered.
    hold: Option<Incoming>,
    end: Option<Status>,
    end_is_sent: bool,
    writer: Option<Waker>,
    /// The task of the handler.
    task: Option<Waker>,
    /// The handler is being polled: its messages are sent together at the end of the poll.
    is_polled: bool,
}

/// Answers and wake-ups, which are done without the lock.
#[derive(Default)]
struct Effects {
    answers: Vec<(Incoming, Body)>,
    wakers: Vec<Waker>,
}

impl Effects {
    fn answer(&mut self, request: Incoming, head: &ResponseHead) {
        self.answers.push((request, head.encode(0).into()));
    }

    fn wake(&mut self, waker: &mut Option<Waker>) {
        self.wakers.extend(waker.take());
    }

    fn act(self) {
        for (request, message) in self.answers {
            // The client may have gone.
            let _ = request.reply(message);
        }
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

/// The answer to a PUSH whose sender may go on.
fn credit() -> ResponseHead {
    ResponseHead::default()
}

/// The answer to a message about a call that is over. Its status has no meaning.
//= docs/rpc-wire.md#E25
fn over() -> ResponseHead {
    ResponseHead { end: Some(Status::new(Code::Ok, "")), ..ResponseHead::default() }
}

/// The status of a call whose first chunk has no room among those of all streams.
#[cold]
fn buffers_are_full() -> Status {
    let text = "messages of streams that wait for their handlers exceed stream_buffer or stream_buffer_per_host";
    Status::new(Code::ResourceExhausted, text)
}

fn refusal(text: &'static str) -> ResponseHead {
    let status = Status::new(Code::ResourceExhausted, text);
    ResponseHead { end: Some(status), ..ResponseHead::default() }
}

impl ServerStream {
    /// With the chunks of the OPEN.
    pub(crate) fn new(
        context: Context,
        in_service: &InService,
        buffers: &Arc<StreamBuffers>,
        chunk: Bytes,
        ends: bool,
        holds: bool,
    ) -> Self {
        let share = || buffers.share(context.peer().host.ip());
        let bytes = if chunk.is_empty() { 0 } else { chunk.len() + CHUNK_COST };
        let chunks = if chunk.is_empty() { VecDeque::new() } else { VecDeque::from([chunk]) };
        let inbox = RequestSide {
            pushes: InOrder::new(),
            chunks,
            bytes,
            has_end: ends,
            full: VecDeque::new(),
            opening: bytes,
            share: share(),
            reader: None,
            is_read: true,
        };
        let outbox = ResponseSide {
            chunks: ChunkQueue::default(),
            share: share(),
            pulls: InOrder::new(),
            is_opened: false,
            is_head_due: false,
            is_hold_due: holds,
            hold: None,
            end: None,
            end_is_sent: false,
            writer: None,
            task: None,
            is_polled: false,
        };
        let (counters, limits) = (Arc::clone(&in_service.counters), in_service.limits);
        Self { context, counters, limits, state: Mutex::new(Sides { inbox, outbox }) }
    }

    fn state(&self) -> MutexGuard<'_, Sides> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes more of the client's body.
    pub(crate) fn push(&self, seq: u64, ends: bool, chunk: Bytes, request: Incoming) {
        let mut effects = Effects::default();
        {
            let mut state = self.state();
            let is_over = state.outbox.end.is_some();
            let inbox = &mut state.inbox;
            match inbox.pushes.place(seq) {
                _ if is_over => effects.answer(request, &over()),
                //= docs/rpc-wire.md#E23
                SeqPlace::Known => effects.answer(request, &credit()),
                SeqPlace::Refused => effects.answer(request, &refusal("a PUSH is too far ahead")),
                SeqPlace::Kept => {
                    inbox.pushes.push(seq, Pushed { chunk, ends, request });
                    inbox.accept(&mut effects, &self.counters);
                }
            }
        }
        effects.act();
    }

    /// Takes a request for more of the response.
    pub(crate) fn pull(&self, seq: u64, request: Incoming) {
        let mut effects = Effects::default();
        {
            let mut state = self.state();
            match state.outbox.pulls.place(seq) {
                //= docs/rpc-wire.md#E23
                SeqPlace::Known | SeqPlace::Refused => {
                    effects.answer(request, &refusal("a PULL is too far ahead, or repeated"));
                }
                SeqPlace::Kept => {
                    state.outbox.pulls.push(seq, request);
                    self.flush(&mut state, &mut effects);
                }
            }
        }
        effects.act();
    }

    /// Takes the request that stands for the call from now on.
    //= docs/rpc-wire.md#E22
    pub(crate) fn hold(&self, request: Incoming) {
        let mut effects = Effects::default();
        {
            let mut state = self.state();
            if state.outbox.end_is_sent {
                effects.answer(request, &over());
            } else if !state.outbox.is_opened && state.outbox.hold.is_none() {
                state.outbox.hold = Some(request);
                state.outbox.is_hold_due = false;
                self.flush(&mut state, &mut effects);
            } else if let Err(request) = self.context.hold(request) {
                effects.answer(*request, &refusal("the call has a request that holds it"));
            }
            effects.wake(&mut state.outbox.task);
        }
        effects.act();
    }

    /// The client has given the call up.
    pub(crate) fn cancel(&self) {
        self.context.cancel();
    }

    /// Ends the response with the result of the handler.
    pub(crate) fn finish(&self, mut status: Status) {
        let trailers = self.context.take_trailers();
        if !trailers.is_empty() {
            status.metadata_mut().extend(trailers);
        }
        let mut effects = Effects::default();
        {
            let mut state = self.state();
            state.outbox.end.get_or_insert(status);
            state.inbox.end(&mut effects);
            self.flush(&mut state, &mut effects);
        }
        effects.act();
    }

    /// Ends the response at once, if it has not ended: the chunks that wait are dropped.
    pub(crate) fn abort(&self, status: Status) {
        let mut effects = Effects::default();
        {
            let mut state = self.state();
            state.inbox.end(&mut effects);
            state.outbox.chunks.clear();
            state.outbox.end.get_or_insert(status);
            self.flush(&mut state, &mut effects);
            for pull in state.outbox.pulls.take_all() {
                effects.answer(pull, &over());
            }
        }
        effects.act();
    }

    /// Whether the OPEN was answered.
    pub(crate) fn is_opened(&self) -> bool {
        self.state().outbox.is_opened
    }

    /// The handler is about to be polled.
    pub(crate) fn begin_poll(&self) {
        self.state().outbox.is_polled = true;
    }

    /// The handler was polled: its messages are sent.
    pub(crate) fn end_poll(&self) {
        let mut effects = Effects::default();
        {
            let mut state = self.state();
            state.outbox.is_polled = false;
            self.flush(&mut state, &mut effects);
        }
        effects.act();
    }

    /// Ready when the client has the whole response.
    pub(crate) fn poll_end_sent(&self, task: &task::Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.outbox.end_is_sent {
            return Poll::Ready(());
        }
        state.outbox.task = Some(task.waker().clone());
        Poll::Pending
    }

    /// Adds to the response, which is sent at the end of the handler's poll.
    fn add(&self, add: impl FnOnce(&mut ResponseSide)) {
        let mut effects = Effects::default();
        {
            let mut state = self.state();
            let outbox = &mut state.outbox;
            if outbox.end.is_none() {
                add(outbox);
                if !outbox.is_gathering() {
                    self.flush(&mut state, &mut effects);
                }
            }
        }
        effects.act();
    }

    /// Answers the OPEN or the PULLs whose turn it is, as far as there is something to send.
    //= docs/rpc-wire.md#E22
    fn flush(&self, sides: &mut Sides, effects: &mut Effects) {
        let Sides { inbox, outbox } = sides;
        while !outbox.end_is_sent && outbox.has_part() {
            let is_whole = outbox.end.is_some() && outbox.chunks.has_at_most_one();
            if !outbox.is_opened && outbox.is_hold_due && !is_whole {
                // Either request stands for the call at any time.
                break;
            }
            //= docs/rpc-wire.md#E24
            if !outbox.is_opened && !is_whole && !inbox.keep_opening() {
                count(&self.counters.withheld);
                outbox.fail(buffers_are_full());
                self.context.note_end(Code::ResourceExhausted);
            }
            let (request, metadata) = if outbox.is_opened {
                (outbox.pulls.pop(), Metadata::new())
            } else {
                (self.context.take_request(), self.context.take_metadata())
            };
            let Some(request) = request else { break };
            if !outbox.is_opened {
                outbox.is_opened = true;
                if !outbox.is_polled {
                    // The handler's task looks from now on whether the call is held.
                    effects.wake(&mut outbox.task);
                }
                if let Some(hold) = outbox.hold.take() {
                    self.context.hold(hold).expect("the OPEN was taken from the context");
                }
            }
            let chunk = outbox.chunks.pop().unwrap_or_default();
            let end = if outbox.chunks.is_empty() { outbox.end.clone() } else { None };
            let metadata = (!metadata.is_empty()).then_some(metadata);
            let head = ResponseHead { metadata, more: end.is_none(), end };
            let (message, is_end) = answer::bounded(&head, body::room(chunk.len()), &self.limits);
            let message = if is_end == head.end.is_some() {
                body::behind(message, chunk)
            } else {
                outbox.chunks.clear();
                self.context.note_end(Code::ResourceExhausted);
                message.into()
            };
            outbox.end_is_sent = is_end;
            effects.answers.push((request, message));
        }
        if outbox.end_is_sent {
            //= docs/rpc-wire.md#E25
            let holds = self.context.take_request().into_iter().chain(outbox.hold.take());
            for request in outbox.pulls.take_all().chain(holds) {
                effects.answer(request, &over());
            }
            effects.wake(&mut outbox.task);
        }
        outbox.share.set(outbox.chunks.bytes());
        if outbox.chunks.bytes() < OUTBOX_MAX || outbox.end_is_sent {
            effects.wake(&mut outbox.writer);
        }
    }
}

impl ResponseSide {
    /// Ends the response with an error of the server.
    #[cold]
    fn fail(&mut self, status: Status) {
        self.chunks.clear();
        self.end = Some(status);
    }

    /// Whether a handler may add a message. One whose client has pulled all messages may, so that every stream goes on.
    fn has_room(&self) -> bool {
        self.chunks.is_empty() || self.chunks.bytes() < OUTBOX_MAX && self.share.has_room()
    }

    /// Whether there is something to send.
    fn has_part(&self) -> bool {
        !self.chunks.is_empty() || self.end.is_some() || self.is_head_due && !self.is_opened
    }

    /// Whether messages wait for the end of the handler's poll.
    fn is_gathering(&self) -> bool {
        self.is_polled && self.chunks.bytes() < CHUNK_MAX
    }
}

impl RequestSide {
    /// Takes the PUSHes whose turn it is.
    fn accept(&mut self, effects: &mut Effects, counters: &ServerCounters) {
        while let Some(Pushed { chunk, ends, request }) = self.pushes.pop() {
            let mut bytes = 0;
            if self.is_read && !self.has_end && !chunk.is_empty() {
                bytes = chunk.len() + CHUNK_COST;
                self.bytes += bytes;
                self.chunks.push_back(chunk);
            }
            self.has_end |= ends;
            self.full.push_back(Unanswered { request, bytes, is_withheld: false });
        }
        self.give_credit(effects, counters);
        effects.wake(&mut self.reader);
    }

    /// Answers PUSHes as far as there is room for their chunks: the budgets of the node have those of the others.
    //= docs/rpc-wire.md#E24
    fn give_credit(&mut self, effects: &mut Effects, counters: &ServerCounters) {
        while self.bytes < INBOX_MAX
            && let Some(first) = self.full.front_mut()
        {
            if !self.share.try_add(first.bytes) {
                if !mem::replace(&mut first.is_withheld, true) {
                    count(&counters.withheld);
                }
                break;
            }
            let first = self.full.pop_front().expect("it was looked at");
            effects.answer(first.request, &credit());
        }
    }

    /// Takes the next chunk. Its bytes leave the count that they are in.
    fn take(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        let bytes = chunk.len() + CHUNK_COST;
        self.bytes -= bytes;
        if self.opening > 0 {
            self.opening = 0;
        } else if self.share.bytes() > 0 {
            self.share.remove(bytes);
        } else if let Some(first) = self.full.iter_mut().find(|push| push.bytes > 0) {
            first.bytes = 0;
        }
        Some(chunk)
    }

    /// The OPEN is about to be answered. Returns false if there is no room for its chunk.
    fn keep_opening(&mut self) -> bool {
        let has_room = self.share.try_add(self.opening);
        if has_room {
            self.opening = 0;
        }
        has_room
    }

    /// Drops the chunks.
    fn clear(&mut self) {
        (self.is_read, self.bytes, self.opening) = (false, 0, 0);
        self.chunks.clear();
        self.share.set(0);
        self.full.iter_mut().for_each(|push| push.bytes = 0);
    }

    /// The client's body is not wanted any more.
    fn end(&mut self, effects: &mut Effects) {
        self.clear();
        let waiting = self.pushes.take_all().map(|pushed| pushed.request);
        for request in self.full.drain(..).map(|push| push.request).chain(waiting) {
            effects.answer(request, &over());
        }
        effects.wake(&mut self.reader);
    }
}

impl ChunkSource for ServerStream {
    fn poll_chunk(&self, task: &task::Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let mut effects = Effects::default();
        let polled = {
            let mut state = self.state();
            let inbox = &mut state.inbox;
            if let Some(chunk) = inbox.take() {
                inbox.give_credit(&mut effects, &self.counters);
                Poll::Ready(Some(Ok(chunk)))
            } else if inbox.has_end || !inbox.is_read {
                Poll::Ready(None)
            } else {
                inbox.reader = Some(task.waker().clone());
                Poll::Pending
            }
        };
        effects.act();
        polled
    }

    fn poll_metadata(&self, _: &task::Context<'_>) -> Poll<Result<Metadata, Status>> {
        Poll::Ready(Ok(Metadata::new()))
    }

    fn poll_answered(&self, _: &task::Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn take_trailers(&self) -> Metadata {
        Metadata::new()
    }

    //= docs/rpc-wire.md#E15
    fn refuse(&self, error: EnvelopeError) -> Status {
        self.counters.refusals.count(&error);
        // The handler has begun.
        error.of_request().with_execution(Execution::Possible)
    }

    /// The handler decides what follows.
    fn fail(&self, _: &Status) {}

    fn end_reading(&self) {
        let mut effects = Effects::default();
        {
            let inbox = &mut self.state().inbox;
            inbox.clear();
            inbox.give_credit(&mut effects, &self.counters);
        }
        effects.act();
    }
}

impl ChunkSink for ServerStream {
    fn poll_room(&self, task: &task::Context<'_>) -> Poll<Result<(), Status>> {
        let mut state = self.state();
        let outbox = &mut state.outbox;
        if outbox.end.is_some() || outbox.end_is_sent {
            return Poll::Ready(Err(Status::new(Code::Cancelled, "the call is over")));
        }
        if outbox.has_room() {
            return Poll::Ready(Ok(()));
        }
        outbox.writer = Some(task.waker().clone());
        Poll::Pending
    }

    fn push_message(&self, message: &[u8]) {
        self.add(|outbox| outbox.chunks.push_message(message));
    }

    fn push_raw(&self, bytes: &Bytes) {
        self.add(|outbox| outbox.chunks.push_raw(bytes));
    }

    fn send_head(&self) {
        self.add(|outbox| outbox.is_head_due = true);
    }

    fn end_sending(&self, _in_order: bool) {}
}
