//! Variables of the environment for carriers.

use std::env;
use std::net::IpAddr;

use anyhow::Result;
use apus_load::misuse::Misuse;
use apus_sockets::introduction;
use ipnet::IpNet;

/// UDP port of carriers, as the environment says.
///
/// # Errors
/// When the variable is no such port.
pub(crate) fn port() -> Result<u16> {
    let Some(text) = env::var_os("APUS_CARRIER").filter(|text| !text.is_empty()) else {
        return Ok(introduction::PORT);
    };
    let port = text.to_str().and_then(|text| text.parse().ok());
    let port = port.filter(|port| (1..=32_767).contains(port));
    port.ok_or_else(|| {
        let text = text.to_string_lossy();
        Misuse(format!("APUS_CARRIER = '{text}': expected a port from 1 to 32767")).into()
    })
}

/// Hosts to and from which connections are carried, as the environment says; none: all.
///
/// # Errors
/// When the variable is no list of networks.
pub(super) fn hosts() -> Result<Vec<IpNet>> {
    let text = env::var("APUS_CARRIER_HOSTS").unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let networks: Result<Vec<IpNet>, String> = parts.map(network).collect();
    networks.map_err(|_| {
        Misuse(format!("APUS_CARRIER_HOSTS = '{text}': expected a list of networks")).into()
    })
}

/// A network, or an address, which is the network of one host.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from);
    address.or_else(|_| text.parse()).map_err(|_| "expected an address or a network".into())
}
