//! Claims about the figures of `delivery`, `handoffs`, `scale` and `sockets`, each with a verdict.

use apus_load::report::Table;
use apus_load::{Row, stats};

use super::delivery;
use super::sockets::{RR, STREAM, Sockets};
use super::testcases::CaseResults;

/// One claim and its verdict.
struct Check {
    claim: String,
    wanted: Wanted,
    value: f64,
}

impl Check {
    /// Whether the claim holds for the figure as shown.
    fn holds(&self) -> bool {
        self.wanted.holds((self.value * 1e3).round() / 1e3)
    }
}

/// The required range of a value.
#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    Within(f64, f64),
}

impl Wanted {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(low) => value >= low,
            Self::AtMost(high) => value <= high,
            Self::Within(low, high) => (low..=high).contains(&value),
        }
    }

    fn in_words(self) -> String {
        match self {
            Self::AtLeast(low) => format!("≥ {low}"),
            Self::AtMost(high) => format!("≤ {high}"),
            Self::Within(low, high) => format!("{low} to {high}"),
        }
    }
}

/// Number of failed checks among those with figures in the rows.
pub(super) fn failed(rows: &[Row]) -> usize {
    all(rows).iter().filter(|check| !check.holds()).count()
}

fn all(rows: &[Row]) -> Vec<Check> {
    let mut checks = of_delivery(rows);
    checks.extend(of_handoffs(rows));
    checks.extend(of_scale(rows));
    checks.extend(of_round_trips(rows));
    checks.extend(of_streams(rows));
    checks
}

/// The checks with figures in the rows, as a table; `None` without any.
pub(super) fn table(rows: &[Row]) -> Option<Table> {
    let checks = all(rows);
    if checks.is_empty() {
        return None;
    }
    let line = |check: &Check| {
        let verdict = if check.holds() { "holds" } else { "FAILS" };
        vec![
            check.claim.clone(),
            check.wanted.in_words(),
            format!("{:.3}", check.value),
            verdict.to_owned(),
        ]
    };
    let heads = [("claim", false), ("wanted", true), ("measured", true), ("verdict", false)];
    Some(Table::of_texts("checks", "", &heads, checks.iter().map(line)))
}

/// Suspension against full polling and against base, for the case of the published tables and for the default.
fn of_delivery(rows: &[Row]) -> Vec<Check> {
    let lines = delivery::lines(rows);
    let mut checks = Vec::new();
    let mut threads: Vec<u64> = lines.iter().map(delivery::threads).collect();
    threads.sort_unstable();
    threads.dedup();
    for &threads_here in &threads {
        for ours in ["suspend20", "suspend"] {
            for (load, key, name, rival, wanted) in [
                ("MAX", "qps", "qps", "fullbusy", Wanted::AtLeast(0.97)),
                ("MAX", "qps", "qps", "base", Wanted::AtLeast(1.15)),
                ("100", "p99_us", "99%lat", "base", Wanted::AtMost(0.1)),
                ("20", "cpu_percent", "cpu", "fullbusy", Wanted::AtMost(0.5)),
                ("20", "avglat_us", "avglat", "base", Wanted::AtMost(1.0)),
            ] {
                let point = OperatingPoint { load, threads: threads_here };
                checks.extend(point.against(&lines, (ours, rival), (key, name), wanted));
            }
        }
        for (load, key, name) in
            [("MAX", "qps", "qps"), ("20", "avglat_us", "avglat"), ("20", "cpu_percent", "cpu")]
        {
            let point = OperatingPoint { load, threads: threads_here };
            let cases = ("suspend0", "base");
            checks.extend(point.against(&lines, cases, (key, name), Wanted::Within(0.95, 1.05)));
        }
    }
    for pair in threads.windows(2) {
        checks.extend(more_threads(&lines, pair[0], pair[1]));
    }
    checks
}

/// The load and threads at which two cases are compared.
#[derive(Clone, Copy)]
struct OperatingPoint<'a> {
    load: &'a str,
    threads: u64,
}

impl OperatingPoint<'_> {
    fn value(self, lines: &[CaseResults<'_>], testcase: &str, key: &str) -> Option<f64> {
        let is_it = |line: &&CaseResults<'_>| {
            line.testcase == testcase
                && line.load == self.load
                && delivery::threads(line) == self.threads
        };
        lines.iter().find(is_it)?.value(key)
    }

    /// A figure of the first case divided by the second case's.
    fn against(
        self,
        lines: &[CaseResults<'_>],
        (ours, rival): (&str, &str),
        (key, name): (&str, &str),
        wanted: Wanted,
    ) -> Option<Check> {
        let (one, other) = (self.value(lines, ours, key)?, self.value(lines, rival, key)?);
        let Self { load, threads } = self;
        let percent = if load == "MAX" { "" } else { " %" };
        let claim = format!("{load}{percent}, {threads} threads: {name} of {ours} / {rival}");
        Some(Check { claim, wanted, value: stats::ratio(one, other)? })
    }
}

