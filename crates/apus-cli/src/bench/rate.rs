//! `apus bench rate`.

use anyhow::Result;
use apus_bench::rate::{Options, measure};

use super::common::{CommonArgs, ConnectionsArgs};
use crate::arguments;
use crate::output::OutputArgs;

/// Short calls per second, and the CPU time of each
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench rate
  apus bench rate --outstanding 64,256,1024 --transports tcp-epoll,apus-udp
  apus bench rate --json - | jq '.rows[] | {transport, calls_per_s}'")]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = arguments::size)]
    size: u32,
    /// Outstanding calls; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "256",
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    outstanding: Vec<u64>,
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
    let options = Options {
        common: args.common.options(),
        size: args.size,
        outstanding: args.outstanding.clone(),
        connections: args.connections.options(),
    };
    args.output.measure(|progress, result| measure(&options, progress, result))
}
