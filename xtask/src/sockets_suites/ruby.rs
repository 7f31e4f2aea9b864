//! Ruby's tests of sockets, and of the libraries above them.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result};
use regex::{Regex, escape};

use super::launch::{Call, Launch};
use super::sources::{debian, needs, required};
use super::suite::{Results, SUITE_MAX, Selected, Skip, Sources, Suite, with_status};

const TESTS: [&str; 8] = [
    "test/socket",
    "test/net",
    "test/drb",
    "test/openssl/test_ssl.rb",
    "test/open-uri",
    "test/ruby/test_io.rb",
    "test/ruby/test_io_timeout.rb",
    "test/io",
];

pub(super) struct Ruby {
    sources: Sources,
}

impl Ruby {
    pub(super) fn prepare() -> Result<Self> {
        needs(&["ruby"])?;
        let sources = debian("ruby3.1")?;
        let installed = required(Command::new("ruby").args(["-e", "print RUBY_VERSION"]))?;
        if installed != sources.version {
            let version = &sources.version;
            let reason =
                format!("the sources are those of ruby {version}, and {installed} is installed");
            return Err(Skip(reason).into());
        }
        Ok(Self { sources })
    }
}

impl Suite for Ruby {
    fn about(&self) -> &'static str {
        "Ruby's tests of sockets, and of the libraries above them."
    }

    fn version(&self) -> &str {
        &self.sources.version
    }

    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results> {
        let directory = &self.sources.directory;
        let options = ["-Itool/lib", "-Itest/lib", "test/runner.rb", "--verbose"];
        let names = only.map(|only| {
            let names: Vec<_> = only.iter().map(|name| escape(name)).collect();
            format!("--name=/^({})$/", names.join("|"))
        });
        let tests = TESTS.into_iter().filter(|test| directory.join(test).exists());
        let call = Call::new("ruby", directory).args(options).args(names).args(tests);
        let outcome = launch.run(&call, SUITE_MAX)?;
        log.write_all(outcome.output.as_bytes()).context("the log")?;
        let mut results = with_status(&outcome, only);
        results.extend(of_output(&outcome.output)?);
        Ok(results)
    }
}

/// The results in the output of a run: a line for each test, and a list of those that did not pass.
fn of_output(output: &str) -> Result<Results> {
    let test = Regex::new(r"(?m)^\[ *\d+/\d+\] (\S+) = ")?;
    let failure = Regex::new(r"(?m)^ +\d+\) (Failure|Error|Skipped):\n([\w:]+#\w+)")?;
    let passed = test.captures_iter(output).map(|it| (it[1].to_owned(), "ok".to_owned()));
    let failed = failure.captures_iter(output).map(|it| (it[2].to_owned(), it[1].to_lowercase()));
    Ok(passed.chain(failed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_at_the_end_has_the_failures() {
        let output = "[  1/861] TestIO#test_seek = 0.01 s\n[  2/861] TestSocket#test_a = 0.00 s\n\
            [ 10/861] TestSocket#test_b = 0.00 s\n\n  1) Failure:\nTestIO#test_seek [test_io.rb:5]:\nno\n\n  2) Skipped:\nTestSocket#test_b [x]:\n";
        let results: Vec<_> = of_output(output).unwrap().into_iter().collect();
        let expected = [
            ("TestIO#test_seek", "failure"),
            ("TestSocket#test_a", "ok"),
            ("TestSocket#test_b", "skipped"),
        ];
        assert_eq!(results, expected.map(|(name, result)| (name.to_owned(), result.to_owned())));
    }
}
