//! The runs of a suite, plain and carried, and the tests whose results differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use super::launch::Launch;
use super::log_file;
use super::suite::{Results, STATUS, Suite};
use crate::program::read;

/// Upper bound on repetitions of tests that differ.
const REPEATS_MAX: usize = 2;

/// Results that differ on purpose: suite, test and reason. docs/sockets.md has them in its table of differences. Such a test may also
/// have the same results.
const KNOWN: [(&str, &str, &str); 0] = [];

const LAUNCHES: [&str; 2] = ["plain", "carried"];

/// The directory of logs.
pub(super) struct Logs {
    pub(super) directory: PathBuf,
    /// Whether carried runs explain their connections, in the logs.
    pub(super) explained: bool,
}

/// A suite that was run plain and carried.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Comparison {
    pub(super) version: String,
    pub(super) about: &'static str,
    pub(super) tests: usize,
    pub(super) skipped: usize,
    /// Tests that pass in no plain run.
    pub(super) plain: Vec<String>,
    /// Tests that pass in no carried run.
    pub(super) carried: Vec<String>,
    /// Tests of which no plain run has the result of a carried one, with the results of both.
    pub(super) differ: BTreeMap<String, [Vec<String>; 2]>,
    /// Tests that differ on purpose, with the reason.
    pub(super) known: BTreeMap<String, String>,
    /// Times of all plain and all carried runs.
    pub(super) seconds: [f64; 2],
    pub(super) runs: usize,
}

impl Comparison {
    /// Runs a suite, or the tests whose names have one of the texts. Tests that differ are run again.
    pub(super) fn of(
        name: &str,
        suite: &dyn Suite,
        launches: [&Launch; 2],
        logs: &Logs,
        texts: &[&str],
    ) -> Result<Self> {
        let mut only = selected(suite, texts)?;
        let mut runs = [Vec::new(), Vec::new()];
        let mut seconds = [0.0; 2];
        for turn in 0..=REPEATS_MAX {
            for (which, launch) in launches.into_iter().enumerate() {
                let began = Instant::now();
                let path = log_file(&logs.directory, name, LAUNCHES[which], turn);
                let mut log = File::create(&path).with_context(|| path.display().to_string())?;
                runs[which].push(suite.run(launch, only.as_ref(), &mut log)?);
                seconds[which] += began.elapsed().as_secs_f64();
            }
            let differ = differing(&runs);
            // The status of a whole suite follows from the tests.
            let is_over = differ.iter().all(|test| test == STATUS);
            only = Some(differ);
            if is_over {
                break;
            }
        }
        let comparison = Self { seconds, ..Self::of_runs(name, &runs, &only.unwrap_or_default()) };
        Ok(Self { version: suite.version().to_owned(), about: suite.about(), ..comparison })
    }

    fn of_runs(name: &str, runs: &[Vec<Results>; 2], differ: &BTreeSet<String>) -> Self {
        let reason = |test: &str| KNOWN.iter().find(|known| (known.0, known.1) == (name, test));
        let failing = |which: usize| {
            let fails = |test: &&String| !said(&runs[which], test).iter().any(|it| is_good(it));
            tests(runs).iter().filter(fails).cloned().collect()
        };
        let unknown = differ.iter().filter(|test| *test != STATUS && reason(test).is_none());
        let both = |test: &String| (test.clone(), [said(&runs[0], test), said(&runs[1], test)]);
        let known =
            differ.iter().filter_map(|test| Some((test.clone(), reason(test)?.2.to_owned())));
        let first = &runs[0][0];
        Self {
            tests: first.len(),
            skipped: first.values().filter(|result| result.starts_with("skipped")).count(),
            plain: failing(0),
            carried: failing(1),
            differ: unknown.map(both).collect(),
            known: known.collect(),
            runs: runs[0].len(),
            ..Self::default()
        }
    }

    /// Prints the numbers and the tests that differ.
    pub(super) fn print(&self, name: &str, logs: &Logs) -> Result<()> {
        let [plain_s, carried_s] = self.seconds;
        println!(
            "{name} {}: {} tests, {} skipped, {} fail plain, {} carried; {} differ; {plain_s:.0} s plain, {carried_s:.0} s carried; {} runs",
            self.version,
            self.tests,
            self.skipped,
            self.plain.len(),
            self.carried.len(),
            self.differ.len(),
            self.runs
        );
        for (test, reason) in &self.known {
            println!("    {test} differs as is known: {reason}");
        }
        if logs.explained {
            let (ends, carried) = explained(&read(log_file(&logs.directory, name, "carried", 0))?);
            println!("    {ends} ends of connections explained, {carried} carried");
        }
        for (test, [plain, carried]) in &self.differ {
            let (plain, carried) = (plain.join(" | "), carried.join(" | "));
            println!("    {test}\n        plain:   {plain}\n        carried: {carried}");
        }
        Ok(())
    }
}

/// The tests whose names have one of the texts; `None` for all. Where only a run shows names, the texts are names.
fn selected(suite: &dyn Suite, texts: &[&str]) -> Result<Option<BTreeSet<String>>> {
    if texts.is_empty() {
        return Ok(None);
    }
    let names = match suite.names()? {
        Some(names) => names,
        None => texts.iter().map(|text| (*text).to_owned()).collect(),
    };
    let has_text = |name: &String| texts.iter().any(|text| name.contains(text));
    Ok(Some(names.into_iter().filter(has_text).collect()))
}

