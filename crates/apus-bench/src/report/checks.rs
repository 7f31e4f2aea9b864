//! What the figures of `delivery`, `handoffs` and `scale` should show, each with a verdict.

use apus_load::report::Table;
use apus_load::{Row, stats};

use super::delivery::{self, Line};

/// One claim, and what became of it.
struct Check {
    claim: String,
    wanted: Wanted,
    value: f64,
}

/// What a value must be.
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

/// The checks that the rows have figures for, as a table; `None` when there are none.
pub(super) fn table(rows: &[Row]) -> Option<Table> {
    let mut checks = of_delivery(rows);
    checks.extend(of_handoffs(rows));
    checks.extend(of_scale(rows));
    if checks.is_empty() {
        return None;
    }
    let line = |check: &Check| {
        // The verdict is about the figure that stands before it.
        let shown = (check.value * 1e3).round() / 1e3;
        let verdict = if check.wanted.holds(shown) { "holds" } else { "FAILS" };
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

/// Suspension against full polling and against none, for the case of the published tables and for the default.
fn of_delivery(rows: &[Row]) -> Vec<Check> {
    let lines = delivery::lines(rows);
    let mut checks = Vec::new();
    let mut threads: Vec<u64> = lines.iter().map(|line| line.threads).collect();
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
                let place = Place { load, threads: threads_here };
                checks.extend(place.against(&lines, (ours, rival), (key, name), wanted));
            }
        }
        for (load, key, name) in
            [("MAX", "qps", "qps"), ("20", "avglat_us", "avglat"), ("20", "cpu_percent", "cpu")]
        {
            let place = Place { load, threads: threads_here };
            let cases = ("suspend0", "base");
            checks.extend(place.against(&lines, cases, (key, name), Wanted::Within(0.95, 1.05)));
        }
    }
    for pair in threads.windows(2) {
        checks.extend(more_threads(&lines, pair[0], pair[1]));
    }
    checks
}

/// Where two cases are compared.
#[derive(Clone, Copy)]
struct Place<'a> {
    load: &'a str,
    threads: u64,
}

impl Place<'_> {
    fn value(self, lines: &[Line<'_>], testcase: &str, key: &str) -> Option<f64> {
        let is_it = |line: &&Line<'_>| {
            line.testcase == testcase && line.load == self.load && line.threads == self.threads
        };
        lines.iter().find(is_it)?.value(key)
    }

    /// A figure of the first case over that of the second.
    fn against(
        self,
        lines: &[Line<'_>],
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
fn more_threads(lines: &[Line<'_>], few: u64, many: u64) -> Vec<Check> {
    let place = |threads| Place { load: "20", threads };
    let check = |testcase: &str| {
        let p99 = |threads| place(threads).value(lines, testcase, "p99_us");
        Some(Check {
            claim: format!("20 %: 99%lat of {testcase} with {many} threads / {few}"),
            wanted: Wanted::AtMost(1.0),
            value: stats::ratio(p99(many)?, p99(few)?)?,
        })
    };
    ["suspend20", "suspend"].into_iter().filter_map(check).collect()
}

/// One sleep ended for each message where the receiver sleeps, none where it polls.
fn of_handoffs(rows: &[Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    for row in rows.iter().filter(|row| row.text("bench") == Some("handoffs")) {
        let Some(testcase) = row.text("testcase") else { continue };
        let expected = match testcase {
            "fullbusy" => 0.0,
            "base" | "suspend0" => 1.0,
            // How often the others sleep depends on the machine.
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

/// A call costs the same, however many calls are held and however many peers there are.
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
    fn nothing_to_check_is_no_table() {
        assert!(table(&[row("rtt", "base")]).is_none());
    }
}
