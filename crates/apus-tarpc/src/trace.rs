//! Contexts of distributed traces.

use apus::TraceContext;
use tarpc::trace::{Context, SamplingDecision};

/// `None` if the trace or the span has no id.
pub(crate) fn to_apus(context: &Context) -> Option<TraceContext> {
    let flags = match context.sampling_decision {
        SamplingDecision::Sampled => TraceContext::SAMPLED,
        SamplingDecision::Unsampled => 0,
    };
    let (trace_id, span_id) = (u128::from(context.trace_id), u64::from(context.span_id));
    TraceContext::new(trace_id.to_be_bytes(), span_id.to_be_bytes(), flags)
}

pub(crate) fn from_apus(context: TraceContext) -> Context {
    let sampling_decision = match context.is_sampled() {
        true => SamplingDecision::Sampled,
        false => SamplingDecision::Unsampled,
    };
    Context {
        trace_id: u128::from_be_bytes(context.trace_id()).into(),
        span_id: u64::from_be_bytes(context.span_id()).into(),
        sampling_decision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_arrives_as_it_was() {
        for sampling_decision in [SamplingDecision::Sampled, SamplingDecision::Unsampled] {
            let (trace_id, span_id) = (0x0102_0304_u128.into(), 7.into());
            let context = Context { trace_id, span_id, sampling_decision };
            assert_eq!(to_apus(&context).map(from_apus), Some(context));
        }
        assert_eq!(to_apus(&Context::default()), None);
    }
}
