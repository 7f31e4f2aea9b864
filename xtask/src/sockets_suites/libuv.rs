//! `uv_run_tests` of libuv, as a user without privileges, which it demands.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use nix::unistd::geteuid;

use super::launch::{Call, Launch, Outcome};
use super::sources::{build, debian, needs, required};
use super::suite::{Results, Selected, Sources, Suite, by_status, run_each};
use crate::scratch::ScratchDirectory;

/// Words that make a root process one of the user `www-data`.
const AS_USER: [&str; 4] = ["setpriv", "--reuid=33", "--regid=33", "--clear-groups"];

pub(super) struct Libuv {
    sources: Sources,
    program: PathBuf,
    /// Tests write into their directory.
    place: ScratchDirectory,
    as_user: &'static [&'static str],
}

impl Libuv {
    pub(super) fn prepare() -> Result<Self> {
        needs(&["cmake", "cc", "make"])?;
        let sources = debian("libuv1")?;
        let configure =
            ["cmake", "-S", ".", "-B", "b", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS=-w"];
        build(&sources.directory, &[&configure, &["make", "-C", "b", "-j2", "uv_run_tests"]])?;
        let place = ScratchDirectory::new("suites-libuv")?;
        fs::create_dir(place.join("test")).context("a directory for tests")?;
        let fixtures = sources.directory.join("test/fixtures");
        required(Command::new("cp").arg("-R").arg(fixtures).arg(place.join("test/fixtures")))?;
        let is_root = geteuid().is_root();
        if is_root {
            required(Command::new("chown").args(["-R", "33:33"]).arg(place.path()))?;
        }
        let program = sources.directory.join("b/uv_run_tests");
        let as_user: &[&str] = if is_root { &AS_USER } else { &[] };
        Ok(Self { sources, program, place, as_user })
    }

    fn call(&self, name: &str) -> Call {
        let call = Call::new(&self.program, self.place.path()).args([name]).before(self.as_user);
        call.env("HOME", self.place.path()).env("TMPDIR", self.place.path())
    }
}

impl Suite for Libuv {
    fn about(&self) -> &'static str {
        "`uv_run_tests` of libuv, as a user without privileges, which it demands."
    }

    fn version(&self) -> &str {
        &self.sources.version
    }

    fn names(&self) -> Result<Option<Vec<String>>> {
        let mut words: Vec<_> = self.as_user.iter().map(PathBuf::from).collect();
        words.push(self.program.clone());
        let mut command = Command::new(&words[0]);
        let listed =
            required(command.args(&words[1..]).arg("--list").current_dir(self.place.path()))?;
        Ok(Some(listed.lines().filter(|name| is_name(name)).map(str::to_owned).collect()))
    }

    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results> {
        let names = self.names()?.unwrap_or_default();
        run_each(&names, launch, only, log, |name| self.call(name), result)
    }
}

fn is_name(line: &str) -> bool {
    !line.is_empty() && line.chars().all(|it| it.is_alphanumeric() || it == '_')
}

fn result(outcome: &Outcome) -> String {
    let Outcome { status, output } = outcome;
    let says_skip = *status == Some(0) && output.to_lowercase().contains("skip");
    if output.contains("# SKIP") || says_skip { "skipped".to_owned() } else { by_status(*status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_may_skip_itself_in_several_ways() {
        let result = |status, output: &str| result(&Outcome { status, output: output.to_owned() });
        assert_eq!(result(Some(1), "ok 1 # SKIP no IPv6"), "skipped");
        assert_eq!(result(Some(0), "Skipped: no route"), "skipped");
        assert_eq!([result(Some(1), "skip"), result(Some(0), "ok 1")], ["status 1", "ok"]);
        assert!(is_name("tcp_ping_pong") && !is_name("a b") && !is_name(""));
    }
}
