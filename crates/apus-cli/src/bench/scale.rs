//! `apus bench scale`.

use anyhow::Result;
use apus::Delivery;
use apus_bench::runner::Pin;
use apus_bench::scale::{Options, measure};

use crate::arguments;
use crate::output::OutputArgs;

/// CPU time of a call against held calls and against peers
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench scale
  apus bench scale --held 10,100000 --peers 1 --runs 5
  apus bench scale --json scale.json")]
pub(crate) struct Args {
    /// Requests that the server holds before it answers the oldest; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "10,1000,100000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    held: Vec<u32>,
    /// Peers of client and server, each another address of 127.0.0.0/8; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,100,10000",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    peers: Vec<u32>,
    /// Outstanding calls besides those that the server holds
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    window: u32,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = arguments::size)]
    size: u32,
    /// Packet delivery of both sides
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = arguments::delivery)]
    delivery: Delivery,
    /// Runs of each setting, interleaved
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = arguments::seconds)]
    seconds: f64,
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
    let options = Options {
        held: args.held.clone(),
        peers: args.peers.clone(),
        window: args.window,
        size: args.size,
        delivery: args.delivery,
        runs: args.runs,
        seconds: args.seconds,
        pin: args.pin,
    };
    args.output.measure(|progress, result| measure(&options, progress, result))
}
