//! The client's side of a call with streams.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use apus::{Body, Bytes, TraceContext};

use crate::body;
use crate::client::call_head::{CallHead, options};
use crate::client::calls::ChannelParts;
use crate::client::endpoint_state::InFlight;
use crate::client::failure::EndpointOutcome;
use crate::client::task_thread::UPKEEP;
use crate::client::tried::Tried;
use crate::code::Code;
use crate::envelope::{EnvelopeError, RequestHead, ResponseHead};
use crate::metadata::Metadata;
use crate::observe::ClientCall;
use crate::status::{Execution, Status};
use crate::streaming::chunks::{CHUNK_MAX, ChunkQueue};
use crate::streaming::in_order::{InOrder, SeqPlace};
use crate::streaming::reader::ChunkSource;
use crate::streaming::sender::ChunkSink;
use crate::timer::{Sleep, sleep};
use crate::transport::{OutgoingOptions, Started};

/// PUSHes, and PULLs, that are under way at a time.
//= docs/rpc-wire.md#E24
const UNDER_WAY: usize = 2;

/// Bytes that the reader has not taken beyond which nothing more is pulled.
//= docs/rpc-wire.md#E24
const INBOX_MAX: usize = CHUNK_MAX;

/// Pause before a message is sent again that the server had no room for. It doubles with each pause of the call.
//= docs/rpc-wire.md#E26
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Time for which a CANCEL is sent. A server without it gives the call up after this time.
//= docs/rpc-wire.md#E27
const CANCEL_FOR: Duration = Duration::from_secs(10);

/// A call with streams.
pub(crate) struct ClientStream {
    calls: Arc<ChannelParts>,
    /// The server, on which the call is load until it is dropped.
    flight: InFlight,
    id: u64,
    until: Option<Instant>,
    trace: Option<TraceContext>,
    holding: Holding,
    state: Mutex<StreamState>,
    ends: Arc<Ends>,
    /// Wakes the tasks of both ends.
    waker: Waker,
    observed: ClientCall,
}

/// When a call sends its HOLD.
//= docs/rpc-wire.md#E22
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holding {
    /// With the OPEN.
    AtOnce,
    /// When the response turns out to be a stream, if the requests are none.
    Late,
}

struct StreamState {
    opening: Opening,
    outgoing: Outgoing,
    incoming: Incoming,
    hold: Option<Started>,
    /// A HOLD was sent.
    is_held: bool,
    /// The OPEN may have been answered with MORE, and the server may not have a HOLD: nothing stands for the call then.
    may_be_unheld: bool,
    /// The status of the call, [`Code::Ok`] after a response in order.
    end: Option<Status>,
}

enum Opening {
    /// The bytes of the OPEN, without the flag END and chunks.
    New {
        head: Vec<u8>,
    },
    Sent(Started),
    Answered,
}

struct Outgoing {
    chunks: ChunkQueue,
    pushes: Vec<Push>,
    early: EarlyMessages,
    next: u64,
    /// No message follows those in `chunks`.
    is_closed: bool,
    /// The flag END was sent, or the server takes no more.
    is_over: bool,
    /// The OPEN is known to have arrived: no new PUSH overtakes it.
    has_arrived: bool,
}

/// A PUSH under way.
struct Push {
    call: Started,
    /// For a repetition, of a PUSH that may have overtaken the OPEN.
    message: Option<Body>,
}

/// Messages that have overtaken their OPEN and found no room at the server. They are sent again after a pause.
//= docs/rpc-wire.md#E26
#[derive(Default)]
struct EarlyMessages {
    pushes: Vec<Body>,
    hold: bool,
    pause: Option<Sleep>,
    /// Number of pauses so far.
    pauses: u32,
}

struct Incoming {
    pulls: Vec<(u64, Started)>,
    next: u64,
    parts: InOrder<(ResponseHead, Bytes)>,
    chunks: VecDeque<Bytes>,
    bytes: usize,
    metadata: Option<Metadata>,
    /// The response goes on: it is pulled.
    has_more: bool,
}

