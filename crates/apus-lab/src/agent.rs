//! `apus lab-host`: one host of a lab or cluster, server and client of every transport in one process.
//!
//! Homa schedules a host, so a host's server and client share one node. The leader controls the process line by line: the process
//! reads an `Assignment`, prints `ready` once it serves, connects on `connect` and prints `connected`, generates its load on `go`,
//! and prints its `HostResult`. It exits when its standard input ends, also in the middle of its load, so it does not outlive the
//! leader.

use std::collections::BTreeMap;
use std::io::{Write, stdin};
use std::net::{IpAddr, SocketAddr};
use std::process;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use apus::net::cpu;
use apus::{Address, Config, Delivery, EngineAt, Flush, Links, Node, Port};
use apus_bench::calls::{Calls, Choice, OutstandingCall};
use apus_load::{Lateness, Poisson};
use apus_node::pace::{Next, Pace, nanos_since};
use apus_node::transport::interface::{Client, Ended, Request};
use apus_node::transport::over_apus::{ApusClient, Body, reply_to};
use apus_node::transport::tcp_epoll::EpollServer;
use apus_node::transport::tcp_servers::TcpClient;
use serde::{Deserialize, Serialize};

use crate::rival::TcpRival;

/// UDP port of the Apus nodes in trial 0. Trial `n` uses this port plus `n`.
const UDP_PORT: u16 = 20_146;

/// Homa port of the service.
const HOMA_PORT: u16 = 4000;

/// TCP port of the service in trial 0, likewise.
const TCP_PORT: u16 = 5000;

/// Time after which a call on an idle network has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Prefix of the error of a call without a reply.
pub(crate) const SILENCE: &str = "no reply to";

/// Pause between calls on an idle network, so that the links are idle and no side still polls for the last reply.
const PAUSE: Duration = Duration::from_millis(2);

/// Interval at which a thread checks for an end.
const TICK: Duration = Duration::from_millis(50);

/// Upper bound on calls started in a row before replies are taken.
const STARTS_PER_TURN: usize = 64;

/// The task of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Assignment {
    /// Index of the host.
    pub(crate) place: usize,
    /// Addresses of all hosts.
    pub(crate) hosts: Vec<IpAddr>,
    /// Number of the trial, below 1,000. Trials use different ports, so that a late error about a packet of an earlier trial does
    /// not reach this one.
    pub(crate) trial: u16,
    /// The loads, which all run at the same time.
    pub(crate) loads: Vec<Load>,
    /// Load before the counted time, in seconds.
    pub(crate) warmup_s: f64,
    /// The counted time, in seconds.
    pub(crate) seconds: f64,
    /// Load after the counted time, in which calls may end, in seconds.
    pub(crate) drain_s: f64,
}

/// The load of one transport of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) transport: Transport,
    /// Lengths of requests, in the form of [`Workload`](apus_load::Workload).
    pub(crate) workload: String,
    /// Upper bound to which longer requests are cut.
    pub(crate) longest: u32,
    /// Length of replies, as in [`Request::reply`].
    pub(crate) reply: u32,
    /// Indices of the called hosts. Without any, the host only serves.
    pub(crate) targets: Vec<usize>,
    pub(crate) arrivals: ArrivalProcess,
    pub(crate) seed: u64,
}

/// The transport of the calls, with its settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Apus over UDP, with settings of [`Config`].
    Apus { delivery: String, settings: BTreeMap<String, String> },
    /// Kernel TCP.
    Tcp(TcpRival),
}

impl Transport {
    /// The lower bound on the retransmission timeout that its hosts need, in ms.
    pub(crate) fn rto_min_ms(&self) -> Option<u32> {
        match self {
            Self::Apus { .. } => None,
            Self::Tcp(rival) => rival.rto_min_ms,
        }
    }
}

/// The start times of calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ArrivalProcess {
    /// At random times, with at most `outstanding` calls.
    Open { calls_per_s: f64, outstanding: u32 },
    /// As soon as fewer than `outstanding` calls are outstanding.
    Closed { outstanding: u32 },
    /// One at a time, `samples` of each of these lengths.
    Unloaded { samples: u32, lengths: Vec<u32> },
}

