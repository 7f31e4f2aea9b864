//! Messages within memory: a call whose server is a part of the channel, for tests without a node.

use std::fmt;
use std::future::Future;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use apus::{Address, Bytes, TraceContext};

use crate::code::Code;
use crate::status::Status;
use crate::timer::{Sleep, sleep};

/// A server that takes messages from memory.
pub(crate) trait Deliver: Send + Sync {
    /// Takes a request: it is answered, or its handler goes on in a task.
    fn deliver(&self, request: MemoryRequest);
}

/// The two sides of a call.
#[derive(Default)]
struct Exchange {
    state: Mutex<ExchangeState>,
}

#[derive(Default)]
struct ExchangeState {
    answer: Option<Result<Bytes, Status>>,
    /// The task that waits for the answer.
    caller: Option<Waker>,
    is_given_up: bool,
    /// The task of the handler.
    handler: Option<Waker>,
}

impl Exchange {
    fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, answer: Result<Bytes, Status>) {
        let caller = {
            let mut state = self.state();
            state.answer = Some(answer);
            state.caller.take()
        };
        caller.into_iter().for_each(Waker::wake);
    }

    fn give_up(&self) {
        let handler = {
            let mut state = self.state();
            state.is_given_up = true;
            state.handler.take()
        };
        handler.into_iter().for_each(Waker::wake);
    }
}

/// A request in the hands of the server. Dropped without an answer, it ends the call.
pub(crate) struct MemoryRequest {
    exchange: Arc<Exchange>,
    body: Bytes,
    until: Option<Instant>,
    trace: Option<TraceContext>,
    is_answered: bool,
}

impl MemoryRequest {
    /// Both ends have an address that no node has.
    pub(crate) fn address() -> Address {
        Address::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 0)
    }

    pub(crate) fn take_body(&mut self) -> Bytes {
        mem::take(&mut self.body)
    }

    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn trace_context(&self) -> Option<TraceContext> {
        self.trace
    }

    pub(crate) fn poll_cancelled(&self, task: &Context<'_>) -> Poll<()> {
        let mut state = self.exchange.state();
        if state.is_given_up {
            return Poll::Ready(());
        }
        state.handler = Some(task.waker().clone());
        Poll::Pending
    }

    pub(crate) fn reply(mut self, message: Bytes) {
        self.is_answered = true;
        self.exchange.answer(Ok(message));
    }

    /// Ends the call without an answer.
    pub(crate) fn fail(mut self, status: Status) {
        self.is_answered = true;
        self.exchange.answer(Err(status));
    }
}

impl Drop for MemoryRequest {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let status = if thread::panicking() {
            Status::new(Code::Internal, "the handler panicked")
        } else {
            Status::new(Code::Unavailable, "the server dropped the request")
        };
        self.exchange.answer(Err(status));
    }
}

impl fmt::Debug for MemoryRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRequest").field("length", &self.body.len()).finish_non_exhaustive()
    }
}

/// A call. It is delivered when it is first polled, by the thread that polls it, and given up when it is dropped.
pub(crate) struct MemoryCall {
    exchange: Arc<Exchange>,
    time: Option<Sleep>,
    undelivered: Option<(Arc<dyn Deliver>, MemoryRequest)>,
}

impl MemoryCall {
    pub(crate) fn new(
        server: &Arc<dyn Deliver>,
        body: Bytes,
        deadline: Option<Duration>,
        trace: Option<TraceContext>,
    ) -> Self {
        let exchange = Arc::new(Exchange::default());
        let until = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let request = MemoryRequest {
            exchange: Arc::clone(&exchange),
            body,
            until,
            trace,
            is_answered: false,
        };
        let undelivered = Some((Arc::clone(server), request));
        Self { exchange, time: deadline.map(sleep), undelivered }
    }

    /// Delivers the request, unless that was done.
    pub(crate) fn deliver(&mut self) {
        if let Some((server, request)) = self.undelivered.take() {
            server.deliver(request);
        }
    }
}

impl Future for MemoryCall {
    type Output = Result<Bytes, Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        self.deliver();
        {
            let mut state = self.exchange.state();
            if let Some(answer) = state.answer.take() {
                return Poll::Ready(answer);
            }
            state.caller = Some(task.waker().clone());
        }
        let Some(time) = &mut self.time else { return Poll::Pending };
        if Pin::new(time).poll(task).is_pending() {
            return Poll::Pending;
        }
        self.exchange.give_up();
        Poll::Ready(Err(Status::new(Code::DeadlineExceeded, "the deadline passed")))
    }
}

impl Drop for MemoryCall {
    fn drop(&mut self) {
        self.exchange.give_up();
    }
}
