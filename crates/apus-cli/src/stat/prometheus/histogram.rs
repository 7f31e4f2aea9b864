//! The latency of calls, a histogram of which a process counts each bucket.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::ledger::{Group, Labels};

/// Prefix of the counters of the histogram.
const COUNTERS: &str = "protocol.timed_calls_";

/// Time that all of its calls took.
const SUM: &str = "protocol.timed_calls_ns";

/// Name of the histogram, without its unit.
const NAME: &str = "apus_protocol_call_latency";

const HELP: &str = "Time from the call to its response, of one call in about 64.";

/// Upper bound on calls in a file, so that a wrong file cannot overflow a sum.
const CALLS_MAX: u64 = u64::MAX >> 16;

/// Whether a counter is a part of the histogram.
pub(super) fn is_part(key: &str) -> bool {
    key.starts_with(COUNTERS)
}

/// Writes the histogram of each group.
pub(super) fn encode<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    groups: impl Iterator<Item = (&'a Labels, &'a Group)>,
) -> Result<(), fmt::Error> {
    let mut family =
        encoder.encode_descriptor(NAME, HELP, Some(&Unit::Seconds), MetricType::Histogram)?;
    for (labels, group) in groups {
        let buckets = buckets(group);
        let count = buckets.iter().map(|(_, calls)| calls).sum();
        let nanos = group.counters.get(SUM).copied().unwrap_or(0);
        let mut family = family.encode_family(labels)?;
        family.encode_histogram::<Labels>(nanos as f64 / 1e9, count, &buckets, None)?;
    }
    Ok(())
}

/// The upper bounds in seconds, and the calls in each bucket. Those that this version knows are there before a call is in them, and a
/// process of another version may have others.
fn buckets(group: &Group) -> Vec<(f64, u64)> {
    let known = apus_metrics::engine_metrics().filter(|it| it.group == "protocol");
    let known = known.map(|it| (it.name.to_owned(), 0));
    let counted = group.counters.iter();
    let counted = counted
        .filter_map(|(key, &calls)| Some((key.strip_prefix("protocol.")?.to_owned(), calls)));
    let mut buckets = BTreeMap::new();
    for (name, calls) in known.chain(counted) {
        if let Some(micros) = bound(&name) {
            let bucket: &mut u64 = buckets.entry(micros).or_default();
            *bucket = bucket.saturating_add(calls).min(CALLS_MAX);
        }
    }
    let seconds = |micros: u64| if micros == u64::MAX { f64::MAX } else { micros as f64 / 1e6 };
    buckets.into_iter().map(|(micros, calls)| (seconds(micros), calls)).collect()
}

/// The upper bound of a bucket in microseconds, by the name of its counter.
fn bound(name: &str) -> Option<u64> {
    match name.strip_prefix("timed_calls_")? {
        "beyond" => Some(u64::MAX),
        class => class.strip_prefix("to_")?.strip_suffix("_us")?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use crate::stat::prometheus::page;

    #[test]
    fn buckets_are_cumulative_and_end_with_infinity() {
        let counters = Counters::from([
            ("protocol.timed_calls_to_1_us".to_owned(), 1),
            ("protocol.timed_calls_to_64_us".to_owned(), 5),
            ("protocol.timed_calls_to_100_us".to_owned(), 2), // Of another version.
            ("protocol.timed_calls_beyond".to_owned(), 3),
            ("protocol.timed_calls_ns".to_owned(), 2_500_000_000),
        ]);
        let labels = vec![("program", "shop".to_owned())];
        let group = Group { running: 1, counters, ..Group::default() };
        let text = page::of(BTreeMap::from([(labels, group)]));
        let name = "apus_protocol_call_latency_seconds";
        for line in [
            "# TYPE apus_protocol_call_latency_seconds histogram",
            "# UNIT apus_protocol_call_latency_seconds seconds",
            &format!("{name}_sum{{program=\"shop\"}} 2.5"),
            &format!("{name}_count{{program=\"shop\"}} 11"),
            &format!("{name}_bucket{{le=\"0.000032\",program=\"shop\"}} 1"),
            &format!("{name}_bucket{{le=\"0.000064\",program=\"shop\"}} 6"),
            &format!("{name}_bucket{{le=\"0.0001\",program=\"shop\"}} 8"),
            &format!("{name}_bucket{{le=\"16.777216\",program=\"shop\"}} 8"),
            &format!("{name}_bucket{{le=\"+Inf\",program=\"shop\"}} 11"),
        ] {
            assert!(text.lines().any(|it| it == line), "no {line} in {text}");
        }
        assert!(!text.contains("timed_calls"), "{text}");
    }
}
