//! `apus bench stream`.

use anyhow::Result;
use apus_bench::rate;
use apus_bench::stream::{Options, measure};

use super::common::{CommonArgs, ConnectionsArgs};
use crate::arguments;
use crate::output::OutputArgs;

/// Throughput of long messages
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench stream
  apus bench stream --size 1MB --outstanding 8 --transports raw-udp,apus-udp
  apus bench stream --echo --html stream.html")]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value = "500kB", value_parser = arguments::size)]
    size: u32,
    /// Outstanding messages; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8",
        value_parser = clap::value_parser!(u64).range(1..=10_000))]
    outstanding: Vec<u64>,
    /// Answer with the whole message instead of 100 bytes
    #[arg(long)]
    echo: bool,
    #[command(flatten)]
    connections: ConnectionsArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures and shows.
///
/// # Errors
/// When the measurement fails or a file cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let throughput = rate::Options {
        common: args.common.options(),
        size: args.size,
        outstanding: args.outstanding.clone(),
        connections: args.connections.options(),
    };
    let options = Options { throughput, echo: args.echo };
    args.output.measure(|progress, result| measure(&options, progress, result))
}
