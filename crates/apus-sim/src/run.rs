//! One simulation: load, transport and network, and the outcome.

use std::time::{Duration, Instant};

use apus_load::{Random, seeded};
use apus_trace::Trace;

use crate::chance;
use crate::fabric::{Discipline, Fabric, Layer, Treatment};
use crate::framing::Ideal;
use crate::plan::{Arrivals, Exchange, Pattern, Plan, PlanError, Protocol};
use crate::queue::What;
use crate::sizes::Sizes;
use crate::slowdown::{BATCHES, Decile, SizeClass, Slowdowns};
use crate::topology::Graph;
use crate::trace::{self, Sent};
use crate::transport::apus::Apus;
use crate::transport::oracle::Oracle;
use crate::transport::pfabric::{Pfabric, Scaled};
use crate::transport::tcp::{self, Flavour, Tcp};
use crate::transport::{Message, Transport};

/// Number of events between progress reports.
const PROGRESS_EVENTS: u64 = 1 << 20;
/// Pause between the first messages of a host to other hosts, in picoseconds: long enough for their length.
const PRIMING_PS: u64 = 25_000_000;
/// Length of these messages: enough to measure the path at its rate.
const PRIMING_BYTES: u32 = 20_188;
/// In networks of more hosts, the first messages are short: one packet each.
const PRIMING_HOSTS: u32 = 256;
/// Pause between short first messages, in picoseconds.
const SHORT_PRIMING_PS: u64 = 300_000;
/// Upper bound on TCP's least timeout that follows from buffers: 10 s.
const TCP_TIMEOUT_MAX_PS: u64 = 10_000_000_000_000;
/// Length of short first messages.
const SHORT_PRIMING_BYTES: u32 = 100;

/// Progress of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Simulated time so far.
    pub simulated: Duration,
    /// Simulated time at the end of the measured load.
    pub target: Duration,
    /// Measured messages that have not ended.
    pub under_way: u64,
    /// Packets times links, so far.
    pub packet_hops: u64,
    /// Elapsed real time.
    pub wall: Duration,
}

/// Statistics of one kind of port in the measured time.
#[derive(Clone, PartialEq, Debug)]
pub struct LayerOutcome {
    /// Its name: `nic`, `tor_up`, …
    pub name: &'static str,
    /// Number of ports of this kind.
    pub ports: u64,
    /// Bytes waiting at a port, mean over time and ports.
    pub mean_bytes: f64,
    /// Bytes that 99 % of arriving packets found waiting at most, in steps of 1024.
    pub p99_bytes: u64,
    /// Maximum of the bytes that waited at one port.
    pub max_bytes: u64,
    /// The share of time in which a port was sending, mean over ports.
    pub utilization: f64,
    /// Packets lost for lack of buffer space or by random loss, in the whole run.
    pub lost: u64,
}

/// The results of a simulation.
#[derive(Clone, PartialEq, Debug)]
pub struct SimulationResult {
    /// The plan that was simulated.
    pub plan: Plan,
    /// Slowdowns by size.
    pub sizes: Vec<SizeClass>,
    /// Slowdowns by deciles of the messages.
    pub deciles: Vec<Decile>,
    /// Statistics of the ports by layer.
    pub layers: Vec<LayerOutcome>,
    /// The transport's counters, summed over hosts.
    pub counters: Vec<(&'static str, u64)>,
    /// Measured messages: those that began in the measured time.
    pub messages: u64,
    /// Measured messages that had not ended at the end of the run. They count in the slowdowns with their age.
    pub unfinished: u64,
    /// Message bytes that arrived per host in the measured time, in Gb/s.
    pub goodput_gbps: f64,
    /// Simulated time.
    pub simulated: Duration,
    /// Packets times links.
    pub packet_hops: u64,
    /// Number of events.
    pub events: u64,
    /// Fingerprint of all events: equal for equal plans, on every machine.
    pub hash: u64,
    /// Elapsed real time.
    pub wall: Duration,
}

impl SimulationResult {
    /// Packets times links per second of real time.
    #[must_use]
    pub fn packet_hops_per_s(&self) -> f64 {
        self.packet_hops as f64 / self.wall.as_secs_f64().max(1e-9)
    }
}

/// Runs a plan, and calls `progress` periodically.
///
/// # Errors
///
/// If the plan cannot be run.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(Progress)) -> Result<SimulationResult, PlanError> {
    run_with(plan, progress, false).map(|(outcome, _)| outcome)
}

