//! `apus doctor`: what this machine, or the path to a peer, offers, what Apus uses of it, and what to change.
//!
//! One file for each subject: its `Facts` are gathered from the machine, and its `findings` are a pure function of them.

mod af_xdp;
mod buffers;
mod busy_polling;
mod clock;
mod cpu_list;
mod dev_shm;
mod device;
mod files;
mod finding;
mod idle_states;
mod interface;
mod interrupts;
mod irq_suspension;
mod limits;
mod offloads;
mod other_load;
mod path;
mod privileges;
mod processes;
mod processors;
mod show;
mod wake_up;

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail};
use apus::net::{Link as _, cpu};
use apus::{Capabilities, Config, Links};
use apus_load::Machine;
use apus_load::report::Style;
use apus_shm::CounterDirectory;
use serde::Serialize;

use crate::output::{self, OutputFile};
use device::Device;
use files::{Files, Here};
use finding::{Finding, Verdict};

/// Show what this machine, or the path to a peer, offers, what Apus uses of it, and what to change
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Each line has a verdict (good, could be better, bad, not known), what was found, and what Apus does with it. Where something is \
not good, a command says what to change, and what that brings. Nothing is changed. The commands are for this machine: read them before \
you paste them. Settings of a node are taken from the environment (APUS_...), as programs take them. docs/doctor.md explains every line.

The check takes about a second, and keeps two CPUs busy for a part of it. Without privilege it finds as much as programs of this user \
can use.

With HOST, the path to the Apus node there is looked at: round trip, transport, packet length and, if `apus doctor --serve` runs there, \
whether packets arrive as they were marked (DSCP). --flood loads the path for a second, to find out whether the network honours the \
marks; others on the path notice. A doctor that serves answers only who has called its node, with no more bytes than it was sent.

The exit status is 1 if something is bad, and 0 otherwise.

Examples:
  apus doctor
  apus doctor --device eth0
  apus doctor --json doctor.json
  apus doctor --serve --listen 0.0.0.0:20146
  apus doctor 10.0.0.2
  apus doctor 10.0.0.2:4000@20146 --flood 1000 --json path.json"
)]
pub(crate) struct Args {
    /// Peer to which the path is looked at, with its port (4000 unless given): HOST, HOST:PORT, HOST:PORT@UDPPORT
    #[arg(value_name = "HOST[:PORT]")]
    peer: Option<String>,
    /// Network interface to look at [default: that of the address at which nodes listen, or of the default route]
    #[arg(long, value_name = "DEV", conflicts_with = "peer")]
    device: Option<String>,
    /// Write the findings as JSON to FILE; - is standard output, which then has no table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Load the path to the peer with packets of the lowest level, at this rate in Mb/s, 1 to 100000, for a second
    #[arg(long, value_name = "MBPS", requires = "peer", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    flood: Option<u64>,
    /// Be the peer of another doctor, until Ctrl-C
    #[arg(long, conflicts_with_all = ["peer", "device", "json"])]
    serve: bool,
    /// IP address and UDP port of the node of --serve; without it, only this machine reaches it
    #[arg(long, value_name = "ADDR", requires = "serve", default_value = "127.0.0.1:20146")]
    listen: SocketAddr,
}

/// What `--json` writes.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    machine: Machine,
    started: String,
    /// The interface that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// The peer whose path was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    findings: Vec<Finding>,
}

const SCHEMA: &str = "apus-doctor/1";

/// Looks and shows, or serves.
///
/// # Errors
/// When there is no such interface or address, a setting in the environment is wrong, a file cannot be written, or something is bad.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.serve {
        return path::serve(args.listen);
    }
    let mut config = Config::new();
    config.apply_environment()?;
    let (names, listen) = (device::names(), config.listen_address().ip());
    let device = device::choose(&Here, &names, args.device.as_deref(), listen)?;
    let file = args.json.as_deref().map(OutputFile::open).transpose()?;
    let machine = Machine::here();
    let started = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let findings = match &args.peer {
        Some(peer) => path::findings(peer, args.flood, &config)?,
        None => findings(&Here, &config, &Device::read(&Here, &device)),
    };
    let (device, peer) = (args.peer.is_none().then_some(device), args.peer.clone());
    let report = Report { schema: SCHEMA, machine, started, device, peer, findings };
    if args.json.as_deref() != Some(Path::new("-")) {
        let head = format!("{} · {}\n\n", report.machine, report.started);
        output::print(&(head + &show::text(&report.findings, Style::for_stdout())))?;
    }
    if let Some(file) = file {
        file.write(&(serde_json::to_string_pretty(&report)? + "\n"))?;
    }
    let bad = report.findings.iter().filter(|it| it.verdict == Verdict::Bad);
    let bad: Vec<_> = bad.map(|it| format!("{}: {}", it.subject.title(), it.name)).collect();
    if !bad.is_empty() {
        bail!("{} of {} findings are bad: {}", bad.len(), report.findings.len(), bad.join("; "));
    }
    Ok(())
}

/// The findings of all subjects, in their order.
fn findings(files: &dyn Files, config: &Config, device: &Device) -> Vec<Finding> {
    let link = link(config);
    let allowed = cpu::allowed();
    let counters = CounterDirectory::of_user();
    let release = files.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The load of others is watched before anything loads the machine.
    let other_load = other_load::findings(&other_load::Facts::gather(files));
    let subjects = [
        offloads::findings(&offloads::Facts::gather(&link)),
        buffers::findings(&buffers::Facts::gather(files, &link, send_buffer())),
        interface::findings(&interface::Facts::gather(device, env::var("APUS_LINK_MBPS").ok())),
        interrupts::findings(&interrupts::Facts::gather(files, device, &allowed)),
        busy_polling::findings(&busy_polling::Facts::gather(files)),
        af_xdp::findings(&af_xdp::Facts::gather()),
        irq_suspension::findings(&irq_suspension::Facts::gather(&release, device)),
        clock::findings(&clock::Facts::gather(files)),
        wake_up::findings(&wake_up::Facts::gather(files, &allowed)),
        idle_states::findings(&idle_states::Facts::gather(files)),
        processors::findings(&processors::Facts::gather(files, &allowed)),
        other_load,
        dev_shm::findings(&dev_shm::Facts::gather()),
        limits::findings(&limits::Facts::gather()),
        privileges::findings(&privileges::Facts::gather(files)),
        processes::findings(&processes::Facts::gather(files, &counters)),
    ];
    subjects.into_iter().flatten().collect()
}

/// What a UDP link with the settings finds, on loopback and at any port, so that no node is in its way.
fn link(config: &Config) -> Result<Capabilities, String> {
    let mut config = config.clone();
    config.listen("127.0.0.1:0".parse().expect("it is an address"));
    config.link(Links::Udp).capture(None);
    let link = config.open_link().map_err(|error| error.to_string())?;
    Ok(link.capabilities().clone())
}

/// The setting `send_buffer`, in bytes.
fn send_buffer() -> u64 {
    let set = env::var("APUS_SEND_BUFFER").ok();
    let default = || Config::settings().find(|it| it.key == "send_buffer").map(|it| it.default);
    set.or_else(default).and_then(|it| apus::parse_size(&it).ok()).unwrap_or(0)
}
