//! `apus bench sockets`: an ordinary sockets program over kernel TCP, over unix sockets, and under `apus run`.
//!
//! * `program`: that program, which measures the same as netperf's TCP_RR and TCP_STREAM; `connection`: its sockets;
//! * `way`: the transports of its bytes;
//! * `pair`: its two processes;
//! * this file: the measurements and their order, and the check that bytes took the requested way.

mod connection;
mod pair;
pub(crate) mod program;
mod way;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apus_load::{ResultFile, Row};

pub use self::program::Test;
use self::program::{ProgramResult, RoundTrips};
pub use self::way::Way;
use crate::closed_loop::ping_pong;
use crate::floor;
use crate::peer::this_program;
use crate::pin::Pin;
use crate::report::sockets::{RR, STREAM, curves};
use crate::runner::Runner;
use crate::transport::Transport;
use apus_load::misuse::Misuse;
use apus_load::progress::Progress;
use apus_node::arguments;
use apus_node::transport::interface::{NodeOptions, Request};

/// The default ways.
const DEFAULT: [Way; 5] = [Way::Tcp, Way::TcpSpin, Way::Unix, Way::ApusRun, Way::RawShm];

/// Lower bound on the warm-up, in seconds. The warm-up is a tenth of a run. Two ends under `apus run` meet in it.
const WARM_UP_S_MIN: f64 = 0.1;

/// Upper bound on the kernel's share of the bytes of a connection that counts as carried by the library, in percent.
const KERNEL_PCT_MAX: f64 = 1.0;

/// Upper bound on attempts of a measurement whose bytes take the wrong way: on a busy machine the ends may meet late.
const ATTEMPTS: u32 = 5;

/// Ordinary sockets, plain and under `apus run`: the transports, the sizes and the tests.
#[derive(Clone, Debug, clap::Args)]
pub struct SocketComparison {
    /// Transports of the program's bytes [default: all that fit]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub transports: Vec<Way>,
    /// Bytes of request and response, and of each write of a stream; each size is measured
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = arguments::any_size,
        default_value = "1,100,1kB,4kB,16kB,64kB,256kB,1MB,4MB")]
    pub sizes: Vec<u32>,
    /// Measure this test only [default: both]
    #[arg(long, value_name = "TEST")]
    pub only: Option<Test>,
    /// CPUs of client and server: split (the first two), same, none, or numbers like 0-3
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pub pin: Pin,
    /// Runs of each size over each transport, interleaved; the figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.5, value_parser = arguments::seconds)]
    pub seconds: f64,
}

/// The test case of one row.
#[derive(Clone, Copy)]
struct TestCase {
    test: Test,
    size: u32,
    way: Way,
}

/// Measures, and adds a row for each run, and curves of the medians by size. `preload` returns the value of `LD_PRELOAD` under
/// `apus run` for a program.
///
/// # Errors
/// If a process fails, if bytes take the wrong way, or if `preload` fails.
pub fn measure(
    options: &SocketComparison,
    preload: fn(&Path) -> Result<OsString>,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    let cases = options.cases()?;
    let under_apus = cases.iter().any(|case| case.way == Way::ApusRun);
    let preload = under_apus.then(|| preload(&this_program()?)).transpose()?;
    let measurement = Measurement { options, preload };
    progress.lengthen(cases.len() as u64 * u64::from(options.runs));
    let whole = measurement.runs(&cases, progress, result);
    result.series.extend(curves(&result.rows));
    whole
}

impl SocketComparison {
    /// The cases, grouped by test and size, with adjacent transports.
    fn cases(&self) -> Result<Vec<TestCase>> {
        let tests = self.only.map_or_else(|| vec![Test::Rr, Test::Stream], |test| vec![test]);
        let mut ways = self.transports.clone();
        if ways.is_empty() {
            ways.extend(DEFAULT.iter().filter(|way| !(self.pin.shares_cpu() && way.spins())));
        }
        let mut cases = Vec::new();
        for &test in &tests {
            for &size in &self.sizes {
                let fitting = ways.iter().filter(|way| way.fits(test, size));
                cases.extend(fitting.map(|&way| TestCase { test, size, way }));
            }
        }
        let unfit = |way: &&Way| !cases.iter().any(|case| case.way == **way);
        if let Some(unfit) = self.transports.iter().find(unfit) {
            let unfit = unfit.name();
            return Err(Misuse(format!(
                "'--transports {unfit}': it supports only round trips, and raw-shm only those of at least 16 bytes"
            ))
            .into());
        }
        Ok(cases)
    }
}

struct Measurement<'a> {
    options: &'a SocketComparison,
    /// Value of `LD_PRELOAD`, as in [`pair::run`], for the program under `apus run`.
    preload: Option<OsString>,
}

