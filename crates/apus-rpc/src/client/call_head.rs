//! The head of a call that is not sent yet, which all kinds of calls have.

#[cfg(feature = "tower")]
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apus::{Bytes, TraceContext};

use crate::client::calls::ChannelParts;
#[cfg(feature = "tower")]
use crate::client::outgoing_request::OutgoingRequest;
use crate::client::retry::MethodConfig;
use crate::code::Code;
use crate::context::Context;
use crate::envelope::{self, EnvelopeError, MethodPath};
#[cfg(feature = "tower")]
use crate::layering::Passed;
use crate::metadata::{Metadata, MetadataError};
use crate::observe::ClientCall;
use crate::status::Status;
use crate::transport::OutgoingOptions;

/// Path, metadata and options of a call. It inherits from the request in whose handler it is made.
pub(crate) struct CallHead<'c> {
    pub(crate) calls: &'c Arc<ChannelParts>,
    path: MethodPath,
    metadata: Metadata,
    /// By which the call ends, or until [`begin`](Self::begin) the request that it belongs to.
    until: Option<Instant>,
    deadline: Option<Duration>,
    /// The settings of the method, from [`begin`](Self::begin).
    config: MethodConfig,
    trace: Option<TraceContext>,
    /// The trace context is not that of the request in whose handler the call is made.
    has_own_trace: bool,
    /// The call does not belong to the request in whose handler it is made.
    is_detached: bool,
    /// The call has no span, and no histogram counts it.
    is_unobserved: bool,
    fault: Option<Status>,
    pub(crate) observed: ClientCall,
}

impl<'c> CallHead<'c> {
    pub(crate) fn new(calls: &'c Arc<ChannelParts>, path: impl Into<Bytes>) -> Self {
        let inherited = Context::current();
        let until = inherited.as_ref().and_then(Context::deadline);
        let trace = inherited.as_ref().and_then(Context::trace);
        let (metadata, deadline, fault) = (Metadata::new(), None, None);
        let unknown = MethodPath::unknown();
        let config = MethodConfig::default();
        let mut head = Self {
            calls,
            path: unknown,
            metadata,
            until,
            deadline,
            config,
            trace,
            has_own_trace: false,
            is_detached: false,
            is_unobserved: false,
            fault,
            observed: ClientCall::none(),
        };
        match MethodPath::new(path) {
            Ok(path) => head.path = path,
            Err(error) => head.refuse(error.to_string()),
        }
        head
    }

    /// The head of a call that has begun and has passed layers.
    #[cfg(feature = "tower")]
    pub(crate) fn of_request(calls: &'c Arc<ChannelParts>, request: &mut OutgoingRequest) -> Self {
        Self {
            calls,
            path: request.path.clone(),
            metadata: mem::take(&mut request.metadata),
            until: request.until,
            deadline: None,
            config: request.config,
            trace: request.trace,
            has_own_trace: request.has_own_trace,
            is_detached: false,
            is_unobserved: false,
            fault: None,
            observed: ClientCall::of_passing(request.observed.clone()),
        }
    }

    /// The call as layers see it, after [`begin`](Self::begin). The metadata is taken.
    #[cfg(feature = "tower")]
    pub(crate) fn take_request(&mut self, message: Bytes) -> OutgoingRequest {
        OutgoingRequest {
            path: self.path.clone(),
            metadata: mem::take(&mut self.metadata),
            message,
            until: self.until,
            trace: self.trace,
            has_own_trace: self.has_own_trace,
            config: self.config,
            waits_for_ready: None,
            is_idempotent: false,
            passed: Passed::default(),
            observed: self.observed.passing(),
        }
    }

    pub(crate) fn path(&self) -> &MethodPath {
        &self.path
    }

    /// The first misuse is the status of the call.
    #[cold]
    fn refuse(&mut self, text: String) {
        let status = || Status::new(Code::InvalidArgument, text).not_executed();
        self.fault.get_or_insert_with(status);
    }

    pub(crate) fn note(&mut self, result: Result<(), MetadataError>) {
        if let Err(error) = result {
            self.refuse(error.to_string());
        }
    }

    pub(crate) fn metadata(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    pub(crate) fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = Some(deadline);
    }

    pub(crate) fn set_trace(&mut self, trace: TraceContext) {
        (self.trace, self.has_own_trace) = (Some(trace), true);
    }

    pub(crate) fn detach(&mut self) {
        (self.until, self.is_detached) = (None, true);
        if !self.has_own_trace {
            self.trace = None;
        }
    }

