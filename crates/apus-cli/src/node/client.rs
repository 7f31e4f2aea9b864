//! `apus node client`: generates load and measures it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow};
use apus::net::cpu;
use apus::{Address, Links, More, ResolveError, Scheme};
use apus_load::arrival::seeded;
use apus_load::{ResultFile, Row, Series, Workload};
use rand::RngExt;

use super::port::{Pace, Port};
use super::recorder::{DUMP_MAX, Interval, Record, Recorder};
use super::sender::{Run, Sender, receive};
use super::wire::{ApusWire, Body, TcpWire};
use super::{BodyFormat, LinkArgs, Protocol, TICK, needs_apus, pin, stopped, unloaded};
use crate::bench::{MESSAGE_MAX, parse_workload, record, reply_length};
use crate::failure::Misuse;
use crate::interrupt;
use crate::output::{OutputArgs, OutputFile, different, say};

/// Calls outstanding unless asked otherwise, in an open loop.
const OPEN_LOOP_MAX: u32 = 200;

/// Generate load and measure it
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  apus node client --servers 10.0.0.2:4000
  apus node client --servers 10.0.0.2:4000,10.0.0.3:4000 --workload w4 --gbps 5 --client-max 200 --seconds 30
  apus node client --servers 127.0.0.1:4000@7001 --workload mix --verify --fault loss=0.1
  apus node client --servers homa://10.0.0.2:4000 --link raw --workload w4
  apus node client --servers homa://10.0.0.2:4000 --link raw --body cp-node --workload w4
  apus node client --servers 10.0.0.2:5000 --protocol tcp --workload w3 --gbps 2 --ports 4 --json tcp.json
  apus node client --servers 10.0.0.2:4000 --unloaded 1000 --workload w3

Prints one line of statistics a second. Latency counts from the intended start of a call, or in a closed loop
from its start, to the last byte of the reply.

A call that fails is counted by the kind of its error, and the run goes on; in a closed loop the next call starts 10 ms later. When a TCP
connection breaks, all of the port are opened again. Exit status 1 when no call succeeded or a reply was wrong.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) link: LinkArgs,
    /// Servers: HOST:PORT of the first port, with Apus HOST:PORT@UDPPORT if the node's UDP port is not 20146, homa://HOST:PORT for IP protocol 146
    #[arg(long, value_name = "ADDR,…", value_delimiter = ',', required = true)]
    pub(super) servers: Vec<String>,
    /// Ports of each server to call, from the one given on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) server_ports: u16,
    /// Lengths of requests: w1 to w5, a size, mix, or weight:size,…
    #[arg(long, value_name = "WORKLOAD", default_value = "100", value_parser = parse_workload)]
    pub(super) workload: Workload,
    /// Longer requests are cut to this many bytes; the Linux module takes no longer ones
    #[arg(long, value_name = "BYTES", default_value = "1MB", value_parser = crate::bench::parse_size)]
    pub(super) longest: u32,
    /// Request bytes to send, Gb/s, at times with exponential gaps; 0: a closed loop
    #[arg(long, value_name = "GBPS", allow_negative_numbers = true, default_value_t = 0.0, value_parser = parse_gbps)]
    gbps: f64,
    /// Calls outstanding at most, over all ports [default: 1, with --gbps 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    client_max: Option<u32>,
    /// Sockets, each with a thread that sends
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    ports: u16,
    /// Threads that wait for replies on each socket; 0: the one that sends waits too, as always with TCP
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=256))]
    port_receivers: u16,
    /// Ask for replies of 100 bytes instead of ones as long as the request
    #[arg(long)]
    pub(super) one_way: bool,
    /// Instead of a load, N calls of every length of the workload, one at a time
    #[arg(long, value_name = "N", conflicts_with_all = ["gbps", "client_max", "verify"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    unloaded: Option<u32>,
    /// Check every byte of every request and reply, and that no request is executed twice
    #[arg(long)]
    verify: bool,
    /// End the run at the first call that fails
    #[arg(long)]
    pub(super) fail_fast: bool,
    /// Stop after so many seconds; 0: at Ctrl-C or SIGTERM
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 0.0, value_parser = super::parse_seconds)]
    seconds: f64,
    /// Write the newest 500,000 calls to FILE, one a line: bytes of the request, round trip in µs
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// CPU to stay on, all threads
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Generates load and shows what came of it, also when it ends early.
///
/// # Errors
/// When a server cannot be reached at the start, no call succeeds, a reply is wrong, or with `--fail-fast` a call fails.
pub(super) fn run(args: &Args) -> Result<()> {
    args.link.check()?;
    if args.link.protocol == Protocol::Tcp {
        needs_apus("--verify", args.verify)?;
        needs_apus("--unloaded", args.unloaded.is_some())?;
    }
    if args.verify && args.link.body == BodyFormat::CpNode {
        let why = "a cp_node answers with the request's bytes, so nobody checks them there";
        return Err(Misuse(format!("'--verify' with '--body cp-node': {why}")).into());
    }
    pin(args.pin)?;
    let [json, html] = args.output.paths();
    let (dump, capture) = (args.dump.as_deref(), args.link.capture.as_deref());
    different(&[json, html, ("--dump", dump), ("--capture", capture)])?;
    let (output, dump) = (args.output.open()?, dump.map(OutputFile::open).transpose()?);
    interrupt::handle()?;
    let mut measured = Measured::default();
    let result = record(|result| {
        measured = match (args.link.protocol, args.unloaded) {
            (Protocol::Apus, Some(samples)) => Measured::of(unloaded::run(args, samples, result)?),
            (Protocol::Apus, None) => generate_apus(args, result)?,
            (Protocol::Tcp, _) => generate_tcp(args, result)?,
        };
        Ok(())
    })?;
    if let Some(file) = dump {
        file.write(&measured.record.dump())?;
    }
    output.deliver(&result)?;
    measured.conclude()
}

