//! From names to addresses.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::address::{Address, Scheme};

/// Resolves a text to an address: `HOST:PORT` or `HOST:PORT@UDPPORT`, optionally with the prefix `apus://`. HOST is an IP
/// address or a name, PORT the Homa port of the service, and UDPPORT the node's UDP port if it is not 20146. `homa://HOST:PORT`
/// is a service that is reached by IP protocol 146, on a host with the Linux module or an Apus node with a raw link.
///
/// A name is looked up with the system's resolver, which may block for seconds. Of several addresses the first IPv4 address is
/// used, because nodes listen on IPv4 by default. The `FromStr` of [`Address`] parses numeric addresses without blocking.
///
/// # Errors
///
/// [`ResolveError::Form`] for a text of another form, [`ResolveError::Lookup`] if the resolver does not know the name.
pub fn resolve(text: &str) -> Result<Address, ResolveError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let form = || ResolveError::Form { text: text.to_owned() };
    let (service, udp) = Scheme::split(text).ok_or_else(form)?;
    let (host, port) = service.rsplit_once(':').ok_or_else(form)?;
    let port = port.parse().map_err(|_| form())?;
    if host.is_empty() || host.contains(':') {
        return Err(form());
    }
    let lookup = |source| ResolveError::Lookup { host: host.to_owned(), source };
    let found: Vec<SocketAddr> = (host, udp).to_socket_addrs().map_err(lookup)?.collect();
    let first = found.iter().find(|address| address.is_ipv4()).or_else(|| found.first());
    match first {
        Some(node) => Ok(Address::new(*node, port)),
        None => Err(lookup(io::ErrorKind::NotFound.into())),
    }
}

/// Nobody is at this address: it is one to listen at.
#[inline]
pub(crate) fn is_unspecified(address: Address) -> bool {
    address.host.ip().to_canonical().is_unspecified()
}

/// Why a text was not resolved to an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The text has another form.
    #[error("address '{text}': expected HOST:PORT, HOST:PORT@UDPPORT or homa://HOST:PORT")]
    Form {
        /// The text.
        text: String,
    },
    /// The name is not known to the system's resolver.
    #[error("cannot find host '{host}': {source}")]
    Lookup {
        /// The name.
        host: String,
        /// The message of the resolver.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use apus_wire::DEFAULT_UDP_PORT;

    use super::*;

    #[test]
    fn numbers_and_names_are_found() {
        let address = resolve("127.0.0.1:4000@7000").unwrap();
        assert_eq!(address.to_string(), "127.0.0.1:4000@7000");
        let named = resolve("localhost:4000@7000").unwrap();
        assert!(named.host.ip().is_loopback());
        assert_eq!((named.host.port(), named.port), (7000, 4000));
        assert_eq!(resolve("apus://localhost:1").unwrap().host.port(), DEFAULT_UDP_PORT);
        assert_eq!(resolve("homa://localhost:1").unwrap().host.port(), 0);
    }

    #[test]
    fn a_wrong_form_is_named() {
        for text in ["", "localhost", ":1", "localhost:x", "localhost:1@", "::1:5", "a:1@99999"] {
            let error = resolve(text).expect_err(text);
            assert!(matches!(error, ResolveError::Form { .. }), "{text}");
            assert!(error.to_string().contains(&format!("'{text}'")));
        }
    }
}