/// The measurements of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostResult {
    /// Results of each load.
    pub(crate) loads: Vec<Measured>,
    /// CPU time of the process while it generated load, in seconds.
    pub(crate) cpu_s: f64,
}

/// The results of one load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Counted calls that ended: bytes of the request, nanoseconds.
    pub(crate) calls: Vec<(u32, u64)>,
    /// Counted calls that did not end: bytes, nanoseconds so far.
    pub(crate) unfinished: Vec<(u32, u64)>,
    /// Bytes of requests and replies of calls that ended in the counted time.
    pub(crate) bytes: u64,
    /// Lateness against the schedule.
    pub(crate) lateness: Lateness,
    /// Nanoseconds in which a call was due and no more calls could be outstanding.
    pub(crate) blocked_ns: u64,
    /// The transport's counters over the whole run.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// Runs the host's process under the leader's control.
///
/// # Errors
/// If an address is in use, a host cannot be reached, or a call fails.
pub fn run(output: &mut dyn Write) -> Result<()> {
    let mut say = |line: &str| {
        writeln!(output, "{line}").and_then(|()| output.flush()).context("the leader has ended")
    };
    let orders = orders()?;
    let Ok(order) = orders.recv() else { return Ok(()) };
    let assignment: Assignment = serde_json::from_str(&order).context("the assignment")?;
    cpu::sleep_precisely();
    let hosts = assignment
        .loads
        .iter()
        .map(|load| Serving::start(load, &assignment))
        .collect::<Result<Vec<Serving>>>()?;
    say("ready")?;
    if orders.recv().is_err() {
        return Ok(());
    }
    let clients = hosts
        .iter()
        .zip(&assignment.loads)
        .map(|(host, load)| host.client(load, &assignment))
        .collect::<Result<Vec<Box<dyn Client + Send>>>>()?;
    say("connected")?;
    if orders.recv().is_err() {
        return Ok(());
    }
    let before = cpu::process_time();
    let mut measured = generate(&assignment, clients)?;
    for (measured, host) in measured.iter_mut().zip(&hosts) {
        measured.counters = host.counters();
    }
    let cpu_s = (cpu::process_time() - before).as_secs_f64();
    say(&serde_json::to_string(&HostResult { loads: measured, cpu_s }).context("the report")?)?;
    // Other hosts may still need answers; the leader ends the process.
    orders.iter().for_each(drop);
    Ok(())
}

/// The leader's orders, line by line. Their end ends the process.
fn orders() -> Result<Receiver<String>> {
    let (sender, orders) = mpsc::channel();
    let read = move || {
        for order in stdin().lines().map_while(Result::ok) {
            // The receiver is gone if the process is about to exit with an error.
            let _ = sender.send(order);
        }
        process::exit(0);
    };
    let reader = thread::Builder::new().name("lab-orders".to_owned());
    reader.spawn(read).context("cannot start a thread")?;
    Ok(orders)
}

/// The server's side of a load, with the parts shared with the client's side.
enum Serving {
    Apus { node: Node },
    Tcp(TcpRival),
}

impl Serving {
    fn start(load: &Load, assignment: &Assignment) -> Result<Self> {
        let own = assignment.hosts[assignment.place];
        match &load.transport {
            Transport::Apus { delivery, settings } => {
                let delivery: Delivery = delivery.parse().context("delivery")?;
                let mut config = Config::new();
                // The lab measures the network, even if hosts share a machine.
                config.link(Links::Udp);
                config.listen(SocketAddr::new(own, UDP_PORT + assignment.trial)).delivery(delivery);
                config.calls_max(1 << 20);
                for (key, value) in settings {
                    config.set(key, value)?;
                }
                config.apply_environment()?.engine(EngineAt::Own);
                let node = Node::start(&config).context("cannot start the node")?;
                serve(node.bind(HOMA_PORT)?)?;
                Ok(Self::Apus { node })
            }
            Transport::Tcp(rival) => {
                let server = EpollServer::listen(
                    SocketAddr::new(own, TCP_PORT + assignment.trial),
                    Arc::default(),
                )?;
                if let Some(name) = &rival.congestion {
                    server.use_congestion_control(name)?;
                }
                server.spawn()?;
                Ok(Self::Tcp(rival.clone()))
            }
        }
    }

