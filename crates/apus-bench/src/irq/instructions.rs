//! Instructions per query: the server under callgrind, which counts all its instructions in user space.
//!
//! A program under callgrind is about fifty times slower, so the load is low. The result is the difference of two runs of different
//! length: the instructions of starting, filling and ending cancel out.

use anyhow::{Context, Result};
use apus_load::ResultFile;

use super::experiment::{Experiment, Point, prepare};
use super::plan::testcase;
use super::server::ServerUnderTest;
use crate::delivery::Load;
use crate::delivery::instructions::collected;
pub(super) use crate::delivery::instructions::look_for_valgrind;
use apus_memcached::LoadGenerator;

/// Queries per second.
const QPS: f64 = 500.0;

/// Seconds of the shorter run.
const SHORT_S: f64 = 0.5;
/// Seconds of the longer run.
const LONG_S: f64 = 2.5;

/// Number of records. They are few because setting them is not measured.
const KEYS: u32 = 500;

/// Measures each case, and adds a row for each.
///
/// # Errors
/// If valgrind or the server under it fails.
pub(super) fn measure(experiment: &Experiment<'_>, result: &mut ResultFile) -> Result<()> {
    let cases = &experiment.plan.cases;
    experiment.progress.lengthen(cases.len() as u64);
    for &case in cases {
        let point = Point { case, load: Load::Max };
        experiment.progress.begin(&format!("irq: instructions of {}", testcase(case)));
        let (few, before) = count(experiment, &point, SHORT_S)?;
        let (many, after) = count(experiment, &point, LONG_S)?;
        let ipq = (after as f64 - before as f64) / (many as f64 - few as f64);
        let row = experiment.row(&point).set("load", "callgrind").set("offered_qps", QPS);
        result.rows.push(row.set("run", 1).set("user_ipq", ipq));
        experiment.progress.done();
    }
    Ok(())
}

/// Answered queries and executed instructions over the life of a server.
fn count(experiment: &Experiment<'_>, point: &Point, seconds: f64) -> Result<(u64, u64)> {
    let (plan, under_test) = (&experiment.plan, &experiment.under_test);
    under_test.set(point.case)?;
    let valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let mut command: Vec<String> = valgrind.map(str::to_owned).to_vec();
    command.extend(plan.server_command(&under_test.address));
    let server = ServerUnderTest::start(under_test, &experiment.start(point.case, &command))?;
    let load = || {
        let mut options = plan.generator(&under_test.address);
        (options.seconds, options.warmup, options.keys) = (seconds, 0.0, KEYS);
        let mut client = LoadGenerator::new(options)?;
        client.set_records()?;
        client.run(QPS, 1, || prepare(&server, point.case), &|_| Ok(()))
    };
    let outcome =
        under_test.at_client(load).with_context(|| format!("{point}, under callgrind"))?;
    let words = server.finish()?;
    let instructions = collected(&words)
        .with_context(|| format!("callgrind does not report its total: {words}"))?;
    Ok((outcome.gets.count() + outcome.updates.count(), instructions))
}
