//! `apus trace diff`: two measurements side by side.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_load::stats;
use apus_trace::{Cell, Report, Table, analysis};
use serde_json::Value;

use super::analysis::print;
use super::files::merged;
use crate::output::JsonArgs;

/// Compare two traces, two results of benchmarks, or two readings of counters
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace diff before.trace after.trace
  apus trace diff before-rtt.json after-rtt.json
  apus trace diff before-stat.json after-stat.json

The command compares the medians of round trips, stages and packets in traces; the medians of corresponding rows in results, such \
as those of 'apus bench rtt --json' (of several runs, the median of their medians); and the sums of counters in files of 'apus \
stat --json'. 'apus trace merge' makes one file from the traces of both ends. The largest differences come first.")]
pub(crate) struct Args {
    /// The first measurement
    #[arg(value_name = "FIRST")]
    first: PathBuf,
    /// The second measurement, a file of the same kind
    #[arg(value_name = "SECOND")]
    second: PathBuf,
    #[command(flatten)]
    json: JsonArgs,
}

/// The format of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileFormat {
    Trace,
    Result,
    Counters,
}

impl FileFormat {
    fn name(self) -> &'static str {
        match self {
            Self::Trace => "a time trace",
            Self::Result => "a result",
            Self::Counters => "counters",
        }
    }
}

/// Compares.
///
/// # Errors
/// When a file cannot be read, or they are of different kinds.
pub(super) fn run(args: &Args) -> Result<()> {
    let (kind, first) = read(&args.first)?;
    let (other, second) = read(&args.second)?;
    if kind != other {
        let (first, second) = (args.first.display(), args.second.display());
        let (kind, other) = (kind.name(), other.name());
        return Err(Misuse(format!("'{first}' is {kind}, and '{second}' is {other}")).into());
    }
    print(&report(&first, &second), &args.json)
}

/// The numbers of a file by their names.
fn read(path: &Path) -> Result<(FileFormat, BTreeMap<String, f64>)> {
    let cannot = || format!("cannot read '{}'", path.display());
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).with_context(cannot)?;
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
        let merged = merged(&[path.to_owned()])?;
        return Ok((FileFormat::Trace, analysis::medians(&merged).into_iter().collect()));
    };
    if let Some(rows) = value["rows"].as_array() {
        return Ok((FileFormat::Result, of_rows(rows)));
    }
    let processes = value["processes"].as_array();
    let processes =
        processes.context("the file has neither rows nor processes").with_context(cannot)?;
    Ok((FileFormat::Counters, of_processes(processes)))
}

/// The median of each row. Rows of the same transport, bench and size are runs of the same.
fn of_rows(rows: &[Value]) -> BTreeMap<String, f64> {
    let mut runs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows {
        let names =
            ["transport", "bench", "size_bytes"].iter().filter_map(|key| match &row[*key] {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            });
        let name = names.collect::<Vec<_>>().join(" ");
        if let Some(median) = row["p50_us"].as_f64() {
            runs.entry(format!("{name} p50 us")).or_default().push(median);
        }
    }
    let medians = runs.into_iter().filter_map(|(name, runs)| Some((name, stats::median(&runs)?)));
    medians.collect()
}

/// The sum of each counter over all processes.
fn of_processes(processes: &[Value]) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for (name, value) in processes.iter().filter_map(|it| it["counters"].as_object()).flatten() {
        *sums.entry(name.clone()).or_insert(0.0) += value.as_f64().unwrap_or(0.0);
    }
    sums
}

fn report(first: &BTreeMap<String, f64>, second: &BTreeMap<String, f64>) -> Report {
    let names = first.keys().chain(second.keys().filter(|name| !first.contains_key(*name)));
    let mut rows: Vec<_> = names.map(|name| (name, first.get(name), second.get(name))).collect();
    let percent = |first: f64, second: f64| (second - first) * 100.0 / first;
    let size = |first: Option<&f64>, second: Option<&f64>| match (first, second) {
        (Some(first), Some(second)) if first == second => 0.0,
        (Some(first), Some(second)) => percent(*first, *second).abs(),
        _ => f64::INFINITY,
    };
    rows.sort_by(|one, other| size(other.1, other.2).total_cmp(&size(one.1, one.2)));
    let rows = rows.into_iter().filter(|(_, first, second)| first != second);
    let rows = rows.map(|(name, first, second)| {
        let both = first.copied().zip(second.copied());
        let difference = both.map(|(first, second)| second - first);
        let grown = both.filter(|(first, _)| *first != 0.0);
        let grown = grown.map(|(first, second)| percent(first, second));
        let numbers = [first.copied(), second.copied(), difference, grown].map(Cell::from);
        [Cell::from(name.as_str())].into_iter().chain(numbers).collect()
    });
    let columns = vec!["what", "first", "second", "difference", "percent"];
    let table = Table { name: "differences", columns, rows: rows.collect() };
    let compared = ("compared", Cell::from(first.len().max(second.len())));
    Report { facts: vec![compared], tables: vec![table], ..Report::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_greatest_difference_comes_first() {
        let numbers = |pairs: &[(&str, f64)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        let first = numbers(&[("a", 10.0), ("b", 10.0), ("same", 1.0)]);
        let second = numbers(&[("a", 11.0), ("b", 5.0), ("same", 1.0), ("new", 1.0)]);
        let report = report(&first, &second);
        let of = |row, column| report.cell("differences", row, column).cloned().unwrap();
        assert_eq!([0, 1, 2].map(|row| of(row, "what")), ["new", "b", "a"].map(Cell::from));
        assert_eq!(of(1, "percent"), Cell::Number(-50.0));
        assert_eq!(of(0, "difference"), Cell::Missing);
        assert_eq!(report.cell("differences", 3, "what"), None);
    }

    #[test]
    fn runs_have_a_median_and_counters_a_sum() {
        let row = |p50: f64| json!({ "transport": "t", "size_bytes": 100, "p50_us": p50 });
        let medians = of_rows(&[row(3.0), row(9.0), row(1.0)]);
        assert_eq!(medians, BTreeMap::from([("t 100 p50 us".to_owned(), 3.0)]));
        let process = json!({ "counters": { "calls": 2 } });
        let sums = of_processes(&[process.clone(), process]);
        assert_eq!(sums, BTreeMap::from([("calls".to_owned(), 4.0)]));
    }
}
