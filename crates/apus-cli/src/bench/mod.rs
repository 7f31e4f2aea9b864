//! `apus bench`: the benchmarks of [`apus_bench`], a file each.

mod delivery;
mod handoffs;
mod mix;
mod rate;
mod rtt;
mod scale;
mod stream;

use anyhow::Result;
use apus::Delivery;
use apus_bench::common::{Common, Connections};
use apus_bench::runner::Pin;
use apus_bench::transport::Transport;

use crate::arguments;

/// Measure Apus beside TCP and raw UDP on this machine
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Bench {
    Rtt(rtt::Args),
    Rate(rate::Args),
    Stream(stream::Args),
    Mix(mix::Args),
    Delivery(delivery::Args),
    Handoffs(handoffs::Args),
    Scale(scale::Args),
}

/// Runs the benchmark chosen.
///
/// # Errors
/// As the benchmark does.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Rtt(args) => rtt::run(args),
        Bench::Rate(args) => rate::run(args),
        Bench::Stream(args) => stream::run(args),
        Bench::Mix(args) => mix::run(args),
        Bench::Delivery(args) => delivery::run(args),
        Bench::Handoffs(args) => handoffs::run(args),
        Bench::Scale(args) => scale::run(args),
    }
}

/// What all benchmarks can be asked.
#[derive(Clone, Debug, clap::Args)]
struct CommonArgs {
    /// What to compare; ratios are to the best of TCP [default: all that fit]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    transports: Vec<Transport>,
    /// Packet delivery of apus-udp on both sides: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = arguments::delivery)]
    delivery: Delivery,
    /// Receive buffer that apus-udp asks for on both sides; 212992 is what a stock machine gives [default: 8 MiB]
    #[arg(long, value_name = "BYTES", value_parser = arguments::buffer)]
    receive_buffer: Option<u32>,
    /// CPUs of client and server
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pin: Pin,
    /// Runs of each transport, interleaved; the figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = arguments::seconds)]
    seconds: f64,
}

impl CommonArgs {
    fn options(&self) -> Common {
        Common {
            transports: self.transports.clone(),
            delivery: self.delivery,
            receive_buffer: self.receive_buffer,
            pin: self.pin,
            runs: self.runs,
            seconds: self.seconds,
        }
    }
}

/// How many TCP connections `tcp-epoll` may use.
#[derive(Clone, Debug, clap::Args)]
struct ConnectionsArgs {
    /// Connections of tcp-epoll; of several numbers the best is found first and used
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    connections: Vec<u64>,
}

impl ConnectionsArgs {
    fn options(&self) -> Connections {
        Connections { connections: self.connections.clone() }
    }
}
