//! Calls between two processes of this machine.

use anyhow::Result;
use apus::Delivery;
use apus_bench::comparison::{Comparison, Connections};
use apus_bench::pin::Pin;
use apus_bench::transport::Transport;
use apus_bench::{mix, rtt, stream};
use apus_load::progress::Progress;
use apus_load::{ResultFile, Workload};
use apus_node::arguments;

use super::table::{Contenders, Line, Unit, is_of};

/// Bytes of a short call.
const SHORT: u32 = 100;

/// Bytes of a long message.
const LONG: u32 = 500_000;

/// Long messages under way at the same time.
const OUTSTANDING: u64 = 8;

/// The load of the mix, in Gb/s.
const LOAD_GBPS: f64 = 2.0;

/// The same as rows name it.
const LOAD: &str = "2 Gb/s";

/// How long the demo takes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Options {
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
    options: &Options,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    rtt::measure(&rtt_options(options), progress, result)?;
    mix::measure(&mix_options(options), progress, result)?;
    stream::measure(&stream_options(options), progress, result)
}

/// What all parts share. Transports that spin are left out where client and server have one CPU between them.
fn comparison(options: &Options, transports: &[Transport]) -> Comparison {
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

fn rtt_options(options: &Options) -> rtt::Options {
    let transports = [
        Transport::TcpBlock,
        Transport::TcpPoll,
        Transport::UnixBlock,
        Transport::UnixPoll,
        Transport::ApusShm,
    ];
    rtt::Options { comparison: comparison(options, &transports), size: SHORT, pause: 0.0 }
}

fn mix_options(options: &Options) -> mix::Options {
    let transports =
        [Transport::TcpEpoll, Transport::TcpPoll, Transport::UnixPoll, Transport::ApusShm];
    mix::Options {
        comparison: comparison(options, &transports),
        workload: Workload::Mix(apus_load::Mix::default()),
        gbps: LOAD_GBPS,
        percent: 0,
        one_way: false,
        echo: false,
        connections: Connections { connections: vec![1, 4] },
    }
}

fn stream_options(options: &Options) -> stream::Options {
    let transports = [
        Transport::TcpEpoll,
        Transport::TcpPoll,
        Transport::UnixBlock,
        Transport::UnixPoll,
        Transport::ApusShm,
    ];
    stream::Options {
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
    other_name: "",
};

/// The lines of the table.
pub(super) fn lines() -> [Line; 5] {
    let time = |name, key, is_in| Line {
        name,
        key,
        unit: Unit::Time,
        is_in,
        contenders: CONTENDERS,
        refused: false,
    };
    let is_alone: fn(&_, &_) -> _ = |row, transport| is_of(row, "rtt", transport);
    // The other rows of these two were measured to choose the connections of TCP.
    let is_loaded: fn(&_, &_) -> _ =
        |row, transport| is_of(row, "mix", transport) && row.text("load") == Some(LOAD);
    let is_stream: fn(&_, &_) -> _ =
        |row, transport| is_of(row, "stream", transport) && row.text("load").is_none();
    [
        time("100-byte call, typical", "p50_us", is_alone),
        time("100-byte call, slowest 1 %", "p99_us", is_alone),
        time("100 bytes under load, typical", "p50_us", is_loaded),
        time("100 bytes under load, slowest 1 %", "p99_us", is_loaded),
        Line { unit: Unit::Rate, ..time("500 kB messages, Gb/s", "goodput_gbps", is_stream) },
    ]
}

/// What was measured.
pub(super) const DESCRIPTION: &str = "\
Without the word network: calls between two processes of this machine, Apus
through shared memory.
Under load: among calls of up to 1 MB, 2 Gb/s in all.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_of_the_table_is_the_one_measured() {
        assert_eq!(LOAD, format!("{LOAD_GBPS} Gb/s"));
        assert!(DESCRIPTION.contains(LOAD));
    }
}
