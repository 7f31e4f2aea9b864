//! `apus node`: a load generator and a server for real hosts, after cp_node of the Homa kernel module.
//!
//! * [`server`]: answers on some ports, in some threads each;
//! * [`client`]: arguments, threads, statistics and results of the generator;
//! * [`probe`]: who is there;
//! * [`port`]: a sending port: what is outstanding and when the next call is due;
//! * [`sender`]: the threads of a port; [`unloaded`]: the measurement without load;
//! * [`wire`]: what a port needs of Apus and of TCP; [`errors`]: calls that failed;
//! * [`recorder`]: what a client measures;
//! * [`verify`]: messages of which every byte is checked; [`cp_node`]: messages of the module's load generator.

mod client;
pub(crate) mod cp_node;
pub(crate) mod errors;
pub(crate) mod port;
mod probe;
mod recorder;
mod sender;
mod server;
mod unloaded;
mod verify;
pub(crate) mod wire;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use apus::net::{CaptureLink, FaultLink, Faults, cpu};
use apus::{Config, Delivery, Links};
use clap::ValueEnum;

use crate::delivery;
use crate::failure::Misuse;

/// Generate and serve load between hosts
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Node {
    Server(server::Args),
    Client(client::Args),
    Probe(probe::Args),
}

/// Runs the side chosen.
///
/// # Errors
/// As that side does.
pub(crate) fn run(node: &Node) -> Result<()> {
    match node {
        Node::Server(args) => server::run(args),
        Node::Client(args) => client::run(args),
        Node::Probe(args) => probe::run(args),
    }
}

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    /// Apus, by the link chosen
    Apus,
    /// Kernel TCP with epoll, messages pipelined on each connection
    Tcp,
}

/// What the bytes of messages mean, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BodyFormat {
    /// Ours
    Apus,
    /// That of cp_node, the load generator of the Linux Homa module
    CpNode,
}

/// How the node reaches the network, the same for client and server.
#[derive(Clone, Debug, clap::Args)]
struct LinkArgs {
    /// What carries the messages; both sides must agree
    #[arg(long, value_name = "PROTOCOL", default_value = "apus")]
    protocol: Protocol,
    /// Links of Apus: udp, raw (IP protocol 146, as the Linux Homa module speaks it; needs CAP_NET_RAW) or both
    #[arg(long, value_name = "LINK", default_value = "udp", value_parser = parse_links)]
    link: Links,
    /// Packet delivery of Apus: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = delivery::parse)]
    delivery: Delivery,
    /// What the bytes of messages mean; both sides must agree: apus, or cp-node to call or serve the Linux module's cp_node
    #[arg(long, value_name = "FORMAT", default_value = "apus")]
    body: BodyFormat,
    /// Have packets that leave this node go wrong: loss=0.1,dup=0.05,reorder=0.05,corrupt=0.001,delay=50us,jitter=10us,seed=7
    #[arg(long, value_name = "SPEC")]
    fault: Option<Faults>,
    /// Write every packet to FILE, for Wireshark
    #[arg(long, value_name = "FILE.pcapng")]
    capture: Option<PathBuf>,
}

impl LinkArgs {
    /// Refuses what TCP cannot do.
    ///
    /// # Errors
    /// When an argument needs Apus and the protocol is TCP.
    fn check(&self) -> Result<()> {
        if self.protocol == Protocol::Tcp {
            needs_apus("--fault", self.fault.is_some())?;
            needs_apus("--capture", self.capture.is_some())?;
            needs_apus("--link", self.link != Links::default())?;
            needs_apus("--body", self.body != BodyFormat::Apus)?;
        }
        Ok(())
    }

    /// The `transport` of result rows.
    fn transport(&self) -> &'static str {
        match (self.protocol, self.link) {
            (Protocol::Tcp, _) => "tcp-epoll",
            (Protocol::Apus, Links::Udp) => "apus-udp",
            (Protocol::Apus, Links::Raw) => "apus-raw",
            (Protocol::Apus, _) => "apus-both",
        }
    }

    /// Starts an Apus node that listens on `listen`. Settings from the environment (`APUS_…`) come first, arguments last.
    ///
    /// # Errors
    /// When the address is busy or not ours, or the capture file cannot be written.
    fn start(&self, listen: SocketAddr) -> Result<apus::Node> {
        self.start_with(&mut self.config(listen)?)
    }

    /// What a node that listens on `listen` is told.
    ///
    /// # Errors
    /// When the environment asks for something impossible.
    fn config(&self, listen: SocketAddr) -> Result<Config> {
        let mut config = Config::new();
        config.apply_environment()?.listen(listen).delivery(self.delivery).link(self.link);
        config.calls_max(1 << 20);
        Ok(config)
    }

    /// As [`start`](Self::start), with a configuration of [`config`](Self::config).
    fn start_with(&self, config: &mut Config) -> Result<apus::Node> {
        if self.fault.is_none() && self.capture.is_none() {
            return apus::Node::start(config).context("cannot start the node");
        }
        let mut link = config.open_link().context("cannot start the node")?;
        // Faults are outside the capture, so that it shows what really went out.
        if let Some(path) = &self.capture {
            let cannot = || format!("cannot write capture file '{}'", path.display());
            let file = File::create(path).with_context(cannot)?;
            link = Box::new(CaptureLink::new(link, file).with_context(cannot)?);
        }
        if let Some(faults) = self.fault {
            link = Box::new(FaultLink::new(link, faults)?);
        }
        apus::Node::with_link(link, config).context("cannot start the node")
    }
}

/// Reads the links of a node.
fn parse_links(text: &str) -> Result<Links, String> {
    text.parse().map_err(|_| format!("expected {}", Links::EXPECTED))
}

/// Keeps the process on a CPU, when one is named.
///
/// # Errors
/// When it may not run there.
fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let allowed = cpu::allowed();
    if !allowed.contains(&cpu) {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let allowed = allowed.join(", ");
        return Err(Misuse(format!("'--pin {cpu}': the CPUs allowed here are {allowed}")).into());
    }
    cpu::pin_current_thread(cpu).with_context(|| format!("'--pin {cpu}'"))
}

/// Refuses an argument that TCP has no use for.
fn needs_apus(argument: &str, given: bool) -> Result<()> {
    if given {
        return Err(Misuse(format!("'{argument}' needs '--protocol apus'")).into());
    }
    Ok(())
}

/// How often threads look whether it is time to stop.
const TICK: Duration = Duration::from_millis(50);

/// Seconds of a run as an argument; 0 means without end.
fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds == 0.0 || (0.01..=1e6).contains(&seconds) => Ok(seconds),
        _ => Err("it must be 0 or a number of seconds between 0.01 and 1000000".to_owned()),
    }
}

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}
