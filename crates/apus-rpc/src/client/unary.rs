//! A call with one request and one response.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use apus::{Body, Bytes, TraceContext};
use bytes::Buf;

use crate::body::MessageBody;
use crate::client::attempts::{Attempts, FailureFacts, Next};
use crate::client::call_head::{CallHead, call_setters};
use crate::client::calls::ChannelParts;
use crate::client::channel_counters::count;
use crate::client::endpoint_state::InFlight;
use crate::client::failure::{EndpointOutcome, Repetition};
use crate::client::hedge::Hedge;
#[cfg(feature = "tower")]
use crate::client::outgoing_request::OutgoingRequest;
use crate::client::retry::RetryPolicy;
use crate::code::Code;
use crate::envelope::{EnvelopeError, PLAIN_OK, ResponseHead};
use crate::metadata::Metadata;
use crate::observe::Scope;
use crate::response::Response;
use crate::status::Status;
use crate::transport::OutgoingParts;

/// A call that is not sent yet. From [`Channel::unary`](crate::Channel::unary). It is sent when it is awaited for the first time,
/// or when a thread [waits](Self::wait) for it.
///
/// A call that is made in a handler has no more time than the handler's request and the same trace context, see
/// [`Context`](crate::Context). A dropped call is given up, and the server is notified.
///
/// A request that was not executed goes to another endpoint at once, if the channel has one: the server cannot be reached,
/// drains, or has too many requests. Answers about the request itself are final.
#[must_use = "a call is sent when it is awaited or waited for"]
pub struct UnaryCall<'c> {
    head: CallHead<'c>,
    body: MessageBody,
    waits_for_ready: Option<bool>,
    is_idempotent: bool,
}

impl<'c> UnaryCall<'c> {
    pub(crate) fn new(
        calls: &'c Arc<ChannelParts>,
        path: impl Into<Bytes>,
        body: MessageBody,
    ) -> Self {
        let head = CallHead::new(calls, path);
        Self { head, body, waits_for_ready: None, is_idempotent: false }
    }

    call_setters!();

