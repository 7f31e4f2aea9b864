//! Spans of calls and requests (`apus::tracing`), with the feature `tracing`; types without content or effect otherwise.
//!
//! Spans are made, changed and dropped outside the engine's lock, because a subscriber is code of the application.

#[cfg(not(feature = "tracing"))]
mod absent;
#[cfg(feature = "tracing")]
mod recorded;

#[cfg(not(feature = "tracing"))]
pub(crate) use absent::{CallSpan, QueuedSpans, RequestTrace, Scope, SpanNumber};
#[cfg(feature = "tracing")]
pub(crate) use recorded::{CallSpan, QueuedSpans, RequestTrace, Scope, SpanNumber};
