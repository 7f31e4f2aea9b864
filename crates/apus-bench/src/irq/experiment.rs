//! The cases, the loads, their order, and the validity of runs.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use apus_irq::Mode;
use apus_load::{REFUSED_LATE, ResultFile, Row, stats};

use super::activity::Activity;
use super::device_under_test::DeviceUnderTest;
use super::meter::{Meter, Used};
use super::plan::{Plan, testcase};
use super::server::{Preload, ServerUnderTest, Start};
use crate::delivery::Load;
use crate::report::irq::{BENCH, VETH};
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;
use apus_memcached::{Edge, LoadGenerator, Outcome};

/// Runs of base in a closed loop that determine 100 %.
const BASE_RUNS: u32 = 3;

/// Upper bound on repetitions of a run with a late generator.
const REPEATS_MAX: u32 = 3;

/// Share of the offered load below which a server does not keep up.
const KEPT_UP: f64 = 0.95;

/// Time of a run besides its load: a new server, its values, late answers.
const BETWEEN_RUNS: Duration = Duration::from_millis(600);

/// The approximate time of a whole plan.
pub(super) fn time(plan: &Plan) -> Duration {
    let run = Duration::from_secs_f64(plan.warmup_s + plan.seconds) + BETWEEN_RUNS;
    let points = u32::try_from(plan.cases.len() * plan.loads.len()).unwrap_or(u32::MAX);
    // Each point runs once more with a watch.
    run * (points.saturating_mul(plan.runs.saturating_add(1)).saturating_add(BASE_RUNS))
}

/// A case under a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) case: Mode,
    pub(super) load: Load,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = if self.load == Load::Max { "" } else { " %" };
        write!(f, "{} at {}{unit}", testcase(self.case), self.load)
    }
}

/// State common to all runs.
pub(super) struct Experiment<'a> {
    pub(super) plan: Plan,
    pub(super) under_test: DeviceUnderTest,
    /// Value of `LD_PRELOAD` for cases that wait in another way.
    preload: Option<OsString>,
    pub(super) progress: &'a dyn Progress,
}

impl<'a> Experiment<'a> {
    /// Creates or finds the device. A case whose library is missing, or that the kernel does not support, is left out with a
    /// warning.
    ///
    /// # Errors
    /// If the device is missing or no case is left.
    pub(super) fn new(
        plan: Plan,
        force: bool,
        preload: Preload,
        progress: &'a dyn Progress,
        result: &mut ResultFile,
    ) -> Result<Self> {
        let under_test = DeviceUnderTest::new(&plan, force)?;
        let mut this = Self { plan, under_test, preload: None, progress };
        let needs = |case: &Mode| case.needs_other_waits();
        if let Some(case) = this.plan.cases.iter().copied().find(needs)
            && let Err(error) = this.find_library(case, preload)
        {
            result.warn(format!("{} is omitted: {error:#}", testcase(case)));
            this.plan.cases.retain(|case| !needs(case));
        }
        let is_threaded = |case: &Mode| case.napi().threaded.is_some();
        if let Some(case) = this.plan.cases.iter().copied().find(is_threaded)
            && let Err(error) = this.under_test.set(case)
        {
            result.warn(format!("{} is omitted: {error:#}", testcase(case)));
            this.plan.cases.retain(|case| !is_threaded(case));
        }
        if this.plan.cases.is_empty() {
            let why = "no case remains: fullbusy needs libapus_preload.so and a server that can load it, threadbusy needs Linux \
                       6.19";
            return Err(Misuse(why.to_owned()).into());
        }
        Ok(this)
    }

    /// Finds the library for a case that needs it, and tries it with the server.
    fn find_library(&mut self, case: Mode, preload: Preload) -> Result<()> {
        self.preload = Some(preload(&self.plan.server[0])?);
        let command = self.plan.server_command(&self.under_test.address);
        let server = ServerUnderTest::start(&self.under_test, &self.start(case, &command))?;
        prepare(&server, case)
    }

    /// Measures all points in turn, once per run.
    ///
    /// # Errors
    /// If the server or the kernel fails.
    pub(super) fn measure(&self, result: &mut ResultFile) -> Result<()> {
        let plan = &self.plan;
        let points = self.points();
        let runs = points.len() as u64 * u64::from(plan.runs);
        self.progress.lengthen(runs + u64::from(BASE_RUNS));
        let base_qps = self.highest_qps_of_base(result)?;
        for run in 1..=plan.runs {
            for point in &points {
                self.progress.begin(&format!("irq: {point}, run {run}"));
                let row = self.measure_point(point, base_qps, run, result)?;
                result.rows.push(row);
                self.progress.done();
            }
        }
        Ok(())
    }

