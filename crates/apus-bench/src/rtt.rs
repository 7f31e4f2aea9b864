//! `apus bench rtt`: latency of one short call on an idle system.

use apus_node::message::reply_length;
use std::time::Duration;

use anyhow::Result;
use apus_load::{Latency, ResultFile, Row, Series};

use crate::closed_loop::ping_pong;
use crate::comparison::{Comparison, note_beside, warn_of_losses};
use crate::pin::Pin;
use crate::runner::measured;
use crate::transport::Transport;
use apus_load::progress::Progress;
use apus_node::arguments;
use apus_node::transport::interface::Request;

/// The default transports.
const DEFAULT: &[Transport] = &[
    Transport::RawShm,
    Transport::RawUdp,
    Transport::RawUdpBlock,
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

/// Round trips of calls, one at a time: the transports, the length of the messages and the pauses.
#[derive(Clone, Debug, clap::Args)]
pub struct PingPong {
    /// Transports, runs and their length
    #[command(flatten)]
    pub comparison: Comparison,
    /// Bytes of request and reply
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = arguments::size)]
    pub size: u32,
    /// Seconds of sleep before each call; from 0.002, both sides sleep when it begins, unless they always spin
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = arguments::pause)]
    pub pause: f64,
}

/// All runs of one transport in one placement.
struct TransportLatency {
    transport: Transport,
    pin: Pin,
    latency: Latency,
    lost: u64,
}

/// Measures, and adds a row for each run of a transport and the curve of its latencies.
///
/// # Errors
/// If a transport fails.
pub fn measure(options: &PingPong, progress: &dyn Progress, result: &mut ResultFile) -> Result<()> {
    let transports = options.comparison.transports("rtt", DEFAULT, |_| true)?;
    let subject =
        |(transport, pin)| TransportLatency { transport, pin, latency: Latency::new(), lost: 0 };
    let mut subjects: Vec<TransportLatency> = transports.into_iter().map(subject).collect();
    progress.lengthen(subjects.len() as u64 * u64::from(options.comparison.runs));
    let whole = options.comparison.interleave(&mut subjects, progress, |subject, run| {
        let placement = options.comparison.pin.suffix(subject.pin);
        progress.begin(&format!("rtt: {}{placement}", subject.transport.name()));
        let row = measure_once(subject, options, run, result)?;
        result.rows.push(row);
        Ok(())
    });
    for TransportLatency { transport, pin, latency, lost } in subjects {
        if latency.is_empty() {
            continue;
        }
        let placement = options.comparison.pin.suffix(pin);
        let name = format!("Round trip of one {} B call at a time{placement}", options.size);
        result.series.push(Series::latency_cdf(&name, transport.name(), &latency));
        warn_of_losses(result, transport, lost, latency.count());
    }
    whole
}

fn measure_once(
    subject: &mut TransportLatency,
    options: &PingPong,
    run: u32,
    result: &mut ResultFile,
) -> Result<Row> {
    let TransportLatency { transport, pin, .. } = *subject;
    let request = Request { tag: 0, length: options.size, reply: reply_length(false) };
    let pause = Duration::from_secs_f64(options.pause);
    let (((latency, tally), cpu), beside) =
        options.comparison.runner(pin).run(transport, 1, |client, meter| {
            measured(meter, options.comparison.duration(), |duration| {
                ping_pong(transport, client, request, pause, duration)
            })
        })?;
    subject.latency.merge(&latency);
    subject.lost += tally.lost;
    let row = options.comparison.row("rtt", transport, pin, run).set("size_bytes", options.size);
    let row = if options.pause > 0.0 { row.set("pause_s", options.pause) } else { row };
    let row = cpu.set(row.set_latency(&latency)).set("elapsed_s", tally.elapsed.as_secs_f64());
    Ok(note_beside(row, beside, result))
}
