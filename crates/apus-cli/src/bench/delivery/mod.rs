//! `apus bench delivery`: the experiment of the kernel's IRQ suspension patches with Apus in the kernel's place.
//!
//! * [`store`], [`server`]: a key-value store on one core;
//! * [`generator`]: queries from another core, open loop, latency from the intended start;
//! * [`instructions`]: instructions per query, from callgrind;
//! * this file: which cases, at which loads, in which order, and what of it is valid.
//!
//! The table, its checks and its plots are made from the rows by [`apus_load::report`].

mod generator;
mod instructions;
pub(crate) mod server;
pub(crate) mod store;

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apus::Delivery;
use apus_load::arrival::LATE_SHARE_MAX;
use apus_load::report::delivery::curves;
use apus_load::{Cell, Lateness, ResultFile, Row, report};
use apus_net::cpu;

use self::generator::{Arrival, Offer, Outcome, Pace, Records};
use super::record;
use super::runner::Pin;
use crate::delivery;
use crate::failure::Misuse;
use crate::output::OutputArgs;
use crate::progress::Progress;
use crate::transport::Health;

/// The cases of the published tables, suspension without deferral as the control, and what Apus does by itself.
pub(crate) const CASES: &str = "base,defer10,defer20,defer50,defer200,napibusy,fullbusy,suspend0,suspend10,suspend20,suspend50,suspend200,suspend";

/// Runs of base in a closed loop that tell what 100 % is.
const BASE_RUNS: u32 = 3;

/// Times a run is repeated when the generator was late.
const REPEATS_MAX: u32 = 3;

/// Packet delivery compared: latency and CPU time of a key-value server against load
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus bench delivery --json delivery.json --html delivery.html
  apus bench delivery --cases base,suspend20,fullbusy --loads 20,MAX --runs 3
  apus bench delivery --cases suspend20 --loads 20 --threads 2,8
  apus bench delivery --cases base,suspend20 --ipq --loads 20 --runs 1")]
pub(crate) struct Args {
    /// Deliveries to compare, with parameters if wanted, as in suspend20,budget=32
    #[arg(long, value_name = "LIST", default_value = CASES)]
    pub(crate) cases: Cases,
    /// Loads in percent of the highest rate of base in a closed loop; MAX is a closed loop
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "20,40,60,80,100,MAX")]
    pub(crate) loads: Vec<Load>,
    /// What 100 percent is, in queries per second [default: measured first]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) base_qps: Option<u32>,
    /// Runs of each case at each load, interleaved
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = super::parse_seconds)]
    pub(crate) seconds: f64,
    /// Threads that serve the one socket; several numbers are measured each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: Vec<u32>,
    /// Gaps between queries
    #[arg(long, value_name = "LAW", default_value = "poisson")]
    pub(crate) arrival: Arrival,
    /// Share of the queries that read, in percent; the others set
    #[arg(long, value_name = "PERCENT", default_value_t = 97, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) get_share: u32,
    /// Records in the store
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) records: u32,
    /// Queries outstanding at MAX
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) outstanding: u32,
    /// Also count instructions per query with callgrind (needs valgrind)
    #[arg(long)]
    pub(crate) ipq: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// The deliveries compared.
#[derive(Clone, Debug)]
pub(crate) struct Cases(Vec<Delivery>);

impl Cases {
    /// In the order given.
    pub(crate) fn list(&self) -> &[Delivery] {
        &self.0
    }
}

/// A delivery as in the published tables: `suspend20`, where Apus itself says `suspend:20`.
pub(crate) fn testcase(case: Delivery) -> String {
    case.to_string().replacen(':', "", 1)
}

impl FromStr for Cases {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cases: Vec<String> = Vec::new();
        for part in text.split(',') {
            match cases.last_mut() {
                // A parameter of the case before.
                Some(case) if part.contains('=') => *case += &format!(",{part}"),
                _ => cases.push(part.to_owned()),
            }
        }
        cases.iter().map(|case| delivery::parse(case)).collect::<Result<_, _>>().map(Self)
    }
}

/// One load of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Open loop, percent of the highest rate of base.
    Percent(u32),
    /// Closed loop.
    Max,
}

impl FromStr for Load {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("max") {
            return Ok(Self::Max);
        }
        match text.trim_end_matches('%').parse() {
            Ok(percent @ 1..=1000) => Ok(Self::Percent(percent)),
            _ => Err("it must be MAX or a number of percent between 1 and 1000".to_owned()),
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}"),
            Self::Max => f.write_str("MAX"),
        }
    }
}