    /// Checks the call and shows it to the interceptors, before it is sent for the first time.
    pub(crate) fn begin(&mut self) -> Result<(), Status> {
        if let Some(status) = self.fault.take() {
            return Err(status);
        }
        self.calls.intercept(&self.path, &mut self.metadata).map_err(Status::not_executed)?;
        self.config = self.calls.retry.of(&self.path);
        let own = [self.deadline.take(), self.config.deadline].into_iter().flatten().min();
        if let Some(deadline) = own {
            let own = Instant::now().checked_add(deadline);
            self.until = [self.until, own].into_iter().flatten().min();
        }
        Ok(())
    }

    /// The settings of the method, after [`begin`](Self::begin).
    pub(crate) fn config(&self) -> MethodConfig {
        self.config
    }

    /// The time until the deadline, after [`begin`](Self::begin).
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// The options of the call, after [`begin`](Self::begin).
    //= docs/rpc-wire.md#E12
    pub(crate) fn options(&self) -> Result<OutgoingOptions, Status> {
        options(self.remaining(), self.trace())
    }

    /// The bytes of an OPEN, with room for a body.
    pub(crate) fn open(&self, id: u64, ends: bool, body: usize) -> Result<Vec<u8>, Status> {
        let message = envelope::encode_open(id, ends, &self.path, &self.metadata, body);
        let limit = self.calls.limits.head;
        if message.len() > limit {
            let error = EnvelopeError::HeadTooLong { limit };
            return Err(Status::new(error.code(), error.to_string()).not_executed());
        }
        Ok(message)
    }

    /// The call is the library's own, and none of the application.
    pub(crate) fn set_unobserved(&mut self) {
        self.is_unobserved = true;
    }

    /// Begins the span of the call.
    pub(crate) fn observe(&mut self) {
        if !self.is_unobserved {
            self.observed = ClientCall::begin(&self.path, self.is_detached);
        }
    }

    /// The trace context of the messages. The spans have one of their own, if the program has not given one.
    fn trace(&self) -> Option<TraceContext> {
        if self.has_own_trace { self.trace } else { self.observed.trace(self.trace) }
    }

    /// When the call ends, and its trace context, after [`begin`](Self::begin).
    pub(crate) fn bounds(&self) -> (Option<Instant>, Option<TraceContext>) {
        (self.until, self.trace())
    }
}

/// The options of a call with so much time left.
pub(crate) fn options(
    deadline: Option<Duration>,
    trace: Option<TraceContext>,
) -> Result<OutgoingOptions, Status> {
    if deadline.is_some_and(|deadline| deadline.is_zero()) {
        let text = "the deadline had passed before the call began";
        return Err(Status::new(Code::DeadlineExceeded, text).not_executed());
    }
    Ok(OutgoingOptions { deadline, trace })
}

/// The setters of a call with a field `head`.
macro_rules! call_setters {
    () => {
        /// Adds a pair to the metadata of the request. A pair that [`Metadata::append`] refuses ends the call with
        /// [`Code::InvalidArgument`](crate::Code::InvalidArgument), and nothing is sent.
        pub fn metadata(mut self, name: &str, value: impl Into<String>) -> Self {
            let result = self.head.metadata().append(name, value);
            self.head.note(result);
            self
        }

        /// Adds a pair of bytes to the metadata of the request. The name ends in `-bin`.
        pub fn metadata_bin(mut self, name: &str, value: impl Into<Bytes>) -> Self {
            let result = self.head.metadata().append_bin(name, value);
            self.head.note(result);
            self
        }

        /// Adds many pairs to the metadata of the request.
        pub fn all_metadata(mut self, metadata: Metadata) -> Self {
            self.head.metadata().extend(metadata);
            self
        }

        /// Ends the call with [`Code::DeadlineExceeded`](crate::Code::DeadlineExceeded) if it has not ended this long after it was sent.
        /// Default: no deadline, except that of the request in whose handler the call is made, which always holds.
        pub fn deadline(mut self, deadline: Duration) -> Self {
            self.head.set_deadline(deadline);
            self
        }

        /// Sends the call's place in a distributed trace.
        pub fn trace(mut self, context: TraceContext) -> Self {
            self.head.set_trace(context);
            self
        }

        /// Makes the call independent of the request in whose handler it is made: it has neither its deadline nor its trace context,
        /// and is no child of its span.
        pub fn detached(mut self) -> Self {
            self.head.detach();
            self
        }
    };
}

pub(crate) use call_setters;
