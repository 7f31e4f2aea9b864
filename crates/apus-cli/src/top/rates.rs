//! Rates of a process, from the growth of its counters.

use std::iter;

use serde_json::json;

use crate::counters::Counters;

/// Main figures of a process, or of all of them.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rates {
    pub(super) calls: f64,
    pub(super) requests: f64,
    /// Mbit/s received, over links and through shared memory.
    pub(super) mbit_in: f64,
    /// Mbit/s sent.
    pub(super) mbit_out: f64,
    /// Homa packets sent and received.
    pub(super) packets: f64,
    /// Packets and datagrams that were dropped.
    pub(super) drops: f64,
    /// Which part of the time that threads waited they polled, from 0 to 1; none if no wait ended. They slept for the rest.
    pub(super) polling: Option<f64>,
    /// Handoffs per message; none without messages.
    pub(super) handoffs: Option<f64>,
}

impl Rates {
    /// The rates for a growth within this number of seconds.
    pub(super) fn of(grown: &Counters, seconds: f64) -> Self {
        let sum = |names: &[&str]| names.iter().filter_map(|name| grown.get(*name)).sum::<u64>();
        let rate = |names: &[&str]| per_second(sum(names), seconds);
        let dropped = grown.iter().filter(|(name, _)| is_drop(name)).map(|(_, grown)| grown);
        let (polling, sleeping) = (sum(&["delivery.polling_ns"]), sum(&["delivery.sleeping_ns"]));
        Self {
            calls: rate(&["protocol.calls"]),
            requests: rate(&["protocol.requests"]),
            mbit_in: rate(&["link.bytes_received", "memory.bytes_received"]) * MBIT_OF_BYTE,
            mbit_out: rate(&["link.bytes_sent", "memory.bytes_sent"]) * MBIT_OF_BYTE,
            packets: rate(&["protocol.packets_sent", "protocol.packets_received"]),
            drops: per_second(dropped.sum(), seconds),
            polling: ratio(polling, polling + sleeping),
            handoffs: ratio(sum(&["delivery.handoffs"]), sum(&["delivery.messages"])),
        }
    }

    pub(super) fn as_json(&self) -> serde_json::Value {
        json!({
            "calls_per_s": self.calls,
            "requests_per_s": self.requests,
            "in_mbps": self.mbit_in,
            "out_mbps": self.mbit_out,
            "packets_per_s": self.packets,
            "drops_per_s": self.drops,
            "polling_share": self.polling,
            "handoffs_per_message": self.handoffs,
        })
    }

    /// The sum of these rates and another process's. Shares have no sum.
    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            requests: self.requests + other.requests,
            mbit_in: self.mbit_in + other.mbit_in,
            mbit_out: self.mbit_out + other.mbit_out,
            packets: self.packets + other.packets,
            drops: self.drops + other.drops,
            polling: None,
            handoffs: None,
        }
    }
}

/// Bytes per second by the length of the message.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LengthClass {
    /// "to 64 B", "to 1 KiB", "longer".
    pub(super) label: String,
    pub(super) received: f64,
    pub(super) sent: f64,
}

/// The classes of lengths in which there was anything, shortest messages first.
pub(super) fn by_length(grown: &Counters, seconds: f64) -> Vec<LengthClass> {
    let bounds =
        LENGTHS.iter().map(|bound| (format!("to_{bound}"), format!("to {}", size(*bound))));
    let all = bounds.chain(iter::once(("beyond".to_owned(), "longer".to_owned())));
    let classes = all.map(|(class, label)| {
        let rate = |direction: &str| {
            let name = format!("protocol.{direction}_bytes_{class}");
            per_second(grown.get(&name).copied().unwrap_or(0), seconds)
        };
        LengthClass { label, received: rate("received"), sent: rate("sent") }
    });
    classes.filter(|class| class.received + class.sent > 0.0).collect()
}

/// Bytes of DATA packets sent per second by priority level, where there were any, highest level first.
pub(super) fn by_priority(grown: &Counters, seconds: f64) -> Vec<(u8, f64)> {
    let rate = |level: u8| {
        let name = format!("protocol.priority{level}_bytes");
        Some((level, per_second(*grown.get(&name)?, seconds)))
    };
    (0..8).rev().filter_map(rate).collect()
}

/// All other counters that grew, and how fast, the most active first.
pub(super) fn most_active(grown: &Counters, seconds: f64) -> Vec<(String, f64)> {
    let others = grown.iter().filter(|(name, _)| !is_shown_apart(name));
    let mut rates: Vec<_> =
        others.map(|(name, grown)| (name.clone(), per_second(*grown, seconds))).collect();
    rates.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    rates
}

