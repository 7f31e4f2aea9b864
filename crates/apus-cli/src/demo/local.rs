//! The demo: the main figures in less than a minute, for somebody who has never seen Apus.

use anyhow::Result;
use apus::Delivery;
use apus_load::report::{self, Style, Table};
use apus_load::{ResultFile, Row, Workload, stats};

use apus_bench::comparison::{Comparison, Connections};
use apus_bench::pin::Pin;
use apus_bench::progress::Progress;
use apus_bench::transport::Transport;
use apus_bench::{arguments, mix, rtt, stream};

/// Bytes of a short call.
const SHORT: u32 = 100;

/// Bytes of a long message.
const LONG: u32 = 500_000;

/// Long messages under way at the same time.
const OUTSTANDING: u64 = 8;

/// The fixed load of the mix, in Gb/s.
const LOAD_GBPS: f64 = 2.0;

/// The other load of the mix, in percent of what Apus can carry.
const LOAD_PERCENT: u32 = 60;

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

/// Measures round trips, streams and a mix of messages; adds the rows and curves of all three.
///
/// # Errors
/// When a measurement fails.
pub(super) fn measure(
    options: &Options,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    rtt::measure(&rtt_options(options), progress, result)?;
    stream::measure(&stream_options(options), progress, result)?;
    mix::measure(&mix_options(options), progress, result)
}

/// What all parts share. Transports that spin are left out where client and server have one CPU between them.
fn comparison(options: &Options, transports: &[Transport]) -> Comparison {
    let pin = Pin::Split;
    let fits = |transport: &&Transport| !(pin.shares_cpu() && transport.spins());
    Comparison {
        transports: transports.iter().filter(fits).copied().collect(),
        delivery: Delivery::default(),
        receive_buffer: None,
        pin,
        runs: options.runs,
        seconds: options.seconds,
    }
}

fn rtt_options(options: &Options) -> rtt::Options {
    let transports =
        [Transport::RawUdp, Transport::TcpBlock, Transport::TcpPoll, Transport::ApusUdp];
    rtt::Options { comparison: comparison(options, &transports), size: SHORT }
}

fn stream_options(options: &Options) -> stream::Options {
    let transports = [Transport::RawUdp, Transport::TcpEpoll, Transport::ApusUdp];
    stream::Options {
        comparison: comparison(options, &transports),
        size: LONG,
        outstanding: vec![OUTSTANDING],
        echo: false,
        connections: Connections { connections: vec![1, 4] },
    }
}

fn mix_options(options: &Options) -> mix::Options {
    mix::Options {
        comparison: comparison(options, &[Transport::TcpEpoll, Transport::ApusUdp]),
        workload: Workload::Mix(apus_load::Mix::default()),
        gbps: LOAD_GBPS,
        percent: LOAD_PERCENT,
        one_way: false,
        echo: false,
        connections: Connections { connections: vec![1, 4] },
    }
}

/// One line of the table: a figure of Apus and the same of TCP.
struct Line {
    what: String,
    bench: &'static str,
    /// The rows meant, when the benchmark has several loads.
    load: Option<String>,
    rival: Transport,
    key: &'static str,
}

fn lines() -> [Line; 5] {
    let line = |what: &str, bench, load, rival, key| Line {
        what: what.to_owned(),
        bench,
        load,
        rival,
        key,
    };
    let fixed = format!("{LOAD_GBPS} Gb/s");
    let among = format!("… among messages up to 1 MB, {fixed}, p50");
    let share = format!("{LOAD_PERCENT} % of the capacity of {}", Transport::ApusUdp.name());
    let at_share = format!("… at {LOAD_PERCENT} % of what Apus can carry, p99");
    [
        line("a call of 100 B alone, p50", "rtt", None, Transport::TcpBlock, "p50_us"),
        line(&among, "mix", Some(fixed.clone()), Transport::TcpEpoll, "p50_us"),
        line("… the same, p99", "mix", Some(fixed), Transport::TcpEpoll, "p99_us"),
        line(&at_share, "mix", Some(share), Transport::TcpEpoll, "p99_us"),
        line("throughput of 500 kB messages", "stream", None, Transport::TcpEpoll, "goodput_gbps"),
    ]
}

/// The table that reads at a glance, and what may be wrong with it.
pub(super) fn glance(result: &ResultFile, style: Style) -> String {
    let compared = lines().into_iter().filter_map(|line| {
        let (apus, tcp) =
            (line.values(result, Transport::ApusUdp), line.values(result, line.rival));
        let (ours, theirs) = (stats::median(&apus)?, stats::median(&tcp)?);
        let figure = |value| report::with_unit(line.key, value);
        let verdict = report::comparison(line.key, &apus, &tcp);
        Some(vec![line.what, figure(ours), figure(theirs), verdict])
    });
    let heads = [("", false), ("Apus", true), ("TCP", true), ("Apus against TCP", true)];
    let table = Table::of_texts("", "", &heads, compared);
    format!("{}\n\n{}{}", result.machine, table.text(style), report::warnings(result, style))
}

impl Line {
    /// The figure of a transport, run by run.
    fn values(&self, result: &ResultFile, transport: Transport) -> Vec<f64> {
        let meant = |row: &&Row| {
            row.transport() == transport.name()
                && row.text("bench") == Some(self.bench)
                && row.text("load") == self.load.as_deref()
        };
        result.rows.iter().filter(meant).filter_map(|row| row.number(self.key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_load::Machine;

    #[test]
    fn the_table_has_a_line_for_each_figure_with_both_sides() {
        let mut result = ResultFile::new("apus demo", Machine::default());
        for (transport, us) in [("apus-udp", 6.0), ("tcp-block", 54.0)] {
            result.rows.push(Row::new(transport).set("bench", "rtt").set("p50_us", us));
        }
        result.rows.push(Row::new("apus-udp").set("bench", "stream").set("goodput_gbps", 40.0));
        result.warn("the machine was busy");
        let text = glance(&result, Style::PLAIN);
        assert!(text.contains("6 µs  54 µs") && text.contains("9.0× faster"), "{text}");
        assert!(!text.contains("Gb/s messages") && !text.contains("40.0"), "{text}");
        assert!(text.ends_with("  ! the machine was busy\n"), "{text}");
    }

    #[test]
    fn the_words_follow_from_the_figures_beside_them() {
        let mut result = ResultFile::new("apus demo", Machine::default());
        for (run, ours, theirs) in [(1_u32, 9.0, 9.6), (2, 22.0, 23.0), (3, 30.0, 13.0)] {
            for (transport, us) in [("apus-udp", ours), ("tcp-block", theirs)] {
                let row = Row::new(transport).set("bench", "rtt").set("run", run);
                result.rows.push(row.set("p50_us", us));
            }
        }
        let text = glance(&result, Style::PLAIN);
        assert!(text.contains("22 µs  13 µs") && text.contains("runs disagree"), "{text}");
    }

    #[test]
    fn every_line_of_the_table_names_a_load_that_is_measured() {
        let [_, _, fixed, share, _] = lines();
        assert_eq!(fixed.load.as_deref(), Some("2 Gb/s"));
        assert_eq!(share.load.as_deref(), Some("60 % of the capacity of apus-udp"));
    }
}
