//! Requests as a stream (feature `stream`).

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_core::stream::FusedStream;

use crate::delivery::parker::WaiterId;
use crate::delivery::serving::Takers;
use crate::request::Request;
use crate::socket::Socket;

/// The requests of a service, as a stream. From [`Port::requests`](crate::Port::requests).
///
/// Dropping it loses no request: other threads and tasks that receive from the service get the requests that it has not
/// returned.
#[must_use = "a stream does nothing unless polled"]
pub struct Requests {
    socket: Socket,
    takers: Arc<Takers>,
    /// The id under which a waker is registered.
    waiting: Option<WaiterId>,
    is_terminated: bool,
}

impl Requests {
    pub(crate) fn new(socket: Socket, takers: Arc<Takers>) -> Self {
        Self { socket, takers, waiting: None, is_terminated: false }
    }
}

impl Stream for Requests {
    type Item = Request;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { socket, takers, waiting, is_terminated } = &mut *self;
        takers.note_other(socket.first());
        let request = socket.poll_recv(waiting, context).map(Result::ok);
        *is_terminated = matches!(request, Poll::Ready(None));
        request
    }
}

impl FusedStream for Requests {
    fn is_terminated(&self) -> bool {
        self.is_terminated
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.socket.leave(&mut self.waiting);
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("port", &self.socket.port()).finish_non_exhaustive()
    }
}
