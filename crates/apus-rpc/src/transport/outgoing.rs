//! A message and its answer.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use apus::{Address, Body, Bytes, Call, CallFuture, CallOptions, Client, TraceContext};

use crate::blocking::block_on;
use crate::status::Status;
use crate::transport::memory::{Deliver, MemoryCall};

/// Sends messages to servers.
pub(crate) enum Caller {
    Network(Client),
    Memory(Arc<dyn Deliver>),
}

/// A message that is on its way, and given up when it is dropped.
pub(crate) enum Started {
    Network(Call),
    Memory(MemoryCall),
}

/// The options of a message.
#[derive(Clone, Copy, Default)]
pub(crate) struct OutgoingOptions {
    pub(crate) deadline: Option<Duration>,
    pub(crate) trace: Option<TraceContext>,
}

/// A message that is not sent yet.
pub(crate) struct OutgoingParts<'c> {
    caller: &'c Caller,
    to: Address,
    message: Body,
    options: OutgoingOptions,
}

/// A message whose answer is awaited. It is sent when it is first polled, and given up when it is dropped.
pub(crate) enum Outgoing<'c> {
    Network(CallFuture<'c>),
    Memory(MemoryCall),
}

impl Caller {
    pub(crate) fn call(
        &self,
        to: Address,
        message: Body,
        options: OutgoingOptions,
    ) -> OutgoingParts<'_> {
        OutgoingParts { caller: self, to, message, options }
    }
}

impl<'c> OutgoingParts<'c> {
    /// Sends the message, and blocks the thread until the answer is there.
    pub(crate) fn wait(self) -> Result<Bytes, Status> {
        match self.caller {
            Caller::Network(client) => {
                let call = client.call(self.to, self.message).options(network(self.options));
                Ok(call.wait()?)
            }
            Caller::Memory(_) => block_on(self.into_future()),
        }
    }

    /// Sends the message.
    pub(crate) fn start(self) -> Result<Started, Status> {
        let Self { caller, to, message, options } = self;
        match caller {
            Caller::Network(client) => {
                let call = client.call(to, message).options(network(options));
                Ok(Started::Network(call.start()?))
            }
            Caller::Memory(server) => {
                let OutgoingOptions { deadline, trace } = options;
                let message = message.into_bytes();
                let mut call = MemoryCall::new(server, message, deadline, trace);
                call.deliver();
                Ok(Started::Memory(call))
            }
        }
    }

    pub(crate) fn into_future(self) -> Outgoing<'c> {
        let Self { caller, to, message, options } = self;
        match caller {
            Caller::Network(client) => {
                let call = client.call(to, message).options(network(options));
                Outgoing::Network(call.into_future())
            }
            Caller::Memory(server) => {
                let OutgoingOptions { deadline, trace } = options;
                Outgoing::Memory(MemoryCall::new(server, message.into_bytes(), deadline, trace))
            }
        }
    }
}

fn network(options: OutgoingOptions) -> CallOptions {
    let mut network = CallOptions::new();
    if let Some(deadline) = options.deadline {
        network = network.deadline(deadline);
    }
    if let Some(trace) = options.trace {
        network = network.trace_context(trace);
    }
    network
}

impl Future for Outgoing<'_> {
    type Output = Result<Bytes, Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Network(call) => Pin::new(call).poll(task).map(|result| Ok(result?)),
            Self::Memory(call) => Pin::new(call).poll(task),
        }
    }
}

impl Future for Started {
    type Output = Result<Bytes, Status>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Network(call) => Pin::new(call).poll(task).map(|result| Ok(result?)),
            Self::Memory(call) => Pin::new(call).poll(task),
        }
    }
}