/// [`run`] with a time trace of all hosts, stamped with virtual time in ns. The trace holds the last 65,536 records of each host.
/// Only the transport `apus` records events.
///
/// # Errors
///
/// If the plan cannot be run.
pub fn run_traced(
    plan: &Plan,
    progress: &mut dyn FnMut(Progress),
) -> Result<(SimulationResult, Option<Trace>), PlanError> {
    run_with(plan, progress, true)
}

fn run_with(
    plan: &Plan,
    progress: &mut dyn FnMut(Progress),
    traced: bool,
) -> Result<(SimulationResult, Option<Trace>), PlanError> {
    plan.validate()?;
    let graph = Graph::new(&plan.topology, &plan.links);
    let trace = match &plan.trace {
        Some(path) => trace::read(path, graph.hosts as u32)?,
        None => Vec::new(),
    };
    let ideal = Ideal::new(&graph, &plan.links, plan.framing);
    let one_way = plan.exchange == Exchange::OneWay;
    let bypass_ps = one_way.then(|| ideal.empty_packets_picos());
    let treatment = |discipline, spray, mark_bytes| Treatment {
        discipline,
        buffers: plan.buffers,
        layer_bytes: plan.layer_limits(),
        mark_bytes,
        spray,
        bypass_ps: bypass_ps.clone(),
    };
    let levels = treatment(Discipline::Levels, plan.spray, None);
    let outcome = match plan.transport {
        Protocol::Apus => {
            let mut fabric = Fabric::new(graph, &plan.links, levels, plan.seed);
            let longest_sent = trace.iter().map(|sent| sent.bytes).max().unwrap_or(0);
            let longest = plan.workload.longest().max(longest_sent).max(match plan.exchange {
                Exchange::Response(bytes) => bytes,
                Exchange::OneWay | Exchange::Echo => PRIMING_BYTES,
            });
            let (framing, exchange) = (plan.framing, plan.exchange);
            let mut transport =
                Apus::new(&mut fabric, &plan.homa(), framing, exchange, longest, plan.seed);
            if traced {
                transport.record();
            }
            Simulation::new(plan, trace, fabric, transport).run(progress)
        }
        Protocol::Pfabric => {
            let gbps = graph.outlets[..graph.hosts].iter().map(|outlet| outlet.gbps).max();
            let gbps = gbps.unwrap_or(plan.links.host_gbps);
            let scaled = Scaled::of(ideal.round_trip_picos(), gbps, plan.framing);
            let discipline = Discipline::Ranked { bytes: scaled.port_bytes };
            let ranked = treatment(discipline, plan.spray, None);
            let transport = Pfabric::new(graph.hosts, plan.framing, scaled);
            let fabric = Fabric::new(graph, &plan.links, ranked, plan.seed);
            Simulation::new(plan, trace, fabric, transport).run(progress)
        }
        Protocol::Dctcp | Protocol::TcpNewreno | Protocol::TcpCubic => {
            let flavour = match plan.transport {
                Protocol::Dctcp => Flavour::Dctcp,
                Protocol::TcpCubic => Flavour::Cubic,
                _ => Flavour::NewReno,
            };
            let mark_bytes = (flavour == Flavour::Dctcp).then_some(tcp::DCTCP_MARK_BYTES);
            // TCP has one path for each pair of hosts.
            let treatment = treatment(Discipline::Levels, false, mark_bytes);
            let timeout_min = tcp_timeout_min(plan, &graph, &ideal);
            let transport = Tcp::new(flavour, graph.hosts, plan.framing, timeout_min);
            let fabric = Fabric::new(graph, &plan.links, treatment, plan.seed);
            Simulation::new(plan, trace, fabric, transport).run(progress)
        }
        Protocol::SrptOracle => {
            let transport = Oracle::new(graph.hosts, plan.links.host_gbps, plan.framing, ideal);
            let fabric = Fabric::new(graph, &plan.links, levels, plan.seed);
            Simulation::new(plan, trace, fabric, transport).run(progress)
        }
    };
    Ok(outcome)
}

