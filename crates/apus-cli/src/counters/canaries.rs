//! Counters that should not move.

use super::snapshot::Counters;

/// A warning about counters that should not move.
struct Canary {
    counters: &'static [&'static str],
    means: &'static str,
}

const CANARIES: &[Canary] = &[
    Canary {
        counters: &[
            "protocol.resends_sent",
            "protocol.resends_received",
            "protocol.retransmitted_bytes",
        ],
        means: "packets are lost or late",
    },
    Canary {
        counters: &["link.receive_buffer_drops"],
        means: "the receive buffer is too small for the bursts (setting receive_buffer, net.core.rmem_max)",
    },
    Canary {
        counters: &[
            "protocol.requests_timed_out",
            "protocol.responses_unacknowledged",
            "protocol.requests_orphaned",
        ],
        means: "peers fell silent",
    },
    Canary {
        counters: &["protocol.calls_failed", "protocol.unknown_received"],
        means: "calls fail",
    },
    Canary {
        counters: &[
            "protocol.refused_over_budget",
            "protocol.dropped_over_budget",
            "protocol.refused_too_large",
            "process.over_budget",
        ],
        means: "a budget or limit is exhausted (settings that end in _budget, message_max)",
    },
    Canary {
        counters: &[
            "protocol.dropped_control",
            "protocol.dropped_replies",
            "protocol.dropped_meets",
            "protocol.dropped_peers_full",
            "protocol.peers_evicted",
        ],
        means: "a table or queue is full",
    },
    Canary {
        counters: &[
            "protocol.dropped_malformed",
            "protocol.dropped_inconsistent",
            "protocol.dropped_gaps",
            "protocol.dropped_mismatch",
            "protocol.dropped_proof",
            "protocol.dropped_version",
            "link.malformed_bundles",
            "link.truncated",
            "link.bad_segments",
            "memory.pairs_broken",
            "streams.violations",
        ],
        means: "a peer breaks the protocol, has another version, or data is corrupted",
    },
    Canary {
        counters: &[
            "link.send_blocked",
            "link.send_too_big",
            "link.send_unreachable",
            "link.send_denied",
            "link.send_errors",
            "link.receive_errors",
            "link.path_shrunk",
            "link.black_holes",
            "protocol.black_holes",
        ],
        means: "the kernel or the network refuses packets",
    },
    Canary { counters: &["delivery.handler_panics"], means: "handlers of the application panic" },
    Canary {
        counters: &["streams.lost", "streams.refused_backlog"],
        means: "byte streams are lost or refused",
    },
];

/// A line for each of them that has moved.
pub(crate) fn warnings(grown: &Counters) -> Vec<String> {
    let line = |canary: &Canary| {
        let moved = canary.counters.iter().filter_map(|name| Some((name, grown.get(*name)?)));
        let moved: Vec<_> = moved.map(|(name, grown)| format!("{name} +{grown}")).collect();
        (!moved.is_empty()).then(|| format!("{}: {}", canary.means, moved.join(", ")))
    };
    CANARIES.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_name_counters_that_there_are() {
        let known: Vec<_> =
            apus_metrics::metrics().map(|it| format!("{}.{}", it.group, it.name)).collect();
        for name in CANARIES.iter().flat_map(|canary| canary.counters) {
            assert!(known.iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn only_those_that_moved_are_warned_of() {
        let mut grown = Counters::from([("protocol.calls".to_owned(), 5)]);
        assert!(warnings(&grown).is_empty());
        grown.insert("protocol.resends_sent".to_owned(), 3);
        assert_eq!(warnings(&grown), ["packets are lost or late: protocol.resends_sent +3"]);
    }
}
