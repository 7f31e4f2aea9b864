//! The checks of this repository that compute or parse, as `cargo xtask CHECK`. `.ci/run` and
//! `.ci/deep` call them, and each can be run alone.
//!
//! A check prints its findings and ends with status 1 if it fails. A check whose tool is missing prints `skipped: CHECK:
//! REASON` and ends with status 0; [`results`] collects these lines. Shell scripts in `.ci` remain for steps that only start
//! programs.
//!
//! | file | contents |
//! |---|---|
//! | `changelog`, `features`, `licences`, `packages`, `purity` | checks of the sources |
//! | `instructions`, `c_call`, `sockets_cost` | instructions of a call, with `callgrind` |
//! | `sockets_checker`, `sockets_differ`, `sockets_suites`, `python_sockets` | programs and test suites, plain and under `apus run` |
//! | `arguments`, `results` | the arguments and the results of a check |
//! | `apus_program`, `counted_programs`, `program`, `cpu_time`, `manifest`, `scratch`, `seed_record` | common parts |

#![forbid(unsafe_code)]

mod apus_program;
mod arguments;
mod c_call;
mod callgrind;
mod changelog;
mod counted_programs;
mod cpu_time;
mod features;
mod instructions;
mod licences;
mod manifest;
mod packages;
mod program;
mod purity;
mod python_sockets;
mod results;
mod scratch;
mod seed_record;
mod sockets_checker;
mod sockets_cost;
mod sockets_differ;
mod sockets_suites;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask CHECK

  c-call                         instructions that the C interface adds to a call; fails if there are more than 150
  changelog                      fragments of changelog.d, and the section of the next release that they give
  changelog VERSION DATE         writes that section to CHANGELOG.md, and removes the fragments
  features                       each crate without features and with all; `features each` with each feature alone as well
  instructions                   instructions and allocations of a call, against docs/measurements/instructions.json
  instructions --record REASON   records them
  licences                       licences and sources of all dependencies, against deny.toml
  packages                       every crate can be published: licences, README, versions, dependencies, docs.rs
  purity                         apus-proto stands on nothing, and unsafe code is where it is allowed
  python-sockets [MODULE...]     CPython's tests of sockets and processes, plain and under `apus run`; --json FILE, --logs DIRECTORY
  results LOG... [-- LOG...]     skipped checks, and the number of tests that passed, failed and were skipped; files after -- have no tests
  results --total LOG...         the number of tests only
  sockets-checker MINUTES        known streams through carried connections: nothing is lost, repeated or out of order
  sockets-cost [KIND...]         instructions and time that `apus run` adds to each call of a program
  sockets-cost --instructions    instructions only; fails if a call takes more than 60 more
  sockets-differ SECONDS         random programs of socket calls, plain and under `apus run`, with the seeds after those of the record
  sockets-differ seed SEED       the difference of a seed, with as few steps as show it
  sockets-suites all [--record]  test suites of other projects, plain and under `apus run`; --record writes docs/measurements/sockets-suites.md
  sockets-suites SUITE [TEXT...] a suite, or its tests whose names have one of the texts; --way APUS_SOCKETS, --explain, --logs DIRECTORY

The checks of sockets take the program from --apus or the variable APUS, and build it otherwise. sockets-differ reads STEPS, the
length of a program (120), LANES, the number of programs that run at a time (4), and FIRST, the first seed.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match check(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check(arguments: &[&str]) -> Result<()> {
    let here = std::env::current_dir().context("the current directory")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace")?;
    std::env::set_current_dir(root).context("the workspace")?;
    match arguments {
        [] => {
            println!("{USAGE}");
            Ok(())
        }
        ["c-call"] => c_call::check(),
        ["changelog"] => changelog::check(None),
        ["changelog", version, date] => changelog::check(Some((version, date))),
        ["features"] => features::check(false),
        ["features", "each"] => features::check(true),
        ["instructions"] => instructions::compare(),
        ["instructions", "--record", reason] => instructions::record(reason),
        ["licences"] => licences::check(),
        ["packages"] => packages::check(),
        ["purity"] => purity::check(),
        ["python-sockets", arguments @ ..] => python_sockets::check(&here, arguments),
        ["results", "--total", logs @ ..] => results::print_total(&here, logs),
        ["results", logs @ ..] => results::print(&here, logs),
        ["sockets-checker", arguments @ ..] => sockets_checker::check(&here, arguments),
        ["sockets-cost", "--instructions"] => sockets_cost::instructions(),
        ["sockets-cost", kinds @ ..] => sockets_cost::instructions_and_times(kinds),
        ["sockets-differ", arguments @ ..] => sockets_differ::check(&here, arguments),
        ["sockets-suites", arguments @ ..] => sockets_suites::check(&here, arguments),
        _ => bail!("{USAGE}"),
    }
}
