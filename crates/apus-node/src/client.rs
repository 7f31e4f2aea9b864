//! `apus node client`: generates load and measures it.

use std::iter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use apus::Flush;
use apus::net::cpu;
use apus_load::{ResultFile, Series};

use super::link::Protocol;
use super::load_profile::LoadProfile;
use super::port::Port;
use super::recorder::{DUMP_MAX, Interval, Measurements, Recorder};
use super::sender::{DRAIN, Run, Sender, is_set, receive};
use super::{TICK, unloaded};
use crate::message::MESSAGE_MAX;
use crate::message::reply_length;
use crate::pace::Pace;
use crate::transport::interface::Client;
use crate::transport::over_apus::{ApusClient, Body};
use crate::transport::tcp_servers::TcpClient;
use apus_load::stop;

/// Generates load until the time is over or a stop is requested, and adds the results to `result`. `say` gets a line of statistics
/// every second.
///
/// # Errors
/// If a server cannot be reached at the start, or with `fail_fast` if a call fails.
pub fn run(
    options: &LoadProfile,
    result: &mut ResultFile,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Measured> {
    match (options.link.protocol, options.unloaded) {
        (Protocol::Apus, Some(samples)) => {
            Ok(Measured::of(unloaded::run(options, samples, result)?))
        }
        (Protocol::Apus, None) => {
            let servers = options.apus_servers()?;
            let ipv4 = servers.iter().all(|server| server.host.is_ipv4());
            let any = if ipv4 {
                IpAddr::from(Ipv4Addr::UNSPECIFIED)
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            let node = options.link.start((any, 0).into())?;
            let receivers = usize::from(options.port_receivers);
            let flush = if receivers == 0 { Flush::Later } else { Flush::Now };
            let body = options.body();
            let clients = options.for_each_port(|| {
                let client = ApusClient::new(node.client()?, Arc::clone(&servers), flush, body);
                let all = iter::repeat_n(client, 1 + receivers);
                Ok(all.map(|client| Box::new(client) as Box<dyn Client + Send>).collect())
            })?;
            let names = servers.iter().map(ToString::to_string).collect();
            generate(options, body, names, clients, result, say)
        }
        (Protocol::Tcp, _) => {
            let servers = options.tcp_servers()?;
            let clients = options.for_each_port(|| {
                let client: Box<dyn Client + Send> = Box::new(TcpClient::connect(&servers, 1)?);
                Ok(vec![client])
            })?;
            let names = servers.iter().map(ToString::to_string).collect();
            generate(options, Body::Pattern, names, clients, result, say)
        }
    }
}

/// Generates load with the clients of each port, one for each of its threads. The first one sends. Without others, it also
/// receives.
fn generate(
    options: &LoadProfile,
    body: Body,
    servers: Vec<String>,
    clients: Vec<Vec<Box<dyn Client + Send>>>,
    result: &mut ResultFile,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Measured> {
    let (load, paces) = Load::new(options, clients[0].len())?;
    let stop = &AtomicBool::new(false);
    let run = Run {
        stop,
        start: Instant::now(),
        workload: options.workload.clone(),
        longest: options.longest.min(MESSAGE_MAX),
        reply: reply_length(options.one_way),
        body,
        fail_fast: options.fail_fast,
        is_closed_loop: options.gbps == 0.0,
        servers,
    };
    let measured = thread::scope(|scope| {
        let mut threads = Vec::new();
        for ((place, clients), pace) in clients.into_iter().enumerate().zip(paces) {
            let (port, recorders) = (&load.ports[place], &load.recorders[place]);
            let mut sender = Some(load.sender(&run, place, pace));
            for (recorder, mut client) in recorders.iter().zip(clients) {
                let (run, sender) = (&run, sender.take());
                threads.push(spawn(scope, stop, move || match sender {
                    Some(sender) if recorders.len() == 1 => sender.send_and_receive(&mut *client),
                    Some(sender) => sender.send(&mut *client),
                    None => receive(run, port, recorder, &mut *client),
                }));
            }
        }
        watch(options, &run, &load, threads, say)
    })?;
    report(options, &measured, &load, result);
    Ok(measured)
}

/// State shared by the threads of each port.
struct Load {
    ports: Vec<Port>,
    /// One for each thread; the first one is the sender's.
    recorders: Vec<Vec<Recorder>>,
}

impl Load {
    /// Also returns the schedule of each port's sender.
    fn new(options: &LoadProfile, threads: usize) -> Result<(Self, Vec<Pace>)> {
        let all = threads * usize::from(options.ports);
        let dump = if options.dump.is_some() { DUMP_MAX.div_ceil(all) } else { 0 };
        let recorders = || Ok((0..threads).map(|_| Recorder::new(dump)).collect());
        let mut seed = 0;
        let paces = options.for_each_port(|| {
            seed += 1;
            options.pace(seed)
        })?;
        let load = Self {
            ports: options.for_each_port(|| Ok(Port::new(options.port_max())))?,
            recorders: options.for_each_port(recorders)?,
        };
        Ok((load, paces))
    }

    /// The sender of the port with this index.
    fn sender<'a>(&'a self, run: &'a Run<'a>, place: usize, pace: Pace) -> Sender<'a> {
        let recorder = &self.recorders[place][0];
        Sender::new(run, &self.ports[place], recorder, pace, place as u64)
    }

    fn recorders(&self) -> impl Iterator<Item = &Recorder> {
        self.recorders.iter().flatten()
    }
}

/// Starts a thread that stops the run if it fails.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
    work: impl FnOnce() -> Result<()> + Send + 'scope,
) -> ScopedJoinHandle<'scope, Result<()>> {
    scope.spawn(move || work().inspect_err(|_| stop.store(true, Ordering::Relaxed)))
}