/// Measures and shows.
///
/// # Errors
/// When a process fails or a file cannot be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    let output = args.output.open()?;
    output.deliver(&record(|result| measure(args, result))?)
}

/// Measures; adds a row for each run of a case under a load, and curves against load.
///
/// # Errors
/// When a process fails.
pub(crate) fn measure(args: &Args, result: &mut ResultFile) -> Result<()> {
    if args.ipq {
        instructions::look_for_valgrind()?;
    }
    let (generator, server) = Pin::Split.cpus();
    if generator == server {
        return Err(Misuse(
            "'bench delivery' needs two CPUs: the generator never sleeps".to_owned(),
        )
        .into());
    }
    let points = args.points();
    let progress = Progress::new(points.len() as u64 * u64::from(args.runs));
    let bench = Bench { args, records: Records::ready(args.records), generator, server, progress };
    let base_qps = match args.base_qps {
        Some(qps) => f64::from(qps),
        None => bench.highest_qps_of_base(result)?,
    };
    let whole = bench.measure(&points, base_qps, result);
    if args.ipq && whole.is_ok() {
        instructions::measure(&bench, result)?;
    }
    result.series.extend(curves(&result.rows));
    whole
}

impl Args {
    /// Everything to be measured in one run, cases side by side.
    fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        for &load in &self.loads {
            for &threads in &self.threads {
                points.extend(self.cases.list().iter().map(|&case| Point { case, load, threads }));
            }
        }
        points
    }
}

/// A case under a load.
#[derive(Clone, Copy, Debug)]
struct Point {
    case: Delivery,
    load: Load,
    threads: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.load == Load::Max { "" } else { " %" };
        write!(f, "{} at {}{unit}, {} threads", testcase(self.case), self.load, self.threads)
    }
}

impl Point {
    /// A row with what was set, nothing measured yet.
    fn row(&self, run: u32) -> Row {
        Row::new("apus-udp")
            .set("bench", "delivery")
            .set("testcase", testcase(self.case))
            .set("load", self.load.to_string())
            .set("threads", self.threads)
            .set("run", run)
    }
}

/// What all runs share.
struct Bench<'a> {
    args: &'a Args,
    records: Records,
    generator: Option<usize>,
    server: Option<usize>,
    progress: Progress,
}