/// TCP's least timeout, in ps: at least a round trip with full queues at all switches on the way, where queues have a bound.
fn tcp_timeout_min(plan: &Plan, graph: &Graph, ideal: &Ideal) -> u64 {
    let limits = plan.layer_limits();
    let switches = graph.outlets.iter().filter(|outlet| outlet.layer > 0);
    let full = switches.map(|outlet| {
        let limit = limits[outlet.layer].min(outlet.port_bytes.unwrap_or(u64::MAX));
        limit.min(plan.buffers.of_port()).saturating_mul(8_000 / outlet.gbps.max(1))
    });
    let longest = full.max().unwrap_or(0);
    let unlimited = longest == u64::MAX;
    let queues = if unlimited { 0 } else { longest.saturating_mul(ideal.switches_max()) };
    let full = ideal.round_trip_picos().saturating_add(queues).min(TCP_TIMEOUT_MAX_PS);
    full.max(plan.tcp.rto_min_us * 1_000_000)
}

/// A message in progress.
#[derive(Clone, Copy, Debug)]
struct ActiveMessage {
    message: Message,
    start: u64,
    class: u32,
    way: u32,
    /// Whether it is measured and has not ended.
    counts: bool,
    has_ended: bool,
}

struct Simulation<'a, T: Transport> {
    plan: &'a Plan,
    /// The rest of the plan's trace, with the next message last. Empty if the plan has no trace.
    trace: Vec<Sent>,
    fabric: Fabric<T::Header>,
    transport: T,
    ideal: Ideal,
    slowdowns: Slowdowns,
    records: Vec<ActiveMessage>,
    unused: Vec<u32>,
    rng: Random,
    /// Destination and length of each host's next message.
    next: Vec<(u32, u32)>,
    gap_ps: f64,
    began: u64,
    measured_from: u64,
    measured_until: u64,
    /// Time at which the run ends, even if messages have not ended.
    end: u64,
    /// Statistics of the ports in the measured time, once it is over.
    layers: Option<Vec<Layer>>,
    messages: u64,
    under_way: u64,
    arrived_bytes: u64,
    started: Instant,
}

