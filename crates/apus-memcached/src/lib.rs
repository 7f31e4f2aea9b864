//! `apus bench memcached`: an open-loop load generator for memcached's protocols and for RESP, in the spirit of mutilate.
//!
//! * `answer`: answers of servers; `text`, `binary`, `resp`: encoders and parsers of the protocols; `protocol`: the choice among
//!   them;
//! * `records`: keys, and the lengths of their values;
//! * `server`, `connection`, `connections`: the server's address, one connection, the connections of a thread;
//! * `generator`: the load of a thread, open loop or closed; `run`: its threads; `outcome`: the results;
//! * `agents`: parts of the load from other hosts;
//! * `client`: the same for benchmarks that measure the server as well;
//! * `config`: the configuration; this file: the rates, their order, and the validity of runs.
//!
//! Two differences from mutilate: latency starts at the time at which a query was due, not at the time at which it could be sent,
//! and a run with a late generator is refused.

#![forbid(unsafe_code)]

mod agents;
mod answer;
mod binary;
mod client;
mod config;
mod connection;
mod connections;
mod generator;
mod outcome;
mod protocol;
mod records;
mod resp;
mod run;
mod server;
mod stamps;
mod text;

use std::sync::Arc;

use anyhow::{Context, Result};
use apus_load::{Latency, Lateness, REFUSED_LATE, ResultFile, Row, Scale, Series, stats};

pub use self::agents::{AgentOptions, serve_agent};
pub use self::client::LoadGenerator;
pub use self::config::{GeneratorConfig, Scan};
pub use self::generator::Edge;
pub use self::generator::{ArrivalProcess, IdleStrategy};
pub use self::outcome::Outcome;
pub use self::protocol::Protocol;
pub use self::records::Length;

use self::agents::{Agents, seed_of};
use self::generator::DRAIN;
use self::records::Records;
use self::run::Ready;
use self::server::ServerAddress;
use apus_load::progress::Progress;

/// The name of the benchmark in rows of results.
pub const BENCH: &str = "memcached";

/// The leader's name among the hosts of a load.
const HERE: &str = "this host";

/// Share of the offered load below which a server does not keep up.
const KEPT_UP: f64 = 0.95;

/// Measures, and adds a row for each run of a rate, and curves.
///
/// # Errors
/// If options contradict each other, the server cannot be reached, or an answer is malformed.
pub fn measure(
    options: &GeneratorConfig,
    progress: &dyn Progress,
    result: &mut ResultFile,
) -> Result<()> {
    options.check()?;
    let server = ServerAddress::find(&options.server)?;
    let records = Arc::new(Records::new(options.keys, options.key_size, options.value_size));
    let rates = options.rates();
    progress.lengthen(rates.len() as u64 * u64::from(options.runs) + u64::from(!options.no_load));
    if options.wait == IdleStrategy::Spin && run::is_crowded(options) {
        result.warn("spinning threads occupy every CPU: use fewer '--threads', or '--wait sleep'");
    }
    if !options.no_load {
        progress.begin(&format!("memcached: set {} values", options.keys));
        run::load(&server, options, &records).context("the values could not be set")?;
        progress.done();
    }
    let mut agents = Agents::connect(options)?;
    let mut latencies = vec![Latency::new(); rates.len()];
    for run in 1..=options.runs {
        for (qps, latency) in rates.iter().zip(&mut latencies) {
            progress.begin(&format!("memcached: {}", load_in_words(*qps)));
            let (share, seed) =
                (*qps / f64::from(agents.hosts()), seed_of(options.seed, run.into()));
            agents.prepare(options, share, seed)?;
            let ready = Ready::new(&server, options, &records, share, seed_of(seed, 0))?;
            agents.start()?;
            let mut parts = vec![(HERE.to_owned(), ready.run()?)];
            let of_agents = agents.finish()?.into_iter();
            parts.extend(of_agents.map(|(name, outcome)| (format!("agent {name}"), outcome)));
            let outcome = Whole::of(parts);
            if outcome.late.is_empty() {
                latency.merge(&outcome.sum.gets);
            }
            result.rows.push(row(options, *qps, run, &outcome));
            warn(*qps, run, &outcome, result);
            progress.done();
        }
    }
    if options.scan.is_some() {
        result.series.extend(curves(&result.rows));
    } else if !latencies[0].is_empty() {
        let transport = options.protocol.transport();
        result.series.push(Series::latency_cdf("Latency of reads", transport, &latencies[0]));
    }
    Ok(())
}

fn load_in_words(qps: f64) -> String {
    if qps > 0.0 { format!("{qps} queries/s") } else { "closed loop".to_owned() }
}

/// The results of a run on all hosts.
struct Whole {
    sum: Outcome,
    /// Hosts with a late generator, with its lateness. One of them is enough to refuse the run.
    late: Vec<(String, Lateness)>,
}

impl Whole {
    fn of(parts: Vec<(String, Outcome)>) -> Self {
        let mut whole = Self { sum: Outcome::default(), late: Vec::new() };
        for (host, part) in parts {
            if part.lateness.is_refused() {
                whole.late.push((host, part.lateness));
            }
            whole.sum.merge(part);
        }
        whole
    }
}

