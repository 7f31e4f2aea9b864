//! What waits at a socket for the application, and in which order it is taken.

use std::collections::VecDeque;

use apus_proto::{RpcKey, Time, TraceEvent, TraceMark};
use apus_wire::{PathId, TraceContext};
use bytes::Bytes;

use crate::address::Address;
use crate::error::CallError;
use crate::spans::SpanNumber;
use crate::time_trace;
use crate::turns::Turns;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) rpc: RpcKey,
    pub(crate) from: Address,
    /// The way to the client's node.
    pub(crate) path: PathId,
    pub(crate) deadline: Option<Time>,
    pub(crate) trace: Option<Box<TraceContext>>,
    pub(crate) body: Bytes,
    /// How it is known in the time trace, if it was chosen.
    pub(crate) mark: Option<TraceMark>,
}

/// A response that waits.
#[derive(Debug)]
pub(crate) struct WaitingResponse {
    pub(crate) cookie: u64,
    pub(crate) result: Result<Bytes, CallError>,
    /// Of its call.
    pub(crate) span: SpanNumber,
    /// How its call is known in the time trace, if it was chosen.
    pub(crate) mark: Option<TraceMark>,
}

/// What of a socket waits for the application: requests, of a service, or responses, of a client.
#[derive(Debug)]
pub(crate) struct Queue {
    /// In turns of the peers that they are from, so that a peer with very many of them delays those of others by its share only.
    requests: Turns<WaitingRequest>,
    /// Oldest first.
    responses: VecDeque<WaitingResponse>,
    untaken: Untaken,
}

/// Responses that the application has not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Untaken {
    pub(crate) responses: u64,
    pub(crate) bytes: u64,
}

impl Untaken {
    #[inline]
    pub(crate) fn add(&mut self, result: &Result<Bytes, CallError>) {
        self.responses += 1;
        self.bytes += result.as_ref().map_or(0, |body| body.len() as u64);
    }

    #[inline]
    pub(crate) fn take(&mut self, result: &Result<Bytes, CallError>) {
        self.responses -= 1;
        self.bytes -= result.as_ref().map_or(0, |body| body.len() as u64);
    }
}

impl Queue {
    pub(crate) const fn new() -> Self {
        Self {
            requests: Turns::new(),
            responses: VecDeque::new(),
            untaken: Untaken { responses: 0, bytes: 0 },
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.responses.len()
    }

    /// Of the responses in it.
    #[inline]
    pub(crate) fn untaken(&self) -> Untaken {
        self.untaken
    }

    #[inline]
    pub(crate) fn push_request(&mut self, request: WaitingRequest) {
        // A request that was given up may wait when the index of its path is another peer's. The two then share their turns.
        let line = request.path.index() * 2 + usize::from(request.path.is_local());
        self.requests.push(line, request);
    }

    #[inline]
    pub(crate) fn push_response(&mut self, response: WaitingResponse) {
        self.untaken.add(&response.result);
        self.responses.push_back(response);
    }

    #[inline]
    pub(crate) fn pop_request(&mut self) -> Option<WaitingRequest> {
        let request = self.requests.pop()?;
        time_trace::record_request(request.mark, request.body.len(), self.requests.len());
        Some(request)
    }

    #[inline]
    pub(crate) fn pop_response(&mut self) -> Option<WaitingResponse> {
        let response = self.responses.pop_front()?;
        self.untaken.take(&response.result);
        if response.mark.is_some() {
            let length = response.result.as_ref().map_or(0, Bytes::len);
            time_trace::record_of(TraceEvent::RecvmsgResponse, response.mark, length);
        }
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use apus_proto::slab::Handle;

    use super::*;

    #[test]
    fn each_neighbour_and_each_node_of_the_network_is_a_peer() {
        let mut queue = Queue::new();
        let mut push = |path, number| {
            let from = Address::new("10.0.0.1:4000".parse().unwrap(), 32_768);
            let rpc = RpcKey::new(number, 0);
            let body = Bytes::from_static(b"?");
            queue.push_request(WaitingRequest {
                rpc,
                from,
                path,
                deadline: None,
                trace: None,
                body,
                mark: None,
            });
        };
        (0..100).for_each(|number| push(PathId::new(4, 4), number));
        push(PathId::new(4, 4).local(), 100);
        push(PathId::new(5, 5), 101);
        let order = iter::from_fn(|| queue.pop_request().map(|request| request.rpc.index()));
        assert!(order.take(5).eq([0, 100, 101, 1, 2]));
    }

    #[test]
    fn responses_are_counted_until_they_are_taken() {
        let mut queue = Queue::new();
        for (cookie, body) in [(1, "four"), (2, "longer")] {
            let result = Ok(Bytes::from_static(body.as_bytes()));
            queue.push_response(WaitingResponse {
                cookie,
                result,
                span: SpanNumber::NONE,
                mark: None,
            });
        }
        assert_eq!(queue.untaken(), Untaken { responses: 2, bytes: 10 });
        assert_eq!(queue.pop_response().map(|response| response.cookie), Some(1));
        assert_eq!(queue.untaken(), Untaken { responses: 1, bytes: 6 });
    }
}
