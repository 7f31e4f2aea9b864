//! CPython's own tests of sockets and processes, plain and under `apus run`, compared test by test.
//!
//! A module whose results differ is run again, up to twice, plain and preloaded: a test differs if no plain run has the result of a
//! preloaded one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::ser::PrettyFormatter;
use serde_json::{Serializer, Value, json};

use crate::apus_program::ApusProgram;
use crate::arguments::Arguments;
use crate::sockets_suites::cpython::{Cpython, MODULES};
use crate::sockets_suites::launch::Launch;
use crate::sockets_suites::suite::{Results, Skip};

/// Upper bound on repetitions of a module whose results differ.
const REPEATS_MAX: usize = 2;

const LAUNCHES: [&str; 2] = ["plain", "preloaded"];

/// Runs modules, or all, and compares their results.
pub(crate) fn check(directory: &Path, arguments: &[&str]) -> Result<()> {
    let arguments = Arguments::parse(arguments, &[], &["apus", "json", "logs"])?;
    if let Err(error) = Cpython::prepare() {
        let Skip(reason) = error.downcast()?;
        println!("skipped: CPython's socket tests under apus run: {reason}");
        return Ok(());
    }
    let apus = ApusProgram::find(directory, arguments.value("apus"))?;
    let logs = arguments.value("logs").map(|logs| directory.join(logs));
    if let Some(logs) = &logs {
        fs::create_dir_all(logs).with_context(|| logs.display().to_string())?;
    }
    let carried = Launch::carried(&apus.path, &BTreeMap::new());
    let launches = [Launch::plain(), carried].map(Launch::on_host_network);
    let modules =
        if arguments.words.is_empty() { MODULES.to_vec() } else { arguments.words.clone() };
    let mut compared = Vec::new();
    for module in modules {
        let comparison = ModuleComparison::of(module, &launches, logs.as_ref())?;
        comparison.print();
        compared.push(comparison);
    }
    if let Some(path) = arguments.value("json") {
        write(&directory.join(path), &compared)?;
    }
    let tests: usize = compared.iter().map(|it| it.tests).sum();
    let differ: usize = compared.iter().map(|it| it.differences.len()).sum();
    println!("{} suites, {tests} tests: {differ} differ", compared.len());
    if differ > 0 {
        bail!("{differ} tests differ");
    }
    Ok(())
}

fn write(path: &Path, compared: &[ModuleComparison]) -> Result<()> {
    let list: Vec<Value> = compared.iter().map(ModuleComparison::value).collect();
    let mut bytes = Vec::new();
    let format = PrettyFormatter::with_indent(b" ");
    serde::Serialize::serialize(&list, &mut Serializer::with_formatter(&mut bytes, format))?;
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// A module that was run plain and preloaded.
struct ModuleComparison {
    module: String,
    tests: usize,
    skipped: usize,
    /// Number of tests that fail in the last plain run.
    fail_plain: usize,
    runs: usize,
    /// Times of the last plain run and of the last preloaded one.
    seconds: [f64; 2],
    differences: Vec<(String, [Vec<String>; 2])>,
}

impl ModuleComparison {
    fn of(module: &str, launches: &[Launch; 2], logs: Option<&PathBuf>) -> Result<Self> {
        let (mut runs, mut seconds) = ([Vec::new(), Vec::new()], [0.0; 2]);
        let mut differences = Vec::new();
        for turn in 0..=REPEATS_MAX {
            for (which, launch) in launches.iter().enumerate() {
                let run = Cpython::run_module(module, launch)?;
                seconds[which] = run.took.as_secs_f64();
                if let Some(logs) = logs {
                    let path = logs.join(format!("{module}-{}-{turn}.log", LAUNCHES[which]));
                    fs::write(&path, &run.output).with_context(|| path.display().to_string())?;
                }
                runs[which].push(run.results);
            }
            differences = differing(&runs);
            if differences.is_empty() {
                break;
            }
        }
        let (first, last) = (&runs[0][0], &runs[0][runs[0].len() - 1]);
        Ok(Self {
            module: module.to_owned(),
            tests: first.len().saturating_sub(1), // Without the exit status.
            skipped: first.values().filter(|result| *result == "skipped").count(),
            fail_plain: last.values().filter(|result| !passes(result)).count(),
            runs: runs[0].len(),
            seconds,
            differences,
        })
    }

    fn print(&self) {
        let [plain_s, preloaded_s] = self.seconds;
        let runs = if self.runs > 1 { format!("; {} runs", self.runs) } else { String::new() };
        println!(
            "{:24}{:6} tests, {:4} skipped, {:3} fail plain; {} differ; {plain_s:.0} s plain, {preloaded_s:.0} s preloaded{runs}",
            self.module,
            self.tests,
            self.skipped,
            self.fail_plain,
            self.differences.len()
        );
        for (test, [plain, preloaded]) in &self.differences {
            let (plain, preloaded) = (plain.join(" | "), preloaded.join(" | "));
            println!("    {test}\n        plain:     {plain}\n        preloaded: {preloaded}");
        }
    }

    fn value(&self) -> Value {
        let difference = |(test, [plain, preloaded]): &(String, [Vec<String>; 2])| json!({ "test": test, "plain": plain, "preloaded": preloaded });
        json!({
            "suite": self.module,
            "tests": self.tests,
            "skipped": self.skipped,
            "fail_plain": self.fail_plain,
            "runs": self.runs,
            "differences": self.differences.iter().map(difference).collect::<Vec<_>>(),
        })
    }
}

fn passes(result: &str) -> bool {
    ["completed", "skipped", "0"].iter().any(|good| result.starts_with(good))
}

/// The tests of which no plain run has the result of a preloaded one, with the results of both.
fn differing(runs: &[Vec<Results>; 2]) -> Vec<(String, [Vec<String>; 2])> {
    let names: BTreeSet<&String> = runs.iter().flatten().flat_map(Results::keys).collect();
    let said = |runs: &[Results], name: &str| -> Vec<String> {
        let result = |run: &Results| run.get(name).map_or("did not run", String::as_str).to_owned();
        runs.iter().map(result).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let both =
        names.into_iter().map(|name| (name.clone(), [said(&runs[0], name), said(&runs[1], name)]));
    both.filter(|(_, [plain, preloaded])| plain.iter().all(|it| !preloaded.contains(it))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_one_run_lacks_did_not_run() {
        let results = |pairs: &[(&str, &str)]| -> Results {
            pairs.iter().map(|(name, result)| ((*name).to_owned(), (*result).to_owned())).collect()
        };
        let plain = vec![results(&[("a", "completed"), ("b", "completed")])];
        let preloaded = vec![results(&[("a", "completed"), ("c", "skipped")])];
        let differences = differing(&[plain.clone(), preloaded.clone()]);
        let names: Vec<_> = differences.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "c"]);
        assert_eq!(differences[0].1, [["completed"], ["did not run"]]);
        let again = [[plain.clone(), preloaded.clone()].concat(), preloaded];
        assert!(differing(&again).is_empty(), "one plain run has the same results");
    }
}
