//! `apus sim compare`: the paper's workloads beside the paper's results.

use anyhow::Result;
use apus_sim::{Plan, Protocol, Sizes, results};

use crate::output::{OutputArgs, say};

/// Runs W1 to W5 on the Homa paper's network and compares slowdowns with the paper's
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus sim compare
  apus sim compare --workloads w3,w4 --transports apus,pfabric,srpt-oracle --html compare.html
  apus sim compare --workloads w2 --scale 0.2

The paper's figures are for a load of 80 %. A cell agrees when the median is within 10 % and the
99th percentile within 15 % of the paper's; lower is better.")]
pub(crate) struct Args {
    /// Which of w1 to w5
    #[arg(long, value_delimiter = ',', default_value = "w1,w2,w3,w4,w5")]
    workloads: Vec<Sizes>,
    /// Which of apus, pfabric, srpt-oracle
    #[arg(long, value_delimiter = ',', default_value = "apus")]
    transports: Vec<Protocol>,
    /// Share of each host's link that messages fill
    #[arg(long, default_value_t = 0.8)]
    load: f64,
    /// Simulated time, as a multiple of what makes the figures stable
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Everything random follows from it
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

/// Simulates, compares and shows.
///
/// # Errors
/// When a simulation cannot be run or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut result = super::new_result();
    let mut higher = 0;
    for workload in &args.workloads {
        for &transport in &args.transports {
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
            let outcome = super::simulate(&plan)?;
            let cells = results::record_comparison(&outcome, &mut result);
            if transport == Protocol::Apus {
                higher += cells;
            }
            results::record(&outcome, &mut result);
        }
    }
    args.output.deliver(&result)?;
    if (args.load - results::PAPER_LOAD).abs() > 1e-9 {
        return say(&args.output, "the paper's figures are for 80 %: nothing to compare with");
    }
    say(&args.output, &format!("{higher} deciles of apus are higher than the paper's Homa allows"))
}
