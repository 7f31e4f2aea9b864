//! `apus bench mix`: what short calls suffer beside long ones, at loads drawn beforehand.
//!
//! First each transport's capacity for the mix is measured; then it is offered three loads:
//! a fixed byte rate; a part of its own capacity; and, beside Apus, the byte rate that is this part of Apus' capacity.

use anyhow::Result;
use apus_load::{BySize, Latency, Lateness, ResultFile, Row, Series, Workload, stats};

use super::closed_loop::Pipeline;
use super::open_loop::{self, CLASSES_PER_DECADE, Offer, Outcome};
use super::peer::CpuTimes;
use super::runner::measured;
use super::{
    Best, Common, Connections, TRIALS, note_health, parse_workload, record, reply_length,
    warn_of_losses,
};
use crate::output::OutputArgs;
use crate::progress::Progress;
use crate::transport::Transport;

/// Compared when nothing else is asked for.
const DEFAULT: &[Transport] =
    &[Transport::RawUdp, Transport::TcpEpoll, Transport::TcpPoll, Transport::ApusUdp];

/// Calls outstanding while capacity is measured.
const CAPACITY_OUTSTANDING: usize = 64;

/// Latency of short calls among long ones
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench mix
  apus bench mix --gbps 4 --transports tcp-epoll,apus-udp
  apus bench mix --workload w3 --echo --html mix.html")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Lengths of requests: mix (90 % 100 B, 9 % 10 kB, 1 % 1 MB), w1 to w5, a size, or weight:size,…
    #[arg(long, value_name = "WORKLOAD", default_value = "mix", value_parser = parse_workload)]
    pub(crate) workload: Workload,
    /// The fixed load, request bytes in Gb/s
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true, default_value_t = 2.0, value_parser = super::parse_gbps)]
    pub(crate) gbps: f64,
    /// The other loads, in percent of capacity; 0 leaves them out
    #[arg(long, value_name = "PERCENT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) percent: u32,
    /// Answer with 100 bytes (the default)
    #[arg(long, conflicts_with = "echo")]
    pub(crate) one_way: bool,
    /// Answer with as many bytes as the request has
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

/// One transport under one load.
struct Subject {
    transport: Transport,
    connections: usize,
    gbps: f64,
    /// Names the load in rows and plots.
    load: String,
    /// Of all runs.
    by_size: BySize,
    lateness: Lateness,
    unfinished: u64,
}

/// Measures; adds a row for each run of a transport under a load, and curves of latency and slowdown.
///
/// # Errors
/// When a transport fails.
pub(crate) fn measure(args: &Args, result: &mut ResultFile) -> Result<()> {
    let transports = args.common.transports("mix", DEFAULT, Transport::can_poll)?;
    let mut steps = Steps { args, result, progress: Progress::new(0) };
    let mut subjects = Vec::new();
    for &transport in &transports {
        let connections = steps.choose_connections(transport)?;
        let load = format!("{} Gb/s", args.gbps);
        subjects.push(Subject::new(transport, connections, args.gbps, load));
    }
    if args.percent > 0 {
        steps.add_shares_of_capacity(&mut subjects)?;
    }
    let whole = steps.measure(&mut subjects);
    subjects.retain(|subject| !subject.by_size.total().is_empty());
    subjects.iter().for_each(|subject| subject.warn(result));
    plot(&subjects, result);
    whole
}

impl Subject {
    fn new(transport: Transport, connections: usize, gbps: f64, load: String) -> Self {
        Self {
            transport,
            connections,
            gbps,
            load,
            by_size: BySize::new(CLASSES_PER_DECADE),
            lateness: Lateness::new(),
            unfinished: 0,
        }
    }

    /// What may be wrong with the figures.
    fn warn(&self, result: &mut ResultFile) {
        let who = format!("{} at {}", self.transport.name(), self.load);
        // Part of it is the transport's own doing, when handing over a long message takes long; a caller would see that too.
        if let Some(warning) = self.lateness.warning(&who) {
            result.warn(warning);
        }
        if self.unfinished > 0 {
            let floor = self.transport.is_floor();
            let why =
                if floor { "datagrams were lost" } else { "the load was more than it could carry" };
            result.warn(format!(
                "{who}: {} calls had no reply two seconds after the end: {why}",
                self.unfinished
            ));
        }
    }
}

