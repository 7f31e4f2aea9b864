//! `apus trace gaps`: from traces, or live.

use std::time::Duration;

use anyhow::{Context, Result};
use apus_load::misuse::Misuse;
use apus_trace::{analysis, taken_time};

use super::analysis::print;
use super::files::merged;
use crate::output::JsonArgs;

/// Show when threads or nodes stood still; with --live, the time that each CPU loses now
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus trace gaps client.4711.trace server.4712.trace
  apus trace gaps --threshold 1000 --json - *.trace
  apus trace gaps --live --seconds 10

From traces: a stop is a time in which a node recorded nothing while a packet waited for it, beyond the least time that a packet \
takes. Only the traces of both ends show stops. A thread that polls without success or runs the application also records nothing, \
so threads are listed by their last record.

With --live, a thread on each CPU that this process may use reads the clock in a loop, and reports the gaps between readings. The \
cause of a gap may be an interrupt, another thread, the hypervisor or the firmware; a simultaneous gap on all CPUs is probably one \
of the last two. The threads occupy all CPUs meanwhile.")]
pub(crate) struct Args {
    /// Traces, of any processes and hosts
    #[arg(value_name = "FILE", required_unless_present = "live")]
    files: Vec<std::path::PathBuf>,
    /// Least time to show, in µs [default: 150; with --live 10]
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    threshold: Option<u64>,
    /// Watch the CPUs instead of reading traces
    #[arg(long, conflicts_with = "files")]
    live: bool,
    /// How long to watch, in seconds
    #[arg(
        long,
        value_name = "S",
        default_value_t = 5.0,
        requires = "live",
        allow_negative_numbers = true
    )]
    seconds: f64,
    #[command(flatten)]
    json: JsonArgs,
}

/// Shows the gaps.
///
/// # Errors
/// When a file cannot be read, or the CPUs cannot be watched.
pub(super) fn run(args: &Args) -> Result<()> {
    if !args.live {
        let threshold = args.threshold.unwrap_or(150) * 1_000;
        return print(&analysis::gaps(&merged(&args.files)?, threshold), &args.json);
    }
    let seconds = args.seconds;
    if !(seconds > 0.0 && seconds <= 3_600.0) {
        let allowed = "it must be more than 0, and up to 3600";
        return Err(Misuse(format!("--seconds {seconds}: {allowed}")).into());
    }
    let threshold = Duration::from_micros(args.threshold.unwrap_or(10));
    let taken = taken_time(Duration::from_secs_f64(seconds), threshold);
    print(&taken.context("cannot watch the CPUs")?, &args.json)
}