/// A failure after the OPEN was sent: the handler may have begun.
fn later(status: Status) -> Status {
    status.with_execution(Execution::Possible)
}

/// Whether a message that has overtaken its OPEN found no room.
//= docs/rpc-wire.md#E26
fn is_to_be_repeated(head: &ResponseHead) -> bool {
    let is_it = |end: &Status| end.code() == Code::Unavailable && !end.may_have_executed();
    head.end.as_ref().is_some_and(is_it)
}

/// The tasks of the two ends of a stream.
#[derive(Default)]
struct Ends {
    tasks: Mutex<[Option<Waker>; 2]>,
    /// An answer may be there, or a call was not polled yet.
    is_due: AtomicBool,
}

#[derive(Clone, Copy)]
enum StreamSide {
    Reader,
    Sender,
}

impl Ends {
    fn wait(&self, end: StreamSide, task: &Context<'_>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut tasks[end as usize] {
            Some(waker) => waker.clone_from(task.waker()),
            waker => *waker = Some(task.waker().clone()),
        }
    }
}

impl Wake for Ends {
    fn wake(self: Arc<Self>) {
        self.is_due.store(true, Ordering::SeqCst);
        let tasks = mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.into_iter().flatten().for_each(Waker::wake);
    }
}

impl ClientStream {
    /// A call that is not sent yet.
    pub(crate) fn new(head: &mut CallHead<'_>, holding: Holding) -> Result<Self, Status> {
        head.observe();
        let stream = Self::begin(head, holding);
        stream.inspect_err(|status| head.observed.end(status.code()))
    }

    fn begin(head: &mut CallHead<'_>, holding: Holding) -> Result<Self, Status> {
        head.begin()?;
        // A deadline that has passed is found before anything is sent.
        head.options()?;
        let (until, trace) = head.bounds();
        let calls = Arc::clone(head.calls);
        let id = calls.next_id();
        let flight = calls.endpoints.begin(&Tried::default(), 0);
        let flight = flight.ok_or_else(Status::no_endpoint)?;
        let opening = Opening::New { head: head.open(id, false, 0)? };
        let outgoing = Outgoing {
            chunks: ChunkQueue::default(),
            pushes: Vec::new(),
            early: EarlyMessages::default(),
            next: 1,
            is_closed: false,
            is_over: false,
            has_arrived: false,
        };
        let incoming = Incoming {
            pulls: Vec::new(),
            next: 1,
            parts: InOrder::new(),
            chunks: VecDeque::new(),
            bytes: 0,
            metadata: None,
            has_more: false,
        };
        let state = Mutex::new(StreamState {
            opening,
            outgoing,
            incoming,
            hold: None,
            is_held: false,
            may_be_unheld: false,
            end: None,
        });
        let ends = Arc::new(Ends::default());
        let waker = Arc::clone(&ends).into();
        let observed = mem::replace(&mut head.observed, ClientCall::none());
        observed.note_server(flight.address());
        Ok(Self { calls, flight, id, until, trace, holding, state, ends, waker, observed })
    }

    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one message, and no more.
    pub(crate) fn send_only(&self, message: &Bytes) {
        let mut state = self.state();
        state.outgoing.chunks.push_message(message);
        state.outgoing.is_closed = true;
        self.send(&mut state);
    }

    /// Begins the call with bytes that have frames of their own.
    pub(crate) fn begin_raw(&self, first: &Bytes, is_last: bool) {
        let mut state = self.state();
        state.outgoing.chunks.push_raw(first);
        state.outgoing.is_closed = is_last;
        match self.open(&mut state) {
            Ok(()) => self.send(&mut state),
            Err(status) => self.fail_call(&mut state, status),
        }
    }

    /// Adds to the requests, and sends what may be sent.
    fn add(&self, add: impl FnOnce(&mut ChunkQueue)) {
        let mut state = self.state();
        if state.end.is_none() && !state.outgoing.is_over {
            add(&mut state.outgoing.chunks);
            self.send(&mut state);
            // The answers wake the reader as well, which moves the call on if the sender does not.
            self.advance(&mut state);
        }
        let has_ended = state.end.is_some();
        drop(state);
        if has_ended {
            self.waker.wake_by_ref();
        }
    }

