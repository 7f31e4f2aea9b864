//! Spans and histograms of calls, by the conventions of OpenTelemetry for RPC.
//!
//! Without the features `metrics` and `tracing` the types are empty.

#[cfg(not(any(feature = "metrics", feature = "tracing")))]
mod absent;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod recorded;

#[cfg(not(any(feature = "metrics", feature = "tracing")))]
pub(crate) use absent::{ClientCall, Scope, ServerCall, describe, refused};
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(crate) use recorded::{ClientCall, Scope, ServerCall, describe, refused};

#[cfg(all(feature = "tower", not(any(feature = "metrics", feature = "tracing"))))]
pub(crate) use absent::PassingCall;
#[cfg(all(feature = "tower", any(feature = "metrics", feature = "tracing")))]
pub(crate) use recorded::PassingCall;