/// The steps of the benchmark, with what all of them need.
struct Steps<'a> {
    args: &'a Args,
    result: &'a mut ResultFile,
    progress: Progress,
}

impl Steps<'_> {
    /// The number of connections that gives the lowest tail at the fixed load.
    fn choose_connections(&mut self, transport: Transport) -> Result<usize> {
        let Self { args, result, progress } = self;
        args.connections.choose(
            transport,
            Best::Lowest("p99_us"),
            result,
            |connections, run, result| {
                progress
                    .begin(&format!("mix: {} over {connections} connections", transport.name()));
                let trial = &mut Subject::new(transport, connections, args.gbps, String::new());
                measure_once(args, trial, run, result)
            },
        )
    }

    /// Measures the capacity of every transport and adds the loads that follow from it.
    fn add_shares_of_capacity(&mut self, subjects: &mut Vec<Subject>) -> Result<()> {
        let percent = self.args.percent;
        let mut own = Vec::new();
        for (subject, capacity) in subjects.iter().zip(self.capacities(subjects)?) {
            let gbps = capacity * f64::from(percent) / 100.0;
            let load = format!("{percent} % of own capacity");
            own.push(Subject::new(subject.transport, subject.connections, gbps, load));
        }
        let apus = own.iter().find(|subject| subject.transport.is_apus());
        let same_rate: Vec<Subject> = apus.map_or_else(Vec::new, |apus| {
            let load = format!("{percent} % of the capacity of {}", apus.transport.name());
            let rivals = own
                .iter()
                .filter(|rival| rival.transport == apus.transport || rival.transport.is_tcp());
            rivals
                .map(|rival| {
                    Subject::new(rival.transport, rival.connections, apus.gbps, load.clone())
                })
                .collect()
        });
        subjects.extend(own);
        subjects.extend(same_rate);
        Ok(())
    }

    /// The capacity of each subject's transport in Gb/s, the median of some runs.
    fn capacities(&mut self, subjects: &[Subject]) -> Result<Vec<f64>> {
        let mut figures = vec![Vec::new(); subjects.len()];
        for run in 1..=TRIALS {
            for (subject, figures) in subjects.iter().zip(&mut figures) {
                figures.push(self.capacity(subject, run)?);
            }
        }
        Ok(figures.iter().map(|figures| stats::median(figures).unwrap_or(0.0)).collect())
    }

    /// Request bytes a transport carries with many calls of the mix outstanding, in Gb/s.
    fn capacity(&mut self, subject: &Subject, run: u32) -> Result<f64> {
        let &Subject { transport, connections, .. } = subject;
        let args = self.args;
        self.progress.begin(&format!("mix: capacity of {}", transport.name()));
        let ((tally, _), _) =
            args.common.runner().run(transport, connections, |client, meter| {
                let reply = reply_length(!args.echo);
                let mut pipeline =
                    Pipeline::new(transport, &args.workload, reply, CAPACITY_OUTSTANDING);
                measured(meter, args.common.duration(), |duration| pipeline.run(client, duration))
            })?;
        warn_of_losses(self.result, transport, tally.lost, tally.calls);
        let row = args.common.row("mix", transport, run);
        let row = row.set("workload", args.workload.to_string());
        let row = row.set("load", "capacity, closed loop").set("outstanding", CAPACITY_OUTSTANDING);
        self.result.rows.push(row.set("goodput_gbps", tally.goodput_gbps()));
        Ok(tally.goodput_gbps())
    }

    fn measure(&mut self, subjects: &mut [Subject]) -> Result<()> {
        let Self { args, result, progress } = self;
        progress.lengthen(subjects.len() as u64 * u64::from(args.common.runs));
        args.common.interleave(subjects, progress, |subject, run| {
            progress.begin(&format!("mix: {} at {}", subject.transport.name(), subject.load));
            let row = measure_once(args, subject, run, result)?;
            result.rows.push(row);
            Ok(())
        })
    }
}