    fn call(&self, message: Body) -> Result<Started, Status> {
        let remaining = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let options = options(remaining, self.trace)?;
        self.ends.is_due.store(true, Ordering::SeqCst);
        let call = self.calls.caller.call(self.flight.address(), message, options);
        let started = self.observed.scope().enter(|| call.start());
        started.inspect_err(|status| self.note(Some(status)))
    }

    /// A message was answered, or has failed with a status, or cannot be sent.
    fn note(&self, failed: Option<&Status>) {
        self.calls.endpoints.ended(&self.flight.state, EndpointOutcome::of_status(failed));
    }

    /// Notes the answer to an OPEN or a PULL, which may end the call.
    fn note_answer(&self, answer: &Result<(ResponseHead, Bytes), Status>) {
        self.note(answer.as_ref().map_or_else(Some, |(head, _)| head.end.as_ref()));
    }

    /// A call after the OPEN.
    fn call_later(&self, message: impl Into<Body>) -> Result<Started, Status> {
        self.call(message.into()).map_err(later)
    }

    fn push(&self, message: Body, is_early: bool) -> Result<Push, Status> {
        let kept = is_early.then(|| message.clone());
        Ok(Push { call: self.call_later(message)?, message: kept })
    }

    /// Sends what may be sent. An error is the status of the call.
    fn send(&self, state: &mut StreamState) {
        if state.end.is_none()
            && let Err(status) = self.try_send(state)
        {
            self.fail_call(state, status);
        }
    }

    /// Ends the call with an error of this side or of the transport.
    #[cold]
    fn fail_call(&self, state: &mut StreamState, status: Status) {
        let is_unheld = state.may_be_unheld && state.end.is_none();
        state.fail(status);
        if is_unheld {
            self.cancel();
        }
    }

    /// Notifies the server that the call is given up: the answer to its OPEN may be under way, and a HOLD that is given up before the
    /// server has taken it was none.
    //= docs/rpc-wire.md#E29
    #[cold]
    fn cancel(&self) {
        let message = RequestHead::Cancel { id: self.id }.encode(0).into();
        let options = OutgoingOptions { deadline: Some(CANCEL_FOR), trace: None };
        let call = self.calls.caller.call(self.flight.address(), message, options);
        if let Ok(sent) = call.start() {
            UPKEEP.spawn(sent).detach();
        }
    }

    //= docs/rpc-wire.md#E21
    //= docs/rpc-wire.md#E24
    fn try_send(&self, state: &mut StreamState) -> Result<(), Status> {
        let outgoing = &mut state.outgoing;
        if matches!(state.opening, Opening::New { .. }) {
            if outgoing.chunks.is_empty() && !outgoing.is_closed {
                return Ok(());
            }
            return self.open(state).and_then(|()| self.try_send(state));
        }
        while !outgoing.is_over
            && outgoing.pushes.len() + outgoing.early.pushes.len() < UNDER_WAY
            && (!outgoing.chunks.is_empty() || outgoing.is_closed)
        {
            let chunk = outgoing.chunks.pop().unwrap_or_default();
            let ends = outgoing.is_closed && outgoing.chunks.is_empty();
            let head = RequestHead::Push { id: self.id, ends, seq: outgoing.next };
            let message = body::behind(head.encode(body::room(chunk.len())), chunk);
            outgoing.pushes.push(self.push(message, !outgoing.has_arrived)?);
            outgoing.next += 1;
            outgoing.is_over = ends;
        }
        Ok(())
    }

    /// Sends the OPEN, and the HOLD with it unless that is sent later.
    //= docs/rpc-wire.md#E22
    fn open(&self, state: &mut StreamState) -> Result<(), Status> {
        if let Opening::New { head } = &mut state.opening {
            let message = mem::take(head);
            let (message, holds) = state.outgoing.open(message, self.holding);
            state.opening = Opening::Sent(self.call(message)?);
            state.may_be_unheld = !holds;
            if holds {
                self.hold(state)?;
            }
        }
        Ok(())
    }

