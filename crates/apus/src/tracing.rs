//! Spans of calls and requests, for distributed traces (feature `tracing`).
//!
//! Each call of a [`Client`](crate::Client) has a span `call`, and each [`Request`](crate::Request) a span `request`, both with the
//! target `apus` and the level INFO. A subscriber of the crate `tracing` records them. Their fields have the names of
//! OpenTelemetry's conventions where there is one:
//!
//! | field | `call` | `request` |
//! |---|---|---|
//! | `otel.kind` | `client` | `server` |
//! | `rpc.system.name` | `apus` | `apus` |
//! | `server.address` | IP address of the server | |
//! | `server.port` | Homa port of the service | the same |
//! | `client.address`, `client.port` | | IP address and Homa port of the client |
//! | `network.peer.port` | UDP port of the server's node; none on a raw link | the same of the client's |
//! | `rpc.request.size`, `rpc.response.size` | bytes | bytes |
//! | `apus.rpc_id` | the RPC's id as the client's packets have it, in Wireshark `homa.rpc.id`; its lower half is that of `apus trace rpcid` | the same number |
//! | `error.type` | the variant of [`CallError`](crate::CallError) | the end of a request without a response |
//! | `otel.status_code` | `ERROR` if the call failed | `ERROR` if there was no response |
//!
//! A call's span is a child of the span that is current where the call begins. It ends when the result of the call is handed out or
//! the call is given up. A request's span begins when the request is handed to the application and ends with it: when it is
//! answered or dropped, and in [`Port::serve`](crate::Port::serve), which enters the span around the handler, when the
//! handler returns. Other handlers enter [`Request::span`](crate::Request::span) themselves. Calls of byte streams have no spans,
//! and neither has [`Client::connect`](crate::Client::connect).
//!
//! # Traces across hosts
//!
//! A [`TraceContext`], which travels with the request, joins the spans of two processes. This crate does not know the ids that
//! a subscriber gives to spans. A [`Propagator`] does, which a program sets once; without one, every process has traces of its own.
//! The directory `examples/opentelemetry` of the repository has one for OpenTelemetry, in ten lines. A context that
//! [`CallOptions::trace_context`](crate::CallOptions::trace_context) gives to a call goes before that of the propagator.
//! `tracestate` and baggage are not carried.

use std::sync::OnceLock;

use ::tracing::Span;

use crate::TraceContext;

/// Knows the ids of spans. Its methods are called for each call and each request, on the application's threads, outside of all locks
/// of the library.
///
/// ```
/// use apus::TraceContext;
/// use apus::tracing::{Propagator, set_propagator};
/// use tracing::Span;
///
/// /// For a subscriber whose spans know their trace.
/// struct Ids;
///
/// # fn trace_of(_: &tracing::Id) -> Option<[u8; 16]> { None }
/// # fn set_trace(_: &tracing::Id, _: TraceContext) {}
/// impl Propagator for Ids {
///     fn context(&self, span: &Span) -> Option<TraceContext> {
///         let id = span.id()?;
///         TraceContext::new(trace_of(&id)?, id.into_u64().to_be_bytes(), TraceContext::SAMPLED)
///     }
///
///     fn set_parent(&self, span: &Span, parent: TraceContext) {
///         if let Some(id) = span.id() {
///             set_trace(&id, parent);
///         }
///     }
/// }
///
/// set_propagator(Ids)?;
/// # Ok::<(), apus::tracing::PropagatorIsSet>(())
/// ```
pub trait Propagator: Send + Sync {
    /// The context that goes with a call. `span` is the span of the call, or the current one if the subscriber does not want the
    /// call's. `None`: the call carries no context.
    fn context(&self, span: &Span) -> Option<TraceContext>;

    /// Makes the caller's span, of another process, the parent of the span of a request, which was made just before.
    fn set_parent(&self, span: &Span, parent: TraceContext);
}

/// A [`Propagator`] was set before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this process already has a propagator")]
pub struct PropagatorIsSet(());

static PROPAGATOR: OnceLock<Box<dyn Propagator>> = OnceLock::new();

/// Sets the propagator of this process: once, before the first call.
///
/// # Errors
///
/// [`PropagatorIsSet`].
pub fn set_propagator(propagator: impl Propagator + 'static) -> Result<(), PropagatorIsSet> {
    PROPAGATOR.set(Box::new(propagator)).map_err(|_| PropagatorIsSet(()))
}

/// The context that the [`Propagator`] has for a span of the program. `None` without a propagator.
#[must_use]
pub fn context_of(span: &Span) -> Option<TraceContext> {
    propagator()?.context(span)
}

/// Has the [`Propagator`], if there is one, make the span of another process the parent of a span that was just made.
pub fn set_parent(span: &Span, parent: TraceContext) {
    if let Some(propagator) = propagator() {
        propagator.set_parent(span, parent);
    }
}

pub(crate) fn propagator() -> Option<&'static dyn Propagator> {
    PROPAGATOR.get().map(|propagator| &**propagator)
}
