//! `apus sim run`: one simulation.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_load::progress::Progress as _;
use apus_sim::{Plan, Protocol, SimulationResult, Sizes, Topology, results};

use super::simulate::{STEPS, simulate};
use crate::output::{OutputArgs, OutputFile, different};
use crate::progress::Bar;

/// Run one simulation: of a plan, of options, or of a plan changed by options
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus sim run --workload w4 --load 0.8 --sim-ms 100
  apus sim run --topology single-16 --transport dctcp --workload w3 --sim-ms 20 --html dctcp.html
  apus sim run plans/sim-w5-80.toml --json w5.json --csv w5.csv
  apus sim run --workload w3 --sim-ms 20 --set homa.priorities=4 --set links.host_gbps=100
  apus sim run --workload sizes.csv --load 0.5 --sim-ms 20
  apus sim run --topology single-4 --workload 100 --sim-ms 1 --time-trace sim.trace")]
pub(crate) struct Args {
    /// A plan in TOML; see docs/simulator.md
    #[arg(value_name = "PLAN.toml")]
    plan: Option<PathBuf>,
    /// Network: leafspine-144 (the Homa paper's), leafspine-RxHxS, single-N, fattree-K
    #[arg(long)]
    topology: Option<Topology>,
    /// Message lengths: w1 to w5 (the paper's), cp-w1 to cp-w5, a size, a mix such as 90:100,10:1MB, or a file such as sizes.csv with
    /// bytes,weight or bytes,cdf a line
    #[arg(long)]
    workload: Option<Sizes>,
    /// Share of each host's link that messages fill
    #[arg(long, allow_negative_numbers = true, value_parser = super::simulate::parse_load)]
    load: Option<f64>,
    /// Transport: apus, pfabric, dctcp, tcp-newreno, tcp-cubic, srpt-oracle
    #[arg(long)]
    transport: Option<Protocol>,
    /// Seed of all random numbers
    #[arg(long)]
    seed: Option<u64>,
    /// Simulated milliseconds in which measured messages begin
    #[arg(long, allow_negative_numbers = true, value_parser = super::simulate::parse_ms)]
    sim_ms: Option<f64>,
    /// Simulated milliseconds of warm-up
    #[arg(long, allow_negative_numbers = true, value_parser = super::simulate::parse_ms)]
    warmup_ms: Option<f64>,
    /// A value of the plan by its key; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::simulate::parse_setting)]
    set: Vec<(String, String)>,
    /// Write the time trace of all hosts to FILE, for `apus trace`; only the transport apus records
    #[arg(long, value_name = "FILE")]
    time_trace: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Simulates and shows.
///
/// # Errors
/// When the plan cannot be read or run, or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut plan = match &args.plan {
        Some(path) => Plan::from_toml(&super::simulate::read(path)?)
            .map_err(|error| super::simulate::misuse(path, error))?,
        None => Plan::default(),
    };
    plan.topology = args.topology.clone().unwrap_or(plan.topology);
    plan.workload = args.workload.clone().unwrap_or(plan.workload);
    plan.transport = args.transport.unwrap_or(plan.transport);
    plan.load = args.load.unwrap_or(plan.load);
    plan.seed = args.seed.unwrap_or(plan.seed);
    plan.sim_ms = args.sim_ms.unwrap_or(plan.sim_ms);
    plan.warmup_ms = args.warmup_ms.or(plan.warmup_ms);
    let plan = super::simulate::with_settings(&plan, &args.set)?;
    let [json, html, csv] = args.output.paths();
    different(&[json, html, csv, ("--time-trace", args.time_trace.as_deref())])?;
    let output = args.output.open()?;
    let trace = args.time_trace.as_deref().map(|path| time_trace(&plan, path)).transpose()?;
    let mut result = super::simulate::new_result();
    let progress = Bar::new();
    progress.lengthen(STEPS);
    let outcome = match trace {
        None => simulate(&plan, &progress)?,
        Some(file) => traced(&plan, &progress, file)?,
    };
    drop(progress);
    results::record(&outcome, &mut result);
    result.plan = Some(plan.to_json());
    if let (Some(row), Some(mib)) = (result.rows.last_mut(), super::simulate::memory_mib()) {
        row.put("memory_mib", mib);
    }
    output.deliver(&result)
}

/// Simulates, and writes the time trace, whole or not at all.
fn traced(plan: &Plan, progress: &Bar, file: OutputFile) -> Result<SimulationResult> {
    let (outcome, trace) = super::simulate::simulate_traced(plan, progress)?;
    if let Some(trace) = trace {
        file.write_by(|to| trace.write(to)).context("cannot write the time trace")?;
    }
    Ok(outcome)
}

/// The file of the time trace, opened before the simulation.
fn time_trace(plan: &Plan, path: &Path) -> Result<OutputFile> {
    if plan.transport != Protocol::Apus {
        let message = format!("'--time-trace': the transport {} records no trace", plan.transport);
        return Err(Misuse(format!("{message}; allowed is apus")).into());
    }
    OutputFile::open(path).context("cannot write the time trace")
}
