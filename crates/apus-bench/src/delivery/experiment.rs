//! The cases, the loads, their order, and the validity of runs.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apus::Delivery;
use apus_load::{REFUSED_LATE, ResultFile, Row, stats};

use super::generator::{self, ArrivalProcess, Outcome, QueryLoad, Records, Starts};
use super::server;
use crate::comparison::note_health;
use crate::floor;
use crate::pin::{Pin, on_cpu};
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;
use apus_node::arguments;
use apus_node::transport::interface::Health;

/// The cases of the published tables, suspension without deferral as the control, and Apus' default.
pub const CASES: &str = "base,defer10,defer20,defer50,defer200,napibusy,fullbusy,suspend0,suspend10,suspend20,suspend50,suspend200,suspend";

/// Runs of base in a closed loop that determine 100 %.
const BASE_RUNS: u32 = 3;

/// Upper bound on repetitions of a run with a late generator.
const REPEATS_MAX: u32 = 3;

/// Design of the experiment: its factors (modes, loads, threads) and its repetitions.
#[derive(Clone, Debug, clap::Args)]
pub struct ExperimentDesign {
    /// Delivery modes to compare, with optional parameters: suspend20,budget=32
    #[arg(long, value_name = "LIST", default_value = CASES)]
    pub cases: Cases,
    /// Loads, in percent of the highest rate of base in a closed loop; MAX is a closed loop
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "20,40,60,80,100,MAX")]
    pub loads: Vec<Load>,
    /// Queries per second at 100 percent [default: measured first]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub base_qps: Option<u32>,
    /// Runs of each case at each load, interleaved
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = arguments::seconds)]
    pub seconds: f64,
    /// Threads of the server; each number is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Vec<u32>,
    /// Distribution of the gaps between queries
    #[arg(long, value_name = "LAW", default_value = "poisson")]
    pub arrival: ArrivalProcess,
    /// Share of read queries, in percent; the others write
    #[arg(long, value_name = "PERCENT", default_value_t = 97, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub get_share: u32,
    /// Records in the store
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub records: u32,
    /// Outstanding queries at MAX
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub outstanding: u32,
    /// Also count instructions per query with callgrind (needs valgrind)
    #[arg(long)]
    pub ipq: bool,
}

/// The compared deliveries.
#[derive(Clone, Debug)]
pub struct Cases(Vec<Delivery>);

impl Cases {
    /// The deliveries in the given order.
    #[must_use]
    pub fn list(&self) -> &[Delivery] {
        &self.0
    }
}

/// A delivery's name as in the published tables: `suspend20`, which is `suspend:20` in Apus.
pub(crate) fn testcase(case: Delivery) -> String {
    case.to_string().replacen(':', "", 1)
}

impl FromStr for Cases {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cases: Vec<String> = Vec::new();
        for part in text.split(',') {
            match cases.last_mut() {
                // A parameter of the previous case.
                Some(case) if part.contains('=') => *case += &format!(",{part}"),
                _ => cases.push(part.to_owned()),
            }
        }
        cases.iter().map(|case| arguments::delivery(case)).collect::<Result<_, _>>().map(Self)
    }
}

/// One load of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
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

impl ExperimentDesign {
    /// All points of one run, with adjacent cases.
    pub(super) fn points(&self) -> Vec<Point> {
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
pub(super) struct Point {
    pub(super) case: Delivery,
    pub(super) load: Load,
    pub(super) threads: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.load == Load::Max { "" } else { " %" };
        write!(f, "{} at {}{unit}, {} threads", testcase(self.case), self.load, self.threads)
    }
}

impl Point {
    /// A row with the settings, without measurements.
    pub(super) fn row(&self, run: u32) -> Row {
        Row::new("apus-udp")
            .set("bench", "delivery")
            .set("testcase", testcase(self.case))
            .set("load", self.load.to_string())
            .set("threads", self.threads)
            .set("run", run)
    }
}

/// State common to all runs.
pub(super) struct Experiment<'a> {
    pub(super) options: &'a ExperimentDesign,
    records: Records,
    pub(super) generator: Option<usize>,
    pub(super) server: Option<usize>,
    pub(super) progress: &'a dyn Progress,
}

impl<'a> Experiment<'a> {
    /// An experiment on two CPUs of this machine.
    ///
    /// # Errors
    /// [`Misuse`] if there is only one.
    pub(super) fn new(options: &'a ExperimentDesign, progress: &'a dyn Progress) -> Result<Self> {
        let (generator, server) = Pin::Split.cpus();
        if generator == server {
            let why = "'bench delivery' needs two CPUs: the generator never sleeps";
            return Err(Misuse(why.to_owned()).into());
        }
        Ok(Self { options, records: Records::ready(options.records), generator, server, progress })
    }

