//! `apus doctor`: the features of this machine or of the path to a peer, the use that Apus makes of them, and changes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail};
use apus::Config;
use apus_doctor::{Inspected, Report, machine, path};
use apus_load::report::Style;
use apus_node::link::warn_if_insecure;

use crate::output::{self, OutputFile};
use crate::{daemon, interrupt};

/// Examine this machine, or the path to a peer, and suggest changes
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Each line has a verdict (good, could be better, bad, not known), the finding, and the use that Apus makes of it. \
A line that is not good also has a command and its benefit. The doctor changes nothing itself. The commands are for this machine: \
read them before you run them. Settings of a node come from the environment (APUS_...), as for programs. docs/doctor.md explains \
every line.

The check takes about a second and keeps two CPUs busy for a part of it. It finds the capabilities that programs of this user have.

With HOST, the doctor examines the path to the Apus node at that host: round trip, transport, packet length and, if `apus doctor \
--serve` runs there, whether marks (DSCP) of packets arrive unchanged. --flood finds out whether the network honours the marks: it \
loads the path for a second, which disturbs other traffic. A serving doctor answers only hosts that have called its node, and never \
with more bytes than it received.

The exit status is 1 if a verdict is bad, and 0 otherwise.

Examples:
  apus doctor
  apus doctor --device eth0
  apus doctor --json doctor.json
  apus doctor --serve --listen 0.0.0.0:20146
  apus doctor --insecure 10.0.0.2
  apus doctor 10.0.0.2:4000@20146 --flood 1000 --json path.json"
)]
pub(crate) struct Args {
    /// Peer at the end of the path, with its port (4000 unless given): HOST, HOST:PORT or HOST:PORT@UDPPORT
    #[arg(value_name = "HOST[:PORT]")]
    peer: Option<String>,
    /// Network interface to examine [default: that of the address at which nodes listen, or of the default route]
    #[arg(long, value_name = "DEV", conflicts_with = "peer")]
    device: Option<String>,
    /// Write the findings as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Load the path to the peer with packets of the lowest level, at this rate in Mb/s, 1 to 100000, for a second
    #[arg(long, value_name = "MBPS", requires = "peer", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    flood: Option<u64>,
    /// Speak plain with everybody, as the setting insecure: without certificates, nodes otherwise speak with their own machine only
    #[arg(long)]
    insecure: bool,
    /// Serve as the peer of another doctor until Ctrl-C
    #[arg(long, conflicts_with_all = ["peer", "device", "json"])]
    serve: bool,
    /// IP address and UDP port of the node of --serve [default: only this machine reaches it]
    #[arg(long, value_name = "ADDR", requires = "serve", default_value = "127.0.0.1:20146")]
    listen: SocketAddr,
}

impl Args {
    /// Applies --insecure, and reports a node that speaks plain with everybody.
    fn choose_security(&self, config: &mut Config) {
        if self.insecure {
            config.insecure(true);
        }
        if self.serve || self.peer.is_some() {
            warn_if_insecure(config);
        }
    }
}

/// Looks and shows, or serves.
///
/// # Errors
/// When there is no such interface or address, a setting in the environment is wrong, a file cannot be written, or something is bad.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.serve {
        return serve(args);
    }
    let mut config = Config::new();
    config.apply_environment()?;
    args.choose_security(&mut config);
    if args.peer.is_some() {
        apus_spiffe::apply(&mut config)?;
    }
    let interface = machine::interface(args.device.as_deref(), &config)?;
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    let started = SystemTime::now();
    let (inspected, findings) = match &args.peer {
        Some(peer) => (Inspected::Peer(peer.clone()), path::findings(peer, args.flood, &config)?),
        None => {
            let findings = machine::findings(&config, &interface, Path::new(daemon::SOCKET));
            (Inspected::Device(interface), findings)
        }
    };
    let report = Report::new(inspected, started, findings, None);
    conclude(&report, &report.machine_and_time(), file)
}

/// Prints a report under a heading, unless its file is standard output; writes the file.
///
/// # Errors
/// When the file cannot be written, or a finding is bad.
pub(crate) fn conclude(report: &Report, heading: &str, file: Option<OutputFile>) -> Result<()> {
    if !file.as_ref().is_some_and(OutputFile::is_stdout) {
        output::print(&format!("{heading}\n\n{}", report.text(Style::for_stdout())))?;
    }
    if let Some(file) = file {
        file.write_json(report)?;
    }
    match report.bad() {
        Some(bad) => bail!(bad),
        None => Ok(()),
    }
}

/// Is the peer of another doctor until Ctrl-C.
fn serve(args: &Args) -> Result<()> {
    interrupt::handle()?;
    let mut config = Config::server();
    config.apply_environment()?.listen(args.listen);
    args.choose_security(&mut config);
    apus_spiffe::apply(&mut config)?;
    let service = path::Service::start(&config)?;
    output::print(&format!("serving {}\n", service.address()))?;
    service.run()
}
