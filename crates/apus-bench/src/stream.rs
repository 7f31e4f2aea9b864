//! `apus bench stream`: throughput of long messages.

use apus_node::message::{self, reply_length};
use std::time::Duration;

use anyhow::Result;
use apus_load::{ResultFile, Row};

use crate::closed_loop::Tally;
use crate::comparison::{Comparison, Connections};
use crate::peer::CpuTimes;
use crate::pin::Pin;
use crate::throughput::Throughput;
use crate::transport::Transport;
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;
use apus_node::arguments;

/// The default transports.
const DEFAULT: &[Transport] = &[
    Transport::RawShm,
    Transport::RawUdp,
    Transport::RawUdpGso,
    Transport::TcpBlock,
    Transport::TcpEpoll,
    Transport::TcpPoll,
    Transport::UnixBlock,
    Transport::UnixPoll,
    Transport::ApusShm,
    Transport::ApusUdp,
];

/// Throughput of long messages: the transports, the length of the messages and the numbers of outstanding ones.
#[derive(Clone, Debug, clap::Args)]
pub struct StreamThroughput {
    /// Transports, runs and their length
    #[command(flatten)]
    pub comparison: Comparison,
    /// Bytes of each message
    #[arg(long, value_name = "BYTES", default_value = "500kB", value_parser = arguments::size)]
    pub size: u32,
    /// Outstanding messages; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8",
        value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub outstanding: Vec<u64>,
    /// Answer with the whole message instead of 100 bytes
    #[arg(long)]
    pub echo: bool,
    /// Read every byte of each message, as a program that uses them does, instead of the last byte of each received part
    #[arg(long)]
    pub read_all: bool,
    /// Connections of `tcp-epoll`
    #[command(flatten)]
    pub connections: Connections,
}

/// Measures, and adds a row for each run of a transport.
///
/// # Errors
/// If a transport fails.
pub fn measure(
    options: &StreamThroughput,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    message::read_every_byte(options.read_all);
    let measurement = Throughput {
        bench: "stream",
        comparison: &options.comparison,
        transports: transports(options)?,
        size: options.size,
        outstanding: &options.outstanding,
        connections: &options.connections,
        reply: reply_length(!options.echo),
        main_figure: "goodput_gbps",
        figures: if options.read_all { figures_of_reading } else { figures },
    };
    let whole = measurement.measure(progress, result);
    message::read_every_byte(false);
    whole
}

fn figures_of_reading(row: Row, tally: &Tally, cpu: &CpuTimes) -> Row {
    figures(row.set("reads", "every byte"), tally, cpu)
}

fn figures(row: Row, tally: &Tally, cpu: &CpuTimes) -> Row {
    let gigabytes = tally.request_bytes as f64 / 1e9;
    let ms_per_gb = |time: Duration| time.as_secs_f64() * 1e3 / gigabytes;
    cpu.set(row.set("goodput_gbps", tally.goodput_gbps()))
        .set("cpu_ms_per_gb", ms_per_gb(cpu.client + cpu.server))
        .set("client_cpu_ms_per_gb", ms_per_gb(cpu.client))
        .set("server_cpu_ms_per_gb", ms_per_gb(cpu.server))
        .set("calls", tally.calls)
}

/// Refuses long messages in both directions over blocking streams: both sides would block in `write`.
fn transports(options: &StreamThroughput) -> Result<Vec<(Transport, Pin)>> {
    let comparison = &options.comparison;
    let mut transports = comparison
        .transports("stream", DEFAULT, |transport| transport != Transport::RawUdpBlock)?;
    if let Some(blocks) =
        comparison.transports.iter().find(|transport| options.echo && transport.blocks_in_write())
    {
        return Err(Misuse(format!(
            "'--transports {}' with '--echo': both sides would block; use tcp-epoll, tcp-poll or unix-poll",
            blocks.name()
        ))
        .into());
    }
    transports.retain(|(transport, _)| !(options.echo && transport.blocks_in_write()));
    Ok(transports)
}
