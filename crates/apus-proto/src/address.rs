//! Where a service is: the node that carries it, and its Homa port there.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use apus_wire::DEFAULT_UDP_PORT;

/// The address of a service: a node (IP address and UDP port) and a Homa port on it.
///
/// Written `IP:PORT`, or `IP:PORT@UDPPORT` when the node does not listen on
/// [`apus_wire::DEFAULT_UDP_PORT`]. IPv6 addresses are in brackets, as in a URL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// IP address and UDP port of the node.
    pub host: SocketAddr,
    /// Homa port of the service on that node.
    pub port: u16,
}

impl Address {
    /// The service on Homa port `port` of the node at `host`.
    #[must_use]
    pub const fn new(host: SocketAddr, port: u16) -> Self {
        Self { host, port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.ip() {
            IpAddr::V4(ip) => write!(f, "{ip}:{}", self.port)?,
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}", self.port)?,
        }
        match self.host.port() {
            DEFAULT_UDP_PORT => Ok(()),
            udp => write!(f, "@{udp}"),
        }
    }
}

/// A text that is not an [`Address`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddressError {
    text: String,
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address '{}': expected IP:PORT or IP:PORT@UDPPORT", self.text)
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        let (service, udp) = match text.split_once('@') {
            Some((service, udp)) => (service, udp.parse().map_err(|_| error())?),
            None => (text, DEFAULT_UDP_PORT),
        };
        let (ip, port) = service.rsplit_once(':').ok_or_else(error)?;
        let ip = match ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')) {
            Some(v6) => IpAddr::V6(v6.parse::<Ipv6Addr>().map_err(|_| error())?),
            None => IpAddr::V4(ip.parse().map_err(|_| error())?),
        };
        let port = port.parse().map_err(|_| error())?;
        Ok(Self { host: SocketAddr::new(ip, udp), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for text in ["10.0.0.1:4000", "10.0.0.1:4000@7", "[::1]:80", "[fe80::1]:80@9000"] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn wrong_text_is_named() {
        for text in ["", "10.0.0.1", "host:1", "::1:80", "10.0.0.1:70000", "10.0.0.1:1@x"] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }
}
