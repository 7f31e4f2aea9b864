//! Arguments of several benchmarks.

use apus::Delivery;
use apus_bench::common::{Common, Connections};
use apus_bench::runner::Pin;
use apus_bench::transport::Transport;

use crate::arguments;

/// What all benchmarks can be asked.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct CommonArgs {
    /// Transports to compare; ratios are to the best TCP [default: all that fit]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    transports: Vec<Transport>,
    /// Packet delivery of apus-udp on both sides: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = arguments::delivery)]
    delivery: Delivery,
    /// Receive buffer of apus-udp on both sides; a stock machine gives 212992; `apus settings receive_buffer` shows the default
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
    pub(super) fn options(&self) -> Common {
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
pub(super) struct ConnectionsArgs {
    /// Connections of tcp-epoll; of several numbers the best is found by a trial
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    connections: Vec<u64>,
}

impl ConnectionsArgs {
    pub(super) fn options(&self) -> Connections {
        Connections { connections: self.connections.clone() }
    }
}
