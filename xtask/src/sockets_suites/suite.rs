//! A test suite of another project.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::launch::{Call, Launch, Outcome};

/// The results of tests by name.
pub(crate) type Results = BTreeMap<String, String>;

/// The names of the tests to run; `None` for all.
pub(crate) type Selected<'a> = Option<&'a BTreeSet<String>>;

/// The name of the exit status of a whole suite among its results.
pub(crate) const STATUS: &str = "(status)";

/// A suite that is ready to run.
pub(crate) trait Suite {
    /// A sentence for the record.
    fn about(&self) -> &'static str;

    /// The version of its sources.
    fn version(&self) -> &str;

    /// The names of its tests; `None` if only a run shows them.
    fn names(&self) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    /// Runs tests. Writes their output to the log.
    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results>;
}

/// The reason why a suite does not run here.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Runs each test by a call of its own.
pub(super) fn run_each(
    names: &[String],
    launch: &Launch,
    only: Selected<'_>,
    log: &mut dyn Write,
    call: impl Fn(&str) -> Call,
    result: impl Fn(&Outcome) -> String,
) -> Result<Results> {
    let mut results = Results::new();
    for name in names.iter().filter(|name| is_selected(only, name)) {
        let outcome = launch.run(&call(name), TEST_MAX)?;
        let result = result(&outcome);
        writeln!(log, "== {name}: {result}\n{}", outcome.output).context("the log")?;
        results.insert(name.clone(), result);
    }
    Ok(results)
}

pub(super) fn is_selected(only: Selected<'_>, name: &str) -> bool {
    only.is_none_or(|only| only.contains(name))
}

/// The result of a test that is a program.
pub(super) fn by_status(status: Option<i32>) -> String {
    match status {
        Some(0) => "ok".to_owned(),
        Some(status) => format!("status {status}"),
        None => "no end".to_owned(),
    }
}

/// Results with the exit status of the suite, unless tests are selected.
pub(super) fn with_status(outcome: &Outcome, only: Selected<'_>) -> Results {
    let status = outcome.status.map_or_else(|| "None".to_owned(), |status| status.to_string());
    if only.is_none() { Results::from([(STATUS.to_owned(), status)]) } else { Results::new() }
}

/// Sources of a suite.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    pub(super) directory: PathBuf,
    pub(super) version: String,
}

/// Time limit of a test.
const TEST_MAX: Duration = Duration::from_secs(90);

/// Time limit of a suite.
pub(super) const SUITE_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_counts_for_whole_suites_only() {
        let outcome = |status| Outcome { status, output: String::new() };
        assert_eq!(with_status(&outcome(Some(1)), None)[STATUS], "1");
        assert_eq!(with_status(&outcome(None), None)[STATUS], "None");
        assert!(with_status(&outcome(Some(0)), Some(&BTreeSet::new())).is_empty());
        assert_eq!(
            [by_status(Some(0)), by_status(Some(-11)), by_status(None)],
            ["ok", "status -11", "no end"]
        );
    }
}
