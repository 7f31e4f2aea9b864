//! Settings of a carrier, and errors of its start.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use apus::{Config, Delivery};
use apus_sockets::introduction;
use ipnet::IpNet;
use nix::errno::Errno;

/// Settings of a carrier.
#[derive(Clone, Debug)]
pub struct Settings {
    /// UDP port of this carrier and of other hosts' carriers; also the port of their listeners within Apus. Default 20147; 1 to 32767.
    pub port: u16,
    /// Time for which the carrier continues without a program; `None` for ever. Default 5 s.
    pub idle: Option<Duration>,
    /// Hosts to and from which connections are carried.
    pub hosts: Hosts,
    /// The process's log, for the status.
    pub log: Option<String>,
    /// Settings of the node. Its address is replaced by 0.0.0.0 and the port.
    pub node: Config,
}

impl Settings {
    /// The defaults: packets wake a thread at once, and no thread polls. The node speaks plain with other hosts unless it has a
    /// certificate, because the connections that it carries would be plain over TCP.
    #[must_use]
    pub fn new() -> Self {
        let mut node = Config::new();
        node.delivery(Delivery::base()).insecure(true);
        let idle = Some(Duration::from_secs(5));
        Self { port: introduction::PORT, idle, hosts: Hosts::default(), log: None, node }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// Hosts to and from which connections are carried: some networks, or all hosts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hosts(Vec<IpNet>);

impl Hosts {
    /// Hosts of these networks only; all hosts if there are none.
    #[must_use]
    pub fn of(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// The networks; empty for all hosts.
    #[must_use]
    pub fn networks(&self) -> &[IpNet] {
        &self.0
    }

    /// Whether connections to and from this address are carried.
    #[must_use]
    pub fn have(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.is_empty() || self.0.iter().any(|network| network.contains(&ip))
    }
}

/// An error of starting a carrier.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The user already has a carrier at this port.
    #[error("a carrier of this user already runs at port {0}")]
    Runs(u16),
    /// The node cannot start; in most cases the UDP port is in use.
    #[error("cannot start the node at UDP port {port}: {error}")]
    Node {
        /// The UDP port.
        port: u16,
        /// The node's error.
        error: apus::StartError,
    },
    /// A system call failed.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

impl From<Errno> for StartError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_list_are_those_of_its_networks() {
        let networks = ["10.1.0.0/16", "192.0.2.7/32", "fd00::/8"];
        let hosts = Hosts::of(networks.map(|it| it.parse().unwrap()).to_vec());
        for (ip, expected) in [
            ("10.1.255.1", true),
            ("::ffff:10.1.0.1", true), // The form of a socket for both IP versions.
            ("10.2.0.1", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("fd88::1", true),
            ("fe80::1", false),
        ] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(hosts.have(ip), expected, "{ip}");
            assert!(Hosts::default().have(ip));
        }
    }
}
