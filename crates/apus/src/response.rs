//! The result of a call whose client is used as a queue.

use std::mem;
use std::sync::Arc;

use apus_proto::Endpoint;
use bytes::Bytes;

use crate::error::CallError;
use crate::mail::queue::{Queue, WaitingResponse};
use crate::observe::spans::SpanNumber;
use crate::socket::{Deliverable, Socket, SocketInner};

/// The result of a call made with [`Client::send`](crate::Client::send).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Response {
    /// The cookie given with the call.
    pub cookie: u64,
    /// The response, or the error of the call.
    pub result: Result<Bytes, CallError>,
    /// Of its call, until it is handed out.
    span: SpanNumber,
}

impl Deliverable for Response {
    #[inline(always)]
    fn take(queue: &mut Queue, _: &mut Endpoint, _: &Arc<SocketInner>) -> Option<Self> {
        let WaitingResponse { cookie, result, span, .. } = queue.pop_response()?;
        Some(Self { cookie, result, span })
    }

    #[inline]
    fn is_noted(&self) -> bool {
        self.span != SpanNumber::NONE || self.result.is_err()
    }

    #[cold]
    fn delivered(&mut self, socket: &Socket) {
        socket.spans.take(mem::replace(&mut self.span, SpanNumber::NONE)).end(&self.result);
    }
}
