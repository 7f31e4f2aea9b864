//! Messages that wait at a socket for the application, and their order.

use std::collections::VecDeque;
use std::time::Duration;

use apus_proto::{Endpoint, RpcKey, Time, TraceEvent, TraceMark};
use apus_wire::{PathId, TraceContext};
use bytes::Bytes;

use crate::address::Address;
use crate::error::CallError;
use crate::mail::fair_queue::FairQueue;
use crate::observe::spans::SpanNumber;
use crate::observe::time_trace;
use crate::sync::clock;

/// A waiting request.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) rpc: RpcKey,
    pub(crate) from: Address,
    /// The way to the client's node.
    pub(crate) path: PathId,
    pub(crate) deadline: Option<Time>,
    pub(crate) trace: Option<Box<TraceContext>>,
    pub(crate) body: Bytes,
    /// Its mark in the time trace, if it was chosen.
    pub(crate) mark: Option<TraceMark>,
}

impl WaitingRequest {
    /// The number of its peer. A request that was given up may wait when the index of its path is another peer's. The two then share
    /// their turns.
    #[inline]
    fn line(&self) -> usize {
        self.path.index() * 2 + usize::from(self.path.is_local())
    }

    /// Records that the application takes the request while `waiting` further ones wait.
    #[inline]
    fn record_taken(&self, waiting: usize) {
        if let Some(mark) = self.mark {
            time_trace::record_request(mark, self.body.len(), waiting);
        }
    }
}

/// A waiting response.
#[derive(Debug)]
pub(crate) struct WaitingResponse {
    pub(crate) cookie: u64,
    pub(crate) result: Result<Bytes, CallError>,
    /// Of its call.
    pub(crate) span: SpanNumber,
    /// The mark of its call in the time trace, if it was chosen.
    pub(crate) mark: Option<TraceMark>,
}

impl WaitingResponse {
    /// Records that the application takes the response.
    #[cold]
    fn record_taken(&self) {
        let length = self.result.as_ref().map_or(0, Bytes::len);
        time_trace::record_of(TraceEvent::RecvmsgResponse, self.mark, length);
    }
}

/// The queue of a socket: requests of a service, or responses of a client.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Peers take turns, so a peer with many requests delays those of other peers only by its share.
    requests: FairQueue<WaitingRequest>,
    /// Requests whose responses would probably miss their deadlines. They are taken when no other requests wait.
    late: FairQueue<WaitingRequest>,
    /// Time that the service takes for a request with a deadline, in nanoseconds: a moving average.
    service_time: u64,
    /// Whether requests whose caller has given up are skipped.
    skips: bool,
    /// Oldest first.
    responses: VecDeque<WaitingResponse>,
    undelivered: Undelivered,
}

/// Responses that the application has not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Undelivered {
    pub(crate) responses: u64,
    pub(crate) bytes: u64,
}

impl Undelivered {
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
    /// `skips`: whether requests whose caller has given up are skipped.
    pub(crate) const fn new(skips: bool) -> Self {
        Self {
            skips,
            requests: FairQueue::new(),
            late: FairQueue::new(),
            service_time: 0,
            responses: VecDeque::new(),
            undelivered: Undelivered { responses: 0, bytes: 0 },
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.late.len() + self.responses.len()
    }

    /// Of the responses in it.
    #[inline]
    pub(crate) fn undelivered(&self) -> Undelivered {
        self.undelivered
    }

    #[inline]
    pub(crate) fn push_request(&mut self, request: WaitingRequest) {
        self.requests.push(request.line(), request);
    }

    #[inline]
    pub(crate) fn push_response(&mut self, response: WaitingResponse) {
        self.undelivered.add(&response.result);
        self.responses.push_back(response);
    }

    #[inline]
    pub(crate) fn pop_request(&mut self) -> Option<WaitingRequest> {
        let request = self.requests.pop().or_else(|| self.late.pop())?;
        request.record_taken(self.requests.len());
        Some(request)
    }

    /// Whether requests wait, late and unwanted ones included.
    #[inline]
    pub(crate) fn has_requests(&self) -> bool {
        self.requests.len() + self.late.len() > 0
    }

    /// The request whose turn it is, if the application is to have it: the first step of [`next_request`](Self::next_request), which
    /// is all of it for nearly every request.
    #[inline(always)]
    pub(crate) fn next_wanted(&mut self, endpoint: &Endpoint) -> Option<WaitingRequest> {
        let (skips, waiting, service_time) = (self.skips, self.requests.len(), self.service_time);
        // A request is checked in its place, because moving it costs more than the check.
        let is_wanted = |request: &WaitingRequest| {
            let wanted = !skips
                || endpoint.is_active(request.rpc)
                    && request.deadline.is_none_or(|deadline| is_in_time(deadline, service_time));
            if wanted {
                request.record_taken(waiting - 1);
            }
            wanted
        };
        self.requests.pop_if(is_wanted).ok().flatten()
    }

    /// The next request for the application. Skips requests whose caller has given up, and takes late ones last.
    #[cold]
    pub(crate) fn next_request(&mut self, endpoint: &mut Endpoint) -> Option<WaitingRequest> {
        while self.requests.len() > 0 {
            let wanted = self.next_wanted(endpoint);
            if wanted.is_some() {
                return wanted;
            }
            self.put_aside(endpoint);
        }
        self.pop_late(endpoint)
    }

    /// Removes the request whose turn it is: it is late, or its caller no longer waits.
    #[cold]
    fn put_aside(&mut self, endpoint: &mut Endpoint) {
        let Some(request) = self.requests.pop() else { return };
        let is_over = request.deadline.is_some_and(|deadline| deadline <= clock::now());
        if is_over || !endpoint.is_active(request.rpc) {
            skip(endpoint, request);
        } else {
            self.late.push(request.line(), request);
        }
    }

    /// The next request that has little time left.
    fn pop_late(&mut self, endpoint: &mut Endpoint) -> Option<WaitingRequest> {
        while let Some(request) = self.late.pop() {
            let is_over = request.deadline.is_some_and(|deadline| deadline <= clock::now());
            if !is_over && endpoint.is_active(request.rpc) {
                request.record_taken(self.late.len());
                return Some(request);
            }
            skip(endpoint, request);
        }
        None
    }

    //= docs/protocol.md#seal-6
    /// Refuses the waiting requests of peers that the rule of the socket does not name any more. `refuse` refuses such a request, and
    /// returns whether it is one. The others keep their order.
    pub(crate) fn refuse_forbidden(
        &mut self,
        endpoint: &mut Endpoint,
        refuse: impl Fn(&mut Endpoint, &WaitingRequest) -> bool,
    ) {
        for queue in [&mut self.requests, &mut self.late] {
            let waiting: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            for request in waiting {
                if refuse(endpoint, &request) {
                    endpoint.discard(request.body);
                } else {
                    queue.push(request.line(), request);
                }
            }
        }
    }

    /// Records the service time of a request with a deadline.
    pub(crate) fn note_service_time(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.service_time = match self.service_time {
            0 => took,
            average => average - average / SERVICE_TIME_WEIGHT + took / SERVICE_TIME_WEIGHT,
        };
    }

    #[inline(always)]
    pub(crate) fn pop_response(&mut self) -> Option<WaitingResponse> {
        let response = self.responses.pop_front()?;
        self.undelivered.take(&response.result);
        if response.mark.is_some() {
            response.record_taken();
        }
        Some(response)
    }
}

/// Whether a service with this service time in nanoseconds answers by the deadline.
#[inline(never)]
fn is_in_time(deadline: Time, service_time: u64) -> bool {
    let now = clock::now();
    deadline > now && deadline.as_nanos() - now.as_nanos() >= service_time
}

/// Records a request that the service does not execute.
#[cold]
fn skip(endpoint: &mut Endpoint, request: WaitingRequest) {
    endpoint.skip(request.rpc);
    endpoint.discard(request.body);
}

/// The weight of the last request in the average service time is one in this many.
const SERVICE_TIME_WEIGHT: u64 = 8;

#[cfg(test)]
mod tests {
    use std::iter;