    /// Sends the HOLD, once.
    fn hold(&self, state: &mut StreamState) -> Result<(), Status> {
        if !state.is_held {
            state.is_held = true;
            state.hold = Some(self.send_hold()?);
        }
        Ok(())
    }

    fn send_hold(&self) -> Result<Started, Status> {
        self.call_later(RequestHead::Hold { id: self.id }.encode(0))
    }

    /// Sends messages again that the server had no room for, when their pause is over.
    //= docs/rpc-wire.md#E26
    fn send_early(&self, state: &mut StreamState) -> Result<(), Status> {
        let early = &mut state.outgoing.early;
        if !early.is_over(&mut Context::from_waker(&self.waker)) {
            return Ok(());
        }
        if mem::take(&mut early.hold) {
            state.hold = Some(self.send_hold()?);
        }
        for message in mem::take(&mut early.pushes) {
            state.outgoing.pushes.push(self.push(message, true)?);
        }
        Ok(())
    }

    /// Moves the call on until it waits for the server: sends chunks, pulls, and takes answers.
    fn advance(&self, state: &mut StreamState) {
        while state.end.is_none() && self.ends.is_due.swap(false, Ordering::SeqCst) {
            let moved = self.send_early(state).and_then(|()| self.try_send(state));
            let moved = moved.and_then(|()| self.pull(state));
            match moved.and_then(|()| self.take_answers(state)) {
                Ok(true) => self.ends.is_due.store(true, Ordering::SeqCst),
                Ok(false) => {}
                Err(status) => self.fail_call(state, status),
            }
        }
    }

    /// Sends the OPEN, because the server may speak first, and moves the call on.
    fn open_and_advance(&self, state: &mut StreamState) {
        if let Err(status) = self.open(state) {
            self.fail_call(state, status);
        }
        self.advance(state);
    }

    /// Takes the answers that are there. Returns whether there were any.
    fn take_answers(&self, state: &mut StreamState) -> Result<bool, Status> {
        let mut task = Context::from_waker(&self.waker);
        let mut any = self.take_credit(&mut state.outgoing, &mut task)?;
        if let Opening::Sent(call) = &mut state.opening
            && let Poll::Ready(result) = Pin::new(call).poll(&mut task)
        {
            state.opening = Opening::Answered;
            state.may_be_unheld &= result.is_ok();
            let answer = self.decode(result);
            self.note_answer(&answer);
            let (head, chunk) = answer?;
            state.outgoing.has_arrived = true;
            if head.end.is_none() {
                self.hold(state)?;
            }
            state.accept(head, chunk);
            any = true;
        }
        //= docs/rpc-wire.md#E22
        if let Some(call) = &mut state.hold
            && let Poll::Ready(result) = Pin::new(call).poll(&mut task)
        {
            state.hold = None;
            let answer = self.decode(result);
            self.note(answer.as_ref().err());
            let (head, _) = answer.map_err(later)?;
            // Another answer says that the call is over, and its status comes with a PULL.
            state.outgoing.early.hold = is_to_be_repeated(&head);
            any |= state.outgoing.early.hold;
        }
        let mut at = 0;
        while let Some((seq, call)) = state.incoming.pulls.get_mut(at) {
            let Poll::Ready(result) = Pin::new(call).poll(&mut task) else {
                at += 1;
                continue;
            };
            let seq = *seq;
            drop(state.incoming.pulls.swap_remove(at));
            let part = self.decode(result);
            self.note_answer(&part);
            let part = part.map_err(later)?;
            if state.incoming.parts.place(seq) == SeqPlace::Kept {
                state.incoming.parts.push(seq, part);
            }
            any = true;
        }
        while state.end.is_none()
            && let Some((head, chunk)) = state.incoming.parts.pop()
        {
            state.accept(head, chunk);
        }
        Ok(any)
    }

