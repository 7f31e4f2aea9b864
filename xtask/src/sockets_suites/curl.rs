//! curl's own tests, with the servers that come with them.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::unistd::{User, geteuid};

use super::launch::{Call, Launch};
use super::sources::{build, debian, needs};
use super::suite::{Results, SUITE_MAX, Selected, Sources, Suite, with_status};

const CONFIGURE: &str = "cd b && ../configure --with-openssl --disable-shared --enable-debug --disable-manual --without-libpsl \
     --without-brotli --without-zstd --without-libidn2 --disable-ldap CFLAGS='-O1 -w'";

pub(super) struct Curl {
    sources: Sources,
    /// The directory of the built tests.
    place: PathBuf,
}

impl Curl {
    pub(super) fn prepare() -> Result<Self> {
        needs(&["cc", "make", "perl"])?;
        let sources = debian("curl")?;
        let place = sources.directory.join("b");
        fs::create_dir_all(&place).context("target/suites")?;
        let make = |directory| ["make", "-C", directory, "-j2"];
        build(
            &sources.directory,
            &[
                &["sh", "-c", CONFIGURE],
                &make("b"),
                &make("b/tests"),
                &make("b/tests/server"),
                &make("b/tests/libtest"),
                &make("b/tests/unit"),
            ],
        )?;
        Ok(Self { sources, place: place.join("tests") })
    }
}

impl Suite for Curl {
    fn about(&self) -> &'static str {
        "curl's own tests, with the servers that come with them. Those that need other programs say so themselves."
    }

    fn version(&self) -> &str {
        &self.sources.version
    }

    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results> {
        let is_number = |name: &&String| name.bytes().all(|it| it.is_ascii_digit());
        let selected: Vec<&String> = only.into_iter().flatten().filter(is_number).collect();
        if only.is_some() && selected.is_empty() {
            return Ok(Results::new());
        }
        let tests = self.sources.directory.join("tests");
        let user = User::from_uid(geteuid()).ok().flatten().map_or_else(String::new, |it| it.name);
        let call = Call::new("perl", &self.place)
            .args([format!("-I{}", tests.display())])
            .args([tests.join("runtests.pl")])
            .args(["-a", "-n", "-am"])
            .args(selected)
            .env("srcdir", &tests)
            .env("USER", user);
        let outcome = launch.run(&call, SUITE_MAX)?;
        log.write_all(outcome.output.as_bytes()).context("the log")?;
        let mut results = with_status(&outcome, only);
        results.extend(outcome.output.lines().filter_map(of_line));
        Ok(results)
    }
}

/// The number and result of `PASS: 12 - NAME`.
fn of_line(line: &str) -> Option<(String, String)> {
    let (result, rest) = line.split_once(": ")?;
    let result = match result {
        "PASS" => "ok",
        "FAIL" => "failed",
        "SKIP" | "IGNORED" => "skipped",
        _ => return None,
    };
    let (number, _) = rest.split_once(" - ")?;
    let is_number = !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit());
    is_number.then(|| (number.to_owned(), result.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_by_number() {
        let of = |line| of_line(line).map(|(number, result)| format!("{number} {result}"));
        assert_eq!(of("PASS: 12 - HTTP GET - order"), Some("12 ok".to_owned()));
        assert_eq!(of("IGNORED: 7 - flaky"), Some("7 skipped".to_owned()));
        assert_eq!(of("FAIL: x - y"), None);
        assert_eq!(of("PASSED: 7 - y"), None);
    }
}
