//! `apus bench stream`: how many bytes a second long messages carry.

use std::time::Duration;

use anyhow::Result;
use apus_load::{ResultFile, Row};

use super::closed_loop::Tally;
use super::peer::CpuTimes;
use super::throughput::Throughput;
use super::{Common, Connections, record, reply_length};
use crate::failure::Misuse;
use crate::output::OutputArgs;
use crate::transport::Transport;

/// Compared when nothing else is asked for.
const DEFAULT: &[Transport] = &[
    Transport::RawUdp,
    Transport::RawUdpGso,
    Transport::TcpBlock,
    Transport::TcpEpoll,
    Transport::TcpPoll,
    Transport::ApusUdp,
];

/// Throughput of long messages
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench stream
  apus bench stream --size 1MB --outstanding 8 --transports raw-udp,apus-udp
  apus bench stream --echo --html stream.html")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value = "500kB", value_parser = super::parse_size)]
    pub(crate) size: u32,
    /// Messages outstanding; several numbers are measured each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8",
        value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) outstanding: Vec<u64>,
    /// Have the messages sent back in full instead of answered with 100 bytes
    #[arg(long)]
    pub(crate) echo: bool,
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
        bench: "stream",
        common: &args.common,
        transports: transports(args)?,
        size: args.size,
        reply: reply_length(!args.echo),
        outstanding: &args.outstanding,
        connections: &args.connections,
        main_figure: "goodput_gbps",
        figures,
    };
    measurement.measure(result)
}

fn figures(row: Row, tally: &Tally, cpu: &CpuTimes) -> Row {
    let gigabytes = tally.request_bytes as f64 / 1e9;
    let ms_per_gb = |time: Duration| time.as_secs_f64() * 1e3 / gigabytes;
    row.set("goodput_gbps", tally.goodput_gbps())
        .set("client_cpu_s", cpu.client.as_secs_f64())
        .set("server_cpu_s", cpu.server.as_secs_f64())
        .set("cpu_ms_per_gb", ms_per_gb(cpu.client + cpu.server))
        .set("client_cpu_ms_per_gb", ms_per_gb(cpu.client))
        .set("server_cpu_ms_per_gb", ms_per_gb(cpu.server))
        .set("calls", tally.calls)
}

/// Blocking TCP cannot have long messages under way in both directions: both sides would wait in `write`.
fn transports(args: &Args) -> Result<Vec<Transport>> {
    let mut transports = args
        .common
        .transports("stream", DEFAULT, |transport| transport != Transport::RawUdpBlock)?;
    if args.echo && args.common.transports.contains(&Transport::TcpBlock) {
        let reason = "'--transports tcp-block': not together with '--echo', both sides would block; use tcp-epoll or tcp-poll";
        return Err(Misuse(reason.to_owned()).into());
    }
    if args.echo {
        transports.retain(|transport| *transport != Transport::TcpBlock);
    }
    Ok(transports)
}