/// More threads on one socket must not make the tail longer at low load.
fn more_threads(lines: &[CaseResults<'_>], few: u64, many: u64) -> Vec<Check> {
    let point = |threads| OperatingPoint { load: "20", threads };
    let check = |testcase: &str| {
        let p99 = |threads| point(threads).value(lines, testcase, "p99_us");
        Some(Check {
            claim: format!("20 %: 99%lat of {testcase} with {many} threads / {few}"),
            wanted: Wanted::AtMost(1.0),
            value: stats::ratio(p99(many)?, p99(few)?)?,
        })
    };
    ["suspend20", "suspend"].into_iter().filter_map(check).collect()
}

/// One ended sleep per message if the receiver sleeps, none if it polls.
fn of_handoffs(rows: &[Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    for row in rows.iter().filter(|row| row.text("bench") == Some("handoffs")) {
        let Some(testcase) = row.text("testcase") else { continue };
        let expected = match testcase {
            "fullbusy" => 0.0,
            "base" | "suspend0" => 1.0,
            // In other cases the number of sleeps depends on the machine.
            _ => continue,
        };
        for side in ["server", "client"] {
            let Some(value) = row.number(&format!("{side}_handoffs_per_message")) else { continue };
            // To three digits.
            let wanted = Wanted::Within(expected - 0.0005, expected + 0.0005);
            checks.push(Check {
                claim: format!("handoffs a message, {testcase}, {side}"),
                wanted,
                value,
            });
        }
    }
    checks
}

/// A call costs the same for any number of held calls and of peers.
fn of_scale(rows: &[Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (setting, name) in [("calls_held", "calls held"), ("peers", "peers")] {
        for side in ["client", "server"] {
            let key = format!("{side}_cpu_ns_per_call");
            let median = |count: f64| {
                let there = rows.iter().filter(|row| {
                    row.text("bench") == Some("scale") && row.number(setting) == Some(count)
                });
                stats::median(&there.filter_map(|row| row.number(&key)).collect::<Vec<_>>())
            };
            let scale = rows.iter().filter(|row| row.text("bench") == Some("scale"));
            let mut counts: Vec<f64> = scale.filter_map(|row| row.number(setting)).collect();
            counts.sort_by(f64::total_cmp);
            counts.dedup();
            for &count in counts.iter().skip(1) {
                let ratio = median(count).zip(median(counts[0]));
                checks.extend(ratio.and_then(|(many, few)| {
                    Some(Check {
                        claim: format!(
                            "CPU of a call at the {side}, {count} {name} / {}",
                            counts[0]
                        ),
                        wanted: Wanted::AtMost(1.5),
                        value: stats::ratio(many, few)?,
                    })
                }));
            }
        }
    }
    checks
}

/// Round trips of 1 kB under `apus run`: against the floor and spinning TCP with one core per side, and against TCP on one core.
fn of_round_trips(rows: &[Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    let (split, same) = (Sockets::new(rows, RR, "split"), Sockets::new(rows, RR, "same"));
    for size in [1000, 1024] {
        let p50 = |transport| split.median(transport, size, "p50_us");
        let over = |other| stats::ratio(p50("apus-run")?, p50(other)?);
        let add = |claim: &str, wanted, value| {
            let claim = format!("round trips of {size} B: {claim}");
            Some(Check { claim, wanted, value: value? })
        };
        // One of the two checks suffices.
        let in_us = p50("apus-run").filter(|us| *us <= 1.2 || over("raw-shm").is_none());
        checks.extend(match in_us {
            Some(us) => add("p50 of apus-run in µs", Wanted::AtMost(1.2), Some(us)),
            None => add("p50 of apus-run / raw-shm", Wanted::AtMost(2.5), over("raw-shm")),
        });
        checks.extend(add("p50 of apus-run / tcp-spin", Wanted::AtMost(0.25), over("tcp-spin")));
        let rate = |transport| same.median(transport, size, "transactions_per_s");
        let on_one_core = rate("apus-run").zip(rate("tcp"));
        checks.extend(add(
            "on one core, a second: apus-run / tcp",
            Wanted::AtLeast(0.9),
            on_one_core.and_then(|(ours, theirs)| stats::ratio(ours, theirs)),
        ));
    }
    checks
}

/// Streams under `apus run`: no size from 4 kB to 4 MB is much slower than the best one, which is faster than TCP's best.
fn of_streams(rows: &[Row]) -> Vec<Check> {
    let streams = Sockets::new(rows, STREAM, "split");
    let sizes: Vec<u64> =
        streams.sizes().into_iter().filter(|size| (4_000..=4 << 20).contains(size)).collect();
    let goodputs = |transport| -> Vec<f64> {
        sizes.iter().filter_map(|size| streams.median(transport, *size, "goodput_gbps")).collect()
    };
    let best = |goodputs: Vec<f64>| goodputs.into_iter().reduce(f64::max);
    let Some(ours) = best(goodputs("apus-run")) else { return Vec::new() };
    let worst = goodputs("apus-run").into_iter().fold(ours, f64::min);
    let evenness = (sizes.len() > 1).then(|| Check {
        claim: "streams of 4 kB to 4 MB: lowest / highest of apus-run".to_owned(),
        wanted: Wanted::AtLeast(0.9),
        value: worst / ours,
    });
    let against_tcp = best(goodputs("tcp")).and_then(|theirs| stats::ratio(ours, theirs));
    let against_tcp = against_tcp.map(|value| Check {
        claim: "streams of 4 kB to 4 MB: highest of apus-run / tcp".to_owned(),
        wanted: Wanted::AtLeast(1.5),
        value,
    });
    evenness.into_iter().chain(against_tcp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bench: &str, testcase: &str) -> Row {
        Row::new("apus-udp").set("bench", bench).set("testcase", testcase)
    }

    fn verdicts(rows: &[Row]) -> Vec<(String, String)> {
        let Some(table) = table(rows) else { return Vec::new() };
        table.lines().map(|line| (line[0].to_owned(), line[3].to_owned())).collect()
    }

    #[test]
    fn suspension_is_held_against_polling_and_against_none() {
        let at_max = |testcase, qps: f64| {
            row("delivery", testcase).set("load", "MAX").set("threads", 1_u32).set("qps", qps)
        };
        let rows = [at_max("base", 100.0), at_max("fullbusy", 130.0), at_max("suspend20", 120.0)];
        let expected = [
            ("MAX, 1 threads: qps of suspend20 / fullbusy", "FAILS"),
            ("MAX, 1 threads: qps of suspend20 / base", "holds"),
        ];
        assert_eq!(verdicts(&rows), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn a_message_wakes_once() {
        let rows = [
            row("handoffs", "base")
                .set("server_handoffs_per_message", 1.0001)
                .set("client_handoffs_per_message", 1.2),
            row("handoffs", "suspend").set("server_handoffs_per_message", 0.4),
        ];
        let verdicts: Vec<String> = verdicts(&rows).into_iter().map(|(_, v)| v).collect();
        assert_eq!(verdicts, ["holds", "FAILS"]);
    }

    #[test]
    fn cost_is_compared_with_that_of_the_fewest() {
        let at = |peers: u32, ns: f64| {
            Row::new("apus-udp")
                .set("bench", "scale")
                .set("peers", peers)
                .set("server_cpu_ns_per_call", ns)
        };
        let verdicts = verdicts(&[at(1, 1000.0), at(100, 1400.0), at(10_000, 1600.0)]);
        assert_eq!(verdicts.len(), 2);
        assert_eq!((verdicts[0].1.as_str(), verdicts[1].1.as_str()), ("holds", "FAILS"));
    }

    #[test]
    fn round_trips_under_apus_run_are_short_or_near_the_floor() {
        let at = |transport, p50: f64| {
            let row = Row::new(transport).set("bench", RR).set("pin", "split");
            row.set("size_bytes", 1000_u32).set("p50_us", p50)
        };
        let rows = [at("apus-run", 1.5), at("raw-shm", 0.5), at("tcp-spin", 7.0)];
        assert_eq!(
            verdicts(&rows).into_iter().map(|(_, v)| v).collect::<Vec<_>>(),
            ["FAILS", "holds"]
        );
        let claims = |rows: &[Row]| -> Vec<String> {
            verdicts(rows)
                .into_iter()
                .map(|(claim, verdict)| format!("{claim}: {verdict}"))
                .collect()
        };
        assert_eq!(claims(&rows[..1]), ["round trips of 1000 B: p50 of apus-run in µs: FAILS"]);
        let short = [at("apus-run", 1.1), at("raw-shm", 0.3)];
        assert_eq!(claims(&short), ["round trips of 1000 B: p50 of apus-run in µs: holds"]);
    }

    #[test]
    fn streams_under_apus_run_are_even_and_faster_than_tcp() {
        let at = |transport, size: u32, gbps: f64| {
            let row = Row::new(transport).set("bench", STREAM).set("pin", "split");
            row.set("size_bytes", size).set("goodput_gbps", gbps)
        };
        let rows = [
            // Below 4 kB nothing is claimed.
            at("apus-run", 100, 1.0),
            at("apus-run", 4_000, 30.0),
            at("apus-run", 4_000_000, 26.0),
            at("tcp", 4_000, 10.0),
            at("tcp", 4_000_000, 15.0),
        ];
        let verdicts: Vec<String> = verdicts(&rows).into_iter().map(|(_, v)| v).collect();
        assert_eq!(verdicts, ["FAILS", "holds"]);
    }

    #[test]
    fn nothing_to_check_is_no_table() {
        assert!(table(&[row("rtt", "base")]).is_none());
    }
}