    /// Takes the answers to PUSHes. Returns whether there were any.
    fn take_credit(&self, outgoing: &mut Outgoing, task: &mut Context<'_>) -> Result<bool, Status> {
        let (mut at, before) = (0, outgoing.pushes.len());
        while let Some(push) = outgoing.pushes.get_mut(at) {
            let Poll::Ready(result) = Pin::new(&mut push.call).poll(task) else {
                at += 1;
                continue;
            };
            let Push { message, .. } = outgoing.pushes.swap_remove(at);
            let answer = self.decode(result);
            self.note(answer.as_ref().err());
            let (head, _) = answer.map_err(later)?;
            match message {
                //= docs/rpc-wire.md#E26
                Some(message) if is_to_be_repeated(&head) => outgoing.early.pushes.push(message),
                //= docs/rpc-wire.md#E25
                _ if head.end.is_some() => {
                    outgoing.is_over = true;
                    outgoing.chunks.clear();
                }
                _ => outgoing.has_arrived = true,
            }
        }
        Ok(outgoing.pushes.len() < before)
    }

    /// Asks for more of the response.
    //= docs/rpc-wire.md#E22
    fn pull(&self, state: &mut StreamState) -> Result<(), Status> {
        let incoming = &mut state.incoming;
        if !incoming.has_more || state.end.is_some() {
            return Ok(());
        }
        //= docs/rpc-wire.md#E24
        while incoming.pulls.len() + incoming.parts.early() < UNDER_WAY
            && incoming.bytes < INBOX_MAX
        {
            let seq = incoming.next;
            let call = self.call_later(RequestHead::Pull { id: self.id, seq }.encode(0))?;
            incoming.pulls.push((seq, call));
            incoming.next += 1;
        }
        Ok(())
    }

    fn decode(&self, result: Result<Bytes, Status>) -> Result<(ResponseHead, Bytes), Status> {
        let decoded = ResponseHead::decode(&result?, &self.calls.limits);
        decoded.map_err(|error| self.refuse(error))
    }
}

impl Outgoing {
    /// The bytes of the OPEN with its first chunk, and whether the HOLD follows it.
    //= docs/rpc-wire.md#E21
    fn open(&mut self, mut head: Vec<u8>, holding: Holding) -> (Body, bool) {
        let chunk = self.chunks.pop().unwrap_or_default();
        self.is_over = self.is_closed && self.chunks.is_empty();
        let holds = holding == Holding::AtOnce || !self.is_over;
        RequestHead::set_flags(&mut head, self.is_over, holds);
        (body::behind(head, chunk), holds)
    }
}

impl EarlyMessages {
    /// Whether there are messages whose pause is over.
    fn is_over(&mut self, task: &mut Context<'_>) -> bool {
        if !self.hold && self.pushes.is_empty() {
            return false;
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.pauses.min(10)).min(PAUSE_MAX);
        let waits = self.pause.get_or_insert_with(|| sleep(pause));
        if Pin::new(waits).poll(task).is_pending() {
            return false;
        }
        self.pause = None;
        self.pauses += 1;
        true
    }
}

impl StreamState {
    /// Takes the next part of the response.
    fn accept(&mut self, head: ResponseHead, chunk: Bytes) {
        let incoming = &mut self.incoming;
        if let Some(metadata) = head.metadata {
            incoming.metadata = Some(metadata);
        }
        if !chunk.is_empty() {
            incoming.bytes += chunk.len();
            incoming.chunks.push_back(chunk);
        }
        incoming.has_more = head.end.is_none();
        if let Some(end) = head.end {
            self.may_be_unheld = false;
            self.end(end);
        }
    }

    /// Ends the call. The chunks that have arrived may still be read.
    fn end(&mut self, status: Status) {
        self.end.get_or_insert(status);
        self.opening = Opening::Answered;
        self.hold = None;
        self.incoming.pulls.clear();
        self.outgoing.pushes.clear();
        self.outgoing.early = EarlyMessages::default();
        self.outgoing.chunks.clear();
        self.outgoing.is_over = true;
    }

    /// Ends the call with an error of this side or of the transport.
    #[cold]
    fn fail(&mut self, status: Status) {
        self.incoming.chunks.clear();
        self.end(status);
    }
}

