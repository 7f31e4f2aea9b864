//! `apus node`: a load generator and a server for real hosts, after cp_node of the Homa kernel module.
//!
//! * [`server`]: answers on some ports, in some threads each;
//! * [`client`]: arguments, threads, statistics and results of the generator;
//! * [`probe`]: who is there;
//! * [`port`]: a sending port: what is outstanding and when the next call is due;
//! * [`sender`]: the threads of a port; [`unloaded`]: the measurement without load;
//! * [`wire`]: what a port needs of Apus and of TCP;
//! * [`recorder`]: what a client measures;
//! * [`verify`]: messages of which every byte is checked.

mod client;
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use apus::net::{CaptureLink, FaultLink, Faults};
use apus::{Config, Delivery, Links};
use clap::ValueEnum;
use signal_hook::consts::{SIGINT, SIGTERM};

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
        }
        Ok(())
    }

    /// The `transport` of result rows.
    fn transport(&self) -> &'static str {
        match (self.protocol, self.link) {
            (Protocol::Tcp, _) => "tcp-epoll",
            (Protocol::Apus, Links::Raw) => "apus-raw",
            (Protocol::Apus, _) => "apus-udp",
        }
    }

    /// Starts an Apus node that listens on `listen`. Settings from the environment (`APUS_…`) come first, arguments last.
    ///
    /// # Errors
    /// When the address is busy or not ours, or the capture file cannot be written.
    fn start(&self, listen: SocketAddr) -> Result<apus::Node> {
        let mut config = Config::new();
        config.apply_environment()?.listen(listen).delivery(self.delivery).links(self.link);
        config.protocol().calls_max(1 << 20);
        if self.fault.is_none() && self.capture.is_none() {
            return apus::Node::start(&config).context("cannot start the node");
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
        apus::Node::with_link(link, &config).context("cannot start the node")
    }
}

/// Reads the links of a node.
fn parse_links(text: &str) -> Result<Links, String> {
    text.parse().map_err(|_| format!("expected {}", Links::EXPECTED))
}

/// Refuses an argument that TCP has no use for.
fn needs_apus(argument: &str, given: bool) -> Result<()> {
    if given {
        return Err(Misuse(format!("'{argument}' needs '--protocol apus'")).into());
    }
    Ok(())
}

/// A flag that Ctrl-C and SIGTERM set. The second of them ends the process at once.
///
/// # Errors
/// When the kernel refuses a signal handler.
pub(crate) fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let cannot = "cannot handle signals";
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))
            .context(cannot)?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).context(cannot)?;
    }
    Ok(stop)
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
