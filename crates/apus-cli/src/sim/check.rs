//! `apus sim check`: the fault campaign.

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::Command;

use anyhow::{Result, anyhow};
use apus_sim::check::{Part, check, log, minimize};

use crate::output;
use crate::progress::Progress;

/// Runs the protocol on bad networks, one for each seed, and checks that every promise holds
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus sim check --seeds 0..10000
  apus sim check --seeds 4711..4712 --log | less
  apus sim check --seeds 0..1000 --minimize

A failure names its seed, this program's version and the command that gives it again.")]
pub(crate) struct Args {
    /// From the first to before the last
    #[arg(long, value_name = "A..B", default_value = "0..200", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Show everything that happens
    #[arg(long)]
    log: bool,
    /// Take out of a failing run what the failure does not need
    #[arg(long)]
    minimize: bool,
    /// Only these calls of the scenario, or none
    #[arg(long, value_name = "LIST", value_parser = parse_list)]
    calls: Option<Numbers>,
    /// Only these faults of the scenario, or none
    #[arg(long, value_name = "LIST", value_parser = parse_list)]
    faults: Option<Numbers>,
}

/// Numbers as one argument.
#[derive(Clone, Debug)]
struct Numbers(BTreeSet<usize>);

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let error = || format!("`{text}` is no range of seeds such as 0..200");
    let (from, to) = text.split_once("..").ok_or_else(error)?;
    let range = from.parse().map_err(|_| error())?..to.parse().map_err(|_| error())?;
    if range.is_empty() { Err(error()) } else { Ok(range) }
}

fn parse_list(text: &str) -> Result<Numbers, String> {
    if text == "none" {
        return Ok(Numbers(BTreeSet::new()));
    }
    let numbers: Result<_, _> = text.split(',').map(str::parse).collect();
    numbers.map(Numbers).map_err(|_| format!("`{text}` is neither `none` nor numbers such as 0,3"))
}

/// Runs the seeds.
///
/// # Errors
/// When something did not hold.
pub(crate) fn run(args: &Args) -> Result<()> {
    let part = Part {
        calls: args.calls.clone().map(|numbers| numbers.0),
        faults: args.faults.clone().map(|numbers| numbers.0),
    };
    // A panic of the core is one of the failures looked for, and told below.
    std::panic::set_hook(Box::new(|_| {}));
    let progress = Progress::new(args.seeds.end - args.seeds.start);
    let (mut failures, mut calls, mut answered, mut packets, mut faults) = (0, 0, 0, 0, 0);
    for seed in args.seeds.clone() {
        progress.begin(&format!("seed {seed}, {failures} failures"));
        match check(seed, &part) {
            Ok(tally) => {
                calls += tally.calls;
                answered += tally.answered;
                packets += tally.packets;
                faults += tally.faults;
            }
            Err(failure) => {
                failures += 1;
                let failure = if args.minimize { minimize(&failure) } else { *failure };
                output::print(&format!(
                    "seed {seed}, apus {} commit {}: {}\n  apus sim check {}\n",
                    env!("CARGO_PKG_VERSION"),
                    commit(),
                    failure.violation,
                    failure.replay()
                ))?;
            }
        }
        if args.log {
            output::print(&format!("{}\n", log(seed, &part).join("\n")))?;
        }
        progress.done();
    }
    drop(progress);
    let _ = std::panic::take_hook();
    let seeds = args.seeds.end - args.seeds.start;
    output::print(&format!(
        "{seeds} seeds, {failures} failures: {calls} calls, {answered} answered, {packets} packets, {faults} faults\n"
    ))?;
    if failures > 0 { Err(anyhow!("{failures} of {seeds} seeds failed")) } else { Ok(()) }
}

/// The commit of the program: what the build was told in `APUS_COMMIT`, otherwise that of the sources
/// it was built from, if they are still there.
fn commit() -> String {
    if let Some(commit) = option_env!("APUS_COMMIT") {
        return commit.to_owned();
    }
    let asked = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short=12", "HEAD"])
        .output();
    match asked {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_and_lists_read() {
        assert_eq!(parse_seeds("3..7"), Ok(3..7));
        assert!(parse_seeds("7..3").is_err() && parse_seeds("7").is_err());
        assert_eq!(parse_list("3,1").unwrap().0, [1, 3].into());
        assert!(parse_list("none").unwrap().0.is_empty() && parse_list("x").is_err());
    }
}
