//! Counters that should not move, and states that should not be.

use std::time::Duration;

use super::snapshot::{Counters, Process};

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
        counters: &["handshakes.reload_failures"],
        means: "the files of the certificate have changed and cannot be used; the earlier ones stay",
    },
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

/// Counters that stay 0 in a healthy node, so that one event of any time is worth a warning.
const NEVER: &[Canary] = &[
    Canary {
        counters: &["link.dropped_forged"],
        means: "sealed datagrams were forged or changed on the way",
    },
    Canary {
        counters: &["handshakes.refresh_failures"],
        means: "sealed paths did not get new keys in time",
    },
];

/// The part of its life below which a certificate is warned of.
const EXPIRES_BELOW: u64 = 10;

/// A line for each state of a process that an operator should know of.
pub(crate) fn state_warnings(process: &Process) -> Vec<String> {
    let gauge = |name: &str| process.gauges.get(&format!("identity.{name}")).copied();
    let mut lines = Vec::new();
    if let Some(left) = gauge("certificate_expires_s") {
        let life = gauge("certificate_life_s").unwrap_or(0);
        if left == 0 {
            lines.push("the certificate of the node has expired".to_owned());
        } else if left < life / EXPIRES_BELOW {
            lines.push(format!("the certificate of the node expires in {}", in_units(left)));
        }
    }
    if gauge("keylog") == Some(1) {
        lines.push("the keys of sealed paths are written to a file (setting keylog)".to_owned());
    }
    if gauge("insecure") == Some(1) {
        lines.push("the node speaks plain with everybody (setting insecure)".to_owned());
    }
    let counted = |canary: &Canary| {
        let counts = canary.counters.iter();
        let counts = counts.filter_map(|name| Some((name, process.counters.get(*name)?)));
        let counts: Vec<_> = counts.map(|(name, count)| format!("{name} {count}")).collect();
        (!counts.is_empty()).then(|| format!("{}: {}", canary.means, counts.join(", ")))
    };
    lines.extend(NEVER.iter().filter_map(counted));
    lines
}

/// A time in its two largest units.
fn in_units(seconds: u64) -> String {
    let unit = if seconds >= 86_400 { 3_600 } else { 60 };
    let rounded = if seconds >= 60 { seconds - seconds % unit } else { seconds };
    humantime::format_duration(Duration::from_secs(rounded)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_name_counters_that_there_are() {
        let known: Vec<_> =
            apus_metrics::metrics().map(|it| format!("{}.{}", it.group, it.name)).collect();
        for name in CANARIES.iter().chain(NEVER).flat_map(|canary| canary.counters) {
            assert!(known.iter().any(|known| known == name), "{name}");
        }
    }

    fn process(counters: &[(&str, u64)], gauges: &[(&str, u64)]) -> Process {
        let map = |list: &[(&str, u64)]| {
            list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        Process { counters: map(counters), gauges: map(gauges), ..Process::default() }
    }

    #[test]
    fn a_certificate_is_warned_of_below_a_tenth_of_its_life() {
        let with = |left| {
            let gauges = [
                ("identity.certificate_expires_s", left),
                ("identity.certificate_life_s", 604_800),
            ];
            state_warnings(&process(&[], &gauges))
        };
        assert!(with(60_480).is_empty());
        assert_eq!(with(60_479), ["the certificate of the node expires in 16h 47m"]);
        assert_eq!(with(59), ["the certificate of the node expires in 59s"]);
        assert_eq!(with(0), ["the certificate of the node has expired"]);
        assert!(state_warnings(&process(&[], &[])).is_empty());
        let warned = state_warnings(&process(&[], &[("identity.keylog", 1)]));
        assert_eq!(warned, ["the keys of sealed paths are written to a file (setting keylog)"]);
        let warned = state_warnings(&process(&[], &[("identity.insecure", 1)]));
        assert_eq!(warned, ["the node speaks plain with everybody (setting insecure)"]);
        assert_eq!(in_units(2 * 86_400 + 3_700), "2days 1h");
    }

    #[test]
    fn forged_datagrams_and_failed_refreshes_are_warned_of_for_ever() {
        let counters = [("link.dropped_forged", 2), ("handshakes.refresh_failures", 1)];
        let warnings = state_warnings(&process(&counters, &[]));
        let expected = [
            "sealed datagrams were forged or changed on the way: link.dropped_forged 2",
            "sealed paths did not get new keys in time: handshakes.refresh_failures 1",
        ];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn only_those_that_moved_are_warned_of() {
        let mut grown = Counters::from([("protocol.calls".to_owned(), 5)]);
        assert!(warnings(&grown).is_empty());
        grown.insert("protocol.resends_sent".to_owned(), 3);
        assert_eq!(warnings(&grown), ["packets are lost or late: protocol.resends_sent +3"]);
    }
}
