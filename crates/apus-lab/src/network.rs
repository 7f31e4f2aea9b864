//! The emulated cluster: network namespaces as hosts, joined by a bridge in another namespace, the switch.
//!
//! All parts are found by name, so `down` removes the remains of a killed program.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::iproute::{batch, ip};
use crate::switch::Ports;

/// Prefix of the names of all namespaces.
const PREFIX: &str = "apus-lab-";

/// Suffix of the name of the switch's namespace, after the lab's name.
const SWITCH: &str = "switch";

/// Upper bound on the hosts of a lab.
pub const HOSTS_MAX: usize = 200;

/// An existing lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    lab: String,
    hosts: usize,
}

/// The links of a lab.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Links {
    /// Upper bound on an IP packet, in bytes.
    pub(crate) mtu: u32,
    pub(crate) ports: Ports,
}

impl Network {
    /// Creates the namespaces, links and queues of a lab.
    ///
    /// # Errors
    /// If a lab of that name exists, the privilege is missing, or the kernel lacks a feature. A failed attempt leaves no remains.
    pub(crate) fn up(lab: &str, hosts: usize, links: &Links) -> Result<Self> {
        check_name(lab)?;
        ensure!((2..=HOSTS_MAX).contains(&hosts), "{hosts} hosts: a lab has 2 to {HOSTS_MAX}");
        if namespaces(Some(lab))?.is_empty() {
            let network = Self { lab: lab.to_owned(), hosts };
            if let Err(error) = network.build(links) {
                network.down()?;
                return Err(error);
            }
            return Ok(network);
        }
        bail!("lab `{lab}` exists: `apus lab down {lab}` removes it")
    }

    /// The lab of that name.
    ///
    /// # Errors
    /// If there is no such lab.
    pub(crate) fn find(lab: &str) -> Result<Self> {
        let found = namespaces(Some(lab))?;
        let hosts = found.iter().filter(|name| !name.ends_with(&format!("-{SWITCH}"))).count();
        ensure!(hosts > 0, "no lab `{lab}`: `apus lab up {lab}` creates it");
        Ok(Self { lab: lab.to_owned(), hosts })
    }

    /// The namespace of a host.
    pub(crate) fn host(&self, place: usize) -> String {
        format!("{PREFIX}{}-h{place}", self.lab)
    }

    /// The namespace of the switch.
    pub(crate) fn switch(&self) -> String {
        format!("{PREFIX}{}-{SWITCH}", self.lab)
    }

    /// The addresses of all hosts, by index.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        (0..self.hosts).map(address).collect()
    }

    /// A command that runs a program on a host.
    pub(crate) fn on_host(&self, place: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(place), program]);
        command
    }

    /// Sets the lower bound on TCP's retransmission timeout towards the other hosts; the kernel's without one.
    ///
    /// # Errors
    /// If `ip` fails.
    pub(crate) fn set_rto_min(&self, ms: Option<u32>) -> Result<()> {
        let attribute = ms.map_or_else(String::new, |ms| format!(" rto_min {ms}ms"));
        for place in 0..self.hosts {
            let source = address(place);
            let route = format!("dev eth0 proto kernel scope link src {source}{attribute}");
            batch("ip", &self.host(place), &[format!("route change {NETWORK} {route}")])?;
        }
        Ok(())
    }

    /// Removes the lab.
    ///
    /// # Errors
    /// If a part cannot be removed.
    pub(crate) fn down(&self) -> Result<()> {
        remove(Some(&self.lab)).map(drop)
    }

    fn build(&self, links: &Links) -> Result<()> {
        let switch = self.switch();
        ip(&["netns", "add", &switch])?;
        let mut at_switch = vec![
            "link add name sw type bridge".to_owned(),
            "link set sw addrgenmode none up".to_owned(),
        ];
        for place in 0..self.hosts {
            ip(&["netns", "add", &self.host(place)])?;
            let (host, mtu) = (self.host(place), links.mtu);
            at_switch.extend([
                format!(
                    "link add p{place} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {host}"
                ),
                // No segmentation offload: the switch sees packets of the MTU, like a real one.
                format!("link set p{place} addrgenmode none gso_max_segs 1 master sw up"),
            ]);
        }
        batch("ip", &switch, &at_switch)?;
        ip(&["netns", "exec", &switch, "sh", "-c", NO_FIREWALL])?;
        batch(
            "tc",
            &switch,
            &(0..self.hosts).flat_map(|p| links.ports.towards_host(p)).collect::<Vec<_>>(),
        )?;
        for place in 0..self.hosts {
            let host = self.host(place);
            let at_host = [
                "link set lo up".to_owned(),
                format!("addr add {}/16 dev eth0", address(place)),
                "link set eth0 addrgenmode none gso_max_segs 1 up".to_owned(),
            ];
            batch("ip", &host, &at_host)?;
            batch("tc", &host, &links.ports.of_host())?;
        }
        Ok(())
    }
}

