//! `apus bench mix`: latency of short calls beside long ones, under open-loop load.
//!
//! First each transport's capacity for the mix is measured. Then it is offered three loads: a fixed byte rate; a part of its own
//! capacity; and, for Apus, TCP and unix sockets, the byte rate that is this part of Apus' capacity.

use anyhow::Result;
use apus_load::{BySize, Latency, Lateness, ResultFile, Row, Series, Workload, stats};
use apus_node::message::reply_length;

use crate::calls::Calls;
use crate::closed_loop::Pipeline;
use crate::comparison::{Best, Comparison, Connections, TRIALS, note_beside, warn_of_losses};
use crate::open_loop::{self, OfferedLoad, OpenLoopResult};
use crate::peer::CpuTimes;
use crate::pin::{Pin, Placements};
use crate::runner::measured;
use crate::transport::Transport;
use apus_load::progress::Progress;
use apus_node::arguments;

/// The default transports.
const DEFAULT: &[Transport] = &[
    Transport::RawShm,
    Transport::RawUdp,
    Transport::TcpEpoll,
    Transport::TcpPoll,
    Transport::UnixPoll,
    Transport::ApusShm,
    Transport::ApusUdp,
];

/// Outstanding calls while capacity is measured.
const CAPACITY_OUTSTANDING: u32 = 64;

/// Short messages among long ones: the transports, the lengths of the messages and the loads.
#[derive(Clone, Debug, clap::Args)]
pub struct MessageMix {
    /// Transports, runs and their length
    #[command(flatten)]
    pub comparison: Comparison,
    /// Lengths of requests: mix (90 % 100 B, 9 % 10 kB, 1 % 1 MB), w1 to w5, a size, or weight:size,…
    #[arg(long, value_name = "WORKLOAD", default_value = "mix", value_parser = arguments::workload)]
    pub workload: Workload,
    /// Fixed load: request bytes in Gb/s
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true, default_value_t = 2.0, value_parser = arguments::gbps)]
    pub gbps: f64,
    /// Relative loads, in percent of each transport's own capacity and of that of Apus; 0 skips them
    #[arg(long, value_name = "PERCENT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub percent: u32,
    /// Answer with 100 bytes (the default)
    #[arg(long, conflicts_with = "echo")]
    pub one_way: bool,
    /// Answer with as many bytes as the request
    #[arg(long)]
    pub echo: bool,
    /// Connections of `tcp-epoll`
    #[command(flatten)]
    pub connections: Connections,
}

/// One transport in one placement under one load.
struct TransportUnderLoad {
    transport: Transport,
    pin: Pin,
    connections: usize,
    gbps: f64,
    /// Name of the load in rows and plots.
    load: String,
    /// Latencies of all valid runs.
    by_size: BySize,
    /// Lateness in all refused runs.
    lateness: Lateness,
    unfinished: u64,
}

/// Measures, and adds a row for each run of a transport under a load, and curves of latency and slowdown.
///
/// # Errors
/// If a transport fails.
pub fn measure(
    options: &MessageMix,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    let transports = options.comparison.transports("mix", DEFAULT, Transport::can_poll)?;
    let mut steps = Steps { options, result, progress };
    let mut subjects = Vec::new();
    for &(transport, pin) in &transports {
        let connections = steps.choose_connections(transport, pin)?;
        let load = format!("{} Gb/s", options.gbps);
        subjects.push(TransportUnderLoad::new((transport, pin), connections, options.gbps, load));
    }
    if options.percent > 0 {
        steps.add_shares_of_capacity(&mut subjects)?;
    }
    let whole = steps.measure(&mut subjects);
    subjects.iter().for_each(|subject| subject.warn(result));
    subjects.retain(|subject| !subject.by_size.total().is_empty());
    plot(&options.comparison.pin, &subjects, result);
    whole
}

impl TransportUnderLoad {
    fn new(
        (transport, pin): (Transport, Pin),
        connections: usize,
        gbps: f64,
        load: String,
    ) -> Self {
        Self {
            transport,
            pin,
            connections,
            gbps,
            load,
            by_size: BySize::new(),
            lateness: Lateness::new(),
            unfinished: 0,
        }
    }

    fn placed(&self) -> (Transport, Pin) {
        (self.transport, self.pin)
    }

    /// Adds warnings about the figures.
    fn warn(&self, result: &mut ResultFile) {
        let who = format!("{} at {}", self.transport.name(), self.load);
        // A transport that takes long to hand over a long message causes a part of the lateness. The calls behind it are late all
        // the same.
        if let Some(warning) = self.lateness.warning(&who) {
            result.warn(warning);
        }
        if self.unfinished > 0 {
            let why = if self.transport.may_lose() {
                "datagrams were lost"
            } else {
                "the load exceeded its capacity"
            };
            result.warn(format!(
                "{who}: {} calls had no reply two seconds after the end: {why}",
                self.unfinished
            ));
        }
    }
}

