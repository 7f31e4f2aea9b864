//! The table of `memcached`: a line for each rate, over its runs.
//!
//! Latencies are medians over the runs; other figures are means or sums. Refused runs have no figures; the column of valid runs
//! shows their number.

use apus_load::report::{Table, figure};
use apus_load::{Row, stats};

use super::order::in_order;

/// The `bench` of these rows.
pub(crate) use apus_memcached::BENCH;

/// The aggregation of a line's runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Median,
    Mean,
    Sum,
}

/// Columns: key, heading, aggregation.
const FIGURES: [(&str, &str, Over); 16] = [
    ("qps", "qps", Over::Mean),
    ("mean_us", "mean", Over::Median),
    ("p50_us", "p50", Over::Median),
    ("p90_us", "p90", Over::Median),
    ("p95_us", "p95", Over::Median),
    ("p99_us", "p99", Over::Median),
    ("p99_9_us", "p99.9", Over::Median),
    ("packets_p50_us", "packets p50", Over::Median),
    ("packets_p99_us", "packets p99", Over::Median),
    ("late_pct", "late %", Over::Mean),
    ("misses", "misses", Over::Sum),
    ("errors", "errors", Over::Sum),
    ("unfinished", "unanswered", Over::Sum),
    ("update_p50_us", "set p50", Over::Median),
    ("update_p99_us", "set p99", Over::Median),
    ("client_cpu_pct", "client CPU %", Over::Mean),
];

/// Prefix of the keys of packets' times.
const PACKETS: &str = "packets_";

/// Settings that are constant within a table, with their names.
const SETTINGS: [(&str, &str); 5] = [
    ("arrival", "arrival"),
    ("agents", "agents"),
    ("threads", "threads"),
    ("connections", "connections"),
    ("depth", "depth"),
];

/// A table for each protocol, workload and setting.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.text("bench") == Some(BENCH)).collect();
    let places = in_order(rows.iter().map(|row| place(row)));
    let table_of = |of: &(String, String)| {
        table(of, &rows.iter().copied().filter(|row| place(row) == *of).collect::<Vec<_>>())
    };
    places.iter().map(table_of).collect()
}

/// The title and the settings of the table that a row belongs to.
fn place(row: &Row) -> (String, String) {
    let title = [BENCH, row.transport(), row.text("workload").unwrap_or_default()].join(" · ");
    let setting = |(key, name): &(&str, &str)| {
        let text = row.text(key).map(str::to_owned);
        Some(format!("{name} {}", text.or_else(|| row.number(key).map(figure))?))
    };
    let settings: Vec<String> = SETTINGS.iter().filter_map(setting).collect();
    (title, settings.join(" · "))
}

fn table((title, settings): &(String, String), rows: &[&Row]) -> Table {
    let mut rates = in_order(rows.iter().map(|row| row.number("offered_qps")));
    rates.sort_by(|one, other| one.partial_cmp(other).expect("JSON has no NaN"));
    // Packets' times are optional and have no column if they are missing.
    let is_there =
        |key: &str| !key.starts_with(PACKETS) || rows.iter().any(|row| row.number(key).is_some());
    let figures: Vec<_> = FIGURES.into_iter().filter(|(key, ..)| is_there(key)).collect();
    let lines = rates.iter().map(|rate| {
        let of_rate = rows.iter().copied().filter(|row| row.number("offered_qps") == *rate);
        line(&figures, *rate, &of_rate.collect::<Vec<_>>())
    });
    let heads = [("offered", true), ("valid", true)].into_iter();
    let heads = heads.chain(figures.iter().map(|(_, heading, _)| (*heading, true)));
    let heads: Vec<(&str, bool)> = heads.collect();
    Table::of_texts(
        title,
        &format!("latency of reads in µs, medians of the valid runs · {settings}"),
        &heads,
        lines,
    )
}

/// The line of all runs at one rate.
fn line(
    figures: &[(&'static str, &'static str, Over)],
    rate: Option<f64>,
    rows: &[&Row],
) -> Vec<String> {
    let value = |(key, _, over): &(&str, &str, Over)| {
        let values: Vec<f64> = rows.iter().filter_map(|row| row.number(key)).collect();
        let sum: f64 = values.iter().sum();
        let value = match over {
            _ if values.is_empty() => None,
            Over::Median => stats::median(&values),
            Over::Mean => Some(sum / values.len() as f64),
            Over::Sum => Some(sum),
        };
        value.map_or_else(|| "—".to_owned(), figure)
    };
    let valid = rows.iter().filter(|row| !row.is_refused()).count();
    let valid = format!("{valid} of {}", rows.len());
    let rate = rate.map_or_else(|| "closed".to_owned(), figure);
    let figures = figures.iter().map(value);
    [rate, valid].into_iter().chain(figures).collect()
}

#[cfg(test)]
mod tests {
    use apus_load::REFUSED_LATE;

    use super::*;

    #[test]
    fn a_line_is_of_all_runs_that_count() {
        let row = |rate: Option<f64>, p50: Option<f64>| {
            let row = Row::new("resp").set("bench", BENCH).set("depth", 4);
            row.set("offered_qps", rate).set("p50_us", p50).set("errors", 1).set("late_pct", 0.5)
        };
        let rows = [
            row(Some(2000.0), Some(10.0)),
            row(Some(1000.0), Some(30.0)),
            row(Some(1000.0), None).set("verdict", REFUSED_LATE),
            row(Some(1000.0), Some(20.0)),
            row(None, Some(5.0)),
        ];
        let tables = tables(&rows);
        assert_eq!(tables.len(), 1);
        let lines: Vec<Vec<&str>> = tables[0].lines().collect();
        let shown = lines.iter().map(|line| [line[0], line[1], line[4], line[11]]);
        let expected = [
            ["closed", "1 of 1", "5", "1"],
            ["1,000", "2 of 3", "25", "3"],
            ["2,000", "1 of 1", "10", "1"],
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert!(tables[0].note().ends_with("depth 4"));
    }
}
