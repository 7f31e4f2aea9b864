//! `apus bench rate`: short calls per second of one client thread and one server thread.

use apus_node::message::reply_length;
use std::time::Duration;

use anyhow::Result;
use apus_load::{ResultFile, Row};

use crate::closed_loop::Tally;
use crate::comparison::{Comparison, Connections};
use crate::peer::CpuTimes;
use crate::throughput::Throughput;
use crate::transport::Transport;
use apus_load::progress::Progress;
use apus_node::arguments;

/// The default transports.
const DEFAULT: &[Transport] = &[
    Transport::RawShm,
    Transport::RawUdp,
    Transport::RawUdpBatch,
    Transport::TcpBlock,
    Transport::TcpEpoll,
    Transport::TcpPoll,
    Transport::UnixBlock,
    Transport::UnixPoll,
    Transport::ApusShm,
    Transport::ApusShmFullbusy,
    Transport::ApusUdp,
    Transport::ApusUdpFullbusy,
];

/// Calls per second: the transports, the length of the messages and the numbers of outstanding calls.
#[derive(Clone, Debug, clap::Args)]
pub struct CallRate {
    /// Transports, runs and their length
    #[command(flatten)]
    pub comparison: Comparison,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = arguments::size)]
    pub size: u32,
    /// Outstanding calls; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "256",
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub outstanding: Vec<u64>,
    /// Connections of `tcp-epoll`
    #[command(flatten)]
    pub connections: Connections,
}

/// Measures, and adds a row for each run of a transport.
///
/// # Errors
/// If a transport fails.
pub fn measure(options: &CallRate, progress: &dyn Progress, result: &mut ResultFile) -> Result<()> {
    let CallRate { comparison, size, outstanding, connections } = options;
    let measurement = Throughput {
        bench: "rate",
        comparison,
        transports: comparison
            .transports("rate", DEFAULT, |transport| transport != Transport::RawUdpBlock)?,
        size: *size,
        outstanding,
        connections,
        reply: reply_length(false),
        main_figure: "calls_per_s",
        figures,
    };
    measurement.measure(progress, result)
}

fn figures(row: Row, tally: &Tally, cpu: &CpuTimes) -> Row {
    let ns_per_call = |time: Duration| time.as_nanos() as f64 / tally.calls as f64;
    cpu.set(row.set("calls_per_s", tally.calls_per_s()))
        .set("cpu_ns_per_call", ns_per_call(cpu.client + cpu.server))
        .set("client_cpu_ns_per_call", ns_per_call(cpu.client))
        .set("server_cpu_ns_per_call", ns_per_call(cpu.server))
}