/// The records of all threads, and the duration of the run.
#[derive(Debug, Default)]
pub struct Measured {
    record: Measurements,
    elapsed: Duration,
    /// The error that ended the run early.
    failure: Option<Error>,
}

impl Measured {
    fn of(record: Measurements) -> Self {
        Self { record, ..Self::default() }
    }

    /// The recorded calls, one per line: bytes of the request and the round trip in µs, like cp_node's `dump_times`.
    #[must_use]
    pub fn dump(&self) -> String {
        self.record.dump()
    }

    /// The verdict on the whole run.
    ///
    /// # Errors
    /// If an error ended the run early, a reply was wrong, or no call succeeded.
    pub fn conclude(self) -> Result<()> {
        let errors = &self.record.errors;
        match (self.failure, errors.wrong_reply(), errors.example()) {
            (Some(error), ..) => Err(error),
            (None, Some(wrong), _) => Err(anyhow!("a reply was wrong: {wrong}")),
            (None, None, Some(example)) if self.record.by_size.total().is_empty() => {
                Err(anyhow!("no call succeeded, {} failed: {example}", errors.total()))
            }
            _ => Ok(()),
        }
    }
}

/// Prints statistics once a second until the end of the run, then merges the threads' records.
fn watch(
    options: &LoadProfile,
    run: &Run<'_>,
    load: &Load,
    threads: Vec<ScopedJoinHandle<'_, Result<()>>>,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Measured> {
    let end = (options.seconds > 0.0).then(|| run.start + Duration::from_secs_f64(options.seconds));
    let mut shown = Instant::now();
    while !is_set(run.stop) && !stop::requested() && end.is_none_or(|end| Instant::now() < end) {
        let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
        thread::sleep(left.min(TICK));
        if shown.elapsed() >= Duration::from_secs(1) {
            say(&statistics(options, load, shown.elapsed()))?;
            shown = Instant::now();
        }
    }
    run.stop.store(true, Ordering::Relaxed);
    let elapsed = run.start.elapsed();
    let mut failure = None;
    for thread in threads {
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failure = failure.or_else(|| ended.err());
    }
    let mut record = Measurements::new(0);
    for recorder in load.recorders() {
        let mut part = recorder.lock();
        part.take_interval();
        record.merge(&part);
    }
    Ok(Measured { record, elapsed, failure })
}

/// The line of statistics since the previous one.
fn statistics(options: &LoadProfile, load: &Load, elapsed: Duration) -> String {
    let mut interval = Interval::default();
    for recorder in load.recorders() {
        interval.merge(&recorder.lock().take_interval());
    }
    interval.line(elapsed.as_secs_f64(), options.ports.into())
}

fn report(options: &LoadProfile, measured: &Measured, load: &Load, result: &mut ResultFile) {
    let Measured { record, elapsed, .. } = measured;
    let seconds = elapsed.as_secs_f64();
    let latency = record.by_size.total();
    let unfinished: usize = load.ports.iter().map(Port::outstanding).sum();
    let lag = record.lag_ns as f64 / 1e9 / seconds / f64::from(options.ports) * 100.0;
    let gbps = |bytes: u64| bytes as f64 * 8.0 / 1e9 / seconds;
    let name = options.link.transport();
    let offered = if options.gbps > 0.0 {
        format!("{} Gb/s", options.gbps)
    } else {
        "closed loop".to_owned()
    };
    let mut row = options
        .row()
        .set("load", offered)
        .set("outstanding", options.port_max() * u32::from(options.ports));
    row = row.set_latency(&latency).set("mean_us", latency.mean_us());
    row = record.errors.set(row);
    let row = row
        .set("calls_per_s", latency.count() as f64 / seconds)
        .set("out_gbps", gbps(record.out_bytes))
        .set("in_gbps", gbps(record.in_bytes))
        .set("cpu_s", cpu::process_time().as_secs_f64())
        .set("elapsed_s", seconds)
        .set("lag_pct", lag)
        .set("late_pct", record.lateness.share() * 100.0)
        .set("unfinished", unfinished);
    result.rows.push(if record.lateness.is_refused() { row.refused_as_late() } else { row });
    result.series.push(Series::latency_cdf("Latency of all calls", name, &latency));
    for percent in [50.0, 99.0] {
        let title = format!("Latency by size, p{percent}");
        result.series.push(Series::latency_by_size(&title, name, &record.by_size, percent));
    }
    record.errors.warn(result);
    if lag >= 1.0 {
        result.warn(format!(
            "calls were due but could not start {lag:.1} % of the time: '--client-max' was reached"
        ));
    }
    if let Some(warning) = record.lateness.warning(name) {
        result.warn(warning);
    }
    if unfinished > 0 {
        result.warn(format!("{unfinished} calls had no reply {:?} after the end", DRAIN));
    }
}
