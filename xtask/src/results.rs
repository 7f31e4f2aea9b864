//! The results of a run of `.ci/run` or `.ci/deep`, from the outputs of its steps: skipped checks, and numbers of tests.

use std::path::Path;

use anyhow::Result;

use crate::program::read;

/// The outputs of several steps.
#[derive(Default, PartialEq, Eq, Debug)]
struct Results {
    passed: u64,
    failed: u64,
    /// Number of tests that `.cargo/test-runner` reports as skipped. Tests that are ignored for another reason are parts of other
    /// tests, which start them.
    skipped: u64,
    /// Skipped checks and tests, each with its reason.
    reasons: Vec<String>,
}

/// Prints the skipped checks and the numbers of tests. Logs after `--` have skipped checks and no tests.
pub(crate) fn print(directory: &Path, logs: &[&str]) -> Result<()> {
    let (mut results, mut has_tests) = (Results::default(), true);
    for log in logs {
        if *log == "--" {
            has_tests = false;
            continue;
        }
        let text = read(directory.join(log))?;
        results.add_reasons(&text);
        if has_tests {
            results.add_tests(&text);
        }
    }
    println!("\n== skipped: {}", results.reasons.len());
    results.reasons.iter().for_each(|reason| println!("{reason}"));
    println!("\n== tests\n{}", results.total());
    Ok(())
}

/// Prints the numbers of tests.
pub(crate) fn print_total(directory: &Path, logs: &[&str]) -> Result<()> {
    let mut results = Results::default();
    for log in logs {
        results.add_tests(&read(directory.join(log))?);
    }
    println!("{}", results.total());
    Ok(())
}

impl Results {
    /// Adds up the lines `test result: ok. N passed; N failed; …`.
    fn add_tests(&mut self, log: &str) {
        for line in log.lines() {
            if let Some((passed, failed)) = result(line) {
                self.passed += passed;
                self.failed += failed;
            }
            self.skipped += u64::from(skipped_test(line).is_some());
        }
    }

    /// Adds the lines `skipped: CHECK: REASON` and `test TEST ... ignored, skipped: REASON`, each once for a log.
    fn add_reasons(&mut self, log: &str) {
        let reasons = log.lines().filter_map(|line| {
            let check = line.strip_prefix("skipped: ").map(str::to_owned);
            check.or_else(|| skipped_test(line).map(|(test, reason)| format!("{test}: {reason}")))
        });
        let mut reasons: Vec<String> = reasons.collect();
        reasons.sort_unstable();
        reasons.dedup();
        self.reasons.append(&mut reasons);
    }

    fn total(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Returns the numbers of passed and failed tests in a line of Rust's test harness.
fn result(line: &str) -> Option<(u64, u64)> {
    let mut parts = line.strip_prefix("test result: ")?.split("; ");
    let (passed, failed) = (parts.next()?, parts.next()?);
    let passed = passed.strip_suffix(" passed")?.rsplit(' ').next()?;
    Some((passed.parse().ok()?, failed.strip_suffix(" failed")?.parse().ok()?))
}

/// Returns the name of a skipped test, and the reason.
fn skipped_test(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.split_once(" ... ignored, skipped: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
running 3 tests
test a ... ok
test b ... ignored, skipped: no NIC
test c ... ignored, a part of a
test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s
skipped: the book: mdBook cannot be installed
test result: FAILED. 20 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s
test b ... ignored, skipped: no NIC
test result: unknown
";

    #[test]
    fn the_tests_of_all_programs_are_added_up() {
        let mut results = Results::default();
        results.add_tests(LOG);
        assert_eq!(results, Results { passed: 21, failed: 3, skipped: 2, reasons: Vec::new() });
        assert_eq!(results.total(), "21 passed, 3 failed, 2 skipped");
    }

    #[test]
    fn a_log_names_each_reason_once() {
        let mut results = Results::default();
        results.add_reasons(LOG);
        results.add_reasons("skipped: licences: no network");
        let expected =
            ["b: no NIC", "the book: mdBook cannot be installed", "licences: no network"];
        assert_eq!(results.reasons, expected);
        assert_eq!(results.total(), "0 passed, 0 failed, 0 skipped");
    }
}