fn tests(runs: &[Vec<Results>; 2]) -> BTreeSet<String> {
    runs.iter().flatten().flat_map(|results| results.keys().cloned()).collect()
}

/// The results of a test in all runs that had it.
fn said(runs: &[Results], test: &str) -> Vec<String> {
    let results: BTreeSet<&String> = runs.iter().filter_map(|results| results.get(test)).collect();
    if results.is_empty() {
        return vec!["did not run".to_owned()];
    }
    results.into_iter().cloned().collect()
}

/// The tests of which no plain run has the result of a carried one.
fn differing(runs: &[Vec<Results>; 2]) -> BTreeSet<String> {
    let mut tests = tests(runs);
    tests.retain(|test| {
        let carried = said(&runs[1], test);
        said(&runs[0], test).iter().all(|result| !carried.contains(result))
    });
    tests
}

fn is_good(result: &str) -> bool {
    let is_good = ["ok", "0", "success!?!", "todo"].contains(&result);
    is_good || result.starts_with("completed") || result.starts_with("skipped")
}

/// The numbers of explained and of carried ends of connections in a log: `NAME[PID]: ADDRESS to ADDRESS: carried …`.
fn explained(log: &str) -> (usize, usize) {
    let end = |line: &str| {
        let (process, rest) = line.split_once(": ")?;
        let (addresses, what) = rest.split_once(": ")?;
        let is_process = process.ends_with(']') && process.contains('[') && !process.contains(' ');
        let is_connection = [" to ", " from "].iter().any(|it| addresses.contains(it));
        let is_carried = what.starts_with("carried");
        (is_process && is_connection && (is_carried || what.starts_with("not carried")))
            .then_some(is_carried)
    };
    let ends: Vec<bool> = log.lines().filter_map(end).collect();
    (ends.len(), ends.iter().filter(|is_carried| **is_carried).count())
}

#[cfg(test)]
mod model {
    use std::io::Write;

    use super::super::suite::Selected;
    use super::*;
    use crate::scratch::ScratchDirectory;

    /// A suite whose tests have these results in their runs; runs alternate between plain and carried.
    struct Planned(Vec<Results>, std::cell::Cell<usize>);

    impl Suite for Planned {
        fn about(&self) -> &'static str {
            "A plan."
        }

        fn version(&self) -> &str {
            "1"
        }

        fn names(&self) -> Result<Option<Vec<String>>> {
            Ok(Some(self.0[0].keys().cloned().collect()))
        }

        fn run(&self, _: &Launch, only: Selected<'_>, _: &mut dyn Write) -> Result<Results> {
            let run = self.1.replace(self.1.get() + 1);
            let mut results = self.0[run].clone();
            results.retain(|name, _| only.is_none_or(|only| only.contains(name)));
            Ok(results)
        }
    }

    fn results(pairs: &[(&str, &str)]) -> Results {
        pairs.iter().map(|(name, result)| ((*name).to_owned(), (*result).to_owned())).collect()
    }

    fn compare(runs: Vec<Results>, texts: &[&str]) -> Comparison {
        let scratch = ScratchDirectory::new("comparison").unwrap();
        let logs = Logs { directory: scratch.path().to_owned(), explained: false };
        let suite = Planned(runs, std::cell::Cell::new(0));
        let plain = Launch::plain();
        Comparison::of("planned", &suite, [&plain, &plain], &logs, texts).unwrap()
    }

    #[test]
    fn a_test_differs_if_no_plain_run_has_the_result_of_a_carried_one() {
        let first = results(&[("a", "ok"), ("b", "ok"), ("c", "skipped"), ("d", "status 1")]);
        let carried = results(&[("a", "ok"), ("b", "no end"), ("c", "ok"), ("d", "status 1")]);
        let again = results(&[("b", "ok"), ("c", "ok")]);
        let carried_again = results(&[("b", "status 7"), ("c", "ok")]);
        let last = [results(&[("b", "ok")]), results(&[("b", "no end")])];
        let runs = [vec![first, carried, again, carried_again], last.to_vec()].concat();
        let comparison = compare(runs, &[]);
        let both = [vec!["ok".to_owned()], vec!["no end".to_owned(), "status 7".to_owned()]];
        assert_eq!(comparison.differ, BTreeMap::from([("b".to_owned(), both)]));
        assert_eq!((comparison.tests, comparison.skipped, comparison.runs), (4, 1, 3));
        assert_eq!(
            (comparison.plain, comparison.carried),
            (vec!["d".to_owned()], vec!["b".to_owned(), "d".to_owned()])
        );
    }

    #[test]
    fn selected_tests_have_one_of_the_texts() {
        let runs = vec![results(&[("tcp_a", "ok"), ("udp_a", "ok")]); 2];
        let comparison = compare(runs, &["tcp"]);
        assert_eq!((comparison.tests, comparison.runs), (1, 1));
    }

    #[test]
    fn explained_ends_are_counted_in_a_log() {
        let log = "x[7]: 1.2.3.4:5 to 1.2.3.4:6: carried after 2 calls\nx[7]: 1.2.3.4:5 from 1.2.3.4:6: not carried: no peer\n\
            a test: 1 to 2: carried\n";
        assert_eq!(explained(log), (2, 1));
    }
}
