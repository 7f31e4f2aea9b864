//! Calls between two processes of this machine.

use anyhow::Result;
use apus::Delivery;
use apus_bench::comparison::{Comparison, Connections};
use apus_bench::pin::Pin;
use apus_bench::transport::Transport;
use apus_bench::{mix, rtt, stream};
use apus_load::progress::Progress;
use apus_load::{ResultFile, Row, Workload};
use apus_node::arguments;

use super::table::{ComparedFigure, Contenders, Unit, is_of};

/// Bytes of a short call.
const SHORT: u32 = 100;

/// Bytes of a long message.
const LONG: u32 = 500_000;

/// Long messages under way at the same time.
const OUTSTANDING: u64 = 8;

/// The loads of the mix, in Gb/s: the second where this machine is too small or too busy for the first.
const LOADS_GBPS: [f64; 2] = [2.0, 0.5];

/// Number and length of the runs.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct RunLength {
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.5, hide = true, value_parser = arguments::seconds)]
    pub(super) seconds: f64,
    /// Runs of each measurement
    #[arg(long, value_name = "N", default_value_t = 3, hide = true, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) runs: u32,
}

/// Measures round trips, a mix of messages, and streams; adds the rows and curves of all three.
///
/// # Errors
/// When a measurement fails.
pub(super) fn measure(
    options: &RunLength,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    rtt::measure(&rtt_options(options), progress, result)?;
    let mixed = measure_mix(options, progress, result);
    mixed.and_then(|()| stream::measure(&stream_options(options), progress, result))
}

/// Measures the mix under the highest load at which there is a figure of each kind of transport.
fn measure_mix(
    options: &RunLength,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    let mut tried = Vec::new();
    for gbps in LOADS_GBPS {
        let mut mixed = ResultFile::new(&result.command, result.machine.clone());
        let whole = mix::measure(&mix_options(options, gbps), progress, &mut mixed);
        if whole.is_ok() && gbps > LOADS_GBPS[1] && !is_complete(&mixed.rows) {
            tried.push(gbps);
            continue;
        }
        for gbps in tried {
            result.warn(format!(
                "the load is lower than usual: at {gbps} Gb/s this machine was too busy to send calls on time"
            ));
        }
        mixed.warnings.into_iter().for_each(|warning| result.warn(warning));
        result.rows.extend(mixed.rows);
        result.series.extend(mixed.series);
        return whole;
    }
    Ok(())
}

/// Whether Apus and a rival of each kind have a figure.
fn is_complete(rows: &[Row]) -> bool {
    let has = |transport: &&str| {
        rows.iter().any(|row| is_loaded(row, transport) && row.number("p99_us").is_some())
    };
    let Contenders { apus, tcp, other, .. } = CONTENDERS;
    [&[apus], tcp, other].iter().all(|kind| kind.iter().any(&has))
}

/// Whether a row is about the mix. The others of `mix` were measured to choose the connections of TCP.
fn is_loaded(row: &Row, transport: &str) -> bool {
    is_of(row, "mix", transport) && load_of(row).is_some()
}

/// The load in words.
fn load_of(row: &Row) -> Option<&str> {
    row.text("load").filter(|load| load.ends_with(" Gb/s"))
}

/// The common options of all parts. Transports that spin are left out where client and server share one CPU.
fn comparison(options: &RunLength, transports: &[Transport]) -> Comparison {
    let pin = Pin::Split;
    let fits = |transport: &&Transport| !(pin.shares_cpu() && transport.spins());
    Comparison {
        transports: transports.iter().filter(fits).copied().collect(),
        delivery: Delivery::default(),
        receive_buffer: None,
        capture: None,
        pin: pin.into(),
        runs: options.runs,
        seconds: options.seconds,
    }
}

fn rtt_options(options: &RunLength) -> rtt::PingPong {
    let transports = [
        Transport::TcpBlock,
        Transport::TcpPoll,
        Transport::UnixBlock,
        Transport::UnixPoll,
        Transport::ApusShm,
    ];
    rtt::PingPong { comparison: comparison(options, &transports), size: SHORT, pause: 0.0 }
}

fn mix_options(options: &RunLength, gbps: f64) -> mix::MessageMix {
    let transports =
        [Transport::TcpEpoll, Transport::TcpPoll, Transport::UnixPoll, Transport::ApusShm];
    mix::MessageMix {
        comparison: comparison(options, &transports),
        workload: Workload::Mix(apus_load::Mix::default()),
        gbps,
        percent: 0,
        one_way: false,
        echo: false,
        connections: Connections { connections: vec![1, 4] },
    }
}

fn stream_options(options: &RunLength) -> stream::StreamThroughput {
    let transports = [
        Transport::TcpEpoll,
        Transport::TcpPoll,
        Transport::UnixBlock,
        Transport::UnixPoll,
        Transport::ApusShm,
    ];
    stream::StreamThroughput {
        read_all: false,
        comparison: comparison(options, &transports),
        size: LONG,
        outstanding: vec![OUTSTANDING],
        echo: false,
        connections: Connections { connections: vec![1, 4] },
    }
}

const CONTENDERS: Contenders = Contenders {
    apus: "apus-shm",
    tcp: &["tcp-block", "tcp-poll", "tcp-epoll"],
    other: &["unix-block", "unix-poll"],
    other_name: "unix sockets",
};

/// The lines of the table.
pub(super) fn lines() -> [ComparedFigure; 5] {
    let time = |name, key, is_in| ComparedFigure {
        name,
        key,
        unit: Unit::Time,
        is_in,
        contenders: CONTENDERS,
        refused: false,
    };
    let is_alone: fn(&_, &_) -> _ = |row, transport| is_of(row, "rtt", transport);
    let is_stream: fn(&_, &_) -> _ =
        |row, transport| is_of(row, "stream", transport) && row.text("load").is_none();
    [
        time("100 B call, p50", "p50_us", is_alone),
        time("100 B call, p99", "p99_us", is_alone),
        time("100 B under load, p50", "p50_us", is_loaded),
        time("100 B under load, p99", "p99_us", is_loaded),
        ComparedFigure {
            unit: Unit::Rate,
            ..time("500 kB messages, Gb/s", "goodput_gbps", is_stream)
        },
    ]
}

/// A description of the measurements.
pub(super) fn description(result: &ResultFile) -> String {
    let load = result.rows.iter().filter(|row| row.text("bench") == Some("mix")).find_map(load_of);
    let load = load.unwrap_or("no load");
    format!(
        "Without the word network: calls between two processes of this machine, Apus\nthrough shared memory. Under load: among calls of up to \
         1 MB, {load} in all."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_load::Machine;

    #[test]
    fn the_load_of_the_table_is_the_one_measured() {
        let mut result = ResultFile::new("apus demo", Machine::default());
        let row = |load: &str| Row::new("apus-shm").set("bench", "mix").set("load", load);
        result.rows = vec![row("choosing connections"), row("0.5 Gb/s")];
        assert!(description(&result).contains("0.5 Gb/s in all"));
    }

    #[test]
    fn a_kind_of_transport_without_a_figure_is_measured_again() {
        let row = |transport: &str| {
            let row = Row::new(transport).set("bench", "mix").set("load", "2 Gb/s");
            row.set("p99_us", 1.0)
        };
        let mut rows = ["apus-shm", "tcp-epoll", "tcp-poll", "unix-poll"].map(row);
        assert!(is_complete(&rows));
        rows[1] = rows[1].clone().refused_as_late();
        assert!(is_complete(&rows), "the other one of TCP counts");
        rows[3] = rows[3].clone().refused_as_late();
        assert!(!is_complete(&rows));
    }
}
