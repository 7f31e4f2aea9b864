//! `apus bench rate`: how many short calls one client thread and one server thread complete in a second.

use std::time::Duration;

use anyhow::Result;
use apus_load::{ResultFile, Row};

use super::closed_loop::Tally;
use super::peer::CpuTimes;
use super::throughput::Throughput;
use super::{Common, Connections, record, reply_length};
use crate::output::OutputArgs;
use crate::transport::Transport;

/// Compared when nothing else is asked for.
const DEFAULT: &[Transport] = &[
    Transport::RawUdp,
    Transport::TcpBlock,
    Transport::TcpEpoll,
    Transport::TcpPoll,
    Transport::ApusUdp,
    Transport::ApusUdpFullbusy,
];

/// Short calls per second, and the CPU time each takes
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench rate
  apus bench rate --outstanding 64,256,1024 --transports tcp-epoll,apus-udp
  apus bench rate --json - | jq '.rows[] | {transport, calls_per_s}'")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = super::parse_size)]
    pub(crate) size: u32,
    /// Calls outstanding; several numbers are measured each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "256",
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(crate) outstanding: Vec<u64>,
    #[command(flatten)]
    pub(crate) connections: Connections,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Measures and shows.
///
/// # Errors
/// When a transport fails or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let output = args.output.open()?;
    output.deliver(&record(|result| measure(args, result))?)
}

/// Measures; adds a row for each run of a transport.
///
/// # Errors
/// When a transport fails.
pub(crate) fn measure(args: &Args, result: &mut ResultFile) -> Result<()> {
    let measurement = Throughput {
        bench: "rate",
        common: &args.common,
        transports: args
            .common
            .transports("rate", DEFAULT, |transport| transport != Transport::RawUdpBlock)?,
        size: args.size,
        reply: reply_length(false),
        outstanding: &args.outstanding,
        connections: &args.connections,
        main_figure: "calls_per_s",
        figures,
    };
    measurement.measure(result)
}

fn figures(row: Row, tally: &Tally, cpu: &CpuTimes) -> Row {
    let ns_per_call = |time: Duration| time.as_nanos() as f64 / tally.calls as f64;
    row.set("calls_per_s", tally.calls_per_s())
        .set("client_cpu_s", cpu.client.as_secs_f64())
        .set("server_cpu_s", cpu.server.as_secs_f64())
        .set("cpu_ns_per_call", ns_per_call(cpu.client + cpu.server))
        .set("client_cpu_ns_per_call", ns_per_call(cpu.client))
        .set("server_cpu_ns_per_call", ns_per_call(cpu.server))
}
