//! Options of the network, common to client and server.

use std::io::{Write as _, stderr};
use std::net::SocketAddr;

use anyhow::{Context, Result};
use apus::net::{FaultLink, Faults, cpu};
use apus::{Config, Delivery, Links};

use crate::arguments;
use crate::capture::CaptureOptions;
use apus_load::misuse::Misuse;

/// The protocol that carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// Apus over the chosen link
    Apus,
    /// Kernel TCP with epoll, messages pipelined on each connection
    Tcp,
}

/// The format of messages, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BodyFormat {
    /// The format of Apus
    Apus,
    /// The format of cp_node, the load generator of the Linux Homa module
    CpNode,
}

/// Options of the network, common to client and server.
#[derive(Clone, Debug, clap::Args)]
pub struct LinkOptions {
    /// Protocol; must be the same on both sides
    #[arg(long, value_name = "PROTOCOL", default_value = "apus")]
    pub protocol: Protocol,
    /// Links of Apus: auto (shared memory to nodes of this host, UDP to others), udp, raw (IP protocol 146, as the Linux Homa module speaks it; needs CAP_NET_RAW) or both (UDP and raw)
    #[arg(long, value_name = "LINK", default_value_t, value_parser = arguments::links)]
    pub link: Links,
    /// Packet delivery of Apus: base, defer:20 (µs), napibusy, fullbusy, suspend or suspend:20, with parameters like ,budget=32
    #[arg(long, value_name = "MODE", default_value = "suspend", value_parser = arguments::delivery)]
    pub delivery: Delivery,
    /// Speak plain with everybody, as the setting insecure: without certificates, nodes otherwise speak with their own machine only
    #[arg(long)]
    pub insecure: bool,
    /// Format of messages, the same on both sides: apus, or cp-node for the load generator of the Linux module
    #[arg(long, value_name = "FORMAT", default_value = "apus")]
    pub body: BodyFormat,
    /// Inject faults into outgoing packets; the node then shares no memory: loss=0.1,dup=0.05,reorder=0.05,corrupt=0.001,delay=50us,jitter=10us,seed=7
    #[arg(long, value_name = "SPEC")]
    pub fault: Option<Faults>,
    /// The option of packet captures.
    #[command(flatten)]
    pub capture: CaptureOptions,
}

impl LinkOptions {
    /// Refuses options that TCP does not support.
    ///
    /// # Errors
    /// If an option needs Apus and the protocol is TCP.
    pub(super) fn check(&self) -> Result<()> {
        if self.protocol == Protocol::Tcp {
            needs_apus("--fault", self.fault.is_some())?;
            needs_apus("--capture", self.capture.file().is_some())?;
            needs_apus("--link", self.link != Links::default())?;
            needs_apus("--insecure", self.insecure)?;
            needs_apus("--body", self.body != BodyFormat::Apus)?;
        }
        Ok(())
    }

    /// The `transport` of result rows.
    pub(super) fn transport(&self) -> &'static str {
        match (self.protocol, self.link) {
            (Protocol::Tcp, _) => "tcp-epoll",
            (Protocol::Apus, Links::Auto) if self.has_only_links() => "apus-udp",
            (Protocol::Apus, _) if uses_shared_engine() => "apus-engine",
            (Protocol::Apus, Links::Auto) => "apus-auto",
            (Protocol::Apus, Links::Udp) => "apus-udp",
            (Protocol::Apus, Links::Xdp) => "apus-xdp",
            (Protocol::Apus, Links::Raw) => "apus-raw",
            (Protocol::Apus, _) => "apus-both",
        }
    }

    /// Whether all messages use links, because faults or captures act on packets. Such a node shares no memory.
    fn has_only_links(&self) -> bool {
        self.fault.is_some() || self.capture.file().is_some()
    }

    /// Starts an Apus node that listens on `listen`. Arguments override settings from the environment (`APUS_…`).
    ///
    /// # Errors
    /// If the address is in use or not local, or the capture file cannot be written.
    pub(super) fn start(&self, listen: SocketAddr) -> Result<apus::Node> {
        self.start_with(&mut self.config(listen)?)
    }

    /// The configuration of a node that listens on `listen`.
    ///
    /// # Errors
    /// If the environment has an impossible setting, or the SPIFFE agent that it names gives no certificate.
    pub(super) fn config(&self, listen: SocketAddr) -> Result<Config> {
        let mut config = Config::new();
        config.apply_environment()?.listen(listen).delivery(self.delivery).link(self.link);
        config.calls_max(1 << 20);
        if self.insecure {
            config.insecure(true);
        }
        apus_spiffe::apply(&mut config)?;
        Ok(config)
    }

    /// [`start`](Self::start) with a configuration from [`config`](Self::config).
    pub(super) fn start_with(&self, config: &mut Config) -> Result<apus::Node> {
        self.capture.apply(config)?;
        warn_if_insecure(config);
        let Some(faults) = self.fault else {
            return apus::Node::start(config).context("cannot start the node");
        };
        // Faults act after the capture, so that the capture shows the node's own packets.
        let link = config.open_link().context("cannot start the node")?;
        let link = Box::new(FaultLink::new(link, faults)?);
        apus::Node::with_link(link, config).context("cannot start the node")
    }
}

/// Reports on standard error that a node speaks plain with everybody.
pub fn warn_if_insecure(config: &Config) {
    if config.is_insecure() && !config.has_identity() {
        // An error of standard error itself cannot be reported.
        let _ = writeln!(
            stderr(),
            "insecure: this node speaks plain with everybody, who can read and forge its packets"
        );
    }
}

/// Whether the environment selects the engine of another process.
fn uses_shared_engine() -> bool {
    let mut config = Config::new();
    config.apply_environment().is_ok_and(|config| !config.has_own_engine())
}

/// Pins the process to a CPU, if one is given.
///
/// # Errors
/// If the process may not run on it.
pub fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let allowed = cpu::allowed();
    if !allowed.contains(&cpu) {
        let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        let allowed = allowed.join(", ");
        return Err(
            Misuse(format!("'--pin {cpu}': this process may use the CPUs {allowed}")).into()
        );
    }
    cpu::pin_current_thread(cpu).with_context(|| format!("'--pin {cpu}'"))
}

/// Refuses an option that TCP does not support.
pub(super) fn needs_apus(argument: &str, given: bool) -> Result<()> {
    if given {
        return Err(Misuse(format!("'{argument}' needs '--protocol apus'")).into());
    }
    Ok(())
}