    /// Connects to the called hosts.
    fn client(&self, load: &Load, assignment: &Assignment) -> Result<Box<dyn Client + Send>> {
        let targets = load.targets.iter().map(|place| assignment.hosts[*place]);
        Ok(match self {
            Self::Apus { node } => {
                let port = UDP_PORT + assignment.trial;
                let servers = targets.map(|ip| Address::new(SocketAddr::new(ip, port), HOMA_PORT));
                Box::new(ApusClient::new(
                    node.client()?,
                    servers.collect(),
                    Flush::Later,
                    Body::Pattern,
                ))
            }
            Self::Tcp(rival) => {
                let port = TCP_PORT + assignment.trial;
                let servers: Vec<_> = targets.map(|ip| SocketAddr::new(ip, port)).collect();
                let mut client = if rival.classes.is_empty() {
                    TcpClient::connect(&servers, rival.connections)?
                } else {
                    TcpClient::connect_by_length(&servers, &rival.classes)?
                };
                if let Some(name) = &rival.congestion {
                    client.use_congestion_control(name)?;
                }
                Box::new(client)
            }
        })
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        match self {
            Self::Apus { node } => {
                node.stats().iter().map(|(name, count)| (name.to_owned(), count)).collect()
            }
            Self::Tcp(_) => crate::kernel::tcp_counters(),
        }
    }
}

/// Answers requests on a new thread until the process exits.
fn serve(service: Port) -> Result<()> {
    let answer = move || {
        service.serve(|mut request| {
            let reply = reply_to(request.take_body());
            // Fails if the client is gone, which then gets no reply.
            let _ = request.reply(reply);
        });
    };
    thread::Builder::new()
        .name("lab-server".to_owned())
        .spawn(answer)
        .context("cannot start a thread")?;
    Ok(())
}

