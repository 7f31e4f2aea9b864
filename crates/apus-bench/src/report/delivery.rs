//! Tables and curves of `delivery`: the form of the published tables of the kernel's IRQ suspension.
//!
//! A table for each load and number of server threads, a line for each test case. Latencies are medians over the runs,
//! all else is the mean, as in the series. Runs that were refused have no figures and so are in neither.

use apus_load::report::Table;
use apus_load::{Row, Scale, Series, stats};

/// The `bench` of these rows.
pub(super) const BENCH: &str = "delivery";

/// How the runs of one line are put together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Median,
    Mean,
    Sum,
}

/// A column of the table: key, heading, digits after the point.
struct Figure {
    key: &'static str,
    heading: &'static str,
    over: Over,
    digits: usize,
}

const fn figure(key: &'static str, heading: &'static str, over: Over, digits: usize) -> Figure {
    Figure { key, heading, over, digits }
}

/// The series' columns first, then ours. There `cpq` are cycles per query; this is their time.
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

/// What one case came to at one load.
pub(super) struct Line<'a> {
    pub(super) testcase: &'a str,
    pub(super) load: &'a str,
    pub(super) threads: u64,
    runs: Vec<&'a Row>,
}

impl Line<'_> {
    /// A figure over all valid runs; `None` when there is none.
    pub(super) fn value(&self, key: &str) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|row| row.number(key)).collect();
        let over = FIGURES.iter().find(|figure| figure.key == key)?.over;
        let sum: f64 = values.iter().sum();
        match over {
            _ if values.is_empty() => None,
            Over::Median => stats::median(&values),
            Over::Mean => Some(sum / values.len() as f64),
            Over::Sum => Some(sum),
        }
    }
}

/// The lines of all tables, in the order in which their first rows appear.
pub(super) fn lines(rows: &[Row]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    for row in rows.iter().filter(|row| row.text("bench") == Some(BENCH)) {
        // The runs that tell the rate called 100 %.
        if row.text("load") == Some("base") {
            continue;
        }
        let (Some(testcase), Some(load)) = (row.text("testcase"), row.text("load")) else {
            continue;
        };
        let threads = row.number("threads").unwrap_or(1.0) as u64;
        let known = lines
            .iter_mut()
            .find(|line| line.testcase == testcase && line.load == load && line.threads == threads);
        match known {
            Some(line) => line.runs.push(row),
            None => lines.push(Line { testcase, load, threads, runs: vec![row] }),
        }
    }
    lines
}

/// A table for each load and number of threads.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let lines = lines(rows);
    let mut places: Vec<(&str, u64)> = Vec::new();
    for line in &lines {
        if !places.contains(&(line.load, line.threads)) {
            places.push((line.load, line.threads));
        }
    }
    let table_at = |(load, threads): &(&str, u64)| {
        let lines: Vec<&Line<'_>> =
            lines.iter().filter(|line| line.load == *load && line.threads == *threads).collect();
        table(&title(load, *threads), &lines)
    };
    places.iter().map(table_at).collect()
}

fn title(load: &str, threads: u64) -> String {
    let load = match load {
        "MAX" => "MAX, closed loop".to_owned(),
        "callgrind" => "instructions per query, under callgrind at a low rate".to_owned(),
        percent => format!("{percent} %"),
    };
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    format!("delivery · {load} · {threads}")
}

fn table(title: &str, lines: &[&Line<'_>]) -> Table {
    let shown: Vec<&Figure> = FIGURES
        .iter()
        .filter(|figure| lines.iter().any(|line| line.value(figure.key).is_some()))
        .collect();
    let heads = ["testcase", "load"].into_iter().chain(shown.iter().map(|f| f.heading));
    let heads: Vec<(&str, bool)> = heads.map(|head| (head, head != "testcase")).collect();
    let texts = lines.iter().map(|line| {
        let texts = [line.testcase.to_owned(), load_in_words(line.load)];
        let values = shown.iter().map(|figure| match line.value(figure.key) {
            Some(value) => format!("{value:.*}", figure.digits),
            None => "—".to_owned(),
        });
        texts.into_iter().chain(values).collect()
    });
    let runs = lines.iter().map(|line| line.runs.len()).max().unwrap_or(0);
    let note = if runs > 1 {
        format!("{runs} runs: latencies in µs, their medians; all else means")
    } else {
        "one run: latencies in µs".to_owned()
    };
    Table::of_texts(title, &note, &heads, texts)
}

fn load_in_words(load: &str) -> String {
    if load.bytes().all(|b| b.is_ascii_digit()) { format!("{load}%") } else { load.to_owned() }
}

/// Curves against load, a plot for each of mean latency, p99 and CPU time; the loads in percent, without `MAX`.
#[must_use]
pub(crate) fn curves(rows: &[Row]) -> Vec<Series> {
    let lines = lines(rows);
    let several_threads = lines.iter().any(|line| line.threads != lines[0].threads);
    let mut subjects: Vec<(&str, u64)> = Vec::new();
    for line in lines.iter().filter(|line| line.load.parse::<u32>().is_ok()) {
        if !subjects.contains(&(line.testcase, line.threads)) {
            subjects.push((line.testcase, line.threads));
        }
    }
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
    let mut curves = Vec::new();
    for (name, key, y_label, y_scale) in plots {
        for &(testcase, threads) in &subjects {
            let mine = lines.iter().filter(|l| l.testcase == testcase && l.threads == threads);
            let point = |line: &Line<'_>| Some((line.load.parse().ok()?, line.value(key)?));
            let mut points: Vec<(f64, f64)> = mine.filter_map(point).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            let transport = if several_threads {
                format!("{testcase}, {threads} threads")
            } else {
                testcase.to_owned()
            };
            curves.push(Series {
                name: name.to_owned(),
                transport,
                x_label: "load (% of the most that base serves)".to_owned(),
                x_scale: Scale::Linear,
                y_label: y_label.to_owned(),
                y_scale,
                points,
            });
        }
    }
    curves
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
