//! `apus sim compare`: the paper's workloads beside the paper's results.

use anyhow::Result;
use apus_load::ResultFile;
use apus_load::progress::Progress as _;
use apus_load::stop::{CUT_SHORT, Stopped};
use apus_node::arguments::within;
use apus_sim::results::{self, Verdicts};
use apus_sim::{Plan, Protocol, Sizes};

use super::simulate::STEPS;
use crate::interrupt;
use crate::output::{OutputArgs, say};
use crate::progress::Bar;

/// Run W1 to W5 on the Homa paper's network and compare slowdowns with the paper's
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus sim compare
  apus sim compare --workloads w3,w4 --transports apus,pfabric,srpt-oracle --html compare.html
  apus sim compare --workloads w2 --scale 0.2

The paper's figures are for a load of 80 %. A cell agrees if the median is within 10 % and the 99th percentile within 15 % of the \
paper's figure; lower is better. The last lines count the cells of each transport. The exit code does not depend on them.")]
pub(crate) struct Args {
    /// Workloads, of w1 to w5
    #[arg(long, value_delimiter = ',', default_value = "w1,w2,w3,w4,w5")]
    workloads: Vec<Sizes>,
    /// Transports, of apus, pfabric, srpt-oracle
    #[arg(long, value_delimiter = ',', default_value = "apus")]
    transports: Vec<Protocol>,
    /// Share of each host's link that messages fill
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.8, value_parser = super::simulate::parse_load)]
    load: f64,
    /// Simulated time, as a multiple of the time that makes the figures stable
    #[arg(long, allow_negative_numbers = true, default_value_t = 1.0, value_parser = parse_scale)]
    scale: f64,
    /// A value of the plans by its key; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::simulate::parse_setting)]
    set: Vec<(String, String)>,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Warm-up and measured time in ms that give each workload's longest messages time to queue and its
/// sizes enough messages.
fn times(workload: &Sizes) -> (f64, f64) {
    match workload.paper().map(apus_sim::paper::PaperWorkload::number) {
        Some(1) => (4.0, 10.0),
        Some(2) => (10.0, 20.0),
        Some(3) => (50.0, 70.0),
        Some(4) | None => (200.0, 200.0),
        Some(_) => (100.0, 600.0),
    }
}

/// Simulates, compares and shows. After Ctrl-C, shows the simulations that are complete.
///
/// # Errors
/// When a simulation cannot be run or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let output = args.output.open()?;
    interrupt::handle()?;
    let mut result = super::simulate::new_result();
    let mut counted = Vec::new();
    match simulate(args, &mut result, &mut counted) {
        Err(error) if error.is::<Stopped>() => result.warn(CUT_SHORT),
        simulated => simulated?,
    }
    let delivered = output.deliver(&result);
    if (args.load - results::PAPER_LOAD).abs() > 1e-9 {
        say(&args.output, "the paper has figures only for a load of 80 %")?;
    } else {
        for (transport, verdicts) in &counted {
            say(&args.output, &format!("{transport}: {}", verdicts.in_words()))?;
        }
    }
    delivered
}

/// Simulates every workload under every transport; counts the deciles of each transport by verdict.
fn simulate(
    args: &Args,
    result: &mut ResultFile,
    counted: &mut Vec<(Protocol, Verdicts)>,
) -> Result<()> {
    let progress = Bar::new();
    progress.lengthen((args.workloads.len() * args.transports.len()) as u64 * STEPS);
    counted.extend(args.transports.iter().map(|&transport| (transport, Verdicts::default())));
    for workload in &args.workloads {
        for (number, &transport) in args.transports.iter().enumerate() {
            let (warmup_ms, sim_ms) = times(workload);
            let plan = Plan {
                workload: workload.clone(),
                transport,
                load: args.load,
                seed: args.seed,
                warmup_ms: Some(warmup_ms * args.scale),
                sim_ms: sim_ms * args.scale,
                drain_ms: Some(sim_ms * args.scale / 2.0),
                ..Plan::default()
            };
            let plan = super::simulate::with_settings(&plan, &args.set)?;
            let outcome = super::simulate::simulate(&plan, &progress)?;
            counted[number].1.add(&results::record_comparison(&outcome, result));
            results::record(&outcome, result);
        }
    }
    Ok(())
}

/// A factor as an argument.
fn parse_scale(text: &str) -> Result<f64, String> {
    within(text, 0.001..=1000.0)
        .ok_or_else(|| "it must be a number between 0.001 and 1000".to_owned())
}
