//! The propagator that joins the spans of two processes, complete, so that a program can copy it.

use apus::TraceContext;
use apus::tracing::Propagator;
use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The ids that `tracing-opentelemetry` gives to spans.
pub(crate) struct OpenTelemetry;

impl Propagator for OpenTelemetry {
    fn context(&self, span: &Span) -> Option<TraceContext> {
        let context = span.context();
        let ids = context.span().span_context().clone();
        TraceContext::new(
            ids.trace_id().to_bytes(),
            ids.span_id().to_bytes(),
            ids.trace_flags().to_u8(),
        )
    }

    fn set_parent(&self, span: &Span, parent: TraceContext) {
        let (trace, caller) = (parent.trace_id(), parent.span_id());
        let remote = SpanContext::new(
            TraceId::from_bytes(trace),
            SpanId::from_bytes(caller),
            TraceFlags::new(parent.flags()),
            true,
            TraceState::default(),
        );
        // Fails only for a span that has begun, and this one has not.
        let _ = span.set_parent(Context::new().with_remote_span_context(remote));
    }
}