    /// Runs each case once more at each load with a watch on the kernel, and adds a row for each, with these counts only.
    ///
    /// # Errors
    /// If the server or the kernel fails. A process that lacks the privilege to watch gets a warning instead.
    pub(super) fn watch(&self, result: &mut ResultFile) -> Result<()> {
        let activity = match Activity::open(self.under_test.device(), &self.plan.pin.server) {
            Ok(activity) => activity,
            Err(error) => {
                result.warn(format!("suspensions of interrupts are not counted: {error:#}"));
                return Ok(());
            }
        };
        let base = result.rows.iter().filter(|row| row.text("load") == Some("base"));
        let rates: Vec<f64> = base.filter_map(|row| row.number("qps")).collect();
        let base_qps = stats::median(&rates).unwrap_or_default();
        let points = self.points();
        self.progress.lengthen(points.len() as u64);
        for point in &points {
            self.progress.begin(&format!("irq: {point}, watched"));
            activity.prepare(point.case);
            let qps = offered(point.load, base_qps).unwrap_or(0.0);
            let edge = |edge, server: &ServerUnderTest| activity.read(edge, server.pid());
            let (outcome, _) = self.once(point, qps, self.plan.seed, &edge)?;
            let row = activity.add_to(self.row(point).set("watched", true), point.case, &outcome);
            if let Some(lost) = row.number("lost_records").filter(|lost| *lost > 0.0) {
                result.warn(format!(
                    "{point}, watched: {lost} records were lost, so counts are too low"
                ));
            }
            result.rows.push(row);
            self.progress.done();
        }
        Ok(())
    }

    /// All points, with adjacent cases.
    fn points(&self) -> Vec<Point> {
        let cases = &self.plan.cases;
        let of_load = |load: Load| cases.iter().map(move |&case| Point { case, load });
        self.plan.loads.iter().flat_map(|&load| of_load(load)).collect()
    }

    /// The highest rate of base: the median of several closed loops.
    fn highest_qps_of_base(&self, result: &mut ResultFile) -> Result<f64> {
        let case = "base".parse().expect("it is a mode");
        let point = Point { case, load: Load::Max };
        let mut rates = Vec::new();
        for run in 1..=BASE_RUNS {
            self.progress.begin("irq: the highest rate of base");
            let (outcome, used) = self.once(&point, 0.0, run.into(), &|_, _| Ok(()))?;
            rates.push(outcome.qps());
            let row = self.row(&point).set("load", "base").set("run", run);
            result.rows.push(self.figures(row, &outcome, &used));
            self.progress.done();
        }
        let median = stats::median(&rates).unwrap_or_default();
        ensure!(median > 0.0, "base served nothing in {} s", self.plan.seconds);
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
        let offered = offered(point.load, base_qps);
        let mut refused = 0;
        loop {
            // Every case gets the same queries at the same times; runs and repetitions get different ones.
            let seed =
                self.plan.seed.wrapping_mul(1000) + u64::from(run * (REPEATS_MAX + 1) + refused);
            let (outcome, used) = self.once(point, offered.unwrap_or(0.0), seed, &|_, _| Ok(()))?;
            let late_percent = outcome.lateness.share() * 100.0;
            let is_late = outcome.was_late();
            if is_late && refused < REPEATS_MAX {
                refused += 1;
                continue;
            }
            let row = self.row(point).set("run", run).set("offered_qps", offered);
            let row = if is_late {
                result.warn(format!(
                    "{point}, run {run}: missing, because the generator was late {} times, the last time with {late_percent:.1} % of \
                     queries sent more than 50 µs late",
                    refused + 1
                ));
                let row = row.set("qps", None::<f64>).set("verdict", REFUSED_LATE);
                row.set("missing_runs", 1)
            } else {
                warn(point, &outcome, result);
                self.figures(row, &outcome, &used).set("missing_runs", 0)
            };
            return Ok(row.set("late_percent", late_percent).set("refused_runs", refused));
        }
    }

    /// A row with the settings, without measurements.
    pub(super) fn row(&self, point: &Point) -> Row {
        let plan = &self.plan;
        let arrival = match point.load {
            Load::Percent(_) => plan.arrival.name(),
            Load::Max => "closed loop",
        };
        Row::new(plan.protocol.transport())
            .set("bench", BENCH)
            .set("testcase", testcase(point.case))
            .set("load", point.load.to_string())
            .set("device", if plan.is_veth() { VETH } else { "nic" })
            .set("arrival", arrival)
            .set("connections", plan.connections)
            .set("depth", plan.depth)
    }