impl Args {
    /// Homa addresses of all ports of all servers.
    ///
    /// # Errors
    /// When one is malformed or its name is not known.
    pub(super) fn apus_servers(&self) -> Result<Arc<[Address]>> {
        let mut addresses = Vec::new();
        for server in &self.servers {
            let first = self.resolve(server).map_err(|error| unresolved(server, error))?;
            for port in 0..self.server_ports {
                let port = first.port.checked_add(port).with_context(|| too_high(server))?;
                addresses.push(Address::new(first.host, port));
            }
        }
        Ok(addresses.into())
    }

    /// A node with nothing but a raw link calls by it.
    fn resolve(&self, server: &str) -> Result<Address, ResolveError> {
        if self.link.link == Links::Raw && !server.contains("://") {
            return apus::resolve(&format!("{}{server}", Scheme::HOMA));
        }
        apus::resolve(server)
    }

    /// TCP addresses of all ports of all servers.
    fn tcp_servers(&self) -> Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        for server in &self.servers {
            if server.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(Misuse(format!("'--servers {server}': expected HOST:PORT")).into());
            }
            let mut found =
                server.to_socket_addrs().with_context(|| format!("'--servers {server}'"))?;
            let first =
                found.next().with_context(|| format!("'--servers {server}': no such host"))?;
            for port in 0..self.server_ports {
                let port = first.port().checked_add(port).with_context(|| too_high(server))?;
                addresses.push(SocketAddr::new(first.ip(), port));
            }
        }
        Ok(addresses)
    }

    /// Calls outstanding on each port.
    fn port_max(&self) -> u32 {
        let default = if self.gbps > 0.0 { OPEN_LOOP_MAX } else { 1 };
        (self.client_max.unwrap_or(default) / u32::from(self.ports)).max(1)
    }

    fn pace(&self, port: u64) -> Result<Pace> {
        let mean = self.workload.mean(Some(self.longest)).max(f64::from(self.body().shortest()));
        Pace::new(self.gbps / f64::from(self.ports), mean, port)
    }

    /// What the bytes of messages mean.
    pub(super) fn body(&self) -> Body {
        match self.link.body {
            BodyFormat::CpNode => Body::CpNode,
            BodyFormat::Apus if self.verify => {
                Body::Verified(seeded(wall_clock() ^ u64::from(process::id())).random())
            }
            BodyFormat::Apus => Body::Pattern,
        }
    }

    fn run<'a>(&self, stop: &'a AtomicBool, body: Body, servers: Vec<String>) -> Run<'a> {
        Run {
            stop,
            start: Instant::now(),
            workload: self.workload.clone(),
            longest: self.longest.min(MESSAGE_MAX),
            reply: reply_length(self.one_way),
            body,
            fail_fast: self.fail_fast,
            is_closed_loop: self.gbps == 0.0,
            servers,
        }
    }

    /// What `make` makes, for each port.
    fn for_each_port<T>(&self, make: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
        std::iter::repeat_with(make).take(self.ports.into()).collect()
    }
}