/// The benchmark's steps with their common state.
struct Steps<'a> {
    options: &'a MessageMix,
    result: &'a mut ResultFile,
    progress: &'a dyn Progress,
}

impl Steps<'_> {
    /// The number of connections with the lowest tail at the fixed load.
    fn choose_connections(&mut self, transport: Transport, pin: Pin) -> Result<usize> {
        let Self { options, result, progress } = self;
        options.connections.choose(
            transport,
            Best::Lowest("p99_us"),
            result,
            |connections, run, result| {
                progress
                    .begin(&format!("mix: {} over {connections} connections", transport.name()));
                let trial = &mut TransportUnderLoad::new(
                    (transport, pin),
                    connections,
                    options.gbps,
                    String::new(),
                );
                // If no number of connections keeps to the schedule, the highest number is taken.
                measure_once(options, trial, run, result)
            },
        )
    }

    /// Measures every transport's capacity, and adds the loads that depend on it.
    fn add_shares_of_capacity(&mut self, subjects: &mut Vec<TransportUnderLoad>) -> Result<()> {
        let percent = self.options.percent;
        let mut own = Vec::new();
        for (subject, capacity) in subjects.iter().zip(self.capacities(subjects)?) {
            let gbps = capacity * f64::from(percent) / 100.0;
            let load = format!("{percent} % of own capacity");
            own.push(TransportUnderLoad::new(subject.placed(), subject.connections, gbps, load));
        }
        let is_compared =
            |transport: Transport| transport.is_apus() || transport.is_kernel_socket();
        let mut same_rate = Vec::new();
        for subject in own.iter().filter(|subject| is_compared(subject.transport)) {
            // The last Apus transport is Apus over UDP, unless the user gives another order. TCP cannot carry the load of shared
            // memory.
            let is_meant =
                |other: &&TransportUnderLoad| other.pin == subject.pin && other.transport.is_apus();
            let Some(apus) = own.iter().rfind(is_meant) else { continue };
            let load = format!("{percent} % of the capacity of {}", apus.transport.name());
            same_rate.push(TransportUnderLoad::new(
                subject.placed(),
                subject.connections,
                apus.gbps,
                load,
            ));
        }
        subjects.extend(own);
        subjects.extend(same_rate);
        Ok(())
    }

    /// The capacity of each subject's transport in Gb/s, as the median of several runs.
    fn capacities(&mut self, subjects: &[TransportUnderLoad]) -> Result<Vec<f64>> {
        let mut figures = vec![Vec::new(); subjects.len()];
        for run in 1..=TRIALS {
            for (subject, figures) in subjects.iter().zip(&mut figures) {
                figures.push(self.capacity(subject, run)?);
            }
        }
        Ok(figures.iter().map(|figures| stats::median(figures).unwrap_or(0.0)).collect())
    }

    /// Request bytes that a transport carries with many outstanding calls of the mix, in Gb/s.
    fn capacity(&mut self, subject: &TransportUnderLoad, run: u32) -> Result<f64> {
        let &TransportUnderLoad { transport, pin, connections, .. } = subject;
        let options = self.options;
        self.progress.begin(&format!("mix: capacity of {}", transport.name()));
        let ((tally, _), beside) =
            options.comparison.runner(pin).run(transport, connections, |client, meter| {
                let reply = reply_length(!options.echo);
                let workload = options.workload.clone();
                let calls = Calls::new(workload, reply, CAPACITY_OUTSTANDING, 1);
                let mut pipeline = Pipeline::new(transport, calls);
                measured(meter, options.comparison.duration(), |duration| {
                    pipeline.run(client, duration, 0)
                })
            })?;
        warn_of_losses(self.result, transport, tally.lost, tally.calls);
        let row = options.comparison.row("mix", transport, pin, run);
        let row = row.set("workload", options.workload.to_string());
        let row = row.set("load", "capacity, closed loop").set("outstanding", CAPACITY_OUTSTANDING);
        let row = row.set("goodput_gbps", tally.goodput_gbps());
        let row = match beside.floor {
            Some(floor) => floor.note(row, self.result),
            None => row,
        };
        self.result.rows.push(row);
        Ok(tally.goodput_gbps())
    }

    fn measure(&mut self, subjects: &mut [TransportUnderLoad]) -> Result<()> {
        let Self { options, result, progress } = self;
        progress.lengthen(subjects.len() as u64 * u64::from(options.comparison.runs));
        options.comparison.interleave(subjects, *progress, |subject, run| {
            let placement = options.comparison.pin.suffix(subject.pin);
            let transport = subject.transport.name();
            progress.begin(&format!("mix: {transport} at {}{placement}", subject.load));
            let row = measure_once(options, subject, run, result)?;
            result.rows.push(row);
            Ok(())
        })
    }
}

