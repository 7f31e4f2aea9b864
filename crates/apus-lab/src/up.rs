//! A lab to work in by hand: it stays until it is removed.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};

use crate::network::{self, Links, Network};
use crate::privilege;
use crate::switch::{HostDiscipline, Ports};

/// A lab to be made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name: up to 40 of a-z, 0-9 and _.
    pub lab: String,
    /// Hosts, 2 to [`HOSTS_MAX`](network::HOSTS_MAX).
    pub hosts: usize,
    /// Rate of each link, both ways, in Mb/s.
    pub link_mbps: u32,
    /// Longest packet, in bytes.
    pub mtu: u32,
    /// Bytes that each of the eight classes of a switch port holds.
    pub switch_queue: u32,
    /// Bytes that a host's own link holds.
    pub host_queue: u32,
}

/// Makes a lab; returns a line that describes it.
///
/// # Errors
/// When the privilege is missing, a lab of that name exists, or the kernel lacks something.
pub fn up(options: &Options) -> Result<String> {
    privilege::demand("up")?;
    let ports = Ports {
        link_mbps: options.link_mbps.into(),
        switch_queue: options.switch_queue,
        host_queue: options.host_queue,
        host_discipline: HostDiscipline::probe(),
    };
    let links = Links { mtu: options.mtu, ports };
    describe(&options.lab, &Network::up(&options.lab, options.hosts, &links)?)
}

/// Removes a lab, or all of them, with the processes in them; returns a line that tells what was removed.
///
/// # Errors
/// When the privilege is missing or something cannot be removed.
pub fn down(lab: Option<&str>) -> Result<String> {
    privilege::demand("down")?;
    let removed = network::remove(lab)?.len();
    Ok(match lab {
        Some(lab) if removed == 0 => format!("there is no lab `{lab}`\n"),
        None if removed == 0 => "there is no lab\n".to_owned(),
        _ => format!("removed {removed} namespaces\n"),
    })
}

/// Becomes a program with its arguments, on a host of a lab: `h0`, `h1`, … or `switch`.
///
/// # Errors
/// When there is no such lab, host or program.
pub fn exec(lab: &str, host: &str, program: &[String]) -> Result<Infallible> {
    privilege::demand("exec")?;
    let network = Network::find(lab)?;
    let namespace = match host {
        "switch" => network.switch(),
        host => {
            let place = host.strip_prefix('h').and_then(|place| place.parse().ok());
            let place: usize =
                place.with_context(|| format!("`{host}` is no host: h0, h1, … or switch"))?;
            let hosts = network.addresses().len();
            ensure!(place < hosts, "`{host}`: lab `{}` has h0 to h{}", lab, hosts - 1);
            network.host(place)
        }
    };
    let error = Command::new("ip").args(["netns", "exec", &namespace]).args(program).exec();
    Err(Error::new(error).context("cannot run `ip`"))
}

/// A line for each lab there is. Without root it does not tell the processes.
///
/// # Errors
/// When `ip` fails.
pub fn status() -> Result<String> {
    let labs = network::labs()?;
    if labs.is_empty() {
        return Ok("there is no lab\n".to_owned());
    }
    let line = |lab: &String| match Network::find(lab) {
        Ok(network) => describe(lab, &network),
        Err(_) => Ok(format!("{lab}: remains only; `apus lab down {lab}` removes them\n")),
    };
    labs.iter().map(line).collect()
}

fn describe(lab: &str, network: &Network) -> Result<String> {
    let addresses = network.addresses();
    let processes = if privilege::is_root() {
        let count = |place| Ok(network::processes(&network.host(place))?.len());
        let all = (0..addresses.len()).map(count).sum::<Result<usize>>()?;
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