/// Offers a load once; adds what came of it to the subject.
fn measure_once(
    args: &Args,
    subject: &mut Subject,
    run: u32,
    result: &mut ResultFile,
) -> Result<Row> {
    let load = Offer {
        workload: args.workload.clone(),
        reply: reply_length(!args.echo),
        gbps: subject.gbps,
        duration: args.common.duration(),
        warm_up: args.common.duration() / 10,
        // Every transport meets the same calls at the same times; every run other ones.
        seed: u64::from(run),
        yields: args.common.pin.shares_cpu(),
    };
    let runner = args.common.runner();
    let ((outcome, cpu), health) =
        runner.run(subject.transport, subject.connections, |client, meter| {
            let before = meter.read()?;
            let outcome = open_loop::offer(client, &load)?;
            Ok((outcome, meter.read()?.since(before)))
        })?;
    subject.by_size.merge(&outcome.by_size);
    subject.lateness.merge(&outcome.lateness);
    subject.unfinished += outcome.unfinished;
    Ok(note_health(row(args, subject, run, &outcome, cpu), health, result))
}

/// The latencies of the shortest class of sizes, 100 B of the usual mix.
fn of_shortest(by_size: &BySize) -> Latency {
    by_size.classes().next().map(|class| class.latency().clone()).unwrap_or_default()
}

fn row(args: &Args, subject: &Subject, run: u32, outcome: &Outcome, cpu: CpuTimes) -> Row {
    let row = args.common.row("mix", subject.transport, run);
    let row = row.set("workload", args.workload.to_string()).set("load", subject.load.as_str());
    let row = if subject.transport == Transport::TcpEpoll {
        row.set("connections", subject.connections)
    } else {
        row
    };
    let longest = outcome.by_size.classes().last().map(|class| class.latency().p(99.0));
    row.set("offered_gbps", subject.gbps)
        .set_latency(&of_shortest(&outcome.by_size))
        .set("longest_p99_us", longest)
        .set("goodput_gbps", outcome.goodput_gbps())
        .set("unfinished", outcome.unfinished)
        .set("late_pct", outcome.lateness.share() * 100.0)
        .set("client_cpu_s", cpu.client.as_secs_f64())
        .set("server_cpu_s", cpu.server.as_secs_f64())
}

/// One plot of latency and one of slowdown for each load.
fn plot(subjects: &[Subject], result: &mut ResultFile) {
    let ideal = Ideal::of(subjects);
    for subject in subjects {
        let name = format!("Latency of the shortest calls at {}", subject.load);
        let transport = subject.transport.name();
        result.series.push(Series::latency_cdf(&name, transport, &of_shortest(&subject.by_size)));
        let name = format!("Slowdown by size at {}", subject.load);
        let series = Series::slowdown_by_size(&name, transport, &subject.by_size, 99.0, |bytes| {
            ideal.us(bytes)
        });
        result.series.push(series);
    }
}

/// The best latency seen for each size, by whatever transport: a straight line from the fastest call of the shortest
/// class to that of the longest. Slowdown is latency over this, the same for all transports.
struct Ideal {
    base_us: f64,
    us_per_byte: f64,
}

impl Ideal {
    fn of(subjects: &[Subject]) -> Self {
        let mut all = BySize::new(CLASSES_PER_DECADE);
        subjects.iter().for_each(|subject| all.merge(&subject.by_size));
        let fastest = |class: &apus_load::SizeClass| (class.bytes_mean(), class.latency().min_us());
        let (Some(short), Some(long)) =
            (all.classes().next().map(fastest), all.classes().last().map(fastest))
        else {
            return Self { base_us: 1.0, us_per_byte: 0.0 };
        };
        let us_per_byte =
            if long.0 > short.0 { ((long.1 - short.1) / (long.0 - short.0)).max(0.0) } else { 0.0 };
        Self { base_us: (short.1 - short.0 * us_per_byte).max(f64::MIN_POSITIVE), us_per_byte }
    }

    fn us(&self, bytes: f64) -> f64 {
        self.base_us + bytes * self.us_per_byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_goes_through_the_fastest_calls() {
        let mut subject = Subject::new(Transport::TcpEpoll, 1, 2.0, String::new());
        for (bytes, ns) in [(100, 5_000), (100, 9_000), (1_000_000, 105_000), (1_000_000, 400_000)]
        {
            subject.by_size.record(bytes, ns);
        }
        let ideal = Ideal::of(&[subject]);
        assert!((ideal.us(100.0) - 5.0).abs() < 0.1 && (ideal.us(1e6) - 105.0).abs() < 0.2);
        assert!((ideal.us(500_050.0) - 55.0).abs() < 0.2);
    }
}
