//! Opens the links of a node.

use std::net::{IpAddr, Ipv4Addr};

use apus_net::{Link, LinkError, MixedLink, RawLink, UdpLink};

use crate::config::{Config, Links};
use crate::error::StartError;

#[cfg(feature = "custom-link")]
impl Config {
    /// Opens the link that a node with this configuration has: to wrap it, and give it to
    /// [`Node::with_link`](crate::Node::with_link).
    ///
    /// Needs the feature `custom-link`, which semantic versioning does not cover.
    ///
    /// # Errors
    ///
    /// [`StartError`] as [`Node::start`](crate::Node::start).
    pub fn open_link(&self) -> Result<Box<dyn Link>, StartError> {
        self.check()?;
        open(self)
    }
}

/// Opens a link for each shard that the configuration asks for.
pub(crate) fn open_shards(config: &Config) -> Result<Vec<Box<dyn Link>>, StartError> {
    match (config.link, config.shards) {
        (Links::Auto | Links::Udp, shards) => {
            let links = UdpLink::bind_shards(config.listen, &config.udp(), shards)
                .map_err(StartError::of_link)?;
            Ok(links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect())
        }
        (_, 1) => Ok(vec![open(config)?]),
        // A raw socket gets every packet of the protocol; there is no giving each peer's to one of several.
        (_, shards) => Err(StartError::RawShards { shards }),
    }
}

/// Opens one of what the configuration asks for.
pub(crate) fn open(config: &Config) -> Result<Box<dyn Link>, StartError> {
    if !config.link.has_raw() {
        return open_udp(config);
    }
    // First, so that the kernel never answers the protocol for us while the rest is being opened.
    let raw = open_raw(config).map_err(StartError::of_link)?;
    let udp: Option<Box<dyn Link>> = match config.link {
        Links::Both => Some(open_udp(config)?),
        Links::Auto | Links::Udp | Links::Raw => None,
    };
    Ok(Box::new(MixedLink::new(udp, raw)))
}

fn open_udp(config: &Config) -> Result<Box<dyn Link>, StartError> {
    let link = UdpLink::bind(config.listen, &config.udp()).map_err(StartError::of_link)?;
    Ok(Box::new(link))
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