/// Generates all loads at the same time.
fn generate(
    assignment: &Assignment,
    clients: Vec<Box<dyn Client + Send>>,
) -> Result<Vec<Measured>> {
    let times = Times::of(assignment);
    thread::scope(|scope| {
        let threads: Vec<_> = assignment
            .loads
            .iter()
            .zip(clients)
            .map(|(load, client)| {
                scope.spawn(move || {
                    cpu::sleep_precisely();
                    Generator::new(load, client, times)?.run(load)
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// The phases of a run.
#[derive(Clone, Copy, Debug)]
struct Times {
    start: Instant,
    /// Start of the counted time, in nanoseconds since the start.
    from_ns: u64,
    /// End of the counted time.
    to_ns: u64,
    /// End of the load.
    end_ns: u64,
}

impl Times {
    fn of(assignment: &Assignment) -> Self {
        let from = assignment.warmup_s;
        let to = from + assignment.seconds;
        let ns = |seconds: f64| (seconds * 1e9) as u64;
        Self {
            start: Instant::now(),
            from_ns: ns(from),
            to_ns: ns(to),
            end_ns: ns(to + assignment.drain_s),
        }
    }

    fn counts(&self, ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&ns)
    }
}

/// The client's side of a load: one thread that sends due calls and takes replies.
struct Generator {
    client: Box<dyn Client + Send>,
    times: Times,
    calls: Calls,
    pace: Pace,
    ended: Vec<Ended>,
    measured: Measured,
}

impl Generator {
    fn new(load: &Load, client: Box<dyn Client + Send>, times: Times) -> Result<Self> {
        let (outstanding, pace, choice) = match load.arrivals {
            ArrivalProcess::Open { calls_per_s, outstanding } => {
                let pace = Pace::open(Poisson::new(calls_per_s, load.seed)?);
                (outstanding, pace, Choice::Random)
            }
            ArrivalProcess::Closed { outstanding } => (outstanding, Pace::closed(), Choice::InTurn),
            ArrivalProcess::Unloaded { .. } => (1, Pace::closed(), Choice::InTurn),
        };
        // A different seed, so that times and lengths are independent.
        let calls = Calls::new(load.workload.parse()?, load.reply, outstanding, !load.seed);
        Ok(Self {
            client,
            times,
            calls: calls.cut_to(load.longest).among(load.targets.len(), choice),
            pace,
            ended: Vec::new(),
            measured: Measured::default(),
        })
    }

    fn run(mut self, load: &Load) -> Result<Measured> {
        match &load.arrivals {
            // A host that only serves has all its counts at the end.
            _ if load.targets.is_empty() => {
                let end = self.times.start + Duration::from_nanos(self.times.end_ns);
                thread::sleep(end.saturating_duration_since(Instant::now()));
            }
            ArrivalProcess::Unloaded { samples, lengths } => {
                for length in lengths {
                    self.sample(load, *length, *samples)?;
                }
            }
            ArrivalProcess::Open { .. } | ArrivalProcess::Closed { .. } => self.keep_load()?,
        }
        Ok(self.measured)
    }

    /// Sends and receives until the end of the load.
    fn keep_load(&mut self) -> Result<()> {
        loop {
            let now_ns = nanos_since(self.times.start);
            if now_ns >= self.times.end_ns {
                break;
            }
            let wait = self.start_due()?.min(Duration::from_nanos(self.times.end_ns - now_ns));
            self.receive(wait.min(TICK))?;
        }
        let now_ns = nanos_since(self.times.start);
        let left =
            self.calls.take_all().into_iter().filter(|call| self.times.counts(call.started_ns));
        self.measured.unfinished =
            left.map(|call| (call.request.length, now_ns - call.started_ns)).collect();
        Ok(())
    }

    /// Starts due calls. Returns the time until the next one.
    fn start_due(&mut self) -> Result<Duration> {
        let next = self.pace.start_due(STARTS_PER_TURN, self.times.start, |due| {
            let has_begun = self.calls.begin(&mut *self.client, due.at_ns)?;
            if has_begun {
                self.measured.blocked_ns += due.note_start(&mut self.measured.lateness);
            }
            Ok(has_begun)
        });
        Ok(match next? {
            Next::Due(wait) => wait,
            Next::NoRoom => TICK,
        })
    }

    /// Takes replies that arrive within `timeout`.
    fn receive(&mut self, timeout: Duration) -> Result<()> {
        self.client.receive(timeout, &mut self.ended)?;
        let now_ns = nanos_since(self.times.start);
        for ended in self.ended.drain(..) {
            let reply = ended?;
            let call = self.calls.finish(reply)?.context("a reply without an outstanding call")?;
            let OutstandingCall { request: Request { length, .. }, started_ns } = call;
            if self.times.counts(now_ns) {
                self.measured.bytes += u64::from(length) + u64::from(reply.length);
            }
            if self.times.counts(started_ns) {
                self.measured.calls.push((length, now_ns.saturating_sub(started_ns)));
            }
        }
        Ok(())
    }

    /// Makes calls of one length, one at a time. The first few only warm up the path.
    fn sample(&mut self, load: &Load, length: u32, samples: u32) -> Result<()> {
        let warm_up = (samples / 10).max(2);
        for sample in 0..samples + warm_up {
            let started = Instant::now();
            let server = sample as usize % load.targets.len();
            self.client.send(server, Request { tag: 0, length, reply: load.reply })?;
            while self.ended.is_empty() {
                self.client.receive(TICK, &mut self.ended)?;
                if started.elapsed() > TIMEOUT {
                    bail!("{SILENCE} {length} bytes on an idle network within {TIMEOUT:?}");
                }
            }
            self.ended.drain(..).try_for_each(|ended| ended.map(drop))?;
            if sample >= warm_up {
                self.measured.calls.push((length, started.elapsed().as_nanos() as u64));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}
