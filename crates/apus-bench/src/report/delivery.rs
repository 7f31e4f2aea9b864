//! Tables and curves of `delivery`, in the form of [`testcases`](super::testcases).

use apus_load::report::Table;
use apus_load::{Row, Scale, Series};

use super::testcases::{CaseResults, Figure, Form, Over, figure};

/// The `bench` of these rows.
pub(super) const BENCH: &str = "delivery";

/// The series' columns first, then ours. The series' `cpq` is cycles per query; ours is the time per query.
const FIGURES: [Figure; 14] = [
    figure("offered_qps", "offered", Over::Mean, 0),
    figure("qps", "qps", Over::Mean, 0),
    figure("avglat_us", "avglat", Over::Median, 1),
    figure("p95_us", "95%lat", Over::Median, 1),
    figure("p99_us", "99%lat", Over::Median, 1),
    figure("cpu_percent", "cpu", Over::Mean, 0),
    figure("busy_ns_per_query", "busy ns/q", Over::Mean, 0),
    figure("ipq", "ipq", Over::Mean, 0),
    figure("wakeups_per_query", "sleeps/q", Over::Mean, 3),
    figure("handoffs_per_query", "handoffs/q", Over::Mean, 3),
    figure("background_turns_per_query", "bg turns/q", Over::Mean, 3),
    figure("batch", "batch", Over::Mean, 1),
    figure("late_percent", "late %", Over::Mean, 2),
    figure("refused_runs", "refused", Over::Sum, 0),
];

static FORM: Form =
    Form { bench: BENCH, figures: &FIGURES, words: None, setting: threads_in_words };

fn threads_in_words(row: &Row) -> String {
    match row.number("threads") {
        None | Some(1.0) => "1 thread".to_owned(),
        Some(threads) => format!("{threads} threads"),
    }
}

/// The lines of all tables, in the order in which their first rows appear.
pub(super) fn lines(rows: &[Row]) -> Vec<CaseResults<'_>> {
    FORM.lines(rows)
}

/// The heading of a figure; `None` if the tables have no such figure.
pub(super) fn heading(key: &str) -> Option<&'static str> {
    FIGURES.iter().find(|figure| figure.key == key).map(|figure| figure.heading)
}

/// Threads of the server of a line.
pub(super) fn threads(line: &CaseResults<'_>) -> u64 {
    line.runs.first().and_then(|row| row.number("threads")).unwrap_or(1.0) as u64
}

/// A table for each load and number of threads.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    FORM.tables(rows)
}

/// Curves against load, with a plot for each of mean latency, p99 and CPU time. The loads are in percent, without `MAX`.
#[must_use]
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
    FORM.curves(rows, &plots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(testcase: &str, load: &str, run: u32, p99_us: Option<f64>, qps: Option<f64>) -> Row {
        Row::new("apus-udp")
            .set("bench", BENCH)
            .set("testcase", testcase)
            .set("load", load)
            .set("threads", 1_u32)
            .set("run", run)
            .set("p99_us", p99_us)
            .set("qps", qps)
            .set("refused_runs", u32::from(p99_us.is_none()))
    }

    fn rows() -> Vec<Row> {
        vec![
            row("base", "20", 1, Some(10.0), Some(100.0)),
            row("suspend20", "20", 1, Some(5.0), Some(90.0)),
            row("base", "20", 2, Some(1000.0), Some(200.0)),
            row("base", "20", 3, Some(20.0), Some(300.0)),
            row("base", "20", 4, None, None),
            row("base", "MAX", 1, Some(70.0), Some(900.0)),
        ]
    }

    #[test]
    fn latencies_are_medians_the_rest_means_and_refused_runs_neither() {
        let rows = rows();
        let base = &lines(&rows)[0];
        assert_eq!((base.value("p99_us"), base.value("qps")), (Some(20.0), Some(200.0)));
        assert_eq!(base.value("refused_runs"), Some(1.0));
        assert_eq!(base.value("ipq"), None);
    }

    #[test]
    fn a_table_for_each_load() {
        let tables = tables(&rows());
        let titles: Vec<&str> = tables.iter().map(Table::title).collect();
        assert_eq!(
            titles,
            ["delivery · 20 % · 1 thread", "delivery · MAX, closed loop · 1 thread"]
        );
        let line = tables[0].lines().next().unwrap();
        assert_eq!(line, ["base", "20%", "200", "20.0", "1"]);
        assert!(tables[0].note().starts_with("4 runs"));
    }

    #[test]
    fn curves_leave_max_out() {
        let curves = curves(&rows());
        let p99: Vec<&Series> = curves.iter().filter(|c| c.name.starts_with("99th")).collect();
        assert_eq!(p99.len(), 2);
        assert_eq!(p99[0].points, [(20.0, 20.0)]);
    }
}
