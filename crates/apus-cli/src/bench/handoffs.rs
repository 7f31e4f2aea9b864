//! `apus bench handoffs`.

use anyhow::Result;
use apus_bench::delivery::{CASES, Cases};
use apus_bench::handoffs::{Options, measure};
use apus_bench::runner::Pin;

use crate::output::OutputArgs;

/// Wake-ups per message, with one call at a time
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench handoffs
  apus bench handoffs --cases base,suspend20 --gap 300 --calls 10000
  apus bench handoffs --json - | jq '.rows[] | {testcase, server_handoffs_per_message}'")]
pub(crate) struct Args {
    /// Delivery modes of client and server, with optional parameters: suspend20,budget=32
    #[arg(long, value_name = "LIST", default_value = CASES)]
    cases: Cases,
    /// Calls, one after the other
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    calls: u32,
    /// Microseconds between a response and the next call, so that servers stop polling and sleep
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    gap: u64,
    /// CPUs of client and server
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pin: Pin,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures and shows.
///
/// # Errors
/// When the measurement fails or a file cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let options =
        Options { cases: args.cases.clone(), calls: args.calls, gap: args.gap, pin: args.pin };
    args.output.measure(|progress, result| measure(&options, progress, result))
}
