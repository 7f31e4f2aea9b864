//! Tables and curves of `irq`, and the comparisons that the letter of the kernel's series makes, with its ratios beside ours.

use std::sync::LazyLock;

use apus_load::report::Table;
use apus_load::{ResultFile, Row, Scale, Series, stats};
use serde::Deserialize;

use super::testcases::{CaseResults, Figure, Form, Over, figure};

/// The `bench` of these rows.
pub(crate) const BENCH: &str = "irq";

/// The table of the letter as a result file, also `docs/measurements/irq-letter.json`.
const LETTER: &str = include_str!("irq-letter.json");

/// The `device` of rows that were measured on a veth pair.
pub(crate) const VETH: &str = "veth";

/// The letter's columns first, then ours.
const FIGURES: [Figure; 22] = [
    figure("offered_qps", "offered", Over::Mean, 0),
    figure("qps", "qps", Over::Mean, 0),
    figure("avglat_us", "avglat", Over::Median, 1),
    figure("p95_us", "95%lat", Over::Median, 1),
    figure("p99_us", "99%lat", Over::Median, 1),
    figure("cpu_percent", "cpu", Over::Mean, 0),
    figure("cpq", "cpq", Over::Mean, 0),
    figure("ipq", "ipq", Over::Mean, 0),
    figure("cpq_printed", "cpq printed", Over::Mean, 0),
    figure("ipq_printed", "ipq printed", Over::Mean, 0),
    figure("busy_ns_per_query", "busy ns/q", Over::Mean, 0),
    figure("suspensions_per_query", "suspensions/q", Over::Mean, 3),
    figure("expiries_per_query", "expiries/q", Over::Mean, 3),
    figure("overruns_per_s", "overruns/s", Over::Mean, 1),
    figure("user_ipq", "user ipq", Over::Mean, 0),
    figure("server_ns_per_query", "server ns/q", Over::Mean, 0),
    figure("napi_thread_ns_per_query", "NAPI ns/q", Over::Mean, 0),
    figure("softirq_ns_per_query", "softirq ns/q", Over::Mean, 0),
    figure("busy_polled_per_query", "polled/q", Over::Mean, 2),
    figure("late_percent", "late %", Over::Mean, 2),
    figure("refused_runs", "refused", Over::Sum, 0),
    figure("missing_runs", "missing", Over::Sum, 0),
];

static FORM: Form =
    Form { bench: BENCH, figures: &FIGURES, words: Some(("suspended", "suspended")), setting };

fn setting(row: &Row) -> String {
    let device = match row.text("device") {
        Some("nic") => "a NIC",
        other => other.unwrap_or("unknown device"),
    };
    format!("{} · {device}", row.transport())
}

/// A table for each load, and the comparisons of the letter.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let mut tables = FORM.tables(rows);
    tables.extend(comparisons(rows));
    tables
}

/// Curves against load, with a plot for each of mean latency, p99 and CPU time. The loads are in percent, without `MAX`.
pub(crate) fn curves(rows: &[Row]) -> Vec<Series> {
    let plots = [
        ("Mean latency against load", "avglat_us", "mean latency (µs)", Scale::Log),
        ("99th percentile against load", "p99_us", "p99 latency (µs)", Scale::Log),
        ("CPU against load", "cpu_percent", "CPU of the server (%)", Scale::Linear),
        (
            "CPU time of a query against load",
            "busy_ns_per_query",
            "CPU time of a query (ns)",
            Scale::Log,
        ),
    ];
    let curves = FORM.curves(rows, &plots);
    curves.into_iter().filter(|curve| !curve.points.is_empty()).collect()
}

/// The comparisons of the letter; `irq-comparisons.toml` quotes it.
static COMPARISONS: LazyLock<Comparisons> = LazyLock::new(|| {
    toml::from_str(include_str!("irq-comparisons.toml")).expect("a test reads the same text")
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Comparisons {
    comparisons: Vec<AtLoads>,
}

/// A comparison at several loads.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AtLoads {
    figure: String,
    ours: Option<String>,
    case: String,
    rival: String,
    loads: Vec<String>,
    lacks: Option<Lacks>,
}

/// The difference of a veth pair that makes a comparison meaningless.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Lacks {
    /// In the letter, `base` waits for the NIC's interrupt coalescing.
    Coalescing,
    /// In the letter, `base` takes a device interrupt for each burst.
    Interrupts,
}

