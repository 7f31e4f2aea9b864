//! Analyses: their arguments, and their reports as text and JSON.

use std::fmt::Write as _;

use anyhow::Result;
use apus_trace::{Cell, Merged, Report, Table};
use serde_json::{Map, Value, json};

use super::files::Files;
use crate::output::JsonArgs;

/// The arguments of every analysis.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Input {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    json: JsonArgs,
}

/// The arguments of an analysis that shows a course in time.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OverTime {
    #[command(flatten)]
    input: Input,
    /// Length of an interval, in µs [default: 1000, and longer if there would be more than 10,000 intervals]
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    interval: Option<u64>,
}

/// The arguments of an analysis that separates long messages from short ones.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Lengths {
    #[command(flatten)]
    input: Input,
    /// Most bytes of a short message; for tput, least bytes of a long one [default: 1000; for tput 300000]
    #[arg(long, value_name = "BYTES")]
    length: Option<u32>,
}

/// The arguments of an analysis of one instant.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Instant {
    #[command(flatten)]
    input: Input,
    /// Time, in µs since the first record
    #[arg(long, value_name = "MICROSECONDS")]
    at: u64,
}

impl Instant {
    /// As [`Input::show`], of an analysis that takes a time in nanoseconds.
    ///
    /// # Errors
    /// As [`Input::show`].
    pub(super) fn show(&self, analyse: impl FnOnce(&Merged, u64) -> Report) -> Result<()> {
        self.input.show(|merged| analyse(merged, self.at.saturating_mul(1_000)))
    }
}

impl Input {
    /// Analyses the traces and shows the result.
    ///
    /// # Errors
    /// When a file cannot be read, or standard output cannot be written.
    pub(super) fn show(&self, analyse: impl FnOnce(&Merged) -> Report) -> Result<()> {
        print(&analyse(&self.files.merged()?), &self.json)
    }
}

impl OverTime {
    /// As [`Input::show`], of an analysis that takes the length of an interval in nanoseconds; `otherwise` is that in µs.
    ///
    /// # Errors
    /// As [`Input::show`].
    pub(super) fn show(
        &self,
        otherwise: u64,
        analyse: impl FnOnce(&Merged, u64) -> Report,
    ) -> Result<()> {
        let interval = self.interval.unwrap_or(otherwise) * 1_000;
        self.input.show(|merged| analyse(merged, interval))
    }
}

impl Lengths {
    /// As [`Input::show`], of an analysis that takes a length in bytes.
    ///
    /// # Errors
    /// As [`Input::show`].
    pub(super) fn show(
        &self,
        otherwise: u32,
        analyse: impl FnOnce(&Merged, u32) -> Report,
    ) -> Result<()> {
        self.input.show(|merged| analyse(merged, self.length.unwrap_or(otherwise)))
    }
}

/// Shows a report.
///
/// # Errors
/// When standard output or the file cannot be written.
pub(super) fn print(report: &Report, json: &JsonArgs) -> Result<()> {
    json.deliver(|| format!("{:#}\n", as_json(report)), || as_text(report))
}

/// Findings, facts, and tables with their rows as objects.
pub(super) fn as_json(report: &Report) -> Value {
    let mut result = Map::new();
    result.insert("findings".to_owned(), report.findings.clone().into());
    for (name, value) in &report.facts {
        result.insert((*name).to_owned(), cell_json(value));
    }
    for table in &report.tables {
        let rows = table.rows.iter().map(|row| {
            let cells = table.columns.iter().zip(row);
            let cells = cells.map(|(name, cell)| ((*name).to_owned(), cell_json(cell)));
            Value::Object(cells.collect())
        });
        result.insert(table.name.to_owned(), rows.collect());
    }
    Value::Object(result)
}

fn cell_json(cell: &Cell) -> Value {
    match cell {
        Cell::Missing => Value::Null,
        Cell::Text(text) => text.clone().into(),
        Cell::Count(count) => (*count).into(),
        Cell::Number(number) => json!(number),
    }
}

/// Findings as sentences, facts as lines, and tables.
pub(super) fn as_text(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let _ = writeln!(text, "{finding}");
    }
    for (name, value) in &report.facts {
        let _ = writeln!(text, "{}: {}", words(name), cell_text(value));
    }
    for table in report.tables.iter().filter(|table| !table.rows.is_empty()) {
        let separator = if text.is_empty() { "" } else { "\n" };
        let _ = write!(text, "{separator}{}\n{}", words(table.name), table_text(table));
    }
    if text.is_empty() { "the traces have no such records\n".to_owned() } else { text }
}

/// The table as text: columns of text flush left, columns of numbers flush right.
fn table_text(table: &Table) -> String {
    let headers = table.columns.iter().map(|name| words(name)).collect();
    let rows = table.rows.iter().map(|row| row.iter().map(cell_text).collect());
    let lines: Vec<Vec<String>> = std::iter::once(headers).chain(rows).collect();
    let is_text = |column: usize| table.rows.iter().any(|row| matches!(row[column], Cell::Text(_)));
    let columns = (0..table.columns.len()).map(|column| {
        let width = lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        (width, is_text(column))
    });
    let columns: Vec<_> = columns.collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&columns).map(|(cell, &(width, is_text))| {
            if is_text { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        let _ = writeln!(text, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

fn cell_text(cell: &Cell) -> String {
    match cell {
        Cell::Missing => "-".to_owned(),
        Cell::Text(text) => text.clone(),
        Cell::Count(count) => count.to_string(),
        Cell::Number(number) => format!("{number:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let rows =
            vec![vec![Cell::from("a"), Cell::Number(1.5)], vec![Cell::from("long"), Cell::Missing]];
        let table = Table { name: "some_rows", columns: vec!["name", "took_us"], rows };
        let facts = vec![("calls", Cell::Count(2))];
        Report { findings: vec!["It is so.".to_owned()], facts, tables: vec![table] }
    }

    #[test]
    fn a_report_is_text() {
        let lines =
            ["It is so.", "calls: 2", "", "some rows", "  name  took us", "  a       1.500"];
        assert_eq!(as_text(&report()), format!("{}\n  long        -\n", lines.join("\n")));
        assert!(as_text(&Report::default()).contains("no such records"));
    }

    #[test]
    fn a_report_is_json() {
        let rows = json!([{ "name": "a", "took_us": 1.5 }, { "name": "long", "took_us": null }]);
        let expected = json!({ "findings": ["It is so."], "calls": 2, "some_rows": rows });
        assert_eq!(as_json(&report()), expected);
    }
}
