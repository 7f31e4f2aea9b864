//! Which links a node has.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use apus_net::{Link, LinkError, MixedLink, RawLink, UdpLink};

use crate::config::Config;
use crate::error::StartError;

/// What carries a node's messages. An address says which of them a peer is reached by: `apus://` by UDP, `homa://` by IP protocol 146.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Links {
    /// UDP, for Apus nodes; needs no privilege.
    #[default]
    Udp,
    /// IP protocol 146, for hosts with the Linux module and for Apus nodes with this link; needs `CAP_NET_RAW`.
    Raw,
    /// Both, each for its peers.
    Both,
}

impl Links {
    /// What [`FromStr`] takes.
    pub const EXPECTED: &str = "udp, raw or both";

    const ALL: [(Self, &str); 3] = [(Self::Udp, "udp"), (Self::Raw, "raw"), (Self::Both, "both")];

    /// As on a leadership line: `udp`, `raw` or `both`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(links, _)| *links == self);
        named.expect("every variant has a name").1
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no links.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("link '{text}': expected {}", Links::EXPECTED)]
pub struct LinksError {
    text: String,
}

impl FromStr for Links {
    type Err = LinksError;

    fn from_str(text: &str) -> Result<Self, LinksError> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named.map(|(links, _)| *links).ok_or_else(|| LinksError { text: text.to_owned() })
    }
}

/// Opens a link for each shard that the configuration asks for.
pub(crate) fn open_shards(config: &Config) -> Result<Vec<Box<dyn Link>>, StartError> {
    match (config.link, config.shards) {
        (Links::Udp, shards) => {
            let links = UdpLink::bind_shards(config.listen, &config.udp(), shards)?;
            Ok(links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect())
        }
        (_, 1) => Ok(vec![open(config)?]),
        // A raw socket gets every packet of the protocol; there is no giving each peer's to one of several.
        (_, shards) => Err(StartError::RawShards { shards }),
    }
}

/// Opens one of what the configuration asks for.
pub(crate) fn open(config: &Config) -> Result<Box<dyn Link>, StartError> {
    if config.link == Links::Udp {
        return Ok(Box::new(UdpLink::bind(config.listen, &config.udp())?));
    }
    // First, so that the kernel never answers the protocol for us while the rest is being opened.
    let raw = open_raw(config)?;
    let udp: Option<Box<dyn Link>> = match config.link {
        Links::Both => Some(Box::new(UdpLink::bind(config.listen, &config.udp())?)),
        Links::Udp | Links::Raw => None,
    };
    Ok(Box::new(MixedLink::new(udp, raw).map_err(StartError::Descriptor)?))
}

/// Like UDP's, the unspecified IPv6 address is all of IPv4 as well.
fn open_raw(config: &Config) -> Result<Vec<RawLink>, LinkError> {
    let ip = config.listen.ip();
    let mut links = vec![RawLink::bind(ip, &config.raw())?];
    if ip.is_ipv6() && ip.is_unspecified() {
        links.push(RawLink::bind(IpAddr::from(Ipv4Addr::UNSPECIFIED), &config.raw())?);
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (links, name) in Links::ALL {
            assert_eq!((links.to_string(), name.parse()), (name.to_owned(), Ok(links)));
        }
        let error = "ipx".parse::<Links>().unwrap_err().to_string();
        assert!(error.contains("'ipx'") && error.contains(Links::EXPECTED), "{error}");
    }
}