/// The row of a run. A refused run has no figures of the server.
fn row(options: &GeneratorConfig, qps: f64, run: u32, outcome: &Whole) -> Row {
    let Whole { sum, late } = outcome;
    let (keys, values, updates) = (options.key_size, options.value_size, options.update * 100.0);
    let row = Row::new(options.protocol.transport())
        .set("bench", BENCH)
        .set("workload", format!("keys {keys}, values {values}, {updates} % updates"))
        .set("arrival", if qps > 0.0 { options.arrival.name() } else { "closed loop" })
        .set("offered_qps", (qps > 0.0).then_some(qps))
        .set("connections", options.connections)
        .set("threads", options.threads)
        .set("depth", options.depth)
        .set("agents", (!options.agents.is_empty()).then_some(options.agents.len()))
        .set("run", run);
    let row = if !late.is_empty() {
        row.set("qps", None::<f64>).set("verdict", REFUSED_LATE)
    } else {
        figures(row, sum)
    };
    let lateness = &sum.lateness;
    row.set("late_pct", lateness.share() * 100.0).set("late_max_us", lateness.max_us())
}

/// Adds the measurements.
fn figures(row: Row, outcome: &Outcome) -> Row {
    let mut row = row.set("qps", outcome.qps());
    let (gets, updates) = (&outcome.gets, &outcome.updates);
    let p = |latency: &Latency, percent| (!latency.is_empty()).then(|| latency.p(percent));
    row.put("mean_us", (!gets.is_empty()).then(|| gets.mean_us()));
    for (key, percent) in
        [("p50_us", 50.0), ("p90_us", 90.0), ("p95_us", 95.0), ("p99_us", 99.0), ("p99_9_us", 99.9)]
    {
        row.put(key, p(gets, percent));
    }
    row.put("max_us", (!gets.is_empty()).then(|| gets.max_us()));
    row.put("packets_p50_us", p(&outcome.packets, 50.0));
    row.put("packets_p99_us", p(&outcome.packets, 99.0));
    row.put("update_p50_us", p(updates, 50.0));
    row.put("update_p99_us", p(updates, 99.0));
    row.set("reads", gets.count())
        .set("updates", updates.count())
        .set("misses", outcome.misses)
        .set("errors", outcome.errors)
        .set("unfinished", outcome.unfinished)
        .set("sent_bytes", outcome.sent_bytes)
        .set("received_bytes", outcome.received_bytes)
        .set("client_cpu_pct", outcome.cpu_s / outcome.seconds * 100.0)
}

/// Adds a run's warnings.
fn warn(qps: f64, run: u32, outcome: &Whole, result: &mut ResultFile) {
    let who = format!("{}, run {run}", load_in_words(qps));
    for (host, lateness) in &outcome.late {
        let who = if host == HERE { who.clone() } else { format!("{who}, {host}") };
        lateness.warning(&who).into_iter().for_each(|warning| result.warn(warning));
    }
    if !outcome.late.is_empty() {
        return;
    }
    let outcome = &outcome.sum;
    if qps > 0.0 && outcome.qps() < qps * KEPT_UP {
        let qps = outcome.qps();
        result.warn(format!(
            "{who}: the server answered only {qps:.0} queries/s, so latency includes a growing queue"
        ));
    }
    if outcome.unfinished > 0 {
        let count = outcome.unfinished;
        result.warn(format!(
            "{who}: {count} queries had no answer {DRAIN:?} after the end; each counts with its wait until then"
        ));
    }
    if let (errors @ 1.., Some(first)) = (outcome.errors, &outcome.first_error) {
        result.warn(format!("{who}: {errors} queries failed, the first with: {first}"));
    }
    if outcome.misses > 0 {
        let (misses, reads) = (outcome.misses, outcome.gets.count());
        result.warn(format!("{who}: {misses} of {reads} reads found no value"));
    }
}

/// Latency of reads against the offered rate, medians over the runs.
fn curves(rows: &[Row]) -> impl Iterator<Item = Series> {
    let mut rates: Vec<f64> = rows.iter().filter_map(|row| row.number("offered_qps")).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let transport = rows.first().map(|row| row.transport().to_owned()).unwrap_or_default();
    [("p50_us", "p50"), ("p99_us", "p99")].into_iter().map(move |(key, name)| {
        let at = |rate: &f64| {
            let of_rate = rows.iter().filter(|row| row.number("offered_qps") == Some(*rate));
            let values: Vec<f64> = of_rate.filter_map(|row| row.number(key)).collect();
            Some((*rate, stats::median(&values)?))
        };
        Series {
            name: format!("Latency of reads against load, {name}"),
            transport: transport.clone(),
            x_label: "offered queries per second".to_owned(),
            x_scale: Scale::Linear,
            y_label: format!("{name} latency (µs)"),
            y_scale: Scale::Log,
            points: rates.iter().filter_map(at).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_leave_refused_runs_out() {
        let row = |qps: f64, p50: Option<f64>| {
            Row::new("resp").set("offered_qps", qps).set("p50_us", p50).set("p99_us", p50)
        };
        let rows = [
            row(2000.0, Some(30.0)),
            row(1000.0, Some(10.0)),
            row(1000.0, Some(20.0)),
            row(1000.0, None),
            row(3000.0, None),
        ];
        let curves: Vec<Series> = curves(&rows).collect();
        assert_eq!(curves.len(), 2);
        assert_eq!(curves[0].points, [(1000.0, 15.0), (2000.0, 30.0)]);
    }
}
