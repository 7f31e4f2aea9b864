//! `apus bench rtt`.

use anyhow::Result;
use apus_bench::rtt::{Options, measure};

use super::common::CommonArgs;
use crate::arguments;
use crate::output::OutputArgs;

/// Round-trip time of a short call, one at a time
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench rtt
  apus bench rtt --transports raw-udp-block,tcp-block,apus-udp --pin same
  apus bench rtt --size 1kB --runs 9 --json rtt.json")]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = arguments::size)]
    size: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures and shows.
///
/// # Errors
/// When the measurement fails or a file cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let options = Options { common: args.common.options(), size: args.size };
    args.output.measure(|progress, result| measure(&options, progress, result))
}
