//! `apus bench rtt`: how long one short call takes when nothing else is under way.

use anyhow::Result;
use apus_load::{Latency, ResultFile, Row, Series};

use super::closed_loop::ping_pong;
use super::runner::measured;
use super::{Common, note_health, record, reply_length, warn_of_losses};
use crate::output::OutputArgs;
use crate::progress::Progress;
use crate::transport::{Request, Transport};

/// Compared when nothing else is asked for.
const DEFAULT: &[Transport] = &[
    Transport::RawUdp,
    Transport::RawUdpBlock,
    Transport::TcpBlock,
    Transport::TcpEpoll,
    Transport::TcpPoll,
    Transport::ApusUdpFullbusy,
    Transport::ApusUdp,
];

/// Round-trip time of a short call, one at a time
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench rtt
  apus bench rtt --transports raw-udp-block,tcp-block,apus-udp --pin same
  apus bench rtt --size 1kB --runs 9 --json rtt.json")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = super::parse_size)]
    pub(crate) size: u32,
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

/// All runs of one transport.
struct Subject {
    transport: Transport,
    latency: Latency,
    lost: u64,
}

/// Measures; adds a row for each run of a transport and the curve of its latencies.
///
/// # Errors
/// When a transport fails.
pub(crate) fn measure(args: &Args, result: &mut ResultFile) -> Result<()> {
    let transports = args.common.transports("rtt", DEFAULT, |_| true)?;
    let subject = |transport| Subject { transport, latency: Latency::new(), lost: 0 };
    let mut subjects: Vec<Subject> = transports.into_iter().map(subject).collect();
    let progress = Progress::new(subjects.len() as u64 * u64::from(args.common.runs));
    let whole = args.common.interleave(&mut subjects, &progress, |subject, run| {
        progress.begin(&format!("rtt: {}", subject.transport.name()));
        let row = measure_once(subject, args, run, result)?;
        result.rows.push(row);
        Ok(())
    });
    let name = format!("Round trip of one {} B call at a time", args.size);
    for Subject { transport, latency, lost } in subjects {
        if latency.is_empty() {
            continue;
        }
        result.series.push(Series::latency_cdf(&name, transport.name(), &latency));
        warn_of_losses(result, transport, lost, latency.count());
    }
    whole
}

fn measure_once(
    subject: &mut Subject,
    args: &Args,
    run: u32,
    result: &mut ResultFile,
) -> Result<Row> {
    let transport = subject.transport;
    let request = Request { tag: 0, length: args.size, reply: reply_length(false) };
    let (((latency, tally), cpu), health) =
        args.common.runner().run(transport, 1, |client, meter| {
            measured(meter, args.common.duration(), |duration| {
                ping_pong(transport, client, request, duration)
            })
        })?;
    subject.latency.merge(&latency);
    subject.lost += tally.lost;
    let row = args.common.row("rtt", transport, run).set("size_bytes", args.size);
    let row = row
        .set_latency(&latency)
        .set("client_cpu_s", cpu.client.as_secs_f64())
        .set("server_cpu_s", cpu.server.as_secs_f64())
        .set("elapsed_s", tally.elapsed.as_secs_f64());
    Ok(note_health(row, health, result))
}
