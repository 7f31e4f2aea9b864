//! Opens the links of a node.

use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;

use apus_net::{CaptureLink, Link, LinkError, MixedLink, RawLink, UdpLink, XdpLink};

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
            links.into_iter().map(|link| captured(Box::new(link), config)).collect()
        }
        (Links::Xdp, shards) if shards > 1 => {
            let links = UdpLink::bind_shards(config.listen, &config.udp(), shards)
                .map_err(StartError::of_link)?;
            let links = links.into_iter().map(XdpLink::over);
            links.map(|link| captured(Box::new(link), config)).collect()
        }
        (_, 1) => Ok(vec![open(config)?]),
        // A raw socket gets every packet of the protocol; there is no giving each peer's to one of several.
        (_, shards) => Err(StartError::RawShards { shards }),
    }
}

/// Opens one of the links that the configuration names.
pub(crate) fn open(config: &Config) -> Result<Box<dyn Link>, StartError> {
    let link = match config.link {
        Links::Raw | Links::Both => open_mixed(config)?,
        Links::Xdp => open_xdp(config)?,
        Links::Auto | Links::Udp => open_udp(config)?,
    };
    captured(link, config)
}

/// Wraps the link in one that writes its packets to the capture file. Several links may append to one file.
fn captured(link: Box<dyn Link>, config: &Config) -> Result<Box<dyn Link>, StartError> {
    let Some(path) = config.capture_file() else { return Ok(link) };
    let failed = |source| StartError::Capture { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    let file = options.append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    Ok(Box::new(CaptureLink::new(link, file).map_err(failed)?))
}

fn open_mixed(config: &Config) -> Result<Box<dyn Link>, StartError> {
    // First, so that the kernel never answers the protocol for us while the rest is being opened.
    let raw = open_raw(config).map_err(StartError::of_link)?;
    let udp: Option<Box<dyn Link>> = match config.link {
        Links::Both => Some(open_udp(config)?),
        Links::Auto | Links::Udp | Links::Xdp | Links::Raw => None,
    };
    Ok(Box::new(MixedLink::new(udp, raw)))
}

fn open_udp(config: &Config) -> Result<Box<dyn Link>, StartError> {
    let link = UdpLink::bind(config.listen, &config.udp()).map_err(StartError::of_link)?;
    Ok(Box::new(link))
}

fn open_xdp(config: &Config) -> Result<Box<dyn Link>, StartError> {
    let bind = if config.xdp_receive { XdpLink::bind_receiving } else { XdpLink::bind };
    let link = bind(config.listen, &config.udp()).map_err(StartError::of_link)?;
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