    use apus_proto::slab::Handle;
    use apus_proto::{Event, MessageKind};

    use super::*;

    #[test]
    fn each_neighbour_and_each_node_of_the_network_is_a_peer() {
        let mut queue = Queue::new(true);
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
    fn requests_with_enough_time_go_first_and_unwanted_ones_never() {
        let mut endpoint = Endpoint::new(apus_proto::Config::default(), 1);
        endpoint.open(Some(7)).unwrap();
        let path = PathId::new(0, 0).local();
        let now = clock::now();
        endpoint.add_local(now, path);
        let mut queue = Queue::new(true);
        let hour = Duration::from_secs(3_600);
        for (id, hours) in
            [(1, Some(1)), (2, None), (3, Some(3)), (4, Some(0)), (5, Some(1)), (6, None)]
        {
            let remaining = hours.map(|hours| hour * hours);
            let kind = MessageKind::Request { from: 40_000, to: 7, remaining };
            endpoint.handle_message(now, path, kind.encode(id), Bytes::from_static(b"?"));
            let Some(Event::Request { rpc, deadline, body, .. }) = endpoint.poll_event() else {
                panic!("a request has come");
            };
            let from = Address::new("10.0.0.1:4000".parse().unwrap(), 40_000);
            let (trace, mark) = (None, None);
            queue.push_request(WaitingRequest { rpc, from, path, deadline, trace, body, mark });
        }
        endpoint.handle_message(now, path, MessageKind::Abort.encode(5), Bytes::new());
        endpoint.handle_message(now, path, MessageKind::Abort.encode(6), Bytes::new());
        (0..9).for_each(|_| queue.note_service_time(2 * hour));
        let next = |queue: &mut Queue, endpoint: &mut Endpoint| {
            let rpc = queue.next_request(endpoint)?.rpc;
            endpoint.rpc_id(rpc)
        };
        let order: Vec<_> = iter::from_fn(|| next(&mut queue, &mut endpoint)).collect();
        assert_eq!(order, [2, 3, 1]);
        assert_eq!(endpoint.counters().requests_skipped, 3);
        assert!(queue.is_empty() && endpoint.active_rpcs() == 3);
    }

    #[test]
    fn responses_are_counted_until_they_are_taken() {
        let mut queue = Queue::new(true);
        for (cookie, body) in [(1, "four"), (2, "longer")] {
            let result = Ok(Bytes::from_static(body.as_bytes()));
            queue.push_response(WaitingResponse {
                cookie,
                result,
                span: SpanNumber::NONE,
                mark: None,
            });
        }
        assert_eq!(queue.undelivered(), Undelivered { responses: 2, bytes: 10 });
        assert_eq!(queue.pop_response().map(|response| response.cookie), Some(1));
        assert_eq!(queue.undelivered(), Undelivered { responses: 1, bytes: 6 });
    }
}