impl Measurement<'_> {
    /// Measures each case in each run: A B C A B C.
    fn runs(
        &self,
        cases: &[TestCase],
        progress: &dyn Progress,
        result: &mut ResultFile,
    ) -> Result<()> {
        for run in 1..=self.options.runs {
            for &case in cases {
                let TestCase { test, size, way } = case;
                let name = format!("{}: {}, {size} B", bench_of(test), way.name());
                progress.begin(&name);
                let row = Row::new(way.name())
                    .set("bench", bench_of(test))
                    .set("run", run)
                    .set("pin", &*self.options.pin.name())
                    .set("size_bytes", size);
                let row = floor::beside(self.options.pin, result, |result| match way.sockets() {
                    None => Ok(set_round_trips(row, &self.floor(size)?)),
                    Some(_) => self.program(case, row, result).context(name),
                })?;
                result.rows.push(row);
                progress.done();
            }
        }
        Ok(())
    }

    /// Round trips through memory, between the processes of `apus bench rtt`.
    fn floor(&self, size: u32) -> Result<RoundTrips> {
        let (duration, warm_up) = (self.options.seconds, self.options.warm_up_s());
        let runner = Runner { pin: self.options.pin, node: NodeOptions::default() };
        let request = Request { tag: 0, length: size, reply: 0 };
        let ((latency, tally), _) = runner.run(Transport::RawShm, 1, |client, _| {
            let mut run = |seconds| {
                let duration = Duration::from_secs_f64(seconds);
                ping_pong(Transport::RawShm, client, request, Duration::ZERO, duration)
            };
            run(warm_up)?;
            run(duration)
        })?;
        Ok(RoundTrips::new(&latency, tally.elapsed))
    }

    /// Measures the ordinary program. Adds its results to a row, and a warning if the measurement was repeated.
    fn program(&self, case: TestCase, row: Row, result: &mut ResultFile) -> Result<Row> {
        let TestCase { test, size, way } = case;
        let kind = way.sockets().context("this transport does not use the sockets program")?;
        let options = program::ProgramConfig {
            test,
            size,
            kind,
            server: None,
            warm_up_s: self.options.warm_up_s(),
            seconds: self.options.seconds,
        };
        let preload = self.preload.as_deref().filter(|_| way == Way::ApusRun);
        let mut attempts = ATTEMPTS;
        loop {
            let outcome = pair::run(&options, self.options.pin, preload)?;
            let Some(why) = went_wrong(way, &outcome.client) else {
                return Ok(set_figures(row, &outcome));
            };
            attempts -= 1;
            if attempts == 0 {
                bail!("{why}; {}", hint(way, &outcome.explanation));
            }
            result.warn(format!("{}, {size} B: measured again: {why}", way.name()));
        }
    }
}

impl SocketComparison {
    fn warm_up_s(&self) -> f64 {
        (self.seconds / 10.0).max(WARM_UP_S_MIN)
    }
}

/// The `bench` of the rows of a test.
fn bench_of(test: Test) -> &'static str {
    match test {
        Test::Rr => RR,
        Test::Stream => STREAM,
    }
}

/// The reason for which a measurement is invalid: its bytes took another way than the requested one.
fn went_wrong(way: Way, client: &ProgramResult) -> Option<String> {
    let share = client.kernel_pct?;
    let is_right = match way {
        Way::ApusRun => share <= KERNEL_PCT_MAX,
        // Bytes that were written and not yet sent do not count.
        _ => share >= 50.0,
    };
    (!is_right).then(|| format!("the kernel's TCP carried {share:.1} % of the bytes"))
}

/// The probable cause.
fn hint(way: Way, explanation: &str) -> String {
    match (way, explanation.trim()) {
        (Way::ApusRun, "") => {
            "the library reported nothing, so it may not have been loaded".to_owned()
        }
        (Way::ApusRun, said) => {
            format!(
                "the library reports `{said}`; APUS_SOCKETS=off in the environment may be the cause"
            )
        }
        _ => {
            "a library in LD_PRELOAD carries the sockets: do not run this command under `apus run`"
                .to_owned()
        }
    }
}

fn set_figures(row: Row, outcome: &pair::PairResult) -> Row {
    let row = match (&outcome.client.round_trips, outcome.client.goodput_gbps) {
        (Some(round_trips), _) => set_round_trips(row, round_trips),
        (None, goodput) => row.set("goodput_gbps", goodput),
    };
    row.set("kernel_pct", outcome.client.kernel_pct)
}

fn set_round_trips(row: Row, figures: &RoundTrips) -> Row {
    row.set("p50_us", figures.p50_us)
        .set("p99_us", figures.p99_us)
        .set("p99_9_us", figures.p99_9_us)
        .set("max_us", figures.max_us)
        .set("transactions_per_s", figures.per_s)
        .set("transactions", figures.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_went_another_way_do_not_count() {
        let client = |kernel_pct| ProgramResult { kernel_pct, ..ProgramResult::default() };
        for (way, kernel_pct, is_right) in [
            (Way::ApusRun, Some(0.0), true),
            (Way::ApusRun, Some(1.5), false),
            (Way::ApusRun, Some(100.0), false),
            (Way::Tcp, Some(99.0), true),
            (Way::TcpSpin, Some(0.0), false),
            (Way::Tcp, Some(0.0), false),
            (Way::Unix, None, true),
        ] {
            let wrong = went_wrong(way, &client(kernel_pct));
            assert_eq!(wrong.is_none(), is_right, "{way:?} {kernel_pct:?}: {wrong:?}");
        }
        assert!(hint(Way::Tcp, "").contains("do not run this command under `apus run`"));
        assert!(hint(Way::ApusRun, "not carried: x\n").contains("`not carried: x`"));
    }
}
