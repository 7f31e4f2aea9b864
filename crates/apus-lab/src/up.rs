//! A lab for manual use, which stays until it is removed.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};
use apus_node::arguments;
use serde::Serialize;

use crate::network::{self, HOSTS_MAX, Links, Network};
use crate::plan::LINK_MBPS_MAX;
use crate::privilege;
use crate::switch::{HostDiscipline, Ports};

/// Default name of a lab.
pub const LAB: &str = "lab";

/// Configuration of a new lab.
#[derive(Clone, Debug, clap::Args)]
pub struct LabConfig {
    /// Name of the lab
    #[arg(value_name = "LAB", default_value = LAB)]
    pub lab: String,
    /// Number of hosts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(2..=HOSTS_MAX as i64))]
    pub hosts: u16,
    /// Rate of each link in Mb/s, in each direction
    #[arg(long, value_name = "MBPS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=LINK_MBPS_MAX as i64))]
    pub link_mbps: u32,
    /// Longest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=9000))]
    pub mtu: u32,
    /// Bytes in each of the eight classes of a switch port
    #[arg(long, value_name = "BYTES", default_value = "128kB", value_parser = arguments::size)]
    pub switch_queue: u32,
    /// Bytes in the queue of a host's own link
    #[arg(long, value_name = "BYTES", default_value = "30kB", value_parser = arguments::size)]
    pub host_queue: u32,
}

/// Creates a lab. Returns a line that describes it.
///
/// # Errors
/// If the privilege is missing, a lab of that name exists, or the kernel lacks a feature.
pub fn up(options: &LabConfig) -> Result<String> {
    privilege::demand("up")?;
    let ports = Ports {
        link_mbps: options.link_mbps.into(),
        switch_queue: options.switch_queue,
        host_queue: options.host_queue,
        host_discipline: HostDiscipline::probe(),
    };
    let links = Links { mtu: options.mtu, ports };
    Network::up(&options.lab, options.hosts.into(), &links)?;
    Ok(format!("{}\n", LabStatus::of(options.lab.clone())?))
}

/// Removes a lab, or all labs, with their processes. Returns a line about the removed namespaces.
///
/// # Errors
/// If the privilege is missing or a part cannot be removed.
pub fn down(lab: Option<&str>) -> Result<String> {
    privilege::demand("down")?;
    let removed = network::remove(lab)?.len();
    Ok(match lab {
        Some(lab) if removed == 0 => format!("no lab `{lab}`\n"),
        None if removed == 0 => "no lab\n".to_owned(),
        _ => format!("removed {removed} namespaces\n"),
    })
}

/// Replaces this process by a program with its arguments, on a host of a lab: `h0`, `h1`, … or `switch`.
///
/// # Errors
/// If there is no such lab, host or program.
pub fn exec(lab: &str, host: &str, program: &[String]) -> Result<Infallible> {
    privilege::demand("exec")?;
    let network = Network::find(lab)?;
    let namespace = match host {
        "switch" => network.switch(),
        host => {
            let place = host.strip_prefix('h').and_then(|place| place.parse().ok());
            let place: usize =
                place.with_context(|| format!("host `{host}`: expected h0, h1, … or switch"))?;
            let hosts = network.addresses().len();
            ensure!(place < hosts, "host `{host}`: lab `{}` has h0 to h{}", lab, hosts - 1);
            network.host(place)
        }
    };
    let error = Command::new("ip")
        .args(["netns", "exec", &namespace])
        .args(program)
        .env("APUS_INSECURE", "true")
        .exec();
    Err(Error::new(error).context("cannot run `ip`"))
}

/// The state of each lab. Only root sees its processes.
///
/// # Errors
/// If `ip` fails.
pub fn status() -> Result<Vec<LabStatus>> {
    network::labs()?.into_iter().map(LabStatus::of).collect()
}

/// A lab of this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LabStatus {
    /// Its name.
    pub lab: String,
    /// Number of its hosts; `None` for the remains of a lab.
    pub hosts: Option<usize>,
    /// Address of h0.
    pub first: Option<IpAddr>,
    /// Address of the last host.
    pub last: Option<IpAddr>,
    /// Number of processes on its hosts; `None` without root.
    pub processes: Option<usize>,
}

impl LabStatus {
    fn of(lab: String) -> Result<Self> {
        let Ok(network) = Network::find(&lab) else {
            return Ok(Self { lab, hosts: None, first: None, last: None, processes: None });
        };
        let addresses = network.addresses();
        let count = |place| Ok(network::processes(&network.host(place))?.len());
        let processes = match privilege::is_root() {
            true => Some((0..addresses.len()).map(count).sum::<Result<usize>>()?),
            false => None,
        };
        Ok(Self {
            lab,
            hosts: Some(addresses.len()),
            first: addresses.first().copied(),
            last: addresses.last().copied(),
            processes,
        })
    }
}

impl fmt::Display for LabStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lab, .. } = self;
        let (Some(hosts), Some(first), Some(last)) = (self.hosts, self.first, self.last) else {
            return write!(f, "{lab}: remains only; `apus lab down {lab}` removes them");
        };
        write!(f, "{lab}: {hosts} hosts, h0 {first} to h{} {last}, ", hosts - 1)?;
        match self.processes {
            Some(processes) => write!(f, "{processes} processes"),
            None => f.write_str("processes are shown only to root"),
        }
    }
}