    /// Measures all points in turn, once per run.
    pub(super) fn measure(
        &self,
        points: &[Point],
        base_qps: f64,
        result: &mut ResultFile,
    ) -> Result<()> {
        for run in 1..=self.options.runs {
            for point in points {
                self.progress.begin(&format!("delivery: {point}"));
                let row = floor::beside(Pin::Split, result, |result| {
                    self.measure_point(point, base_qps, run, result)
                })?;
                result.rows.push(row);
                self.progress.done();
            }
        }
        Ok(())
    }

    /// The highest rate of base, with the first number of threads: the median of several closed loops.
    pub(super) fn highest_qps_of_base(&self, result: &mut ResultFile) -> Result<f64> {
        let point =
            Point { case: Delivery::base(), load: Load::Max, threads: self.options.threads[0] };
        self.progress.begin("delivery: the highest rate of base");
        let mut rates = Vec::new();
        for run in 1..=BASE_RUNS {
            let (outcome, _) = self.once(&point, 0.0, u64::from(run))?;
            result.rows.push(figures(point.row(run).set("load", "base"), &outcome));
            rates.push(outcome.qps);
        }
        let median = stats::median(&rates).unwrap_or_default();
        ensure!(median > 0.0, "base served nothing in {} s", self.options.seconds);
        Ok(median)
    }

    /// Measures a point, and repeats it if the generator was late. A run that stays refused has no figures.
    fn measure_point(
        &self,
        point: &Point,
        base_qps: f64,
        run: u32,
        result: &mut ResultFile,
    ) -> Result<Row> {
        let mut refused = 0;
        loop {
            // Every case gets the same queries at the same times; runs and repetitions get different ones.
            let seed = u64::from(run * (REPEATS_MAX + 1) + refused);
            let (outcome, health) = self.once(point, base_qps, seed)?;
            if outcome.lateness.is_refused() {
                refused += 1;
                if refused <= REPEATS_MAX {
                    continue;
                }
                result.warn(format!(
                    "{point}, run {run}: refused {refused} times and omitted, the last time with {:.1} % of queries sent more than 50 µs late",
                    outcome.lateness.share() * 100.0
                ));
            }
            let row = point.row(run).set("arrival", self.options.arrival.name());
            let row = row.set("offered_qps", self.offered(point.load, base_qps));
            let row = if outcome.lateness.is_refused() {
                row.set("qps", None::<f64>).set("verdict", REFUSED_LATE)
            } else {
                figures(row, &outcome)
            };
            if outcome.unfinished > 0 {
                result.warn(format!("{point}: {} queries had no response", outcome.unfinished));
            }
            let row = row
                .set("late_percent", outcome.lateness.share() * 100.0)
                .set("refused_runs", refused);
            return Ok(note_health(row, health, result));
        }
    }

    fn offered(&self, load: Load, base_qps: f64) -> Option<f64> {
        match load {
            Load::Percent(percent) => Some(base_qps * f64::from(percent) / 100.0),
            Load::Max => None,
        }
    }

    /// Measures one load with a new server and a new generator.
    fn once(&self, point: &Point, base_qps: f64, seed: u64) -> Result<(Outcome, Health)> {
        let peer = server::start(&server::StoreConfig {
            delivery: point.case,
            threads: point.threads,
            records: self.options.records,
            cpu: self.server,
        })?;
        let starts = match self.offered(point.load, base_qps) {
            Some(qps) => Starts::Open { arrival: self.options.arrival, qps },
            None => Starts::Closed { outstanding: self.options.outstanding },
        };
        let duration = Duration::from_secs_f64(self.options.seconds);
        let offer = QueryLoad {
            starts,
            warm_up: duration / 10,
            duration,
            get_share: f64::from(self.options.get_share),
            seed,
        };
        let address = *peer.address();
        let outcome = on_cpu(self.generator, || generator::offer(address, &self.records, &offer));
        let outcome = outcome.with_context(|| point.to_string())?;
        Ok((outcome, peer.finish()?.health))
    }
}

/// Adds the measurements to a row.
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
    use apus_load::Lateness;

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
        assert!(lateness.is_refused());
        assert!(!Lateness::new().is_refused(), "a closed loop has no schedule");
    }
}
