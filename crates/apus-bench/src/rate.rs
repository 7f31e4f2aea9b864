//! `apus bench rate`: how many short calls one client thread and one server thread complete in a second.

use std::time::Duration;

use anyhow::Result;
use apus_load::{ResultFile, Row};

use crate::closed_loop::Tally;
use crate::common::reply_length;
use crate::peer::CpuTimes;
use crate::progress::Progress;
use crate::throughput::Throughput;
use crate::transport::Transport;

pub use crate::throughput::Options;

/// Compared when nothing else is asked for.
const DEFAULT: &[Transport] = &[
    Transport::RawUdp,
    Transport::RawUdpBatch,
    Transport::TcpBlock,
    Transport::TcpEpoll,
    Transport::TcpPoll,
    Transport::ApusUdp,
    Transport::ApusUdpFullbusy,
];

/// Measures; adds a row for each run of a transport.
///
/// # Errors
/// When a transport fails.
pub fn measure(options: &Options, progress: &dyn Progress, result: &mut ResultFile) -> Result<()> {
    let measurement = Throughput {
        bench: "rate",
        options,
        transports: options
            .common
            .transports("rate", DEFAULT, |transport| transport != Transport::RawUdpBlock)?,
        reply: reply_length(false),
        main_figure: "calls_per_s",
        figures,
    };
    measurement.measure(progress, result)
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
