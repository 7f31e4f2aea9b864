//! `regress` of libevent, once with each of its backends.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::launch::{Call, Launch, Outcome};
use super::sources::{build, debian, needs, required};
use super::suite::{Results, Selected, Sources, Suite, by_status, run_each};

/// Backends, and the variables that switch others off.
const BACKENDS: [(&str, &[&str]); 3] =
    [("epoll", &[]), ("poll", &["EVENT_NOEPOLL"]), ("select", &["EVENT_NOEPOLL", "EVENT_NOPOLL"])];

pub(super) struct Libevent {
    sources: Sources,
    program: PathBuf,
}

impl Libevent {
    pub(super) fn prepare() -> Result<Self> {
        needs(&["cmake", "cc", "make"])?;
        let sources = debian("libevent")?;
        let configure = [
            "cmake",
            "-S",
            ".",
            "-B",
            "b",
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_C_FLAGS=-w",
            "-DEVENT__DISABLE_SAMPLES=ON",
            "-DEVENT__DISABLE_BENCHMARK=ON",
            "-DEVENT__LIBRARY_TYPE=STATIC",
        ];
        build(&sources.directory, &[&configure, &["make", "-C", "b", "-j2", "regress"]])?;
        let program = sources.directory.join("b/bin/regress");
        Ok(Self { sources, program })
    }

    fn call(&self, name: &str) -> Call {
        let (backend, test) = name.split_once(": ").unwrap_or(("epoll", name));
        let call = Call::new(&self.program, &self.sources.directory).args([test]);
        let variables = BACKENDS.iter().find(|(name, _)| *name == backend);
        variables.iter().flat_map(|(_, names)| *names).fold(call, |call, name| call.env(name, "1"))
    }
}

impl Suite for Libevent {
    fn about(&self) -> &'static str {
        "`regress` of libevent, once with each of its backends."
    }

    fn version(&self) -> &str {
        &self.sources.version
    }

    fn names(&self) -> Result<Option<Vec<String>>> {
        let listed = required(Command::new(&self.program).arg("--list-tests"))?;
        let tests: Vec<&str> = listed_tests(&listed).collect();
        let of_backend = |(backend, _): &(&str, _)| {
            tests.iter().map(|test| format!("{backend}: {test}")).collect::<Vec<_>>()
        };
        Ok(Some(BACKENDS.iter().flat_map(of_backend).collect()))
    }

    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results> {
        let names = self.names()?.unwrap_or_default();
        run_each(&names, launch, only, log, |name| self.call(name), result)
    }
}

/// The tests of a list: lines of a group and a name, indented by four spaces.
fn listed_tests(listed: &str) -> impl Iterator<Item = &str> {
    let names = listed.lines().filter_map(|line| line.strip_prefix("    "));
    names.filter(|name| name.contains('/') && !name.contains(char::is_whitespace))
}

fn result(outcome: &Outcome) -> String {
    let is_skipped = outcome.status == Some(0) && outcome.output.contains("SKIPPED");
    if is_skipped { "skipped".to_owned() } else { by_status(outcome.status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_listed_by_group() {
        let listed =
            "List of tests:\n    main/methods\n    http/base\n  a note\n     x/y z\n    x\n";
        assert_eq!(listed_tests(listed).collect::<Vec<_>>(), ["main/methods", "http/base"]);
    }
}