impl<'a, T: Transport> Simulation<'a, T> {
    fn new(plan: &'a Plan, mut trace: Vec<Sent>, fabric: Fabric<T::Header>, transport: T) -> Self {
        trace.reverse();
        let classes = match plan.trace {
            Some(_) => Sizes::classes_of_any(),
            None => plan.workload.classes(),
        };
        let ideal = Ideal::new(&fabric.graph, &plan.links, plan.framing);
        let bytes_per_s = plan.load * plan.links.host_gbps as f64 * 1e9 / 8.0;
        let senders = match plan.pattern {
            Pattern::Incast => fabric.graph.hosts as f64 - 1.0,
            Pattern::Uniform | Pattern::RackLocal | Pattern::Permutation => 1.0,
        };
        Self {
            gap_ps: 1e12 / (bytes_per_s / plan.workload.mean_wire(plan.framing)) * senders,
            slowdowns: Slowdowns::new(classes),
            plan,
            trace,
            fabric,
            transport,
            ideal,
            records: Vec::new(),
            unused: Vec::new(),
            rng: seeded(plan.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6c6f_6164),
            next: Vec::new(),
            began: 0,
            measured_from: 0,
            measured_until: 0,
            end: 0,
            layers: None,
            messages: 0,
            under_way: 0,
            arrived_bytes: 0,
            started: Instant::now(),
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(Progress)) -> (SimulationResult, Option<Trace>) {
        self.prime_peers();
        self.measured_from = self.began + self.plan.warmup();
        self.measured_until = self.measured_from + self.plan.measured();
        self.end = self.measured_until + self.plan.drain();
        self.first_arrivals();
        let mut boundary = self.measured_from;
        while let Some(event) = self.fabric.next_event() {
            if event.at >= self.end || (event.at >= self.measured_until && self.under_way == 0) {
                break;
            }
            if event.at >= boundary {
                boundary = self.cross(boundary, event.at);
            }
            match event.what {
                What::AtPort => self.fabric.at_port(event.place, event.subject),
                What::PortFree => {
                    if self.fabric.port_free(event.place) {
                        self.transport.nic_free(&mut self.fabric, event.place);
                    }
                }
                What::AtHost => {
                    self.transport.receive(&mut self.fabric, event.place, event.subject);
                    self.settle();
                }
                What::Timer => {
                    self.transport.timer(&mut self.fabric, event.place, event.subject);
                    self.settle();
                }
                What::Message => self.on_message(event.place, event.subject),
            }
            if self.fabric.events_done.is_multiple_of(PROGRESS_EVENTS) {
                progress(self.progress());
            }
        }
        let trace = self.transport.time_trace();
        self.record_unfinished();
        (self.outcome(), trace)
    }

    /// Restricts the statistics of ports to the measured time: has them start with it, and keeps them at its end. Returns the next
    /// boundary.
    fn cross(&mut self, boundary: u64, at: u64) -> u64 {
        if boundary == self.measured_from {
            self.fabric.restart_statistics(boundary);
            if at < self.measured_until {
                return self.measured_until;
            }
        }
        self.layers = Some(self.fabric.statistics(self.measured_until));
        u64::MAX
    }

    fn progress(&self) -> Progress {
        Progress {
            simulated: duration(self.fabric.now),
            target: duration(self.measured_until),
            under_way: self.under_way,
            packet_hops: self.fabric.hops,
            wall: self.started.elapsed(),
        }
    }

    /// Before the load, every host sends one message to each host that it will write to: hosts of a datacenter have met, and know
    /// each other's priority cutoffs, round trip and rate. Rivals have no such state.
    fn prime_peers(&mut self) {
        let hosts = self.fabric.graph.hosts as u32;
        if self.plan.transport != Protocol::Apus || self.plan.arrivals != Arrivals::Poisson {
            return;
        }
        let pause = if hosts > PRIMING_HOSTS { SHORT_PRIMING_PS } else { PRIMING_PS };
        // A byte at 1 Gb/s takes 10 times as long as at 10 Gb/s.
        let pause = pause * 10 / self.plan.links.host_gbps.min(10);
        for step in 1..hosts {
            let at = u64::from(step) * pause;
            for host in 0..hosts {
                if self.writes_to(host, (host + step) % hosts) {
                    self.fabric.schedule(at, What::Message, host, step);
                }
            }
        }
        self.began = u64::from(hosts) * pause + 20_000_000;
    }

    /// Whether the load has messages from one host to the other.
    fn writes_to(&self, from: u32, to: u32) -> bool {
        let graph = &self.fabric.graph;
        self.plan.trace.is_some()
            || match self.plan.pattern {
                Pattern::Uniform => true,
                Pattern::Incast => to == 0,
                Pattern::Permutation => to == (from + graph.hosts as u32 / 2) % graph.hosts as u32,
                Pattern::RackLocal => graph.edge_of[from as usize] == graph.edge_of[to as usize],
            }
    }

    fn first_arrivals(&mut self) {
        if self.plan.trace.is_some() {
            return self.schedule_traced();
        }
        match self.plan.arrivals {
            Arrivals::Poisson => {
                self.next = vec![(0, 0); self.fabric.graph.hosts];
                for host in 0..self.fabric.graph.hosts as u32 {
                    self.schedule_arrival(self.began, host);
                }
            }
            Arrivals::Closed(outstanding) => {
                for index in 0..outstanding {
                    let at = self.began + u64::from(index);
                    self.fabric.schedule(at, What::Message, 0, 0);
                }
            }
        }
    }

    fn schedule_traced(&mut self) {
        if let Some(next) = self.trace.last() {
            self.fabric.schedule(self.began + next.at, What::Message, next.from, 0);
        }
    }

    fn schedule_arrival(&mut self, after: u64, host: u32) {
        let faster =
            self.fabric.graph.outlets[host as usize].gbps as f64 / self.plan.links.host_gbps as f64;
        let gap = chance::exponential(&mut self.rng) * self.gap_ps / faster;
        self.next[host as usize] = self.draw(host);
        self.fabric.schedule(after + gap as u64, What::Message, host, 0);
    }

    /// Draws the destination and the length of the next message of `host`.
    fn draw(&mut self, host: u32) -> (u32, u32) {
        let bytes = self.plan.workload.sample(&mut self.rng);
        (self.destination(host), bytes)
    }

    fn on_message(&mut self, host: u32, priming: u32) {
        let hosts = self.fabric.graph.hosts as u32;
        if priming > 0 {
            let short = hosts > PRIMING_HOSTS;
            let bytes = if short { SHORT_PRIMING_BYTES } else { PRIMING_BYTES };
            return self.start(host, (host + priming) % hosts, bytes, false);
        }
        let now = self.fabric.now;
        if let Some(Sent { from, to, bytes, .. }) = self.trace.pop() {
            let counts = (self.measured_from..self.measured_until).contains(&now);
            self.start(from, to, bytes, counts);
            return self.schedule_traced();
        }
        let (to, bytes) = match self.plan.arrivals {
            Arrivals::Poisson => self.next[host as usize],
            Arrivals::Closed(_) => self.draw(host),
        };
        let counts = (self.measured_from..self.measured_until).contains(&now);
        if to != host {
            self.start(host, to, bytes, counts);
        }
        if self.plan.arrivals == Arrivals::Poisson {
            self.schedule_arrival(now, host);
        }
    }

    fn destination(&mut self, host: u32) -> u32 {
        let hosts = self.fabric.graph.hosts as u32;
        match self.plan.pattern {
            Pattern::Incast => 0,
            Pattern::Permutation => (host + hosts / 2) % hosts,
            Pattern::RackLocal => {
                let edges = &self.fabric.graph.edge_of;
                let edge = edges[host as usize];
                let first = edges.partition_point(|&other| other < edge) as u32;
                let size = edges.partition_point(|&other| other <= edge) as u32 - first;
                if size < 2 {
                    host
                } else {
                    first + (host - first + 1 + chance::below(&mut self.rng, size - 1)) % size
                }
            }
            Pattern::Uniform => (host + 1 + chance::below(&mut self.rng, hosts - 1)) % hosts,
        }
    }

    fn start(&mut self, from: u32, to: u32, bytes: u32, counts: bool) {
        let number = self.unused.pop().unwrap_or(self.records.len() as u32);
        let message = Message { number, from, to, bytes };
        let way = self.fabric.graph.kind_of_way(from, to) as u32;
        let class = self.slowdowns.class(bytes) as u32;
        let start = self.fabric.now;
        let record = ActiveMessage { message, start, class, way, counts, has_ended: false };
        if let Some(place) = self.records.get_mut(number as usize) {
            *place = record;
        } else {
            self.records.push(record);
        }
        self.messages += u64::from(counts);
        self.under_way += u64::from(counts);
        self.transport.start(&mut self.fabric, message);
        self.settle();
    }

    /// Handles messages that have arrived, and frees the numbers of retired ones.
    #[inline]
    fn settle(&mut self) {
        if !self.fabric.finished.is_empty() {
            self.note_finished();
        }
        while let Some(number) = self.fabric.retired.pop() {
            // The number of a call that failed is not used again: its request may still arrive.
            if self.records[number as usize].has_ended {
                self.unused.push(number);
            }
            if let Arrivals::Closed(_) = self.plan.arrivals {
                self.fabric.schedule(self.fabric.now, What::Message, 0, 0);
            }
        }
    }

    fn note_finished(&mut self) {
        let now = self.fabric.now;
        while let Some(number) = self.fabric.finished.pop() {
            let record = &mut self.records[number as usize];
            if (self.measured_from..self.measured_until).contains(&now) {
                self.arrived_bytes += u64::from(record.message.bytes);
            }
            record.has_ended = true;
            if !std::mem::take(&mut record.counts) {
                continue;
            }
            let record = *record;
            let (part, slowdown) = self.slowdown_until(now, &record);
            self.slowdowns.record(record.class as usize, part, slowdown);
            self.under_way -= 1;
        }
    }

    /// The part of the measured time in which a message began, and its time until `at` relative to the least time.
    fn slowdown_until(&self, at: u64, record: &ActiveMessage) -> (usize, f64) {
        let mut least = self.ideal.picos(record.way as usize, record.message.bytes);
        match self.plan.exchange {
            Exchange::OneWay => {}
            Exchange::Echo => least *= 2,
            Exchange::Response(bytes) => least += self.ideal.picos(record.way as usize, bytes),
        }
        let since = record.start - self.measured_from;
        let part = since * BATCHES as u64 / self.plan.measured().max(1);
        (part as usize, (at - record.start) as f64 / least as f64)
    }

    /// Records the measured messages that have not ended, with their age. Without them a network that loses messages would have
    /// better figures than one that delivers them late.
    fn record_unfinished(&mut self) {
        let now = self.fabric.now.min(self.end);
        for number in 0..self.records.len() {
            let record = self.records[number];
            if record.counts {
                let (part, slowdown) = self.slowdown_until(now, &record);
                self.slowdowns.record_unfinished(record.class as usize, part, slowdown);
            }
        }
    }

    fn outcome(mut self) -> SimulationResult {
        let sizes = self.slowdowns.sizes();
        let paper = self.plan.workload.paper().filter(|_| self.plan.trace.is_none());
        let bins = paper.map(|workload| workload.bins());
        let share = |size: &SizeClass| {
            let bin = bins.and_then(|bins| bins.iter().find(|bin| bin.bytes == size.bytes));
            bin.map_or(size.messages as f64, |bin| bin.percent)
        };
        let now = self.fabric.now;
        let measured_end = now.min(self.measured_until);
        let elapsed = measured_end.saturating_sub(self.measured_from).max(1);
        let hosts = self.fabric.graph.hosts as f64;
        let layers = self.layers.take().unwrap_or_else(|| self.fabric.statistics(measured_end));
        let graph = &self.fabric.graph;
        let layers = layers.iter().zip(&graph.layers).enumerate().map(|(index, (layer, name))| {
            let ports = graph.outlets.iter().filter(|outlet| outlet.layer == index);
            let lost = self.fabric.layers[index].lost;
            let gbps = ports.map(|outlet| outlet.gbps).sum();
            LayerOutcome { lost, ..layer_outcome(name, layer, elapsed, gbps) }
        });
        let layers = layers.collect();
        SimulationResult {
            plan: self.plan.clone(),
            deciles: self.slowdowns.deciles(share),
            sizes,
            layers,
            counters: self.transport.counters(),
            messages: self.messages,
            unfinished: self.under_way,
            goodput_gbps: self.arrived_bytes as f64 * 8.0 * 1000.0 / elapsed as f64 / hosts,
            simulated: duration(now),
            packet_hops: self.fabric.hops,
            events: self.fabric.events_done,
            hash: self.fabric.hash,
            wall: self.started.elapsed(),
        }
    }
}

fn layer_outcome(name: &'static str, layer: &Layer, elapsed: u64, gbps: u64) -> LayerOutcome {
    let time = elapsed as f64 * layer.ports.max(1) as f64;
    LayerOutcome {
        name,
        ports: layer.ports,
        mean_bytes: layer.area as f64 / time,
        p99_bytes: layer.percentile(99.0),
        max_bytes: layer.max,
        utilization: layer.bytes as f64 * 8_000.0 / gbps.max(1) as f64 / elapsed as f64,
        lost: layer.lost,
    }
}

fn duration(picos: u64) -> Duration {
    Duration::from_nanos(picos / 1000)
}
