//! `apus sim check`: the fault campaign.

use std::collections::BTreeSet;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, anyhow};
use apus_load::misuse::Misuse;
use apus_load::progress::Progress as _;
use apus_sim::check::{Failure, ScenarioSubset, Tally, check, log, minimize};

use super::record::{CheckLog, Counts, Failed, SeedRange};
use crate::output::{self, JsonArgs};
use crate::progress::Bar;

/// Run the protocol on faulty networks, one for each seed, and check its promises
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus sim check --seeds 0..10000
  apus sim check --sealed --seeds 0..10000
  apus sim check --seeds 4711..4712 --log | less
  apus sim check --seeds 0..1000 --minimize --json failures.json
  apus sim check --seeds 1000000..2000000 --record docs/measurements/sim-check.json

A failure names its seed, the version of this program and the command that repeats it. With --record, FILE lists every finished \
range with its commit; the same command continues a stopped run.")]
pub(crate) struct Args {
    /// Seeds: A to B − 1
    #[arg(long, value_name = "A..B", default_value = "0..200", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Seal the packets of the nodes, with faults below sealing and an attacker on the path
    #[arg(long)]
    sealed: bool,
    /// Simultaneous seeds, each on its own core [default: all cores]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Append each finished range to FILE, and skip ranges that FILE has for this commit
    #[arg(long, value_name = "FILE", conflicts_with_all = ["log", "calls", "faults"])]
    record: Option<PathBuf>,
    /// Seeds per range of the record
    #[arg(long, value_name = "N", default_value = "20000")]
    range: NonZeroU64,
    /// Show every packet and event
    #[arg(long, conflicts_with = "json")]
    log: bool,
    /// Remove calls and faults that a failure does not need
    #[arg(long)]
    minimize: bool,
    /// Run only these calls of the scenario, or none
    #[arg(long, value_name = "LIST", value_parser = parse_list)]
    calls: Option<Numbers>,
    /// Apply only these faults of the scenario, or none
    #[arg(long, value_name = "LIST", value_parser = parse_list)]
    faults: Option<Numbers>,
    #[command(flatten)]
    json: JsonArgs,
}

/// Numbers as one argument.
#[derive(Clone, Debug)]
struct Numbers(BTreeSet<usize>);

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let error = || format!("`{text}`: expected a range of seeds such as 0..200");
    let (from, to) = text.split_once("..").ok_or_else(error)?;
    let range = from.parse().map_err(|_| error())?..to.parse().map_err(|_| error())?;
    if range.is_empty() { Err(error()) } else { Ok(range) }
}

fn parse_list(text: &str) -> Result<Numbers, String> {
    if text == "none" {
        return Ok(Numbers(BTreeSet::new()));
    }
    let numbers: Result<_, _> = text.split(',').map(str::parse).collect();
    numbers.map(Numbers).map_err(|_| format!("`{text}`: expected `none`, or numbers such as 0,3"))
}

/// Runs the seeds.
///
/// # Errors
/// When something did not hold, or the record cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let campaign = Campaign {
        args,
        part: ScenarioSubset {
            is_sealed: args.sealed,
            calls: args.calls.clone().map(|numbers| numbers.0),
            faults: args.faults.clone().map(|numbers| numbers.0),
        },
        commit: commit(),
        jobs: jobs(args),
    };
    // A panic of the core is one of the failures that the check searches for; it is reported below.
    std::panic::set_hook(Box::new(|_| {}));
    let result = match &args.record {
        Some(path) => campaign.record(path),
        None => {
            let progress = Bar::new();
            progress.lengthen(args.seeds.end - args.seeds.start);
            campaign.range(&args.seeds, &progress)
        }
    };
    let _ = std::panic::take_hook();
    let entry = result?;
    let text = || {
        let Counts { calls, answered, packets, faults, .. } = entry.counts;
        format!(
            "{} seeds, {} failures: {calls} calls, {answered} answered, {packets} packets, {faults} faults\n",
            args.seeds.end - args.seeds.start,
            entry.failures.len()
        )
    };
    args.json.deliver_value(&entry, text)?;
    let (failures, seeds) = (entry.failures, args.seeds.end - args.seeds.start);
    match failures.len() {
        0 => Ok(()),
        failures => Err(anyhow!("{failures} of {seeds} seeds failed")),
    }
}

/// The number of seeds that run at a time. Output in full is shown in order.
fn jobs(args: &Args) -> NonZeroUsize {
    if args.log {
        return NonZeroUsize::MIN;
    }
    let cores = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    args.jobs.unwrap_or_else(cores)
}

struct Campaign<'a> {
    args: &'a Args,
    part: ScenarioSubset,
    commit: String,
    jobs: NonZeroUsize,
}

