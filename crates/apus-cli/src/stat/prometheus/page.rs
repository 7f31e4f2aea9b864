//! The page, in OpenMetrics, which every Prometheus since 2.5 reads.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::histogram;
use super::ledger::{Group, Labels};

/// The page of some groups of processes.
pub(super) fn of(groups: BTreeMap<Labels, Group>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { groups: escaped(groups) }));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a String takes everything");
    text
}

/// The crate writes values of labels as they are, and processes choose their names.
fn escaped(groups: BTreeMap<Labels, Group>) -> BTreeMap<Labels, Group> {
    let escape =
        |text: String| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels =
        |labels: Labels| labels.into_iter().map(|(name, text)| (name, escape(text))).collect();
    groups.into_iter().map(|(names, group)| (labels(names), group)).collect()
}

#[derive(Debug)]
struct Page {
    groups: BTreeMap<Labels, Group>,
}

impl Page {
    /// Groups of processes, without those of processes that use the engine of another one.
    fn own(&self) -> impl Iterator<Item = (&Labels, &Group)> {
        self.groups.iter().filter(|(labels, _)| !labels.iter().any(|(name, _)| *name == "place"))
    }

    /// Every counter that any group names or this version knows, with its values.
    fn families(&self) -> BTreeMap<String, MetricFamily<'_>> {
        let mut families = BTreeMap::new();
        let mut add = |key: &str, labels, value| {
            let family = families.entry(key.to_owned()).or_insert_with(|| MetricFamily::of(key));
            family.samples.push((labels, value));
        };
        for metric in apus_metrics::engine_metrics().filter(|it| it.gauge.is_none()) {
            let key = format!("{}.{}", metric.group, metric.name);
            if histogram::is_part(&key) {
                continue;
            }
            // A counter exists before it first counts.
            let missing = self.own().filter(|(_, group)| !group.counters.contains_key(&key));
            missing.for_each(|(labels, _)| add(&key, labels, 0));
        }
        for (labels, group) in &self.groups {
            let counters = group.counters.iter().filter(|(key, _)| !histogram::is_part(key));
            counters.for_each(|(key, value)| add(key, labels, *value));
        }
        families
    }

    /// Every gauge for which a group has a value.
    fn gauges(&self) -> BTreeMap<&str, MetricFamily<'_>> {
        let mut families = BTreeMap::new();
        for (labels, group) in self.own() {
            for (key, value) in &group.gauges {
                let family = families.entry(&**key).or_insert_with(|| MetricFamily::of(key));
                family.samples.push((labels, *value));
            }
        }
        families
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Running processes that are visible to the exporter.";
        let mut processes =
            encoder.encode_descriptor("apus_processes", help, None, MetricType::Gauge)?;
        for (labels, group) in self.own() {
            let running = ConstGauge::new(i64::try_from(group.running).unwrap_or(i64::MAX));
            running.encode(processes.encode_family(labels)?)?;
        }
        let help = "1 if the last ended process of the program had not closed or dropped its nodes: it was killed or crashed.";
        let mut died = encoder.encode_descriptor("apus_died", help, None, MetricType::Gauge)?;
        for (labels, group) in self.own() {
            ConstGauge::new(i64::from(group.died)).encode(died.encode_family(labels)?)?;
        }
        histogram::encode(&mut encoder, self.own())?;
        for family in self.families().values() {
            family.encode(&mut encoder)?;
        }
        for family in self.gauges().values() {
            family.encode_gauges(&mut encoder)?;
        }
        Ok(())
    }
}

/// A counter or gauge of all groups.
struct MetricFamily<'a> {
    /// Without its unit, which the crate adds.
    name: String,
    unit: Option<Unit>,
    help: String,
    samples: Vec<(&'a Labels, u64)>,
}

