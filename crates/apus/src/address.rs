//! The address of a service: its node and its Homa port.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use apus_wire::{DEFAULT_UDP_PORT, is_native};

/// The address of a service: a node (IP address and UDP port) and a Homa port on that node.
///
/// The text form is `IP:PORT`, or `IP:PORT@UDPPORT` if the node's UDP port is not [`apus_wire::DEFAULT_UDP_PORT`], optionally
/// with the prefix `apus://`. A host that is reached by IP protocol 146, such as one with the Linux module, is
/// `homa://IP:PORT`; its UDP port is 0 ([`apus_wire::is_native`]). IPv6 addresses are in brackets, as in a URL.
///
/// ```
/// use apus::Address;
///
/// let address: Address = "10.0.0.1:4000".parse()?;
/// assert_eq!(address, Address::new("10.0.0.1:20146".parse()?, 4000));
///
/// let on_another_udp_port: Address = "[2001:db8::1]:4000@7000".parse()?;
/// assert_eq!(on_another_udp_port.host.port(), 7000);
///
/// let linux: Address = "homa://10.0.0.2:4000".parse()?;
/// assert_eq!(linux.to_string(), "homa://10.0.0.2:4000");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`resolve`](crate::resolve()) accepts names of hosts as well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// IP address and UDP port of the node; port 0 for a node on a native link.
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
        if is_native(self.host) {
            f.write_str(Scheme::HOMA)?;
        }
        match self.host.ip() {
            IpAddr::V4(ip) => write!(f, "{ip}:{}", self.port)?,
            IpAddr::V6(ip) => write!(f, "[{ip}]:{}", self.port)?,
        }
        match self.host.port() {
            0 | DEFAULT_UDP_PORT => Ok(()),
            udp => write!(f, "@{udp}"),
        }
    }
}

/// The prefixes of an address, which name the link of a peer.
#[derive(Debug)]
pub struct Scheme;

impl Scheme {
    /// Prefix of a service that is reached by IP protocol 146.
    pub const HOMA: &str = "homa://";
    /// Prefix of a service that is reached by UDP; optional.
    pub const APUS: &str = "apus://";

    /// Splits `SERVICE` or `SERVICE@UDPPORT`, with or without a prefix, into the service and the UDP port. The port is 0 for a
    /// service that is reached by IP protocol 146. `None` for an unknown prefix or an invalid UDP port.
    ///
    /// ```
    /// use apus::Scheme;
    ///
    /// assert_eq!(Scheme::split("cache.example:4000"), Some(("cache.example:4000", 20146)));
    /// assert_eq!(Scheme::split("apus://cache.example:4000@7000"), Some(("cache.example:4000", 7000)));
    /// assert_eq!(Scheme::split("homa://cache.example:4000"), Some(("cache.example:4000", 0)));
    /// assert_eq!(Scheme::split("tcp://cache.example:4000@x"), None);
    /// ```
    #[must_use]
    pub fn split(text: &str) -> Option<(&str, u16)> {
        if let Some(service) = text.strip_prefix(Self::HOMA) {
            return (!service.contains('@')).then_some((service, 0));
        }
        let text = text.strip_prefix(Self::APUS).unwrap_or(text);
        match text.split_once('@') {
            Some((service, udp)) => Some((service, udp.parse().ok().filter(|&udp| udp != 0)?)),
            None => Some((text, DEFAULT_UDP_PORT)),
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
        write!(f, "address '{}': expected IP:PORT, IP:PORT@UDPPORT or homa://IP:PORT", self.text)
    }
}

impl std::error::Error for AddressError {}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError { text: text.to_owned() };
        let (service, udp) = Scheme::split(text).ok_or_else(error)?;
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
        for text in [
            "10.0.0.1:4000",
            "10.0.0.1:4000@7",
            "[::1]:80",
            "[fe80::1]:80@9000",
            "homa://10.0.0.1:4000",
            "homa://[2001:db8::1]:80",
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn the_scheme_of_udp_may_be_left_out() {
        let address: Address = "apus://10.0.0.1:4000@7".parse().expect("an address");
        assert_eq!(address.to_string(), "10.0.0.1:4000@7");
        let native: Address = "homa://10.0.0.1:4000".parse().expect("an address");
        assert!(is_native(native.host) && !is_native(address.host));
    }

    #[test]
    fn wrong_text_is_named() {
        for text in ["tcp://10.0.0.1:1", "homa://10.0.0.1:1@7", "10.0.0.1:1@0"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for text in ["", "10.0.0.1", "host:1", "::1:80", "10.0.0.1:70000", "10.0.0.1:1@x"] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.to_string().contains(&format!("'{text}'")), "{error}");
        }
    }
}