/// One comparison: a figure of one case divided by another case's, at one load.
struct Comparison {
    figure: &'static str,
    /// Our key of the figure.
    ours: &'static str,
    case: &'static str,
    rival: &'static str,
    load: &'static str,
    lacks: Option<Lacks>,
}

/// The comparisons that the letter asks its readers to make, in its order, and the claims of its overall takeaway.
fn letter_compares() -> Vec<Comparison> {
    let at_each_load = |entry: &'static AtLoads| {
        let AtLoads { figure, ours, case, rival, loads, lacks } = entry;
        let ours = ours.as_ref().unwrap_or(figure);
        let at = |load| Comparison { figure, ours, case, rival, load, lacks: *lacks };
        loads.iter().map(move |load| at(load.as_str()))
    };
    COMPARISONS.comparisons.iter().flat_map(at_each_load).collect()
}

/// Distance from 1 up to which a ratio shows no difference.
const LEVEL: f64 = 0.05;

/// The side of 1 on which a ratio is: -1, 0 or 1.
fn side(ratio: f64) -> i8 {
    i8::from(ratio > 1.0 + LEVEL) - i8::from(ratio < 1.0 - LEVEL)
}

impl Comparison {
    fn in_words(&self) -> String {
        let figure = match self.figure {
            "qps" => "qps",
            "avglat_us" => "avglat",
            "p99_us" => "99%lat",
            "cpu_percent" => "cpu",
            _ => "CPU time/query",
        };
        let percent = if self.load == "MAX" { "" } else { " %" };
        format!("{figure}, {} / {}, {}{percent}", self.case, self.rival, self.load)
    }