/// A malformed address is wrong use, an unknown host a failure.
fn unresolved(server: &str, error: ResolveError) -> Error {
    match error {
        ResolveError::Form { .. } => Misuse(format!("'--servers {server}': {error}")).into(),
        other => Error::new(other).context(format!("'--servers {server}'")),
    }
}

fn too_high(server: &str) -> String {
    format!("'--servers {server}' with '--server-ports': a port is over 65535")
}

fn generate_apus(args: &Args, result: &mut ResultFile) -> Result<Measured> {
    let servers = args.apus_servers()?;
    let ipv4 = servers.iter().all(|server| server.host.is_ipv4());
    let any = if ipv4 { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let node = args.link.start((any, 0).into())?;
    let receivers = usize::from(args.port_receivers);
    let more = if receivers == 0 { More::Yes } else { More::No };
    let body = args.body();
    let wire = || Ok(ApusWire::new(node.socket()?, Arc::clone(&servers), more, body));
    let mut wires = args.for_each_port(wire)?;
    let load = Load::new(args, 1 + receivers)?;
    let stop = &AtomicBool::new(false);
    let run = args.run(stop, body, servers.iter().map(ToString::to_string).collect());
    let measured = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (place, wire) in wires.iter_mut().enumerate() {
            let (port, recorders) = (&load.ports[place], &load.recorders[place]);
            for recorder in &recorders[1..] {
                let (mut wire, run) = (wire.clone(), &run);
                threads.push(spawn(scope, stop, move || receive(run, port, recorder, &mut wire)));
            }
            let sender = load.sender(&run, place);
            threads.push(spawn(scope, stop, move || match receivers {
                0 => sender.send_and_receive(wire),
                _ => sender.send(wire),
            }));
        }
        watch(args, &run, &load, threads)
    })?;
    report(args, &measured, &load, result);
    Ok(measured)
}

fn generate_tcp(args: &Args, result: &mut ResultFile) -> Result<Measured> {
    let servers = args.tcp_servers()?;
    let mut wires = args.for_each_port(|| TcpWire::connect(&servers, 1))?;
    let load = Load::new(args, 1)?;
    let stop = &AtomicBool::new(false);
    let run = args.run(stop, Body::Pattern, servers.iter().map(ToString::to_string).collect());
    let measured = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (place, wire) in wires.iter_mut().enumerate() {
            let sender = load.sender(&run, place);
            threads.push(spawn(scope, stop, move || sender.send_and_receive(wire)));
        }
        watch(args, &run, &load, threads)
    })?;
    report(args, &measured, &load, result);
    Ok(measured)
}

/// What the threads of each port share, by port.
struct Load {
    ports: Vec<Port>,
    paces: Vec<Pace>,
    /// One for each thread; the first is the sender's.
    recorders: Vec<Vec<Recorder>>,
}

impl Load {
    fn new(args: &Args, threads: usize) -> Result<Self> {
        let all = threads * usize::from(args.ports);
        let dump = if args.dump.is_some() { DUMP_MAX.div_ceil(all) } else { 0 };
        let recorders = || Ok((0..threads).map(|_| Recorder::new(dump)).collect());
        let mut seed = 0;
        Ok(Self {
            ports: args.for_each_port(|| Ok(Port::new(args.port_max())))?,
            paces: args.for_each_port(|| {
                seed += 1;
                args.pace(seed)
            })?,
            recorders: args.for_each_port(recorders)?,
        })
    }

    /// The sender of the port of that place.
    fn sender<'a>(&'a self, run: &'a Run<'a>, place: usize) -> Sender<'a> {
        let recorder = &self.recorders[place][0];
        Sender::new(run, &self.ports[place], recorder, self.paces[place].clone(), place as u64)
    }

    fn recorders(&self) -> impl Iterator<Item = &Recorder> {
        self.recorders.iter().flatten()
    }
}

