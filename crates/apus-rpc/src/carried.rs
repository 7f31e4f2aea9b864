//! Channels and servers whose messages another crate carries: the simulator does. Semantic versioning does not cover this module.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus::{Bytes, CallError, TraceContext};

use crate::client::Channel;
use crate::server::ServerBuilder;
use crate::status::Status;
use crate::transport::{Deliver, MemoryCall, MemoryRequest};

/// A message of a channel on its way to the server. Dropped without an answer, it ends its call.
#[derive(Debug)]
pub struct CarriedRequest(MemoryRequest);

impl CarriedRequest {
    /// Takes the message.
    pub fn take_body(&mut self) -> Bytes {
        self.0.take_body()
    }

    /// The time until the deadline of the call.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.0.remaining()
    }

    /// The call's place in a distributed trace.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.0.trace_context()
    }

    /// Ready if the call was given up.
    pub fn poll_given_up(&self, task: &Context<'_>) -> Poll<()> {
        self.0.poll_cancelled(task)
    }

    /// Answers the message.
    pub fn reply(self, answer: Bytes) {
        self.0.reply(answer);
    }

    /// Ends the call without an answer.
    pub fn fail(self, error: CallError) {
        self.0.fail(error.into());
    }
}

/// Carries messages by a function.
struct Carrier<F>(F);

impl<F: Fn(CarriedRequest) + Send + Sync> Deliver for Carrier<F> {
    fn deliver(&self, request: MemoryRequest) {
        (self.0)(CarriedRequest(request));
    }
}

/// A channel whose messages the function takes, when they are first polled.
pub fn channel(carry: impl Fn(CarriedRequest) + Send + Sync + 'static) -> Channel {
    Channel::carried(Arc::new(Carrier(carry)))
}

/// A server whose messages come from [`call`](Self::call).
#[derive(Clone)]
pub struct CarriedServer(Arc<dyn Deliver>);

impl std::fmt::Debug for CarriedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CarriedServer").finish_non_exhaustive()
    }
}

impl CarriedServer {
    /// A server with these methods.
    ///
    /// # Panics
    ///
    /// As [`Channel::in_memory`].
    #[must_use]
    pub fn new(server: ServerBuilder<'_>) -> Self {
        match server.into_intake() {
            (Some(fault), _) => panic!("{fault}"),
            (None, intake) => Self(Arc::new(intake)),
        }
    }

    /// Gives the server a message when the result is first polled.
    #[must_use]
    pub fn call(
        &self,
        message: Bytes,
        remaining: Option<Duration>,
        trace: Option<TraceContext>,
    ) -> CarriedCall {
        CarriedCall(MemoryCall::new(&self.0, message, remaining, trace))
    }
}

/// A message at the server, and its answer. It is given up when it is dropped.
pub struct CarriedCall(MemoryCall);

impl Future for CarriedCall {
    type Output = Result<Bytes, Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(task)
    }
}

impl std::fmt::Debug for CarriedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CarriedCall").finish_non_exhaustive()
    }
}