    /// The ratio. A figure that is measured under several settings comes from the first setting.
    fn ratio(&self, lines: &[CaseResults<'_>], key: &str) -> Option<f64> {
        let value = |testcase: &str| {
            let is_it =
                |line: &&CaseResults<'_>| line.testcase == testcase && line.load == self.load;
            lines.iter().find(is_it)?.value(key)
        };
        stats::ratio(value(self.case)?, value(self.rival)?)
    }

    /// Whether both cases were measured at this load, perhaps without a valid run.
    fn was_tried(&self, lines: &[CaseResults<'_>]) -> bool {
        [self.case, self.rival].iter().all(|testcase| {
            lines.iter().any(|line| line.testcase == *testcase && line.load == self.load)
        })
    }

    /// Whether our ratio has the direction of the letter's, in words.
    fn verdict(&self, letter: f64, ours: Option<f64>, on_veth: bool) -> &'static str {
        match (ours, self.lacks) {
            (None, _) => "—",
            (_, Some(Lacks::Coalescing)) if on_veth => "needs a NIC (a)",
            (_, Some(Lacks::Interrupts)) if on_veth => "needs a NIC (b)",
            (Some(ours), _) if side(ours) == side(letter) => "yes",
            _ => "no",
        }
    }
}

/// The legend of the table's marks.
const ON_VETH: &str = "(a) base has no delay here: in the letter it waits for the interrupt coalescing of the NIC, which a veth \
                       pair does not have. (b) a veth pair has no device interrupts, whose cost is part of base in the letter. If \
                       the NAPI instance has a thread on the server's CPU, its wake-ups take the place of interrupts";

/// The letter's ratios beside ours; `None` if there is nothing to compare, as in the letter itself.
fn comparisons(rows: &[Row]) -> Option<Table> {
    let ours = FORM.lines(rows);
    let published = ours.iter().any(|line| line.runs[0].text("source").is_some());
    if published {
        return None;
    }
    let letter = letter();
    let letter = FORM.lines(&letter.rows);
    let on_veth = ours.iter().any(|line| line.runs[0].text("device") == Some(VETH));
    let mut lines = Vec::new();
    for comparison in letter_compares().iter().filter(|it| it.was_tried(&ours)) {
        let published = comparison
            .ratio(&letter, comparison.figure)
            .expect("the letter has every figure that it compares");
        let here = comparison.ratio(&ours, comparison.ours);
        lines.push(vec![
            comparison.in_words(),
            format!("{published:.2}"),
            here.map_or_else(|| "—".to_owned(), |ratio| format!("{ratio:.2}")),
            comparison.verdict(published, here, on_veth).to_owned(),
        ]);
    }
    let heads = [("comparison", false), ("letter", true), ("here", true), ("same?", false)];
    let note = format!(
        "letter: the ratio in the cover letter of the kernel's series (docs/measurements/irq-letter.json); here: of this result; same?: whether both \
         are above, below, or within {:.0} % of 1. CPU time/query is the letter's cpq and the busy time of the server's CPUs here{}",
        LEVEL * 100.0,
        if on_veth { format!(". {ON_VETH}") } else { String::new() }
    );
    let title = "irq · the letter's comparisons";
    (!lines.is_empty()).then(|| Table::of_texts(title, &note, &heads, lines))
}

fn letter() -> ResultFile {
    ResultFile::parse(LETTER, "irq-letter.json".as_ref()).expect("a test reads the same text")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(testcase: &str, load: &str, key: &str, value: f64) -> Row {
        let row = Row::new("memcached-text").set("bench", BENCH).set("testcase", testcase);
        row.set("load", load).set("device", VETH).set(key, value)
    }

    #[test]
    fn the_letter_has_all_cases_at_all_loads() {
        let letter = letter();
        assert_eq!(letter.rows.len(), 66);
        assert_eq!(letter.series, curves(&letter.rows));
        for comparison in letter_compares() {
            let words = comparison.in_words();
            assert!(
                comparison.ratio(&FORM.lines(&letter.rows), comparison.figure).is_some(),
                "{words}"
            );
            assert!(FIGURES.iter().any(|figure| figure.key == comparison.ours), "{words}");
        }
        assert_eq!(tables(&letter.rows).len(), 6, "and is not compared with itself");
    }

    #[test]
    fn corrected_figures_are_three_times_the_printed_ones() {
        let letter = letter();
        for (right, printed) in [("cpq", "cpq_printed"), ("ipq", "ipq_printed")] {
            let known: Vec<_> = letter
                .rows
                .iter()
                .filter_map(|row| Some(row.number(right)? / row.number(printed)?))
                .collect();
            assert_eq!(known.len(), 5);
            assert!(known.iter().all(|ratio| (ratio - 3.0).abs() < 0.001), "{known:?}");
        }
    }

    #[test]
    fn ratios_stand_beside_those_of_the_letter() {
        let rows = [
            row("base", "MAX", "qps", 100.0),
            row("suspend20", "MAX", "qps", 130.0),
            row("fullbusy", "MAX", "qps", 200.0),
            row("base", "20", "avglat_us", 30.0),
            row("suspend20", "20", "avglat_us", 33.0),
        ];
        let table = comparisons(&rows).unwrap();
        let line = |wanted: &str| {
            let found = table.lines().find(|line| line[0] == wanted).unwrap();
            found[1..].iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(line("qps, suspend20 / base, MAX"), ["1.21", "1.30", "yes"]);
        assert_eq!(line("qps, suspend20 / fullbusy, MAX"), ["0.99", "0.65", "no"]);
        assert_eq!(line("CPU time/query, suspend20 / base, MAX"), ["0.82", "—", "—"]);
        assert_eq!(table.lines().count(), 7, "only cases that were measured");
        let low = line("avglat, suspend20 / base, 20 %");
        assert_eq!(low, ["0.54", "1.10", "needs a NIC (a)"]);
        assert!(comparisons(&[row("base", "20", "qps", 1.0)]).is_none());
    }

    #[test]
    fn watched_runs_report_suspension_and_count_for_nothing_else() {
        let rows = [
            row("suspend20", "20", "qps", 90.0).set("run", 1),
            row("suspend20", "20", "qps", 110.0).set("run", 2),
            row("suspend20", "20", "suspensions_per_query", 0.5).set("suspended", "yes"),
            row("base", "20", "qps", 95.0).set("run", 1),
        ];
        let table = &tables(&rows)[0];
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[0], ["suspend20", "20%", "100", "0.500", "yes"]);
        assert_eq!(lines[1], ["base", "20%", "95", "—", "—"]);
        assert!(table.note().starts_with("2 runs"), "{}", table.note());
    }

    #[test]
    fn no_difference_is_a_direction_of_its_own() {
        assert_eq!([0.5, 0.96, 1.04, 1.06].map(side), [-1, 0, 0, 1]);
    }
}
