//! Claims about the figures of `delivery`, `handoffs`, `scale` and `sockets`, each with a verdict.
//!
//! `checks.toml` has the claims: cases, figures, rivals and the wanted range of each value. The code has
//! the rest: the rows that belong together, the quotient of two of them, and the one claim of which two forms are alternatives. The file is beside
//! this one and not in `plans/`, because the published crate contains it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use apus_load::report::Table;
use apus_load::{Row, stats};
use serde::Deserialize;

use super::delivery;
use super::sockets::{OURS, RR, STREAM, Sockets};
use super::testcases::CaseResults;

static CLAIMS: LazyLock<Claims> = LazyLock::new(|| {
    toml::from_str(include_str!("checks.toml")).expect("a test reads the same text")
});

/// The claims of `checks.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    delivery: Vec<CaseClaims>,
    more_threads: ThreadClaim,
    handoffs: HandoffClaims,
    scale: ScaleClaims,
    round_trips: RoundTripClaims,
    streams: StreamClaims,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseClaims {
    cases: Vec<String>,
    claims: Vec<CaseClaim>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseClaim {
    load: String,
    figure: String,
    rival: String,
    wanted: Wanted,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreadClaim {
    cases: Vec<String>,
    load: String,
    figure: String,
    wanted: Wanted,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HandoffClaims {
    /// By the side of the call.
    figures: Sides,
    /// By the test case.
    wanted: BTreeMap<String, Wanted>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleClaims {
    /// Settings of rows, with their names in claims.
    settings: BTreeMap<String, String>,
    /// By the side of the call.
    figures: Sides,
    wanted: Wanted,
}

/// The figures of the two sides of a call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sides {
    server: String,
    client: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoundTripClaims {
    /// In bytes.
    sizes: Vec<u64>,
    short: FigureClaim,
    near_floor: RivalClaim,
    against_spinning: RivalClaim,
    on_one_core: RivalClaim,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureClaim {
    figure: String,
    wanted: Wanted,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RivalClaim {
    figure: String,
    rival: String,
    wanted: Wanted,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamClaims {
    /// The smallest and the largest size, in bytes.
    sizes: [u64; 2],
    figure: String,
    rival: String,
    evenness: Wanted,
    against_rival: Wanted,
}

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
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    for &threads in &threads {
        for CaseClaims { cases, claims } in &CLAIMS.delivery {
            for case in cases {
                let check = |claim| OperatingPoint::new(claim, threads).check(&lines, case, claim);
                checks.extend(claims.iter().filter_map(check));
            }
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

impl<'a> OperatingPoint<'a> {
    fn new(claim: &'a CaseClaim, threads: u64) -> Self {
        Self { load: &claim.load, threads }
    }

    fn value(self, lines: &[CaseResults<'_>], testcase: &str, key: &str) -> Option<f64> {
        let is_it = |line: &&CaseResults<'_>| {
            line.testcase == testcase
                && line.load == self.load
                && delivery::threads(line) == self.threads
        };
        lines.iter().find(is_it)?.value(key)
    }

    /// A figure of the case divided by the rival's.
    fn check(self, lines: &[CaseResults<'_>], case: &str, claim: &CaseClaim) -> Option<Check> {
        let CaseClaim { figure, rival, wanted, .. } = claim;
        let (one, other) = (self.value(lines, case, figure)?, self.value(lines, rival, figure)?);
        let Self { load, threads } = self;
        let (name, load) = (delivery::heading(figure)?, load_in_words(load));
        let claim = format!("{load}, {threads} threads: {name} of {case} / {rival}");
        Some(Check { claim, wanted: *wanted, value: stats::ratio(one, other)? })
    }
}

fn load_in_words(load: &str) -> String {
    if load == "MAX" { load.to_owned() } else { format!("{load} %") }
}

/// A figure with more threads on one socket, divided by that with fewer.
fn more_threads(lines: &[CaseResults<'_>], few: u64, many: u64) -> Vec<Check> {
    let ThreadClaim { cases, load, figure, wanted } = &CLAIMS.more_threads;
    let check = |case: &String| {
        let value = |threads| OperatingPoint { load, threads }.value(lines, case, figure);
        let (name, load) = (delivery::heading(figure)?, load_in_words(load));
        Some(Check {
            claim: format!("{load}: {name} of {case} with {many} threads / {few}"),
            wanted: *wanted,
            value: stats::ratio(value(many)?, value(few)?)?,
        })
    };
    cases.iter().filter_map(check).collect()
}

/// One ended sleep per message if the receiver sleeps, none if it polls.
fn of_handoffs(rows: &[Row]) -> Vec<Check> {
    let HandoffClaims { figures, wanted } = &CLAIMS.handoffs;
    let mut checks = Vec::new();
    for row in rows.iter().filter(|row| row.text("bench") == Some("handoffs")) {
        let Some(testcase) = row.text("testcase") else { continue };
        let Some(&wanted) = wanted.get(testcase) else { continue };
        for (side, figure) in [("server", &figures.server), ("client", &figures.client)] {
            let Some(value) = row.number(figure) else { continue };
            let claim = format!("handoffs a message, {testcase}, {side}");
            checks.push(Check { claim, wanted, value });
        }
    }
    checks
}

/// A call costs the same for any number of held calls and of peers.
fn of_scale(rows: &[Row]) -> Vec<Check> {
    let ScaleClaims { settings, figures, wanted } = &CLAIMS.scale;
    let rows: Vec<&Row> = rows.iter().filter(|row| row.text("bench") == Some("scale")).collect();
    let mut checks = Vec::new();
    for (setting, name) in settings {
        let mut counts: Vec<f64> = rows.iter().filter_map(|row| row.number(setting)).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        for (side, figure) in [("client", &figures.client), ("server", &figures.server)] {
            let median = |count: f64| {
                let there = rows.iter().filter(|row| row.number(setting) == Some(count));
                stats::median(&there.filter_map(|row| row.number(figure)).collect::<Vec<_>>())
            };
            let check = |&count: &f64| {
                Some(Check {
                    claim: format!("CPU of a call at the {side}, {count} {name} / {}", counts[0]),
                    wanted: *wanted,
                    value: stats::ratio(median(count)?, median(counts[0])?)?,
                })
            };
            checks.extend(counts.iter().skip(1).filter_map(check));
        }
    }
    checks
}

/// Round trips of 1 kB under `apus run`: against the floor and spinning TCP with one core per side, and against TCP on one core.
fn of_round_trips(rows: &[Row]) -> Vec<Check> {
    let RoundTripClaims { sizes, short, near_floor, against_spinning, on_one_core } =
        &CLAIMS.round_trips;
    let (split, same) = (Sockets::new(rows, RR, "split"), Sockets::new(rows, RR, "same"));
    let mut checks = Vec::new();
    for &size in sizes {
        let ours = split.median(OURS, size, &short.figure);
        let against = |rows: &Sockets<'_>, claim: &RivalClaim, words: String| {
            let value = |transport| rows.median(transport, size, &claim.figure);
            Some(Check {
                claim: format!("round trips of {size} B: {words}"),
                wanted: claim.wanted,
                value: stats::ratio(value(OURS)?, value(&claim.rival)?)?,
            })
        };
        let p50_over =
            |claim: &RivalClaim| against(&split, claim, format!("p50 of {OURS} / {}", claim.rival));
        let near_floor = p50_over(near_floor);
        let is_short = |value: f64| short.wanted.holds(value) || near_floor.is_none();
        // One of the two checks suffices.
        checks.extend(match ours.filter(|&value| is_short(value)) {
            Some(value) => Some(Check {
                claim: format!("round trips of {size} B: p50 of {OURS} in µs"),
                wanted: short.wanted,
                value,
            }),
            None => near_floor,
        });
        checks.extend(p50_over(against_spinning));
        let words = format!("on one core, a second: {OURS} / {}", on_one_core.rival);
        checks.extend(against(&same, on_one_core, words));
    }
    checks
}

/// Streams under `apus run`: no size from 4 kB to 4 MB is much slower than the best one, which is faster than TCP's best.
fn of_streams(rows: &[Row]) -> Vec<Check> {
    let StreamClaims { sizes: [smallest, largest], figure, rival, evenness, against_rival } =
        &CLAIMS.streams;
    let streams = Sockets::new(rows, STREAM, "split");
    let sizes: Vec<u64> =
        streams.sizes().into_iter().filter(|size| (*smallest..=*largest).contains(size)).collect();
    let goodputs = |transport| -> Vec<f64> {
        sizes.iter().filter_map(|size| streams.median(transport, *size, figure)).collect()
    };
    let best = |goodputs: Vec<f64>| goodputs.into_iter().reduce(f64::max);
    let Some(ours) = best(goodputs(OURS)) else { return Vec::new() };
    let worst = goodputs(OURS).into_iter().fold(ours, f64::min);
    let evenness = (sizes.len() > 1).then(|| Check {
        claim: format!("streams of 4 kB to 4 MB: lowest / highest of {OURS}"),
        wanted: *evenness,
        value: worst / ours,
    });
    let ratio = best(goodputs(rival)).and_then(|theirs| stats::ratio(ours, theirs));
    let against_rival = ratio.map(|value| Check {
        claim: format!("streams of 4 kB to 4 MB: highest of {OURS} / {rival}"),
        wanted: *against_rival,
        value,
    });
    evenness.into_iter().chain(against_rival).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use apus_load::ResultFile;

    use super::*;
    use crate::delivery::CASES;

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

    /// The benchmark and the figure of every claim.
    fn figures() -> Vec<(&'static str, &'static str)> {
        let Claims { delivery, more_threads, handoffs, scale, round_trips, streams } = &*CLAIMS;
        let RoundTripClaims { short, near_floor, against_spinning, on_one_core, .. } = round_trips;
        let rr = [near_floor, against_spinning, on_one_core].map(|claim| &claim.figure);
        let claims = delivery.iter().flat_map(|group| &group.claims);
        let delivery = claims.map(|claim| &claim.figure).chain([&more_threads.figure]);
        let sides = |sides: &'static Sides| [&sides.server, &sides.client];
        let scale = sides(&scale.figures).into_iter().chain(scale.settings.keys());
        let all = delivery.map(|figure| ("delivery", figure.as_str()));
        all.chain(sides(&handoffs.figures).map(|figure| ("handoffs", figure.as_str())))
            .chain(scale.map(|figure| ("scale", figure.as_str())))
            .chain(rr.into_iter().chain([&short.figure]).map(|figure| (RR, figure.as_str())))
            .chain([(STREAM, streams.figure.as_str())])
            .collect()
    }

    #[test]
    fn every_claim_names_a_figure_that_was_recorded() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements");
        let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let results = paths.filter_map(|path| ResultFile::read(&path).ok());
        let rows: Vec<Row> = results.flat_map(|result| result.rows).collect();
        for (bench, figure) in figures() {
            let mut there = rows.iter().filter(|row| row.text("bench") == Some(bench));
            assert!(there.any(|row| row.number(figure).is_some()), "{bench}: {figure}");
        }
    }

    #[test]
    fn every_claim_about_delivery_has_words_and_a_case_of_the_benchmark() {
        let groups = CLAIMS.delivery.iter();
        let rivals = groups.clone().flat_map(|group| &group.claims).map(|claim| &claim.rival);
        let cases = groups.flat_map(|group| &group.cases).chain(&CLAIMS.more_threads.cases);
        for case in cases.chain(rivals) {
            assert!(CASES.split(',').any(|known| known == case), "{case}");
        }
        for (_, figure) in figures().into_iter().filter(|(bench, _)| *bench == "delivery") {
            assert!(delivery::heading(figure).is_some(), "{figure}");
        }
    }

    #[test]
    fn nothing_to_check_is_no_table() {
        assert!(table(&[row("rtt", "base")]).is_none());
    }
}