/// The hosts' network.
const NETWORK: &str = "10.213.0.0/16";

/// The address of a host, from 10.213.0.1.
fn address(place: usize) -> IpAddr {
    let host = u16::try_from(place + 1).expect("a lab has at most 200 hosts").to_be_bytes();
    Ipv4Addr::new(10, 213, host[0], host[1]).into()
}

/// A command that makes frames of the bridge bypass the kernel's firewall, because a switch has none.
const NO_FIREWALL: &str =
    "for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -w $f ] || echo 0 > $f || :; done";

/// Checks the name of a lab, which is a part of the namespaces' names and so of file names.
fn check_name(lab: &str) -> Result<()> {
    let fits = !lab.is_empty() && lab.len() <= 40;
    let plain = lab.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    ensure!(fits && plain, "lab `{lab}`: expected up to 40 characters of a-z, 0-9 and _");
    Ok(())
}

/// The names of all labs.
///
/// # Errors
/// If `ip` fails.
pub(crate) fn labs() -> Result<Vec<String>> {
    let mut labs: Vec<String> = namespaces(None)?
        .iter()
        .filter_map(|name| Some(name.strip_prefix(PREFIX)?.rsplit_once('-')?.0.to_owned()))
        .collect();
    labs.dedup();
    Ok(labs)
}

/// Removes a lab or all labs with their processes, including the remains of a killed program. Returns the removed namespaces.
///
/// # Errors
/// If one cannot be removed. The others are removed.
pub(crate) fn remove(lab: Option<&str>) -> Result<Vec<String>> {
    let found = namespaces(lab)?;
    let mut failed = None;
    for name in &found {
        if let Err(error) = end_processes(name).and_then(|()| ip(&["netns", "del", name])) {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(found), Err)
}

/// The namespaces of a lab or of all labs, in order.
fn namespaces(lab: Option<&str>) -> Result<Vec<String>> {
    let prefix = lab.map_or_else(|| PREFIX.to_owned(), |lab| format!("{PREFIX}{lab}-"));
    let listed = ip(&["netns", "list"])?;
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with(&prefix)).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// Kills all processes of a namespace.
fn end_processes(namespace: &str) -> Result<()> {
    for pid in processes(namespace)? {
        // A process that has exited needs no signal.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    Ok(())
}

/// The processes of a namespace; none if it was removed in the meantime.
///
/// # Errors
/// If `ip` fails.
pub(crate) fn processes(namespace: &str) -> Result<Vec<i32>> {
    let listed = match ip(&["netns", "pids", namespace]) {
        Err(_) if !Path::new("/run/netns").join(namespace).exists() => return Ok(Vec::new()),
        listed => listed?,
    };
    listed.split_whitespace().map(|pid| pid.parse().context("`ip netns pids`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_was_removed_has_no_processes() {
        assert_eq!(processes("apus-lab-never-made").unwrap(), Vec::<i32>::new());
    }

    #[test]
    fn hosts_have_names_and_addresses() {
        let network = Network { lab: "x".to_owned(), hosts: 300 };
        assert_eq!(
            (network.host(3), network.switch()),
            ("apus-lab-x-h3".into(), "apus-lab-x-switch".into())
        );
        let addresses = network.addresses();
        assert_eq!(addresses[0], IpAddr::from([10, 213, 0, 1]));
        assert_eq!(addresses[255], IpAddr::from([10, 213, 1, 0]));
    }

    #[test]
    fn a_name_that_would_be_a_path_is_refused() {
        for name in ["", "a/b", "A", "a-b", &"x".repeat(41)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        assert!(check_name("lab_1").is_ok());
    }
}