impl ChunkSource for ClientStream {
    fn poll_chunk(&self, task: &Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        self.ends.wait(StreamSide::Reader, task);
        let mut state = self.state();
        if state.incoming.chunks.is_empty() {
            self.open_and_advance(&mut state);
        }
        if let Some(chunk) = state.incoming.chunks.pop_front() {
            state.incoming.bytes -= chunk.len();
            if state.end.is_none()
                && let Err(status) = self.pull(&mut state)
            {
                self.fail_call(&mut state, status);
            }
            return Poll::Ready(Some(Ok(chunk)));
        }
        let Some(end) = state.end.clone() else { return Poll::Pending };
        drop(state);
        self.observed.end(end.code());
        Poll::Ready((end.code() != Code::Ok).then_some(Err(end)))
    }

    fn poll_metadata(&self, task: &Context<'_>) -> Poll<Result<Metadata, Status>> {
        self.poll_answered(task)
            .map_ok(|()| self.state().incoming.metadata.take().unwrap_or_default())
    }

    fn poll_answered(&self, task: &Context<'_>) -> Poll<Result<(), Status>> {
        self.ends.wait(StreamSide::Reader, task);
        let mut state = self.state();
        self.open_and_advance(&mut state);
        match &state.end {
            _ if state.incoming.metadata.is_some() => Poll::Ready(Ok(())),
            // Messages may have come before the error.
            Some(end) if end.code() != Code::Ok && state.incoming.chunks.is_empty() => {
                Poll::Ready(Err(end.clone()))
            }
            _ if matches!(state.opening, Opening::Answered) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    fn take_trailers(&self) -> Metadata {
        self.state().end.as_mut().map(Status::take_metadata).unwrap_or_default()
    }

    //= docs/rpc-wire.md#E16
    fn refuse(&self, error: EnvelopeError) -> Status {
        self.calls.refusals.count(&error);
        error.of_response()
    }

    //= docs/rpc-wire.md#E16
    fn fail(&self, status: &Status) {
        let mut state = self.state();
        let is_new = state.end.is_none();
        if is_new {
            self.fail_call(&mut state, status.clone());
        }
        drop(state);
        self.observed.end(status.code());
        if is_new {
            self.waker.wake_by_ref();
        }
    }

    fn end_reading(&self) {
        let mut state = self.state();
        if state.end.is_none() {
            let status = Status::new(Code::Cancelled, "the client has given the call up");
            self.fail_call(&mut state, status);
        }
        let code = state.end.as_ref().map_or(Code::Cancelled, Status::code);
        drop(state);
        self.observed.end(code);
        self.waker.wake_by_ref();
    }
}

impl ChunkSink for ClientStream {
    fn poll_room(&self, task: &Context<'_>) -> Poll<Result<(), Status>> {
        self.ends.wait(StreamSide::Sender, task);
        let mut state = self.state();
        self.advance(&mut state);
        match &state.end {
            Some(end) if end.code() != Code::Ok => {
                let end = end.clone();
                drop(state);
                // The sender may be the first to find the failure.
                self.waker.wake_by_ref();
                return Poll::Ready(Err(end));
            }
            _ if state.outgoing.is_over => {
                let text = "the server takes no more messages";
                return Poll::Ready(Err(Status::new(Code::Cancelled, text)));
            }
            _ => {}
        }
        if state.outgoing.chunks.bytes() < CHUNK_MAX {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    fn push_message(&self, message: &[u8]) {
        self.add(|chunks| chunks.push_message(message));
    }

    fn push_raw(&self, bytes: &Bytes) {
        self.add(|chunks| chunks.push_raw(bytes));
    }

    fn send_head(&self) {}

    fn end_sending(&self, in_order: bool) {
        {
            let mut state = self.state();
            state.outgoing.is_closed = true;
            if in_order {
                self.send(&mut state);
            } else if state.end.is_none() && !state.outgoing.is_over {
                let status = Status::new(Code::Cancelled, "the client has given the call up");
                self.fail_call(&mut state, status);
            }
        }
        // The other end looks after the messages from now on.
        self.waker.wake_by_ref();
    }
}