impl Bench<'_> {
    /// All points, one after the other, as often as there are runs.
    fn measure(&self, points: &[Point], base_qps: f64, result: &mut ResultFile) -> Result<()> {
        for run in 1..=self.args.runs {
            for point in points {
                self.progress.begin(&format!("delivery: {point}"));
                let row = self.measure_point(point, base_qps, run, result)?;
                result.rows.push(row);
                self.progress.done();
            }
        }
        Ok(())
    }

    /// What base serves at most, with the first number of threads: the median of some closed loops.
    fn highest_qps_of_base(&self, result: &mut ResultFile) -> Result<f64> {
        let point =
            Point { case: Delivery::base(), load: Load::Max, threads: self.args.threads[0] };
        self.progress.begin("delivery: the highest rate of base");
        let mut rates = Vec::new();
        for run in 1..=BASE_RUNS {
            let (outcome, _) = self.once(&point, 0.0, u64::from(run))?;
            result.rows.push(figures(point.row(run).set("load", "base"), &outcome));
            rates.push(outcome.qps);
        }
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        ensure!(median > 0.0, "base served nothing in {} s", self.args.seconds);
        Ok(median)
    }

    /// Measures once, and again when the generator was late. A run that stays refused has no figures.
    fn measure_point(
        &self,
        point: &Point,
        base_qps: f64,
        run: u32,
        result: &mut ResultFile,
    ) -> Result<Row> {
        let mut refused = 0;
        loop {
            // Every case meets the same queries at the same times; every run and repetition other ones.
            let seed = u64::from(run * (REPEATS_MAX + 1) + refused);
            let (outcome, health) = self.once(point, base_qps, seed)?;
            if was_late(&outcome.lateness) {
                refused += 1;
                if refused <= REPEATS_MAX {
                    continue;
                }
                result.warn(format!(
                    "{point}, run {run}: refused {refused} times and left out, the last time with {:.1} % of queries sent more than 50 µs late",
                    outcome.lateness.share() * 100.0
                ));
            }
            let row = point.row(run).set("arrival", self.args.arrival.name());
            let row = row.set("offered_qps", self.offered(point.load, base_qps));
            let row = if was_late(&outcome.lateness) {
                row.set("qps", Cell::Missing).set("verdict", report::REFUSED_LATE)
            } else {
                figures(row, &outcome)
            };
            if outcome.unfinished > 0 {
                result.warn(format!("{point}: {} queries had no response", outcome.unfinished));
            }
            let row = row
                .set("late_percent", outcome.lateness.share() * 100.0)
                .set("refused_runs", refused);
            return Ok(super::note_health(row, health, result));
        }
    }

    fn offered(&self, load: Load, base_qps: f64) -> Option<f64> {
        match load {
            Load::Percent(percent) => Some(base_qps * f64::from(percent) / 100.0),
            Load::Max => None,
        }
    }

    /// A fresh server, a fresh generator, one load.
    fn once(&self, point: &Point, base_qps: f64, seed: u64) -> Result<(Outcome, Health)> {
        let peer = server::start(&server::Args {
            delivery: point.case,
            threads: point.threads,
            records: self.args.records,
            cpu: self.server,
        })?;
        let pace = match self.offered(point.load, base_qps) {
            Some(qps) => Pace::Open { arrival: self.args.arrival, qps },
            None => Pace::Closed { outstanding: self.args.outstanding },
        };
        let duration = Duration::from_secs_f64(self.args.seconds);
        let offer = Offer {
            pace,
            warm_up: duration / 10,
            duration,
            get_share: f64::from(self.args.get_share),
            seed,
        };
        let address = peer.address();
        let outcome = self.on_generator_cpu(|| generator::offer(address, &self.records, &offer));
        let outcome = outcome.with_context(|| point.to_string())?;
        Ok((outcome, peer.finish()?.health))
    }

    /// Has `work` done by a thread on the generator's CPU.
    fn on_generator_cpu<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                if let Some(cpu) = self.generator {
                    cpu::pin_current_thread(cpu)
                        .with_context(|| format!("cannot stay on CPU {cpu}"))?;
                }
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Whether a run tells more of the generator than of the server.
fn was_late(lateness: &Lateness) -> bool {
    lateness.share() > LATE_SHARE_MAX
}

/// Adds what was measured to a row.
fn figures(row: Row, outcome: &Outcome) -> Row {
    let server = &outcome.server;
    let queries = server.queries as f64;
    let latency = |us: f64| (!outcome.latency.is_empty()).then_some(us);
    row.set("qps", outcome.qps)
        .set("avglat_us", latency(outcome.latency.mean_us()))
        .set("p95_us", latency(outcome.latency.p(95.0)))
        .set("p99_us", latency(outcome.latency.p(99.0)))
        .set("cpu_percent", server.cpu.as_secs_f64() / server.wall.as_secs_f64() * 100.0)
        .set("busy_ns_per_query", server.cpu.as_nanos() as f64 / queries)
        .set("wakeups_per_query", server.sleeps as f64 / queries)
        .set("handoffs_per_query", server.handoffs as f64 / queries)
        .set("background_turns_per_query", server.background_turns as f64 / queries)
        .set("batch", queries / server.receives as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_percentages_or_max() {
        assert_eq!("20".parse(), Ok(Load::Percent(20)));
        assert_eq!("20%".parse(), Ok(Load::Percent(20)));
        assert_eq!("max".parse(), Ok(Load::Max));
        assert!("0".parse::<Load>().is_err() && "200K".parse::<Load>().is_err());
        assert_eq!(format!("{} {}", Load::Percent(20), Load::Max), "20 MAX");
    }

    #[test]
    fn a_parameter_belongs_to_the_case_before_it() {
        let Cases(cases) = "base,suspend20,budget=32,fullbusy".parse().unwrap();
        let names: Vec<String> = cases.into_iter().map(testcase).collect();
        assert_eq!(names, ["base", "suspend20,budget=32", "fullbusy"]);
        assert!("base,nonsense".parse::<Cases>().is_err());
    }

    #[test]
    fn one_late_query_in_fifty_makes_a_run_invalid() {
        let mut lateness = Lateness::new();
        for query in 0..100 {
            lateness.record(query * 1_000, query * 1_000 + if query < 2 { 60_000 } else { 0 });
        }
        assert!(was_late(&lateness));
        assert!(!was_late(&Lateness::new()), "a closed loop has no schedule");
    }
}
