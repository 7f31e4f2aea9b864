//! `apus bench mix`.

use anyhow::Result;
use apus_bench::message::parse_workload;
use apus_bench::mix::{Options, measure};
use apus_load::Workload;

use super::common::{CommonArgs, ConnectionsArgs};
use crate::arguments;
use crate::output::OutputArgs;

/// Latency of short calls among long ones
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench mix
  apus bench mix --gbps 4 --transports tcp-epoll,apus-udp
  apus bench mix --workload w3 --echo --html mix.html")]
pub(crate) struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Lengths of requests: mix (90 % 100 B, 9 % 10 kB, 1 % 1 MB), w1 to w5, a size, or weight:size,…
    #[arg(long, value_name = "WORKLOAD", default_value = "mix", value_parser = parse_workload)]
    workload: Workload,
    /// Fixed load: request bytes in Gb/s
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true, default_value_t = 2.0, value_parser = arguments::gbps)]
    gbps: f64,
    /// Relative loads, in percent of each transport's own capacity and of that of Apus; 0 skips them
    #[arg(long, value_name = "PERCENT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=100))]
    percent: u32,
    /// Answer with 100 bytes (the default)
    #[arg(long, conflicts_with = "echo")]
    one_way: bool,
    /// Answer with as many bytes as the request
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
    let options = Options {
        common: args.common.options(),
        workload: args.workload.clone(),
        gbps: args.gbps,
        percent: args.percent,
        echo: args.echo,
        connections: args.connections.options(),
    };
    args.output.measure(|progress, result| measure(&options, progress, result))
}
