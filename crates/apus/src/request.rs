//! A request on the server's side.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, mem, thread};

use apus_proto::{RpcKey, Time};
use apus_wire::PathId;
use bytes::Bytes;

use crate::address::Address;
use crate::clock;
use crate::error::ReplyError;
use crate::flush::{Flush, operate};
use crate::mail::Arrival;
use crate::shared::Shared;
use crate::socket::{Message, SocketInner};

/// A request from a client, executed at most once.
///
/// May be answered by any thread, at any time. Dropping it without an answer gives it up: the
/// client then learns that there will be no response, after some round trips. If a panic drops it,
/// the client is told so at once ([`HandlerPanicked`](crate::CallError::HandlerPanicked)), unless it is a Linux node. An
/// unanswered request keeps its service open and counts against the budgets of its client.
pub struct Request {
    socket: Arc<SocketInner>,
    rpc: RpcKey,
    from: Address,
    /// The way to the client.
    path: PathId,
    deadline: Option<Time>,
    body: Bytes,
    answered: bool,
}

impl Message for Request {
    #[inline]
    fn new(arrival: Arrival, end: &Arc<SocketInner>) -> Self {
        match arrival {
            Arrival::Request { rpc, from, path, deadline, body } => {
                let socket = Arc::clone(end);
                Self { socket, rpc, from, path, deadline, body, answered: false }
            }
            Arrival::Response { .. } => unreachable!("a service makes no calls"),
        }
    }
}

impl Request {
    /// What the threads of the shard share that it came to.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.socket.shared
    }

    /// The client's node and port. Not authenticated.
    #[must_use]
    pub fn from(&self) -> Address {
        self.from
    }

    /// The request's bytes, at least one.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Moves the request's bytes out, without a copy. [`body`](Self::body) is empty afterwards.
    #[must_use]
    pub fn take_body(&mut self) -> Bytes {
        mem::take(&mut self.body)
    }

    /// The time that remains until the client gives the call up, if the call has a deadline; zero when it has passed. A service
    /// that calls others gives them no more. Clients on Linux hosts do not tell.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_since(clock::now()))
    }

    /// Whether nobody waits for the response any more: the client has given the call up, its deadline has passed, or the client is
    /// lost. A handler that takes long asks now and then, and may stop. Turns the engine once to see; a Linux client says nothing.
    /// True also after the node was closed.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let Ok(mut engine) = self.socket.shared.enter() else { return true };
        let now = clock::now();
        engine.turn_in_passing(now);
        engine.see_to(now);
        !engine.endpoint.is_active(self.rpc)
    }

    /// Gives the response; transmitted before this returns as far as may be sent without a grant,
    /// except for quick handlers of [`Service::serve`](crate::Service::serve). The body is handed over,
    /// not copied.
    ///
    /// # Errors
    ///
    /// [`ReplyFailed`] gives the request back, to be answered once more or dropped.
    ///
    /// ```no_run
    /// # fn example(request: apus::Request, long: Vec<u8>) {
    /// if let Err(failed) = request.reply(long) {
    ///     let why = failed.to_string();
    ///     let _ = failed.into_request().reply(why); // The client may have gone.
    /// }
    /// # }
    /// ```
    pub fn reply(self, body: impl Into<Bytes>) -> Result<(), ReplyFailed> {
        self.reply_with(body, Flush::Now)
    }

    /// [`reply`](Self::reply) that may stay queued until the next operation.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply).
    pub fn reply_with(mut self, body: impl Into<Bytes>, flush: Flush) -> Result<(), ReplyFailed> {
        let body = body.into();
        let result = self.socket.shared.enter_by(self.path).map_err(ReplyError::from);
        let result = result.and_then(|engine| {
            operate(&self.socket.shared, engine, flush, |engine, now| {
                engine.reply(now, self.socket.key, self.rpc, self.path, body)
            })
        });
        match result {
            Ok(()) => {
                self.answered = true;
                Ok(())
            }
            Err(error) => Err(ReplyFailed { request: Box::new(self), error }),
        }
    }

    /// Gives the request up; the same as dropping it, said aloud.
    pub fn abandon(self) {}
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let Ok(mut engine) = self.socket.shared.enter() else { return };
        let now = clock::now();
        let given_up = if thread::panicking() {
            engine.endpoint.reject(self.rpc)
        } else {
            engine.endpoint.abort(self.rpc)
        };
        if given_up {
            engine.transmit(now);
            engine.see_to(now);
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("from", &format_args!("{}", self.from))
            .field("length", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// A response was not taken. Dropping it, and the request with it, gives the request up.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ReplyFailed {
    request: Box<Request>,
    error: ReplyError,
}

impl ReplyFailed {
    /// Why the response was not taken.
    #[must_use]
    pub fn error(&self) -> ReplyError {
        self.error
    }

    /// The request, still to be answered. Its [`body`](Request::body) is as it was before the reply.
    #[must_use]
    pub fn into_request(self) -> Request {
        *self.request
    }
}
