//! `apus bench`: Apus beside the rivals and the floors, two processes on this machine.
//!
//! * [`rtt`], [`rate`], [`stream`], [`mix`]: Apus beside TCP and raw UDP, a file each;
//! * [`delivery`]: a key-value server under every way of packet delivery; [`handoffs`]: how often a message wakes
//!   somebody; [`scale`]: what a call costs when much is outstanding;
//! * [`closed_loop`], [`open_loop`]: what is sent when, the same code for every transport;
//! * [`throughput`]: what `rate` and `stream` share;
//! * [`runner`], [`peer`], [`server`]: the two processes, their CPUs and their CPU time;
//!
//! Runs are interleaved (A B C A B C …), so that what drifts, drifts for all alike. Each run of a transport is one row;
//! medians, spread and ratios are the report's business.

mod closed_loop;
pub(crate) mod delivery;
pub(crate) mod handoffs;
pub(crate) mod mix;
mod open_loop;
mod peer;
pub(crate) mod rate;
pub(crate) mod rtt;
mod runner;
pub(crate) mod scale;
pub(crate) mod server;
pub(crate) mod stream;
mod throughput;

use std::time::Duration;

use anyhow::Result;
use apus::Delivery;
use apus_load::{Machine, ResultFile, Row, Size, SizeError, Watch, Workload, WorkloadError, stats};

use crate::failure::Misuse;
use crate::interrupt;
use crate::message::{Header, SHORT_REPLY};
use crate::progress::Progress;
use crate::transport::{Health, NodeOptions, Transport};
pub(crate) use runner::Pin;
use runner::Runner;

/// Longest message a benchmark sends: what Apus carries by default.
pub(crate) const MESSAGE_MAX: u32 = 64 << 20;

/// Measure Apus beside TCP and raw UDP on this machine
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Bench {
    Rtt(rtt::Args),
    Rate(rate::Args),
    Stream(stream::Args),
    Mix(mix::Args),
    Delivery(delivery::Args),
    Handoffs(handoffs::Args),
    Scale(scale::Args),
}

/// Runs the benchmark chosen.
///
/// # Errors
/// As the benchmark does.
pub(crate) fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Rtt(args) => rtt::run(args),
        Bench::Rate(args) => rate::run(args),
        Bench::Stream(args) => stream::run(args),
        Bench::Mix(args) => mix::run(args),
        Bench::Delivery(args) => delivery::run(args),
        Bench::Handoffs(args) => handoffs::run(args),
        Bench::Scale(args) => scale::run(args),
    }
}

/// What all benchmarks can be asked.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// What to compare; ratios are to the best of TCP [default: all that fit]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) transports: Vec<Transport>,
    /// Packet delivery of apus-udp on both sides: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = crate::delivery::parse)]
    pub(crate) delivery: Delivery,
    /// Receive buffer that apus-udp asks for on both sides; 212992 is what a stock machine gives; `apus settings receive_buffer` tells the default
    #[arg(long, value_name = "BYTES", value_parser = parse_buffer)]
    pub(crate) receive_buffer: Option<u32>,
    /// CPUs of client and server
    #[arg(long, value_name = "WHERE", default_value = "split")]
    pub(crate) pin: Pin,
    /// Runs of each transport, interleaved; the figures are medians
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Seconds of each run
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 1.0, value_parser = parse_seconds)]
    pub(crate) seconds: f64,
}

impl Common {
    /// The transports asked for, or those of `default` that make sense here.
    ///
    /// # Errors
    /// When one was asked for that this benchmark cannot use.
    fn transports(
        &self,
        bench: &str,
        default: &[Transport],
        fits: fn(Transport) -> bool,
    ) -> Result<Vec<Transport>> {
        if self.transports.is_empty() {
            let spin_alone = |transport: &&Transport| !(self.pin.shares_cpu() && transport.spins());
            return Ok(default.iter().filter(spin_alone).copied().collect());
        }
        if let Some(unfit) = self.transports.iter().find(|transport| !fits(**transport)) {
            let allowed: Vec<&str> = default.iter().map(|transport| transport.name()).collect();
            let (unfit, allowed) = (unfit.name(), allowed.join(", "));
            return Err(Misuse(format!(
                "'--transports {unfit}': `bench {bench}` cannot use it; it can use {allowed}"
            ))
            .into());
        }
        Ok(self.transports.clone())
    }

    fn runner(&self) -> Runner {
        Runner { pin: self.pin, node: self.node_options() }
    }

    fn node_options(&self) -> NodeOptions {
        NodeOptions { delivery: self.delivery, receive_buffer: self.receive_buffer }
    }

    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// A row with what was set, nothing measured yet.
    fn row(&self, bench: &str, transport: Transport, run: u32) -> Row {
        let mut row = Row::new(transport.name())
            .set("bench", bench)
            .set("run", run)
            .set("pin", self.pin.name());
        if transport.is_apus() {
            let polls = transport == Transport::ApusUdpFullbusy;
            row.put(
                "delivery",
                if polls { Delivery::fullbusy() } else { self.delivery }.to_string(),
            );
            if let Some(bytes) = self.receive_buffer {
                row.put("receive_buffer", bytes);
            }
        }
        row
    }

    /// Calls `measure` with every subject and the number of the run, one subject after another: A B C A B C.
    fn interleave<S>(
        &self,
        subjects: &mut [S],
        progress: &Progress,
        mut measure: impl FnMut(&mut S, u32) -> Result<()>,
    ) -> Result<()> {
        for run in 1..=self.runs {
            for subject in &mut *subjects {
                measure(subject, run)?;
                progress.done();
            }
        }
        Ok(())
    }
}

