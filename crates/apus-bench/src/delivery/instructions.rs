//! Instructions per query: the store under callgrind, which counts every instruction of every thread in user space.
//!
//! A core under callgrind is about fifty times slower, so the load is low. The result is the difference of two runs of different
//! length: the instructions of starting, loading and ending cancel out, and the instructions of polling between queries remain.

use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apus_load::{ResultFile, Row};

use super::experiment::{Experiment, Load, Point};
use super::generator::{QueryLoad, Records, Starts, offer};
use super::server;
use crate::peer::{ServerProcess, arguments, this_program};
use crate::pin::on_cpu;

/// Queries per second.
const QPS: f64 = 200.0;

/// Duration of the shorter run.
const SHORT: Duration = Duration::from_millis(500);
/// Duration of the longer run.
const LONG: Duration = Duration::from_millis(2500);

/// Records in the store. They are few because loading them is not measured.
const RECORDS: u32 = 1_000;

/// Checks that valgrind is installed.
///
/// # Errors
/// If it is not installed. The error names the package.
pub(crate) fn look_for_valgrind() -> Result<()> {
    let found = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("`valgrind --version` ended with {status}"),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "valgrind is not installed; it comes in the package `valgrind` (Debian, Ubuntu: apt-get install valgrind)"
        ),
        Err(error) => Err(error).context("cannot start valgrind"),
    }
}

/// Measures each case, and adds a row for each.
///
/// # Errors
/// If valgrind or the store under it fails.
pub(super) fn measure(experiment: &Experiment<'_>, result: &mut ResultFile) -> Result<()> {
    let options = experiment.options;
    let cases = options.cases.list();
    experiment.progress.lengthen(cases.len() as u64);
    let records = Records::ready(RECORDS);
    for &case in cases {
        let point = Point { case, load: Load::Max, threads: options.threads[0] };
        experiment.progress.begin(&format!("delivery: instructions of {case}"));
        let (few, before) = count(experiment, &point, &records, SHORT)?;
        let (many, after) = count(experiment, &point, &records, LONG)?;
        let ipq = (after as f64 - before as f64) / (many as f64 - few as f64);
        let row: Row = point.row(1).set("load", "callgrind").set("offered_qps", QPS);
        result.rows.push(row.set("ipq", ipq));
        experiment.progress.done();
    }
    Ok(())
}

/// Served queries and executed instructions over the life of a server.
fn count(
    experiment: &Experiment<'_>,
    point: &Point,
    records: &Records,
    duration: Duration,
) -> Result<(u64, u64)> {
    let options = server::StoreConfig {
        delivery: point.case,
        threads: point.threads,
        records: RECORDS,
        cpu: experiment.server,
    };
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(this_program()?).args(arguments(server::ROLE, &options)?);
    let peer: ServerProcess = ServerProcess::spawn(command)?;
    let load = QueryLoad {
        starts: Starts::Open { arrival: experiment.options.arrival, qps: QPS },
        warm_up: Duration::ZERO,
        duration,
        get_share: f64::from(experiment.options.get_share),
        seed: 1,
    };
    let address = *peer.address();
    let outcome = on_cpu(experiment.generator, || offer(address, records, &load))?;
    let words = peer.finish_with_words()?;
    let instructions = collected(&words)
        .with_context(|| format!("callgrind does not report its total: {words}"))?;
    Ok((outcome.server.queries, instructions))
}

/// The total in callgrind's output: `==123== Collected : 4567`.
pub(crate) fn collected(words: &str) -> Option<u64> {
    let (_, after) = words.split_once("Collected :")?;
    after.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        let words =
            "==9== Events    : Ir\n==9== Collected : 123456\n==9== \n==9== I   refs: 123,456";
        assert_eq!(collected(words), Some(123_456));
        assert_eq!(collected("==9== nothing"), None);
    }
}