/// Offers a load once, and adds the results to the subject.
fn measure_once(
    options: &MessageMix,
    subject: &mut TransportUnderLoad,
    run: u32,
    result: &mut ResultFile,
) -> Result<Row> {
    let load = OfferedLoad {
        workload: options.workload.clone(),
        reply: reply_length(!options.echo),
        gbps: subject.gbps,
        duration: options.comparison.duration(),
        warm_up: options.comparison.duration() / 10,
        // Every transport gets the same calls at the same times; runs get different ones.
        seed: u64::from(run),
        yields: subject.pin.shares_cpu(),
    };
    let runner = options.comparison.runner(subject.pin);
    let ((outcome, cpu), beside) =
        runner.run(subject.transport, subject.connections, |client, meter| {
            let before = meter.read()?;
            let outcome = open_loop::offer(client, &load)?;
            Ok((outcome, meter.read()? - before))
        })?;
    let row = note_beside(row(options, subject, run, &outcome, cpu), beside, result);
    subject.unfinished += outcome.unfinished;
    if outcome.lateness.is_refused() {
        subject.lateness.merge(&outcome.lateness);
        return Ok(row.refused_as_late());
    }
    subject.by_size.merge(&outcome.by_size);
    Ok(row)
}

/// Latencies of the shortest size class, 100 B in the usual mix.
fn of_shortest(by_size: &BySize) -> Latency {
    by_size.classes().next().map(|class| class.latency().clone()).unwrap_or_default()
}

fn row(
    options: &MessageMix,
    subject: &TransportUnderLoad,
    run: u32,
    outcome: &OpenLoopResult,
    cpu: CpuTimes,
) -> Row {
    let row = options.comparison.row("mix", subject.transport, subject.pin, run);
    let row = row.set("workload", options.workload.to_string()).set("load", subject.load.as_str());
    let row = if subject.transport == Transport::TcpEpoll {
        row.set("connections", subject.connections)
    } else {
        row
    };
    let longest = outcome.by_size.classes().last().map(|class| class.latency().p(99.0));
    let row = row
        .set("offered_gbps", subject.gbps)
        .set_latency(&of_shortest(&outcome.by_size))
        .set("longest_p99_us", longest)
        .set("goodput_gbps", outcome.tally.goodput_gbps())
        .set("unfinished", outcome.unfinished)
        .set("late_pct", outcome.lateness.share() * 100.0);
    cpu.set(row)
}

/// One plot of latency and one of slowdown for each load.
fn plot(placements: &Placements, subjects: &[TransportUnderLoad], result: &mut ResultFile) {
    let ideal = Ideal::of(subjects);
    for subject in subjects {
        let placement = placements.suffix(subject.pin);
        let name = format!("Latency of the shortest calls at {}{placement}", subject.load);
        let transport = subject.transport.name();
        result.series.push(Series::latency_cdf(&name, transport, &of_shortest(&subject.by_size)));
        let name = format!("Slowdown by size at {}{placement}", subject.load);
        let series = Series::slowdown_by_size(&name, transport, &subject.by_size, 99.0, |bytes| {
            ideal.us(bytes)
        });
        result.series.push(series);
    }
}

/// The best latency of each size among all transports: a straight line from the fastest call of the shortest class to the fastest
/// call of the longest one. Slowdown is latency divided by this ideal, which is the same for all transports.
struct Ideal {
    base_us: f64,
    us_per_byte: f64,
}

impl Ideal {
    fn of(subjects: &[TransportUnderLoad]) -> Self {
        let mut all = BySize::new();
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
        let mut subject =
            TransportUnderLoad::new((Transport::TcpEpoll, Pin::Split), 1, 2.0, String::new());
        for (bytes, ns) in [(100, 5_000), (100, 9_000), (1_000_000, 105_000), (1_000_000, 400_000)]
        {
            subject.by_size.record(bytes, ns);
        }
        let ideal = Ideal::of(&[subject]);
        assert!((ideal.us(100.0) - 5.0).abs() < 0.1 && (ideal.us(1e6) - 105.0).abs() < 0.2);
        assert!((ideal.us(500_050.0) - 55.0).abs() < 0.2);
    }
}
