//! The hosts with which a link exchanges plain packets (rule `seal-17` of docs/protocol.md).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::sys;

/// Time for which the addresses of this machine are remembered, which bounds the cost of unknown senders.
const KEPT: Duration = Duration::from_secs(1);

/// The hosts with which a link exchanges plain packets, which are not encrypted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PlainPeers {
    /// All hosts. The default.
    #[default]
    All,
    /// This machine, and the hosts of these networks.
    Only(Networks),
}

/// A list of IP networks. Its text has addresses and networks such as `10.1.0.0/16`, with commas between them; `none` is the empty list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// The forms of the text, as a phrase.
    pub const EXPECTED: &str =
        "none, or IP addresses and networks such as 10.1.0.0/16 with commas between them";

    /// Returns whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a network contains the address. An IPv4 address in IPv6 form is the IPv4 address.
    #[must_use]
    pub fn contain(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }
}

/// A text is no list of networks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}': expected {}", Networks::EXPECTED)]
pub struct NetworksError {
    text: String,
}

impl FromStr for Networks {
    type Err = NetworksError;

    fn from_str(text: &str) -> Result<Self, NetworksError> {
        let parts = text.split(',').map(str::trim);
        let parse = |part: &str| part.parse().or_else(|_| part.parse::<IpAddr>().map(IpNet::from));
        let networks = parts.filter(|part| !part.is_empty() && text != "none").map(parse);
        let networks: Result<Vec<IpNet>, _> = networks.collect();
        networks.map(Self).map_err(|_| NetworksError { text: text.to_owned() })
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, network) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{network}")?;
        }
        Ok(())
    }
}

/// The plain peers of a link, with the addresses of this machine.
#[derive(Debug, Default)]
pub(crate) struct PlainPeerCheck {
    peers: PlainPeers,
    own: Vec<IpAddr>,
    read: Option<Instant>,
}

impl PlainPeerCheck {
    pub(crate) fn new(peers: PlainPeers) -> Self {
        Self { peers, ..Self::default() }
    }

    //= docs/protocol.md#seal-17
    /// Returns whether the link exchanges plain packets with the host that has this address. Reads the addresses of this machine again if
    /// they are old.
    pub(crate) fn admits(&mut self, ip: IpAddr) -> bool {
        let PlainPeers::Only(networks) = &self.peers else { return true };
        let ip = ip.to_canonical();
        ip.is_loopback() || networks.contain(ip) || self.is_own(ip)
    }

    /// Returns whether this machine has an address, by what was read within the last second.
    pub(crate) fn is_own(&mut self, ip: IpAddr) -> bool {
        if self.read.is_none_or(|read| read.elapsed() >= KEPT) {
            self.read = Some(Instant::now());
            self.own.clear();
            sys::each_interface_address(|ip, _, _| self.own.push(ip));
        }
        self.own.contains(&ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_networks_is_read_as_it_is_written() {
        for (text, written) in [
            ("none", "none"),
            ("", "none"),
            ("10.1.0.0/16, 192.0.2.7,fd00::/8", "10.1.0.0/16,192.0.2.7/32,fd00::/8"),
        ] {
            let networks: Networks = text.parse().unwrap();
            assert_eq!(networks.to_string(), written);
            assert_eq!(networks.to_string().parse(), Ok(networks));
        }
        for text in ["10.1.0.0/33", "all", "none,10.0.0.1", "10.0.0.1;10.0.0.2"] {
            assert!(text.parse::<Networks>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_own_machine_and_the_listed_networks_are_plain_peers() {
        //= docs/protocol.md#seal-17
        let networks = "198.51.100.0/24,fd00::/8".parse().unwrap();
        let mut peers = PlainPeerCheck::new(PlainPeers::Only(networks));
        let mut own = Vec::new();
        sys::each_interface_address(|ip, _, _| own.push(ip.to_string()));
        let near =
            ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "198.51.100.7", "fd00::9"];
        for near in near.into_iter().chain(own.iter().map(String::as_str)) {
            assert!(peers.admits(near.parse().unwrap()), "{near}");
        }
        for far in ["203.0.113.9", "::ffff:203.0.113.9", "198.51.101.7", "2001:db8::1"] {
            assert!(!peers.admits(far.parse().unwrap()), "{far}");
            assert!(PlainPeerCheck::default().admits(far.parse().unwrap()), "{far}");
        }
    }
}