    /// Whether the call waits until an endpoint takes it, up to its deadline: it is repeated with pauses of 50 ms to 1 s as long
    /// as no endpoint can have executed it. Default: as the channel, which is `false` unless
    /// [`ChannelBuilder::wait_for_ready`](crate::ChannelBuilder::wait_for_ready) says otherwise.
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.waits_for_ready = Some(waits);
        self
    }

    /// Says that the method may be executed more than once with the effect of one execution, so that the channel may repeat the
    /// call ([`ChannelBuilder::retry`](crate::ChannelBuilder::retry)) and send it twice
    /// ([`ChannelBuilder::hedge`](crate::ChannelBuilder::hedge)). Default: it may be executed once at most.
    pub fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    pub(crate) fn calls(&self) -> &'c Arc<ChannelParts> {
        self.head.calls
    }

    /// The call within the layers of its channel.
    #[cfg(feature = "tower")]
    pub(crate) fn of_request(calls: &'c Arc<ChannelParts>, mut request: OutgoingRequest) -> Self {
        let head = CallHead::of_request(calls, &mut request);
        let OutgoingRequest { message, waits_for_ready, is_idempotent, .. } = request;
        Self { head, body: message.into(), waits_for_ready, is_idempotent }
    }

    /// The call as layers see it, if its channel has layers. After [`begin`](Self::begin).
    #[cfg(feature = "tower")]
    pub(crate) fn take_request(&mut self) -> Option<OutgoingRequest> {
        self.head.calls.layers.as_ref()?;
        let message = mem::take(&mut self.body).into_bytes();
        self.body = message.clone().into();
        let mut request = self.head.take_request(message);
        request.waits_for_ready = self.waits_for_ready;
        request.is_idempotent = self.is_idempotent;
        Some(request)
    }

    /// Begins the span of the call, before its first attempt.
    #[inline]
    pub(crate) fn observe(&mut self) {
        self.head.observe();
    }

    /// The span of the call, to be entered.
    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        self.head.observed.scope()
    }

    /// The call has failed before it was sent.
    #[cold]
    pub(crate) fn note_failed(&self, status: &Status) {
        self.head.observed.end(status.code());
    }

    /// The call has its result.
    #[inline]
    pub(crate) fn note_end(&self, result: &Result<Response, Status>) {
        self.head.observed.end(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
    }

    /// Checks the request before its first attempt.
    pub(crate) fn begin(&mut self) -> Result<(), Status> {
        self.head.begin()
    }

    /// When a second copy of the call is sent, if one may be.
    pub(crate) fn hedge(&self) -> Option<Hedge> {
        let may_repeat = self.is_idempotent || self.head.config().retry.is_some();
        self.head.config().hedge.or_else(|| self.head.calls.hedge.filter(|_| may_repeat))
    }

    /// The policy of the method, if it may be executed more than once.
    fn policy(&self) -> Option<RetryPolicy> {
        let idempotent = self.head.calls.retry.idempotent.filter(|_| self.is_idempotent);
        self.head.config().retry.or(idempotent)
    }

    /// Whether this result ends the call although its other copy is under way.
    pub(crate) fn is_final(&self, result: &Result<Response, Status>) -> bool {
        let Err(status) = result else { return true };
        let may_repeat = self.policy().unwrap_or_default().covers(status.code());
        Repetition::of(status) == Repetition::No && !may_repeat
    }

    /// The next attempt: its endpoint, and the call of it.
    pub(crate) fn attempt(
        &mut self,
        attempts: &Attempts,
    ) -> Result<(InFlight, OutgoingParts<'c>), Status> {
        self.prepare(attempts).map_err(|status| attempts.status_of_call(status))
    }

    fn prepare(&mut self, attempts: &Attempts) -> Result<(InFlight, OutgoingParts<'c>), Status> {
        let (calls, options) = (self.head.calls, self.head.options()?);
        let message = self.message()?;
        let flight = calls.endpoints.begin(&attempts.tried, self.body.len());
        let flight = flight.ok_or_else(Status::no_endpoint)?;
        self.head.observed.note_server(flight.address());
        let call = calls.caller.call(flight.address(), message, options);
        Ok((flight, call))
    }

    /// The message of an attempt. Another one may follow.
    //= docs/rpc-wire.md#E11
    fn message(&mut self) -> Result<Body, Status> {
        let head = self.head.open(self.head.calls.next_id(), true, self.body.room())?;
        Ok(self.body.message(head))
    }

    /// An attempt has ended: the call has, or another attempt follows.
    pub(crate) fn judge(
        &mut self,
        attempts: &mut Attempts,
        flight: InFlight,
        result: Result<Response, Status>,
    ) -> Judged {
        let calls = self.head.calls;
        calls.endpoints.ended(&flight.state, EndpointOutcome::of(&result));
        match result {
            Ok(response) => {
                calls.throttle.succeed();
                Judged::Over(Ok(response))
            }
            Err(status) => self.judge_failure(attempts, &flight, status),
        }
    }

    #[cold]
    fn judge_failure(
        &mut self,
        attempts: &mut Attempts,
        flight: &InFlight,
        status: Status,
    ) -> Judged {
        let (calls, policy) = (self.head.calls, self.policy());
        // The error of an application is not delayed by the facts that follow.
        if Attempts::is_last(&status, policy) {
            return Judged::Over(Err(attempts.status_of_call(status)));
        }
        let counters = &calls.endpoints.counters;
        attempts.tried.add(flight.state.number);
        let waits_for_ready = self.waits_for_ready.or_else(|| self.head.config().waits_for_ready);
        let facts = FailureFacts {
            has_untried: calls.endpoints.has_untried(&attempts.tried),
            waits_for_ready: waits_for_ready.unwrap_or(calls.waits_for_ready),
            policy,
            not_executed: calls.retry.not_executed,
            throttle: &calls.throttle,
            remaining: self.head.remaining(),
            random: calls.endpoints.random(),
        };
        match attempts.next(&status, facts) {
            Next::End => Judged::Over(Err(attempts.status_of_call(status))),
            Next::Elsewhere => {
                count(&counters.moved);
                Judged::Again(None)
            }
            Next::After(pause) => {
                count(&counters.repeated);
                self.note_attempts(attempts.repeated);
                Judged::Again(Some(pause))
            }
        }
    }

    /// Adds the number of earlier attempts to the metadata.
    fn note_attempts(&mut self, repeated: u32) {
        if repeated > 0 {
            let result =
                self.head.metadata().insert("grpc-previous-rpc-attempts", repeated.to_string());
            result.expect("a number is a text");
        }
    }
}

/// The end of an attempt.
pub(crate) enum Judged {
    /// The call has ended as well.
    Over(Result<Response, Status>),
    /// Another attempt follows, after a pause if there is one.
    Again(Option<Duration>),
}

impl Judged {
    pub(crate) fn failed(status: Status) -> Self {
        Self::Over(Err(status))
    }
}

/// The response of a call, or its status.
pub(crate) fn finish(
    calls: &ChannelParts,
    result: Result<Bytes, Status>,
) -> Result<Response, Status> {
    let mut message = result?;
    //= docs/rpc-wire.md#E16
    let refused = |error: EnvelopeError| {
        calls.refusals.count(&error);
        error.of_response()
    };
    if message.starts_with(&PLAIN_OK) && PLAIN_OK.len() <= calls.limits.head {
        message.advance(PLAIN_OK.len());
        calls.limits.check_frame(message.len()).map_err(refused)?;
        return Ok(Response::new(message, Metadata::new(), Metadata::new()));
    }
    let (head, body) = ResponseHead::decode(&message, &calls.limits).map_err(refused)?;
    let metadata = head.metadata.unwrap_or_default();
    let Some(mut end) = head.end else {
        let text = "the method streams its response, and the call expects one message";
        return Err(Status::new(Code::Internal, text));
    };
    if end.code() == Code::Ok {
        calls.limits.check_frame(body.len()).map_err(refused)?;
        return Ok(Response::new(body, metadata, end.take_metadata()));
    }
    if !metadata.is_empty() {
        let trailers = mem::replace(end.metadata_mut(), metadata);
        end.metadata_mut().extend(trailers);
    }
    Err(end)
}

impl fmt::Debug for UnaryCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnaryCall")
            .field("path", self.head.path())
            .field("length", &self.body.len())
            .finish_non_exhaustive()
    }
}