impl MetricFamily<'_> {
    fn of(key: &str) -> Self {
        let known =
            apus_metrics::metrics().find(|it| key.split_once('.') == Some((it.group, it.name)));
        let help = known.map_or("A counter of another version of Apus.", |it| it.meaning.trim());
        let unit = match known.map(|it| it.unit) {
            Some("bytes") => Some(Unit::Bytes),
            Some("nanoseconds" | "seconds") => Some(Unit::Seconds),
            _ => None,
        };
        let mut name = format!("apus_{}", key.replace('.', "_"));
        if unit.is_some() {
            // The unit is the end of the name.
            for part in ["_bytes", "_ns"] {
                name = name.replacen(part, "", 1);
            }
            name.truncate(name.strip_suffix("_s").map_or(name.len(), str::len));
        }
        let help = help.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
        Self { name, unit, help, samples: Vec::new() }
    }

    fn encode_gauges(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Self { name, unit, help, samples } = self;
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            let gauge = ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX));
            gauge.encode(family.encode_family(*labels)?)?;
        }
        Ok(())
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Self { name, unit, help, samples } = self;
        let mut family =
            encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in samples {
            let encoder = family.encode_family(*labels)?;
            match unit {
                Some(Unit::Seconds) => ConstCounter::new(*value as f64 / 1e9).encode(encoder)?,
                _ => ConstCounter::new(*value).encode(encoder)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_their_unit() {
        let of = |key: &str| {
            let MetricFamily { name, unit, .. } = MetricFamily::of(key);
            unit.map_or_else(|| name.clone(), |unit| format!("{name}_{}", unit.as_str()))
        };
        assert_eq!(of("protocol.calls"), "apus_protocol_calls");
        assert_eq!(of("protocol.data_bytes_sent"), "apus_protocol_data_sent_bytes");
        assert_eq!(of("link.bytes_sent"), "apus_link_sent_bytes");
        assert_eq!(of("protocol.priority7_bytes"), "apus_protocol_priority7_bytes");
        assert_eq!(of("protocol.received_bytes_to_64"), "apus_protocol_received_to_64_bytes");
        assert_eq!(of("delivery.polling_ns"), "apus_delivery_polling_seconds");
        let expires = "apus_identity_certificate_expires_seconds";
        assert_eq!(of("identity.certificate_expires_s"), expires);
        let mut names: Vec<_> =
            apus_metrics::metrics().map(|it| of(&format!("{}.{}", it.group, it.name))).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn a_page_has_every_counter_once() {
        let counters = BTreeMap::from([
            ("delivery.polling_ns".to_owned(), 1_500_000_000),
            ("later.counter".to_owned(), 2),
        ]);
        let labels = vec![("program", "a\"b\\".to_owned())];
        let gauges = BTreeMap::from([("identity.certificate_expires_s".to_owned(), 7)]);
        let group = Group { running: 1, died: false, counters, gauges };
        let text = of(BTreeMap::from([(labels, group)]));
        let expires = "apus_identity_certificate_expires_seconds";
        assert!(text.contains(&format!("# TYPE {expires} gauge\n")), "{text}");
        assert!(text.contains(&format!("{expires}{{program=\"a\\\"b\\\\\"}} 7\n")), "{text}");
        assert!(text.contains("apus_processes{program=\"a\\\"b\\\\\"} 1\n"), "{text}");
        assert!(text.contains("# UNIT apus_delivery_polling_seconds seconds\n"), "{text}");
        let polling = "apus_delivery_polling_seconds_total{program=\"a\\\"b\\\\\"} 1.5\n";
        assert!(text.contains(polling), "{text}");
        assert!(text.contains("# HELP apus_later_counter A counter of another version"), "{text}");
        assert!(text.ends_with("# EOF\n"));
        let types = text.lines().filter(|line| line.starts_with("# TYPE")).count();
        let in_histogram = |it: &&apus_metrics::Metric| it.name.starts_with("timed_calls");
        let parts = apus_metrics::engine_metrics().filter(in_histogram).count();
        let counters = apus_metrics::engine_metrics().filter(|it| it.gauge.is_none()).count();
        // Beside them: one later counter, one gauge, the histogram, and two figures of processes.
        assert_eq!(types, counters - parts + 5);
    }
}
