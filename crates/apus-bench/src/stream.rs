//! `apus bench stream`: how many bytes a second long messages carry.

use std::time::Duration;

use anyhow::Result;
use apus_load::{ResultFile, Row};

use crate::closed_loop::Tally;
use crate::common::reply_length;
use crate::misuse::Misuse;
use crate::peer::CpuTimes;
use crate::progress::Progress;
use crate::throughput::{self, Throughput};
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

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Transports, and the length and number of the messages.
    pub throughput: throughput::Options,
    /// Have the messages sent back in full instead of answered with 100 bytes.
    pub echo: bool,
}

/// Measures; adds a row for each run of a transport.
///
/// # Errors
/// When a transport fails.
pub fn measure(options: &Options, progress: &dyn Progress, result: &mut ResultFile) -> Result<()> {
    let measurement = Throughput {
        bench: "stream",
        options: &options.throughput,
        transports: transports(options)?,
        reply: reply_length(!options.echo),
        main_figure: "goodput_gbps",
        figures,
    };
    measurement.measure(progress, result)
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
fn transports(options: &Options) -> Result<Vec<Transport>> {
    let common = &options.throughput.common;
    let mut transports =
        common.transports("stream", DEFAULT, |transport| transport != Transport::RawUdpBlock)?;
    if options.echo && common.transports.contains(&Transport::TcpBlock) {
        let reason = "'--transports tcp-block': not together with '--echo', both sides would block; use tcp-epoll or tcp-poll";
        return Err(Misuse(reason.to_owned()).into());
    }
    if options.echo {
        transports.retain(|transport| *transport != Transport::TcpBlock);
    }
    Ok(transports)
}
