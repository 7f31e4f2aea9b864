//! Test suites of other projects, plain and under `apus run`: the results are compared test by test.
//!
//! Sources come from Debian (`apt-get source`) and PyPI, into `target/suites`. As root, each run is in a network namespace of its
//! own with a loopback interface only. A test whose results differ is run again, up to twice, plain and carried: it differs if no
//! plain run has the result of a carried one. A suite that cannot be built or run here is skipped, with the reason.
//!
//! | file | |
//! |---|---|
//! | `suite` | a suite, its results, and the reason why it is skipped |
//! | `launch` | the start of a program: its namespace, process group and time limit |
//! | `sources` | sources of Debian, and builds |
//! | `comparison` | runs of a suite, and the tests that differ |
//! | `record` | docs/measurements/sockets-suites.md and its data |
//! | `libevent`, `libuv`, `perl`, `ruby`, `twisted`, `curl`, `cpython` | the suites |

mod comparison;
pub(crate) mod cpython;
mod curl;
pub(crate) mod launch;
mod libevent;
mod libuv;
mod perl;
mod record;
mod ruby;
mod sources;
pub(crate) mod suite;
mod twisted;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apus_program::ApusProgram;
use crate::arguments::Arguments;
use crate::program::output;
use crate::seed_record::today;
use comparison::{Comparison, Logs};
use launch::Launch;
use record::Entry;
use suite::{Skip, Suite};

/// The names of the suites, in the order of the record.
const SUITES: [&str; 7] = ["cpython", "libevent", "libuv", "twisted", "ruby", "perl", "curl"];

const USAGE: &str =
    "sockets-suites all|SUITE... [--record] [--apus PROGRAM] [--way APUS_SOCKETS] [--explain] [--logs DIRECTORY]
sockets-suites SUITE TEXT...   the tests of a suite whose names have one of these texts
The suites are cpython, libevent, libuv, twisted, ruby, perl and curl.";

/// Runs suites, and compares their results.
pub(crate) fn check(directory: &Path, arguments: &[&str]) -> Result<()> {
    let arguments = Arguments::parse(arguments, &["explain", "record"], &["apus", "logs", "way"])?;
    let (names, texts) = selection(&arguments.words)?;
    let apus = ApusProgram::find(directory, arguments.value("apus"))?;
    let logs = arguments.value("logs").map(|logs| directory.join(logs));
    let logs = logs.unwrap_or_else(|| sources::work().join("logs"));
    fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    // Short tests would end before their connections are carried otherwise.
    let mut variables =
        BTreeMap::from([("APUS_SOCKETS", arguments.value("way").unwrap_or("early"))]);
    if arguments.has("explain") {
        variables.insert("APUS_EXPLAIN", "1");
    }
    let carried = Launch::carried(&apus.path, &variables);
    let logs = Logs { directory: logs, explained: explains(&variables) };
    let mut entries = Vec::new();
    for name in names {
        let result = compare(name, &carried, &logs, &texts);
        let comparison = match result {
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(Skip(reason)) => {
                    println!("skipped: {name} under apus run: {reason}");
                    Err(reason.clone())
                }
                None => return Err(error),
            },
            Ok(comparison) => Ok(comparison),
        };
        entries.push(Entry { suite: name, comparison, date: today()?, commit: commit()? });
    }
    if arguments.has("record") && texts.is_empty() {
        record::write(&entries)?;
    }
    let compared = || entries.iter().filter_map(|entry| entry.comparison.as_ref().ok());
    let differ: usize = compared().map(|it| it.differ.len()).sum();
    println!("{} tests: {differ} differ", compared().map(|it| it.tests).sum::<usize>());
    if differ > 0 {
        bail!("{differ} tests differ");
    }
    Ok(())
}

/// The suites to run, and the texts that select tests.
fn selection<'a>(words: &[&'a str]) -> Result<(Vec<&'static str>, Vec<&'a str>)> {
    let known = |word: &str| SUITES.into_iter().find(|name| *name == word);
    match words {
        [] => bail!("{USAGE}"),
        ["all"] => Ok((SUITES.to_vec(), Vec::new())),
        [first, texts @ ..] => {
            let all: Option<Vec<_>> = words.iter().map(|word| known(word)).collect();
            if let Some(names) = all {
                return Ok((names, Vec::new()));
            }
            let name = known(first).with_context(|| format!("there is no suite {first}"))?;
            Ok((vec![name], texts.to_vec()))
        }
    }
}

fn compare(name: &str, carried: &Launch, logs: &Logs, texts: &[&str]) -> Result<Comparison> {
    let suite: Box<dyn Suite> = match name {
        "cpython" => Box::new(cpython::Cpython::prepare()?),
        "libevent" => Box::new(libevent::Libevent::prepare()?),
        "libuv" => Box::new(libuv::Libuv::prepare()?),
        "twisted" => Box::new(twisted::Twisted::prepare()?),
        "ruby" => Box::new(ruby::Ruby::prepare()?),
        "perl" => Box::new(perl::Perl::prepare()?),
        _ => Box::new(curl::Curl::prepare()?),
    };
    let comparison = Comparison::of(name, &*suite, [&Launch::plain(), carried], logs, texts)?;
    comparison.print(name, logs)?;
    Ok(comparison)
}

/// Whether carried runs explain their connections.
fn explains(variables: &BTreeMap<&str, &str>) -> bool {
    variables.contains_key("APUS_EXPLAIN") || std::env::var_os("APUS_EXPLAIN").is_some()
}

fn commit() -> Result<String> {
    output(Command::new("git").args(["describe", "--always", "--dirty"]))
}

/// The file of a log.
fn log_file(directory: &Path, suite: &str, launch: &str, turn: usize) -> PathBuf {
    directory.join(format!("{suite}-{launch}-{turn}.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_select_suites_or_tests_of_one() {
        assert_eq!(selection(&["all"]).unwrap(), (SUITES.to_vec(), vec![]));
        assert_eq!(selection(&["libevent", "curl"]).unwrap(), (vec!["libevent", "curl"], vec![]));
        let (names, texts) = selection(&["libuv", "tcp_ping", "curl"]).unwrap();
        assert_eq!((names, texts), (vec!["libuv"], vec!["tcp_ping", "curl"]));
        assert!(selection(&["tcp_ping"]).is_err() && selection(&[]).is_err());
    }
}
