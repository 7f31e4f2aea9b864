//! What comes out of a socket.

use std::fmt;
use std::sync::Arc;
use std::{mem, thread};

use apus_proto::RpcKey;
use apus_wire::PathId;
use bytes::Bytes;

use crate::address::Address;
use crate::clock;
use crate::error::{CallError, ReplyError};
use crate::mail::Arrival;
use crate::socket::{SocketInner, operate};

/// When an operation's packets are transmitted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Flush {
    /// Everything queued is transmitted before the call returns, as far as it may be sent.
    #[default]
    Now,
    /// Another operation on this node follows within microseconds (like `MSG_MORE`): this one may
    /// stay queued until then, to share its datagram and system call. The next operation with
    /// [`Flush::Now`], or anything that waits, transmits it; if none follows, it may
    /// stay until something else happens on the node. The deadlines of such a burst count from its start.
    Later,
}

/// A message for the application.
#[derive(Debug)]
#[non_exhaustive]
pub enum Incoming {
    /// A request to answer.
    Request(Request),
    /// The result of a call made with [`Socket::send`](crate::Socket::send).
    Response {
        /// The cookie given with the call.
        cookie: u64,
        /// The response, or why there is none.
        result: Result<Bytes, CallError>,
    },
}

impl Incoming {
    #[inline]
    pub(crate) fn new(arrival: Arrival, socket: &Arc<SocketInner>) -> Self {
        match arrival {
            Arrival::Request { rpc, from, path, body } => Self::Request(Request {
                socket: Arc::clone(socket),
                rpc,
                from,
                path,
                body,
                answered: false,
            }),
            Arrival::Response { cookie, result } => Self::Response { cookie, result },
        }
    }

    /// Where it came from, unless it is a response.
    pub(crate) fn end(&self) -> Option<&Arc<SocketInner>> {
        match self {
            Self::Request(request) => Some(&request.socket),
            Self::Response { .. } => None,
        }
    }
}

/// A request from a client, executed at most once.
///
/// May be answered by any thread, at any time. Dropping it without an answer gives it up: the
/// client then learns that there will be no response, after some round trips. If a panic drops it,
/// the client is told so at once ([`CallError::HandlerPanicked`]), unless it is a Linux node. An
/// unanswered request keeps its socket open and counts against the budgets of its client.
pub struct Request {
    socket: Arc<SocketInner>,
    rpc: RpcKey,
    from: Address,
    /// The way to the client.
    path: PathId,
    body: Bytes,
    answered: bool,
}

impl Request {
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

    /// Gives the response; transmitted before this returns as far as may be sent without a grant,
    /// except for quick handlers of [`Socket::serve`](crate::Socket::serve). The body is handed over,
    /// not copied.
    ///
    /// # Errors
    ///
    /// See [`ReplyError`]. The request is given up then.
    pub fn reply(self, body: impl Into<Bytes>) -> Result<(), ReplyError> {
        self.reply_with(body, Flush::Now)
    }

    /// [`reply`](Self::reply) that may stay queued until the next operation.
    ///
    /// # Errors
    ///
    /// See [`ReplyError`]. The request is given up then.
    pub fn reply_with(mut self, body: impl Into<Bytes>, flush: Flush) -> Result<(), ReplyError> {
        self.try_reply(body, flush)
    }

    /// [`reply_with`](Self::reply_with) that keeps the request when the response was not taken: it stays
    /// in service, and may be answered later or shorter.
    ///
    /// # Errors
    ///
    /// See [`ReplyError`]; `Gone` also after a response was taken.
    pub fn try_reply(&mut self, body: impl Into<Bytes>, flush: Flush) -> Result<(), ReplyError> {
        let body = body.into();
        let result = self.socket.shared.enter_by(self.path).map_err(ReplyError::from);
        let result = result.and_then(|engine| {
            operate(&self.socket.shared, engine, flush, |engine, now| {
                engine.reply(now, self.socket.key, self.rpc, self.path, body)
            })
        });
        self.answered |= result.is_ok();
        result
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
