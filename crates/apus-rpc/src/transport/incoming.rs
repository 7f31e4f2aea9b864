//! A message to be answered.

use std::task::{Context, Poll};
use std::time::Duration;

use apus::{Address, Body, Bytes, Peer, Request, TraceContext};

use crate::transport::memory::MemoryRequest;

/// A request from the network or from memory.
#[derive(Debug)]
pub(crate) enum Incoming {
    Network(Request),
    Memory(MemoryRequest),
}

/// An answer that was not accepted.
pub(crate) struct Unsent {
    pub(crate) incoming: Incoming,
    /// The reason, for people.
    pub(crate) reason: String,
}

impl Incoming {
    pub(crate) fn take_body(&mut self) -> Bytes {
        match self {
            Self::Network(request) => request.take_body(),
            Self::Memory(request) => request.take_body(),
        }
    }

    pub(crate) fn from(&self) -> Address {
        match self {
            Self::Network(request) => request.from(),
            Self::Memory(_) => MemoryRequest::address(),
        }
    }

    pub(crate) fn peer(&self) -> Option<Peer> {
        match self {
            Self::Network(request) => request.peer(),
            Self::Memory(_) => None,
        }
    }

    pub(crate) fn remaining(&self) -> Option<Duration> {
        match self {
            Self::Network(request) => request.remaining(),
            Self::Memory(request) => request.remaining(),
        }
    }

    pub(crate) fn trace_context(&self) -> Option<TraceContext> {
        match self {
            Self::Network(request) => request.trace_context(),
            Self::Memory(request) => request.trace_context(),
        }
    }

    /// The span of the transport, or the current one within memory.
    #[cfg(feature = "tracing")]
    pub(crate) fn span(&self) -> tracing::Span {
        match self {
            Self::Network(request) => request.span().clone(),
            Self::Memory(_) => tracing::Span::current(),
        }
    }

    /// Ready if the client has given the request up. Otherwise the task is woken then.
    pub(crate) fn poll_cancelled(&self, task: &Context<'_>) -> Poll<()> {
        match self {
            Self::Network(request) => request.poll_cancelled(task),
            Self::Memory(request) => request.poll_cancelled(task),
        }
    }

    pub(crate) fn reply(self, message: impl Into<Body>) -> Result<(), Box<Unsent>> {
        match self {
            Self::Network(request) => request.reply(message).map_err(|failed| {
                let reason = failed.error().to_string();
                Box::new(Unsent { incoming: Self::Network(failed.into_request()), reason })
            }),
            Self::Memory(request) => {
                request.reply(message.into().into_bytes());
                Ok(())
            }
        }
    }
}