impl Campaign<'_> {
    /// Writes progress, unless standard output is for the result.
    fn report(&self, text: &str) -> Result<()> {
        if self.args.json.takes_stdout() { Ok(()) } else { output::print(text) }
    }

    /// Runs the seeds that the record lacks, and returns the entry of all seeds.
    fn record(&self, path: &std::path::Path) -> Result<SeedRange> {
        if self.commit.ends_with(CHANGED) || self.commit == UNKNOWN {
            return Err(Misuse(format!(
                "--record `{}`: the sources differ from those of a commit ({}), so the record could not name it",
                path.display(),
                self.commit
            ))
            .into());
        }
        let seeds = &self.args.seeds;
        let mut record = CheckLog::read(path)?;
        let left = record.left(&self.commit, self.args.sealed, seeds, self.args.range.get());
        let count: u64 = left.iter().map(|part| part.end - part.start).sum();
        let known = seeds.end - seeds.start - count;
        if known > 0 {
            self.report(&format!(
                "{known} seeds are recorded for commit {}, {count} are left\n",
                self.commit
            ))?;
        }
        let progress = Bar::new();
        progress.lengthen(count);
        for part in left {
            let entry = self.range(&part, &progress)?;
            self.report(&format!(
                "{}..{}: {} failures, {} s\n",
                part.start,
                part.end,
                entry.failures.len(),
                entry.took_s
            ))?;
            // Another campaign may have written meanwhile.
            record = CheckLog::read(path)?;
            record.ranges.push(entry);
            record.write(path)?;
        }
        let mut all = self.entry(seeds);
        for entry in record.of(&self.commit, self.args.sealed, seeds) {
            all.counts += entry.counts;
            let mut failures = entry.failures.clone();
            failures.retain(|failed| seeds.contains(&failed.seed));
            all.failures.extend(failures);
        }
        Ok(all)
    }

    /// An empty entry for a range.
    fn entry(&self, seeds: &Range<u64>) -> SeedRange {
        SeedRange {
            commit: self.commit.clone(),
            sealed: self.args.sealed,
            from: seeds.start,
            to: seeds.end,
            counts: Counts::default(),
            failures: Vec::new(),
            took_s: 0,
            jobs: self.jobs.get(),
        }
    }

    /// Runs all seeds of a range. Reports each failure at once.
    fn range(&self, seeds: &Range<u64>, progress: &Bar) -> Result<SeedRange> {
        let started = Instant::now();
        let next = AtomicU64::new(seeds.start);
        let found = Mutex::new((Tally::default(), Vec::new()));
        let work = || -> Result<()> {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return Ok(());
                }
                let result = check(seed, &self.part).map_err(|failure| self.failed(*failure));
                let mut found = found.lock().expect("nobody panics with it");
                match result {
                    Ok(tally) => found.0 += tally,
                    Err(failed) => {
                        self.report(&self.report_line(&failed))?;
                        found.1.push(failed);
                    }
                }
                if self.args.log {
                    self.report(&format!("{}\n", log(seed, &self.part).join("\n")))?;
                }
                progress.begin(&format!("seed {seed}, {} failures", found.1.len()));
                progress.done();
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs.get()).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("a panic of the core is caught"))
        })?;
        let (sum, mut failures) = found.into_inner().expect("nobody panics with it");
        failures.sort_by_key(|failed| failed.seed);
        let took_s = started.elapsed().as_secs();
        Ok(SeedRange { counts: sum.into(), failures, took_s, ..self.entry(seeds) })
    }

    fn failed(&self, failure: Failure) -> Failed {
        let failure = if self.args.minimize { minimize(&failure) } else { failure };
        Failed {
            seed: failure.seed,
            violation: failure.violation.to_string(),
            replay: format!("apus sim check {}", failure.replay()),
        }
    }

    fn report_line(&self, failed: &Failed) -> String {
        let Failed { seed, violation, replay } = failed;
        let version = env!("CARGO_PKG_VERSION");
        let commit = &self.commit;
        format!("seed {seed}, apus {version} commit {commit}: {violation}\n  {replay}\n")
    }
}

/// The sources on which the result of a campaign depends.
const SOURCES: [&str; 4] =
    ["crates/apus-wire", "crates/apus-seal", "crates/apus-proto", "crates/apus-sim"];
const CHANGED: &str = "-changed";
const UNKNOWN: &str = "unknown";

/// The commit of the program: the value of `APUS_COMMIT` at build time, otherwise the last commit that changed the core, the wire
/// format, the seals or the simulator, if the sources still exist.
fn commit() -> String {
    if let Some(commit) = option_env!("APUS_COMMIT") {
        return commit.to_owned();
    }
    let git = |arguments: &[&str]| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let mut command = Command::new("git");
        let output = command.args(["-C", root]).args(arguments).arg("--").args(SOURCES).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let last = git(&["log", "-1", "--format=%h", "--abbrev=12"]).filter(|last| !last.is_empty());
    match (last, git(&["status", "--porcelain"])) {
        (Some(last), Some(changes)) if changes.is_empty() => last,
        (Some(last), _) => format!("{last}{CHANGED}"),
        (None, _) => UNKNOWN.to_owned(),
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
