//! CPython's own tests of sockets and processes, from Debian's libpython3.11-testsuite.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use roxmltree::{Document, Node};

use super::launch::{Call, Launch};
use super::sources::required;
use super::suite::{Results, Selected, Skip, Suite};
use crate::scratch::ScratchDirectory;

/// The modules of tests.
pub(crate) const MODULES: [&str; 29] = [
    "test_socket",
    "test_selectors",
    "test_select",
    "test_poll",
    "test_epoll",
    "test_socketserver",
    "test_asyncio",
    "test_ssl",
    "test_httplib",
    "test_ftplib",
    "test_smtplib",
    "test_urllib2_localnet",
    "test_subprocess",
    "test_asyncore",
    "test_asynchat",
    "test_imaplib",
    "test_telnetlib",
    "test_httpservers",
    "test_xmlrpc",
    "test_wsgiref",
    "test_eintr",
    "test_os",
    "test_posix",
    "test_fork1",
    "test_signal",
    "test_fcntl",
    "test_ioctl",
    "test_pty",
    "test_threadsignals",
];

const PYTHON: &str = "/usr/bin/python3.11";

/// Time limit of a module.
const MODULE_MAX: Duration = Duration::from_secs(900);

/// The result of a module.
pub(crate) struct ModuleRun {
    pub(crate) results: Results,
    pub(crate) output: String,
    pub(crate) took: Duration,
}

pub(crate) struct Cpython {
    version: String,
}

impl Cpython {
    /// Finds the tests.
    ///
    /// # Errors
    /// [`Skip`] if they are not installed.
    pub(crate) fn prepare() -> Result<Self> {
        if !Path::new(PYTHON).exists() {
            return Err(Skip(format!("{PYTHON} is not installed")).into());
        }
        required(Command::new(PYTHON).args(["-c", "import test.test_socket"]))
            .map_err(|_| Skip("libpython3.11-testsuite is not installed".to_owned()))?;
        let script = "import platform; print(platform.python_version())";
        let version = required(Command::new(PYTHON).args(["-c", script]))?.trim().to_owned();
        Ok(Self { version })
    }

    /// Runs the tests of a module.
    ///
    /// # Errors
    /// If Python cannot be started.
    pub(crate) fn run_module(module: &str, launch: &Launch) -> Result<ModuleRun> {
        let place = ScratchDirectory::new("suites-cpython")?;
        let record = place.join("record.xml");
        // These tests stay on the loopback interface, but ask for a resource that others use to reach hosts of the internet.
        let resources = (module == "test_socketserver").then_some(["-u", "network"]);
        let call = Call::new(PYTHON, place.path())
            // VSOCK tests hang on some virtual machines, plain as well.
            .args(["-m", "test", "-i", "*VSOCK*", "--junit-xml"])
            .args([&record])
            .args(resources.into_iter().flatten())
            .args([module]);
        let began = Instant::now();
        let outcome = launch.run(&call, MODULE_MAX)?;
        let took = began.elapsed();
        let Some(status) = outcome.status else {
            let result = format!("no end after {} s", MODULE_MAX.as_secs());
            let results = Results::from([(WHOLE.to_owned(), result)]);
            return Ok(ModuleRun { results, output: outcome.output, took });
        };
        let mut results = Results::from([(EXIT_STATUS.to_owned(), status.to_string())]);
        match std::fs::read_to_string(&record).ok().and_then(|text| of_record(&text)) {
            Some(tests) => results.extend(tests),
            None => {
                results.insert(WHOLE.to_owned(), "no record was written".to_owned());
            }
        }
        Ok(ModuleRun { results, output: outcome.output, took })
    }
}

const WHOLE: &str = "(the suite)";
const EXIT_STATUS: &str = "(exit status)";

impl Suite for Cpython {
    fn about(&self) -> &'static str {
        "CPython's own tests, by `cargo xtask python-sockets`, which has the list."
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn run(&self, launch: &Launch, only: Selected<'_>, log: &mut dyn Write) -> Result<Results> {
        let has_selected = |module: &str| {
            let prefix = format!("{module}: ");
            only.is_none_or(|only| only.iter().any(|name| name.starts_with(&prefix)))
        };
        let mut results = Results::new();
        for module in MODULES.into_iter().filter(|module| has_selected(module)) {
            let run = Self::run_module(module, launch)?;
            writeln!(log, "== {module}\n{}", run.output).context("the log")?;
            results.extend(
                run.results.into_iter().map(|(name, result)| (format!("{module}: {name}"), result)),
            );
        }
        Ok(results)
    }
}

/// The results of a record in JUnit's format; `None` if it is no XML.
fn of_record(text: &str) -> Option<Results> {
    let document = Document::parse(text).ok()?;
    let cases = document.descendants().filter(|node| node.has_tag_name("testcase"));
    Some(
        cases.filter_map(|case| Some((case.attribute("name")?.to_owned(), result(case)))).collect(),
    )
}

fn result(case: Node<'_, '_>) -> String {
    let child = |name| case.children().find(|node| node.has_tag_name(name));
    for kind in ["failure", "error"] {
        if let Some(found) = child(kind) {
            let message = found.attribute("message").filter(|text| !text.is_empty());
            let text = message.or_else(|| found.text()).unwrap_or_default();
            let last = text.trim().lines().next_back().unwrap_or_default();
            return format!("{kind}: {last}");
        }
    }
    let result = || case.attribute("result").unwrap_or("completed");
    if child("skipped").is_some() { "skipped".to_owned() } else { result().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_result_of_each_test() {
        let record = "<testsuites><testsuite>\
            <testcase name=\"a\" result=\"completed\" />\
            <testcase name=\"b\"><skipped>no IPv6</skipped></testcase>\
            <testcase name=\"c\"><error message=\"\">Traceback\nOSError: [Errno 104]\n</error></testcase>\
            <testcase name=\"d\"><failure message=\"1 != 2\">x</failure></testcase>\
            </testsuite></testsuites>";
        let results: Vec<_> = of_record(record).unwrap().into_iter().collect();
        let expected = [
            ("a", "completed"),
            ("b", "skipped"),
            ("c", "error: OSError: [Errno 104]"),
            ("d", "failure: 1 != 2"),
        ];
        assert_eq!(results, expected.map(|(name, result)| (name.to_owned(), result.to_owned())));
        assert!(of_record("<testsuites>").is_none());
    }
}
