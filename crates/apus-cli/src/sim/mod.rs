//! `apus sim`: the production core in a simulated datacenter.

mod check;
mod compare;
mod run;
mod sweep;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_load::{Machine, ResultFile};
use apus_sim::{Outcome, Plan};
use clap::Subcommand;

use crate::progress::Progress;

/// Simulates a datacenter in which every host runs the production protocol
#[derive(Debug, Subcommand)]
pub(crate) enum Sim {
    Run(run::Args),
    Compare(compare::Args),
    Check(check::Args),
    Sweep(sweep::Args),
}

/// Runs the subcommand chosen.
///
/// # Errors
/// As the subcommand does.
pub(crate) fn run(sim: &Sim) -> Result<()> {
    match sim {
        Sim::Run(args) => run::run(args),
        Sim::Compare(args) => compare::run(args),
        Sim::Check(args) => check::run(args),
        Sim::Sweep(args) => sweep::run(args),
    }
}

/// A result that begins now. Simulations are not disturbed by others on the machine, only slowed.
fn new_result() -> ResultFile {
    let command: Vec<String> = std::env::args().skip(1).collect();
    ResultFile::new(&format!("apus {}", command.join(" ")), Machine::here())
}

fn read(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Runs one plan, saying how far it is.
fn simulate(plan: &Plan) -> Result<Outcome> {
    let progress = Progress::new(100);
    let mut shown = 0;
    let name = format!("{} {} at {:.0} %", plan.transport, plan.workload, plan.load * 100.0);
    progress.begin(&name);
    let outcome = apus_sim::run(plan, &mut |seen| {
        let part = seen.simulated.as_secs_f64() / seen.target.as_secs_f64().max(1e-9);
        let percent = (part.min(1.0) * 100.0) as u64;
        (shown..percent).for_each(|_| progress.done());
        shown = shown.max(percent);
        progress.begin(&format!(
            "{name}: {:.1} of {:.1} ms simulated in {:.0} s, {} messages under way",
            seen.simulated.as_secs_f64() * 1e3,
            seen.target.as_secs_f64() * 1e3,
            seen.wall.as_secs_f64(),
            seen.under_way
        ));
    })?;
    Ok(outcome)
}

/// The largest amount of memory this process has held, in MiB, where the system tells.
fn memory_mib() -> Option<f64> {
    let status = std::fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}