/// Starts a thread whose failure ends the run.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
    work: impl FnOnce() -> Result<()> + Send + 'scope,
) -> ScopedJoinHandle<'scope, Result<()>> {
    scope.spawn(move || work().inspect_err(|_| stop.store(true, Ordering::Relaxed)))
}

/// Nanoseconds of the wall clock, to tell clients apart.
fn wall_clock() -> u64 {
    let since =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64
}

/// What all threads measured, and in which time.
#[derive(Debug, Default)]
struct Measured {
    record: Record,
    elapsed: Duration,
    /// What ended the run early.
    failure: Option<Error>,
}

impl Measured {
    fn of(record: Record) -> Self {
        Self { record, ..Self::default() }
    }

    /// What it means for the exit code.
    fn conclude(self) -> Result<()> {
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

/// Prints statistics once a second until it is time to stop, then gathers what the threads measured.
fn watch(
    args: &Args,
    run: &Run<'_>,
    load: &Load,
    threads: Vec<ScopedJoinHandle<'_, Result<()>>>,
) -> Result<Measured> {
    let end = (args.seconds > 0.0).then(|| run.start + Duration::from_secs_f64(args.seconds));
    let mut shown = Instant::now();
    while !stopped(run.stop)
        && !interrupt::requested()
        && end.is_none_or(|end| Instant::now() < end)
    {
        let left = end.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
        thread::sleep(left.min(TICK));
        if shown.elapsed() >= Duration::from_secs(1) {
            show(args, load, shown.elapsed())?;
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
    let mut record = Record::new(0);
    for recorder in load.recorders() {
        let mut part = recorder.lock();
        part.take_interval();
        record.merge(&part);
    }
    Ok(Measured { record, elapsed, failure })
}

fn show(args: &Args, load: &Load, elapsed: Duration) -> Result<()> {
    let mut interval = Interval::default();
    for recorder in load.recorders() {
        interval.merge(&recorder.lock().take_interval());
    }
    say(&args.output, &interval.line(elapsed.as_secs_f64(), args.ports.into()))
}

fn report(args: &Args, measured: &Measured, load: &Load, result: &mut ResultFile) {
    let Measured { record, elapsed, .. } = measured;
    let seconds = elapsed.as_secs_f64();
    let latency = record.by_size.total();
    let unfinished: usize = load.ports.iter().map(Port::outstanding).sum();
    let lag = record.lag_ns as f64 / 1e9 / seconds / f64::from(args.ports) * 100.0;
    let gbps = |bytes: u64| bytes as f64 * 8.0 / 1e9 / seconds;
    let name = args.link.transport();
    let offered =
        if args.gbps > 0.0 { format!("{} Gb/s", args.gbps) } else { "closed loop".to_owned() };
    let mut row =
        row(args).set("load", offered).set("outstanding", args.port_max() * u32::from(args.ports));
    row = row.set_latency(&latency).set("mean_us", latency.mean_us());
    row = record.errors.set(row);
    result.rows.push(
        row.set("calls_per_s", latency.count() as f64 / seconds)
            .set("out_gbps", gbps(record.out_bytes))
            .set("in_gbps", gbps(record.in_bytes))
            .set("cpu_s", cpu::process_time().as_secs_f64())
            .set("elapsed_s", seconds)
            .set("lag_pct", lag)
            .set("late_pct", record.lateness.share() * 100.0)
            .set("unfinished", unfinished),
    );
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
        result.warn(format!(
            "{unfinished} calls had no reply {:?} after the end",
            super::sender::DRAIN
        ));
    }
}

/// A row with what was set, nothing measured yet.
pub(super) fn row(args: &Args) -> Row {
    let mut row = Row::new(args.link.transport()).set("bench", "node client");
    if args.link.protocol == Protocol::Apus {
        row.put("delivery", args.link.delivery.to_string());
        row.put("receivers", u32::from(args.port_receivers));
    }
    row.set("workload", args.workload.to_string()).set("ports", u32::from(args.ports))
}

/// A byte rate as an argument; 0 is a closed loop.
fn parse_gbps(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(0.0),
        Ok(gbps) if (0.000_001..=1000.0).contains(&gbps) => Ok(gbps),
        _ => Err("it must be 0 or a number of Gb/s up to 1000".to_owned()),
    }
}
