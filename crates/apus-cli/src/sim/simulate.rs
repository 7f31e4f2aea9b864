//! The common part of the commands: arguments, results, one simulation.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_load::progress::Progress as _;
use apus_load::record::command_line;
use apus_load::stop::{self, Stopped};
use apus_load::{Machine, ResultFile};
use apus_node::arguments::within;
use apus_sim::{Plan, PlanError, SimulationResult};
use apus_trace::Trace;
use procfs::process::Process;

use crate::failure;
use crate::progress::Bar;

/// A result that begins now. Simulations are not disturbed by others on the machine, only slowed.
pub(super) fn new_result() -> ResultFile {
    ResultFile::new(&command_line(), Machine::here())
}

pub(super) fn read(path: &PathBuf) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Most load of a plan, as a share of the link.
const LOAD_MAX: f64 = 2.0;

/// Longest time of a plan, in ms.
const MS_MAX: f64 = 1e6;

/// The share of a link as an argument.
pub(super) fn parse_load(text: &str) -> Result<f64, String> {
    within(text, f64::MIN_POSITIVE..=LOAD_MAX)
        .ok_or_else(|| format!("it must be a share of the link above 0 and up to {LOAD_MAX}"))
}

/// Simulated milliseconds as an argument.
pub(super) fn parse_ms(text: &str) -> Result<f64, String> {
    within(text, 0.0..=MS_MAX)
        .ok_or_else(|| format!("it must be a number of ms from 0 to {MS_MAX}"))
}

/// A value of a plan as an argument: `homa.priorities=4`.
pub(super) fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or("it must be NAME=VALUE, as in homa.priorities=4")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

/// A plan with the values of `--set`.
pub(super) fn with_settings(plan: &Plan, settings: &[(String, String)]) -> Result<Plan> {
    if settings.is_empty() {
        plan.validate().map_err(|error| Misuse(error.to_string()))?;
        return Ok(plan.clone());
    }
    let names: Vec<&str> = settings.iter().map(|(name, _)| &**name).collect();
    let said = |error| Misuse(format!("--set {}: {}", names.join(", "), in_words(error)));
    Ok(plan.with(settings).map_err(said)?)
}

/// The error of a plan, in one line.
pub(super) fn misuse(path: &Path, error: PlanError) -> Misuse {
    Misuse(format!("`{}`: {}", path.display(), in_words(error)))
}

fn in_words(error: PlanError) -> String {
    let error = match error {
        PlanError::Toml(error) => anyhow::Error::new(*error).context("not a plan"),
        other => other.into(),
    };
    failure::message(&error)
}

/// Steps of progress that a plan has.
pub(crate) const STEPS: u64 = 100;

/// Runs one plan, in [`STEPS`] steps of the progress.
///
/// # Errors
/// When it cannot be run, or with [`Stopped`] when signals are handled and one came.
pub(crate) fn simulate(plan: &Plan, progress: &Bar) -> Result<SimulationResult> {
    stoppable(plan, progress, |progressed| apus_sim::run(plan, progressed))
}

/// [`simulate`] with a time trace.
///
/// # Errors
/// As [`simulate`].
pub(super) fn simulate_traced(
    plan: &Plan,
    progress: &Bar,
) -> Result<(SimulationResult, Option<Trace>)> {
    stoppable(plan, progress, |progressed| apus_sim::run_traced(plan, progressed))
}

fn stoppable<T>(
    plan: &Plan,
    progress: &Bar,
    run: impl FnOnce(&mut dyn FnMut(apus_sim::Progress)) -> Result<T, PlanError>,
) -> Result<T> {
    let mut shown = 0;
    let name = format!("{} {} at {:.0} %", plan.transport, plan.workload, plan.load * 100.0);
    progress.begin(&name);
    let mut progressed = |seen: apus_sim::Progress| {
        let part = seen.simulated.as_secs_f64() / seen.target.as_secs_f64().max(1e-9);
        let steps = (part.min(1.0) * STEPS as f64) as u64;
        (shown..steps).for_each(|_| progress.done());
        shown = shown.max(steps);
        progress.begin(&format!(
            "{name}: {:.1} of {:.1} ms simulated in {:.0} s, {} messages under way",
            seen.simulated.as_secs_f64() * 1e3,
            seen.target.as_secs_f64() * 1e3,
            seen.wall.as_secs_f64(),
            seen.under_way
        ));
        if stop::requested() {
            // A simulation has no other way out; nothing of it is used any more.
            resume_unwind(Box::new(Stopped));
        }
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut progressed)));
    (shown..STEPS).for_each(|_| progress.done());
    match outcome {
        Ok(outcome) => Ok(outcome?),
        Err(reason) if reason.is::<Stopped>() => Err(Stopped.into()),
        Err(panic) => resume_unwind(panic),
    }
}

/// The largest amount of memory that this process has held, in MiB, where the system reports it.
pub(super) fn memory_mib() -> Option<f64> {
    let kib = Process::myself().ok()?.status().ok()?.vmhwm?;
    Some(kib as f64 / 1024.0)
}