/// How many TCP connections `tcp-epoll` may use.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Connections {
    /// Connections of tcp-epoll; of several numbers the best is found first and used
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) connections: Vec<u64>,
}

impl Connections {
    /// The number of connections for a transport: the one for which `measure` returns a row, given the
    /// number and that of the run, whose figure is best. Every row tried is kept in the result. Only `tcp-epoll` has a choice.
    fn choose(
        &self,
        transport: Transport,
        best: Best,
        result: &mut ResultFile,
        mut measure: impl FnMut(usize, u32, &mut ResultFile) -> Result<Row>,
    ) -> Result<usize> {
        let choices = if transport == Transport::TcpEpoll { &self.connections[..] } else { &[1] };
        if choices.len() == 1 {
            return Ok(choices[0] as usize);
        }
        let mut costs = vec![Vec::new(); choices.len()];
        for run in 1..=TRIALS {
            for (&choice, costs) in choices.iter().zip(&mut costs) {
                let row = measure(choice as usize, run, result)?.set("load", CHOOSING);
                costs.push(match best {
                    Best::Highest(key) => -row.number(key).unwrap_or(0.0),
                    Best::Lowest(key) => row.number(key).unwrap_or(f64::INFINITY),
                });
                result.rows.push(row);
            }
        }
        let medians = costs.iter().filter_map(|costs| stats::median(costs));
        let lowest =
            choices.iter().zip(medians).min_by(|(_, one), (_, other)| one.total_cmp(other));
        Ok(lowest.map_or(choices[0], |(choice, _)| *choice) as usize)
    }
}

/// Runs of each number of connections before one is chosen.
const TRIALS: u32 = 3;

/// The `load` of rows measured only to find the best number of connections.
const CHOOSING: &str = "choosing connections";

/// Which row is the best.
#[derive(Clone, Copy, Debug)]
enum Best {
    Highest(&'static str),
    Lowest(&'static str),
}

/// The reply to ask for: 0, as long as the request, or a short one.
pub(crate) fn reply_length(one_way: bool) -> u32 {
    if one_way { SHORT_REPLY } else { 0 }
}

/// Has `measure` fill the record of a run, and adds what may be wrong with it: the machine, others who used it meanwhile.
/// A signal that ends it leaves what was measured by then, with the warning [`interrupt::CUT_SHORT`].
///
/// # Errors
/// As `measure` does.
pub(crate) fn record(measure: impl FnOnce(&mut ResultFile) -> Result<()>) -> Result<ResultFile> {
    let machine = Machine::here();
    let command: Vec<String> = std::env::args().skip(1).collect();
    let mut result = ResultFile::new(&format!("apus {}", command.join(" ")), machine);
    result.machine.warning().into_iter().for_each(|warning| result.warn(warning));
    if cfg!(debug_assertions) {
        result.warn("this is a debug build of the program: every figure is far from that of a release build");
    }
    interrupt::handle()?;
    let watch = Watch::start(&[]);
    match measure(&mut result) {
        // Whatever failed then failed because it was stopped.
        Err(_) if interrupt::requested() => result.warn(interrupt::CUT_SHORT),
        measured => measured?,
    }
    watch.end().warnings().into_iter().for_each(|warning| result.warn(warning));
    Ok(result)
}

/// Notes that a floor lost messages: its other figures then flatter it.
fn warn_of_losses(result: &mut ResultFile, transport: Transport, lost: u64, calls: u64) {
    if lost > 0 {
        result.warn(format!(
            "{}: {lost} of {} calls were lost and not repeated, as raw UDP does when a socket buffer is full",
            transport.name(),
            lost + calls
        ));
    }
}

/// Adds what went wrong below the messages to a row and to the warnings; nothing when all went well.
fn note_health(mut row: Row, health: Health, result: &mut ResultFile) -> Row {
    let name = row.transport().to_owned();
    if health.drops > 0 {
        row.put("drops", health.drops);
        result.warn(format!(
            "{name}: the kernel dropped datagrams because a receive buffer was full"
        ));
    }
    if health.resends > 0 {
        row.put("resends", health.resends);
        result.warn(format!("{name}: data had to be asked for again"));
    }
    row
}

/// A message size as an argument.
pub(crate) fn parse_size(text: &str) -> Result<u32, String> {
    let allowed = Header::LEN as u32..=MESSAGE_MAX;
    match text.parse::<Size>().map(Size::bytes) {
        Ok(bytes) if allowed.contains(&bytes) => Ok(bytes),
        Err(error @ SizeError::NotASize { .. }) => Err(error.to_string()),
        _ => Err(format!("it must be between {} and {MESSAGE_MAX} bytes", Header::LEN)),
    }
}

/// A receive buffer as an argument.
pub(crate) fn parse_buffer(text: &str) -> Result<u32, String> {
    let bytes = text.parse::<Size>().map_err(|e| e.to_string())?.bytes();
    let mut config = apus::Config::new();
    config.set("receive_buffer", &bytes.to_string()).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// A workload as an argument; every length it can draw must be one that can be sent.
pub(crate) fn parse_workload(text: &str) -> Result<Workload, String> {
    let workload: Workload = text.parse().map_err(|e: WorkloadError| e.to_string())?;
    match workload.longest() {
        longest if longest > MESSAGE_MAX => {
            Err(format!("its longest message, {longest} bytes, is over {MESSAGE_MAX}"))
        }
        _ => Ok(workload),
    }
}

/// A byte rate as an argument.
fn parse_gbps(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gbps) if (0.001..=1000.0).contains(&gbps) => Ok(gbps),
        _ => Err("it must be a number of Gb/s between 0.001 and 1000".to_owned()),
    }
}

/// A duration in seconds as an argument.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds between 0.01 and 3600".to_owned()),
    }
}
