//! `apus bench delivery`.

use anyhow::Result;
use apus_bench::delivery::{Arrival, CASES, Cases, Load, Options, measure};

use crate::arguments;
use crate::output::OutputArgs;

/// Packet delivery: latency and CPU time of a key-value server against load
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench delivery --json delivery.json --html delivery.html
  apus bench delivery --cases base,suspend20,fullbusy --loads 20,MAX --runs 3
  apus bench delivery --cases suspend20 --loads 20 --threads 2,8
  apus bench delivery --cases base,suspend20 --ipq --loads 20 --runs 1")]
pub(crate) struct Args {
    /// Delivery modes to compare, with optional parameters: suspend20,budget=32
    #[arg(long, value_name = "LIST", default_value = CASES)]
    cases: Cases,
    /// Loads, in percent of the highest rate of base in a closed loop; MAX is a closed loop
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "20,40,60,80,100,MAX")]
    loads: Vec<Load>,
    /// Queries per second at 100 percent [default: measured first]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    base_qps: Option<u32>,
    /// Runs of each case at each load, interleaved
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = arguments::seconds)]
    seconds: f64,
    /// Threads of the server; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// Distribution of the gaps between queries
    #[arg(long, value_name = "LAW", default_value = "poisson")]
    arrival: Arrival,
    /// Share of read queries, in percent; the others write
    #[arg(long, value_name = "PERCENT", default_value_t = 97, value_parser = clap::value_parser!(u32).range(0..=100))]
    get_share: u32,
    /// Records in the store
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    records: u32,
    /// Outstanding queries at MAX
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    outstanding: u32,
    /// Also count instructions per query with callgrind (needs valgrind)
    #[arg(long)]
    ipq: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures and shows.
///
/// # Errors
/// When the measurement fails or a file cannot be written.
pub(super) fn run(args: &Args) -> Result<()> {
    let options = Options {
        cases: args.cases.clone(),
        loads: args.loads.clone(),
        base_qps: args.base_qps,
        runs: args.runs,
        seconds: args.seconds,
        threads: args.threads.clone(),
        arrival: args.arrival,
        get_share: args.get_share,
        records: args.records,
        outstanding: args.outstanding,
        ipq: args.ipq,
    };
    args.output.measure(|progress, result| measure(&options, progress, result))
}
