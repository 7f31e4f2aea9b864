//! Options of calls.

use std::time::Duration;

use apus_proto::{Cookie, Time};
use apus_wire::TraceContext;

/// Options of a call, for several calls with the same ones. A call itself has the same setters ([`CallBuilder`](crate::CallBuilder)).
///
/// ```no_run
/// # use apus::{Address, CallError, CallOptions, Client};
/// # use std::time::Duration;
/// # fn example(client: &Client, to: Address) -> Result<(), CallError> {
/// let options = CallOptions::new().deadline(Duration::from_millis(20)).wait_for_room(false);
/// client.call(to, "one").options(options).wait()?;
/// client.call(to, "two").options(options).wait()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CallOptions {
    deadline: Option<Duration>,
    trace: Option<TraceContext>,
    /// The call ends at once if there is no room for it.
    refused: bool,
}

impl CallOptions {
    /// The defaults: no deadline, no trace context, and the call waits for room.
    #[must_use]
    pub const fn new() -> Self {
        Self { deadline: None, trace: None, refused: false }
    }

    /// Whether a call waits until other calls of the node have ended, if the limits and budgets of the node have no room for it.
    /// Default `true`.
    ///
    /// A call without room ends with [`CallError::OverBudget`](crate::CallError::OverBudget) or [`CallError::TooManyCalls`](crate::CallError::TooManyCalls):
    ///
    /// * at once with `false`, if no other call of the node is under way, and if 1,024 calls wait already;
    /// * at its deadline;
    /// * without a deadline, when nothing has moved for the setting `peer_timeout` and the application has not taken responses.
    ///
    /// Calls of [`Client::send`](crate::Client::send) never wait.
    #[must_use]
    pub const fn wait_for_room(mut self, waits: bool) -> Self {
        self.refused = !waits;
        self
    }

    #[inline]
    pub(crate) const fn waits(&self) -> bool {
        !self.refused
    }

    /// Ends the call with [`CallError::Deadline`](crate::CallError::Deadline) if it has no response this long after its start. Zero ends it at once; its
    /// request may have been sent. Without a deadline, which is the default, the call ends when the peer has been silent for
    /// the setting `peer_timeout`.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sends the call's place in a distributed trace to the server ([`Request::trace_context`](crate::Request::trace_context)). The
    /// packet with the first byte of the request is 28 bytes longer. Linux hosts get no context.
    ///
    /// ```
    /// use apus::CallOptions;
    ///
    /// // From the header of an HTTP request.
    /// let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let options = CallOptions::new().trace_context(traceparent.parse()?);
    /// # Ok::<(), apus::ParseTraceContextError>(())
    /// ```
    #[must_use]
    pub const fn trace_context(mut self, context: TraceContext) -> Self {
        self.trace = Some(context);
        self
    }

    /// The trace context that the application has given.
    #[inline]
    pub(crate) fn given_trace(&self) -> Option<TraceContext> {
        self.trace
    }

    /// The core's options for a call that begins now and carries this trace context. The engine sets the cookie.
    #[inline]
    pub(crate) fn with_trace(
        &self,
        now: Time,
        trace: Option<TraceContext>,
    ) -> apus_proto::CallOptions {
        let (deadline, trace) = (self.deadline_from(now), trace.map(Box::new));
        apus_proto::CallOptions { cookie: Cookie::default(), deadline, trace }
    }

    #[inline]
    pub(crate) fn deadline_from(&self, now: Time) -> Option<Time> {
        self.deadline.map(|deadline| now + deadline)
    }
}
