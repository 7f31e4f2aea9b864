//! `apus lab up`, `down`, `exec` and `status`: a lab to work in by hand.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};

use super::network::{self, HOSTS_MAX, Links, Network};
use super::plan::LINK_MBPS_MAX;
use super::privilege;
use super::switch::{HostDiscipline, Ports};
use crate::output::print;

/// Name of a lab unless told otherwise.
const LAB: &str = "lab";

/// Make a lab: hosts and a switch between them
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab up
  sudo apus lab up big --hosts 40 --link-mbps 20
  sudo apus lab exec h0 -- ping -c 3 10.213.0.2

Host hN has the address 10.213.0.N+1. It stays until `apus lab down`.")]
pub(crate) struct Up {
    /// Its name
    #[arg(value_name = "LAB", default_value = LAB)]
    lab: String,
    /// Hosts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=HOSTS_MAX as i64))]
    hosts: u16,
    /// Rate of each link, both ways
    #[arg(long, value_name = "MBPS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=LINK_MBPS_MAX as i64))]
    link_mbps: u32,
    /// Longest packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=9000))]
    mtu: u32,
    /// What each of the eight classes of a switch port holds
    #[arg(long, value_name = "BYTES", default_value = "128kB", value_parser = crate::bench::parse_size)]
    switch_queue: u32,
    /// What a host's own link holds
    #[arg(long, value_name = "BYTES", default_value = "30kB", value_parser = crate::bench::parse_size)]
    host_queue: u32,
}

/// Remove a lab, or all of them: also what a program that was killed left behind
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab down
  sudo apus lab down big

Ends the processes in the lab's namespaces, then removes these, and with them their links and queues.")]
pub(crate) struct Down {
    /// Which one [default: all]
    #[arg(value_name = "LAB")]
    lab: Option<String>,
}

/// Run a program on a host of a lab
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab exec h0 -- apus node server --listen 0.0.0.0:20146
  sudo apus lab exec --lab big h7 -- ip -s link")]
pub(crate) struct Exec {
    /// Which lab
    #[arg(long, value_name = "LAB", default_value = LAB)]
    lab: String,
    /// Host: h0, h1, … or switch
    #[arg(value_name = "HOST")]
    host: String,
    /// Program and its arguments
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    program: Vec<String>,
}

/// Show the labs there are
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo apus lab status
  apus lab status

Without root it does not see the processes.")]
pub(crate) struct Status {}

/// Makes a lab.
///
/// # Errors
/// As [`Network::up`].
pub(super) fn up(args: &Up) -> Result<()> {
    privilege::demand("up")?;
    let ports = Ports {
        link_mbps: args.link_mbps.into(),
        switch_queue: args.switch_queue,
        host_queue: args.host_queue,
        host_discipline: HostDiscipline::probe(),
    };
    let network = Network::up(&args.lab, args.hosts.into(), &Links { mtu: args.mtu, ports })?;
    print(&describe(&args.lab, &network)?)
}

/// Removes labs.
///
/// # Errors
/// As [`network::remove`].
pub(super) fn down(args: &Down) -> Result<()> {
    privilege::demand("down")?;
    let removed = network::remove(args.lab.as_deref())?;
    let what = match args.lab.as_deref() {
        Some(lab) if removed.is_empty() => format!("there is no lab `{lab}`"),
        None if removed.is_empty() => "there is no lab".to_owned(),
        _ => format!("removed {} namespaces", removed.len()),
    };
    print(&format!("{what}\n"))
}

/// Becomes the program, on the host.
///
/// # Errors
/// When there is no such host or program.
pub(super) fn exec(args: &Exec) -> Result<()> {
    privilege::demand("exec")?;
    let network = Network::find(&args.lab)?;
    let namespace = match args.host.as_str() {
        "switch" => network.switch(),
        host => {
            let place = host.strip_prefix('h').and_then(|place| place.parse().ok());
            let place: usize =
                place.with_context(|| format!("`{host}` is no host: h0, h1, … or switch"))?;
            let hosts = network.addresses().len();
            ensure!(place < hosts, "`{host}`: lab `{}` has h0 to h{}", args.lab, hosts - 1);
            network.host(place)
        }
    };
    let error = Command::new("ip").args(["netns", "exec", &namespace]).args(&args.program).exec();
    Err(Error::new(error).context("cannot run `ip`"))
}

/// Shows what there is.
///
/// # Errors
/// When `ip` fails.
pub(super) fn status(_: &Status) -> Result<()> {
    let labs = network::labs()?;
    if labs.is_empty() {
        return print("there is no lab\n");
    }
    for lab in labs {
        let text = match Network::find(&lab) {
            Ok(network) => describe(&lab, &network)?,
            Err(_) => format!("{lab}: remains only; `apus lab down {lab}` removes them\n"),
        };
        print(&text)?;
    }
    Ok(())
}

fn describe(lab: &str, network: &Network) -> Result<String> {
    let addresses = network.addresses();
    let processes = if privilege::is_root() {
        let of = |place| Ok(network::processes(&network.host(place))?.len());
        let all = (0..addresses.len()).map(of).sum::<Result<usize>>()?;
        format!("{all} processes")
    } else {
        "processes are for root to see".to_owned()
    };
    let (first, last) = (addresses[0], addresses[addresses.len() - 1]);
    Ok(format!(
        "{lab}: {} hosts, h0 {first} to h{} {last}, {processes}\n",
        addresses.len(),
        addresses.len() - 1
    ))
}