    /// Adds the measurements to a row.
    fn figures(&self, row: Row, outcome: &Outcome, used: &Used) -> Row {
        let (latency, queries) = (&outcome.gets, outcome.answers as f64);
        let us = |us: f64| (!latency.is_empty()).then_some(us);
        let per_query = |time: Duration| time.as_nanos() as f64 / queries;
        let cpus = self.plan.pin.server.len() as f64;
        row.set("qps", outcome.qps())
            .set("avglat_us", us(latency.mean_us()))
            .set("p95_us", us(latency.p(95.0)))
            .set("p99_us", us(latency.p(99.0)))
            .set("cpu_percent", used.busy.as_secs_f64() / used.wall.as_secs_f64() / cpus * 100.0)
            .set("cpq", used.counted.map(|counted| counted.cycles as f64 / queries))
            .set("ipq", used.counted.map(|counted| counted.instructions as f64 / queries))
            .set("busy_ns_per_query", per_query(used.busy))
            .set("server_ns_per_query", per_query(used.server))
            .set("napi_thread_ns_per_query", used.threads.map(per_query))
            .set("errors", outcome.errors)
            .set("unfinished", outcome.unfinished)
    }

    /// The start of a server with this command.
    pub(super) fn start<'s>(&'s self, case: Mode, command: &'s [String]) -> Start<'s> {
        let preload = self.preload.as_deref().filter(|_| case.needs_other_waits());
        Start {
            command,
            cpus: &self.plan.pin.server,
            preload: preload.map(|library| (library, case)),
            port: self.plan.port,
        }
    }

    /// Measures one load with a new server in a case. `also` is called at both ends of the counted time.
    fn once(
        &self,
        point: &Point,
        qps: f64,
        seed: u64,
        also: &(dyn Fn(Edge, &ServerUnderTest) -> Result<()> + Sync),
    ) -> Result<(Outcome, Used)> {
        let under_test = &self.under_test;
        under_test.set(point.case)?;
        let command = self.plan.server_command(&under_test.address);
        let server = ServerUnderTest::start(under_test, &self.start(point.case, &command))?;
        let threads = under_test.threads()?;
        let work = || {
            let mut client = LoadGenerator::new(self.plan.generator(&under_test.address))?;
            client.set_records()?;
            let processes: Vec<i32> = server.processes().iter().map(|it| it.pid).collect();
            let meter = Meter::new(&self.plan.pin.server, &processes, &threads);
            let prepare = || prepare(&server, point.case);
            let edge = |edge| meter.read(edge).and_then(|()| also(edge, &server));
            let outcome = client.run(qps, seed, prepare, &edge)?;
            let used = meter.used().context("the run ended before its time")?;
            Ok((outcome, used))
        };
        under_test.at_client(work).with_context(|| point.to_string())
    }
}

/// Queries per second of a load; `None` for a closed loop.
fn offered(load: Load, base_qps: f64) -> Option<f64> {
    match load {
        Load::Percent(percent) => Some(base_qps * f64::from(percent) / 100.0),
        Load::Max => None,
    }
}

/// Sets a case's parameters on all epoll sets of a server with open connections.
///
/// # Errors
/// If there is no epoll set, or the preloaded library has not set the parameters.
pub(super) fn prepare(server: &ServerUnderTest, case: Mode) -> Result<()> {
    if case.needs_other_waits() {
        ensure!(
            server.has(case)?,
            "the preloaded library set the parameters of {case} at no epoll set: its version may differ from that of this program"
        );
        return Ok(());
    }
    ensure!(server.set(case)? > 0, "the server has no epoll set, which suspension needs");
    Ok(())
}

/// Warns of cases and loads whose server did not keep up in some run.
pub(super) fn warn_of_queues(result: &mut ResultFile) {
    let mut points: Vec<String> = Vec::new();
    for row in &result.rows {
        let numbers = row.number("qps").zip(row.number("offered_qps"));
        if numbers.is_some_and(|(qps, offered)| qps < offered * KEPT_UP) {
            let text = |key| row.text(key).unwrap_or_default();
            let point = format!("{} at {} %", text("testcase"), text("load"));
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    if !points.is_empty() {
        result.warn(format!(
            "the server did not keep up in some runs of {}, whose latency includes a growing queue",
            points.join(", ")
        ));
    }
}

/// Adds a run's warnings.
fn warn(point: &Point, outcome: &Outcome, result: &mut ResultFile) {
    if let (errors @ 1.., Some(first)) = (outcome.errors, &outcome.first_error) {
        result.warn(format!("{point}: {errors} queries failed, the first with: {first}"));
    }
}