/// Whether a counter is of packets or datagrams that were dropped.
fn is_drop(name: &str) -> bool {
    name.starts_with("protocol.dropped_") || LINK_DROPS.contains(&name)
}

/// Whether a counter has a place of its own on the screen, is a part of a histogram, or is a time, which would be the fastest of all.
fn is_shown_apart(name: &str) -> bool {
    let rest = name.strip_prefix("protocol.").unwrap_or_default();
    ["received_bytes_", "sent_bytes_", "priority", "timed_calls_"]
        .iter()
        .any(|start| rest.starts_with(start))
        || name.ends_with("_ns")
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(grown: u64, seconds: f64) -> f64 {
    grown as f64 / seconds
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

fn size(bytes: u32) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

const MBIT_OF_BYTE: f64 = 8.0 / 1e6;

/// Most bytes of the messages of each class; longer ones are a class of their own.
const LENGTHS: [u32; 15] = [
    64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 262_144,
    524_288, 1_048_576,
];

/// Counters of links among the drops. The protocol's drop counters have names of one form.
const LINK_DROPS: [&str; 13] = [
    "link.receive_buffer_drops",
    "link.malformed_bundles",
    "link.truncated",
    "link.bad_segments",
    "link.unusable",
    "link.path_forgotten",
    "link.send_blocked",
    "link.send_too_big",
    "link.send_unreachable",
    "link.send_denied",
    "link.send_errors",
    "link.fault_lost",
    "link.fault_overflow",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn grown(counters: &[(&str, u64)]) -> Counters {
        counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn the_counters_that_are_read_exist() {
        let known: BTreeSet<_> =
            apus_metrics::metrics().map(|it| format!("{}.{}", it.group, it.name)).collect();
        let each_counts_one = known.iter().map(|name| (name.clone(), 1)).collect();
        let all = Rates::of(&each_counts_one, 1.0);
        assert_eq!((all.calls, all.requests, all.packets), (1.0, 1.0, 2.0));
        assert_eq!((all.mbit_in, all.mbit_out), (16e-6, 16e-6));
        assert_eq!((all.polling, all.handoffs), (Some(0.5), Some(1.0)));
        for name in LINK_DROPS {
            assert!(known.contains(name), "{name}");
        }
        assert!(by_length(&each_counts_one, 1.0).iter().all(|it| it.received + it.sent == 2.0));
        assert_eq!(by_length(&each_counts_one, 1.0).len(), LENGTHS.len() + 1);
        assert_eq!(by_priority(&each_counts_one, 1.0).len(), 8);
        let apart = known.iter().filter(|name| is_shown_apart(name)).count();
        // Two of each class of lengths, bytes and packets of each priority level, two times, and the histogram of latencies with its sum.
        assert_eq!(apart, 2 * (LENGTHS.len() + 1) + 16 + 2 + 27);
    }

    #[test]
    fn rates_are_per_second() {
        let rates = Rates::of(
            &grown(&[
                ("protocol.calls", 50),
                ("link.bytes_sent", 125_000),
                ("delivery.polling_ns", 7),
            ]),
            0.5,
        );
        assert_eq!((rates.calls, rates.mbit_out), (100.0, 2.0));
        assert_eq!((rates.polling, rates.handoffs), (Some(1.0), None));
    }

    #[test]
    fn the_most_active_counter_comes_first() {
        let grown = grown(&[
            ("link.bytes_sent", 5),
            ("delivery.polling_ns", 100),
            ("protocol.calls", 9),
            ("protocol.sent_bytes_to_64", 70),
        ]);
        let names: Vec<_> = most_active(&grown, 1.0).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["protocol.calls", "link.bytes_sent"]);
    }

    #[test]
    fn classes_of_lengths_have_their_unit() {
        let grown = grown(&[
            ("protocol.received_bytes_to_64", 8),
            ("protocol.sent_bytes_to_32768", 6),
            ("protocol.sent_bytes_beyond", 4),
        ]);
        let classes = by_length(&grown, 2.0);
        let labels: Vec<_> = classes.iter().map(|it| (&*it.label, it.received, it.sent)).collect();
        assert_eq!(labels, [("to 64 B", 4.0, 0.0), ("to 32 KiB", 0.0, 3.0), ("longer", 0.0, 2.0)]);
    }
}
