//! Responses as a stream (feature `stream`).

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_core::stream::FusedStream;

use crate::delivery::parker::WaiterId;
use crate::response::Response;
use crate::socket::Socket;

/// The responses to calls of [`Client::send`](crate::Client::send), as a stream. From
/// [`Client::responses`](crate::Client::responses).
///
/// Dropping it loses no response: other threads and tasks that receive from the client get the responses that it has not
/// returned. It keeps the client's port open.
#[must_use = "a stream does nothing unless polled"]
pub struct Responses {
    socket: Socket,
    /// The id under which a waker is registered.
    waiting: Option<WaiterId>,
    is_terminated: bool,
}

impl Responses {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, waiting: None, is_terminated: false }
    }
}

impl Stream for Responses {
    type Item = Response;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { socket, waiting, is_terminated } = &mut *self;
        let response = socket.poll_recv(waiting, context).map(Result::ok);
        *is_terminated = matches!(response, Poll::Ready(None));
        response
    }
}

impl FusedStream for Responses {
    fn is_terminated(&self) -> bool {
        self.is_terminated
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        self.socket.leave(&mut self.waiting);
    }
}

impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").field("port", &self.socket.port()).finish_non_exhaustive()
    }
}
