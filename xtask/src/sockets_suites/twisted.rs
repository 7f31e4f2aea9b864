//! Twisted's tests of its reactors and of its web server and clients.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use regex::Regex;

use super::launch::{Call, Launch};
use super::sources::{needs, required, work};
use super::suite::{Results, SUITE_MAX, Selected, Suite, with_status};
use crate::scratch::ScratchDirectory;

const MODULES: [&str; 8] = [
    "twisted.internet.test",
    "twisted.web.test",
    "twisted.test.test_tcp",
    "twisted.test.test_internet",
    "twisted.test.test_ssl",
    "twisted.test.test_process",
    "twisted.test.test_unix",
    "twisted.test.test_udp",
];

pub(super) struct Twisted {
    python: PathBuf,
    version: String,
}

impl Twisted {
    pub(super) fn prepare() -> Result<Self> {
        needs(&["python3.11"])?;
        let place = work().join("twisted");
        let python = place.join("bin/python");
        if !python.exists() {
            required(Command::new("/usr/bin/python3.11").args(["-m", "venv"]).arg(&place))?;
        }
        let packages = ["twisted[tls,http2]", "pyhamcrest", "hypothesis", "httpx[http2]"];
        required(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
        let script = "import twisted; print(twisted.__version__)";
        let version = required(Command::new(&python).args(["-c", script]))?.trim().to_owned();
        Ok(Self { python, version })
    }
}

impl Suite for Twisted {
    fn about(&self) -> &'static str {
        "Twisted's tests of its reactors and of its web server and clients."
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results> {
        let selected =
            only.map(|only| only.iter().filter(|it| it.contains('.')).cloned().collect());
        let tests: Vec<String> =
            selected.unwrap_or_else(|| MODULES.iter().map(|it| (*it).to_owned()).collect());
        let place = ScratchDirectory::new("suites-twisted")?;
        let options = ["-m", "twisted.trial", "--reporter=verbose", "--unclean-warnings"];
        let call = Call::new(&self.python, place.path()).args(options).args(tests);
        let outcome = launch.run(&call, SUITE_MAX)?;
        log.write_all(outcome.output.as_bytes()).context("the log")?;
        let mut results = with_status(&outcome, only);
        results.extend(of_output(&outcome.output)?);
        Ok(results)
    }
}

/// The results in a verbose report: modules, below them classes, and below those tests with their results.
fn of_output(output: &str) -> Result<Results> {
    let entry = Regex::new(r"^( *)(\w[\w.]*)( \.\.\. .*)?$")?;
    let at_end = Regex::new(r"\[(OK|FAIL|ERROR|SKIPPED|TODO|SUCCESS!\?!)\]$")?;
    let result = Regex::new(r"\[([A-Z!?]+)\]$")?;
    let (mut results, mut module, mut class, mut test) = (Results::new(), "", "", String::new());
    for line in output.lines() {
        let Some(found) = entry.captures(line) else {
            // The result follows the output of the test.
            if let Some(last) = at_end.captures(line)
                && !test.is_empty()
            {
                results.entry(test.clone()).or_insert_with(|| last[1].to_lowercase());
            }
            continue;
        };
        let name = found.get(2).map_or("", |it| it.as_str());
        match (found[1].len(), found.get(3)) {
            (0, _) if name.contains('.') => module = name,
            (2, None) => class = name,
            (4, Some(_)) => {
                test = format!("{module}.{class}.{name}");
                if let Some(result) = result.captures(line) {
                    results.insert(test.clone(), result[1].to_lowercase());
                }
            }
            _ => {}
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_stands_behind_the_test_or_its_output() {
        let output = "\
twisted.test.test_tcp
  ClientTests
    test_interface ...                                                     [OK]
    test_output ... some text
more text                                                               [ERROR]
    test_later ...                                                       [TODO]
  ServerTests
    test_interface ...                                            [SUCCESS!?!]
";
        let results: Vec<_> = of_output(output).unwrap().into_iter().collect();
        let expected = [
            ("twisted.test.test_tcp.ClientTests.test_interface", "ok"),
            ("twisted.test.test_tcp.ClientTests.test_later", "todo"),
            ("twisted.test.test_tcp.ClientTests.test_output", "error"),
            ("twisted.test.test_tcp.ServerTests.test_interface", "success!?!"),
        ];
        assert_eq!(results, expected.map(|(name, result)| (name.to_owned(), result.to_owned())));
    }
}
