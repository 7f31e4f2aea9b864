//! From names to addresses.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::address::{Address, Scheme};
use crate::sync::on_thread::OnThread;

/// Resolves a text to an address, the first of [`resolve_all`].
///
/// # Errors
///
/// As [`resolve_all`].
///
/// ```
/// let address = apus::resolve("localhost:4000")?;
/// assert!(address.host.ip().is_loopback());
/// assert_eq!(address.port, 4000);
/// # Ok::<(), apus::ResolveError>(())
/// ```
pub fn resolve(text: &str) -> Result<Address, ResolveError> {
    resolve_all(text).map(first)
}

/// [`resolve`] as a future, for any executor.
///
/// # Errors
///
/// As [`resolve_all`].
pub fn resolve_async(
    text: &str,
) -> impl Future<Output = Result<Address, ResolveError>> + Send + Unpin + use<> {
    resolving(text, resolve)
}

/// Resolves a text to all addresses of both families, at least one: `HOST:PORT` or `HOST:PORT@UDPPORT`, optionally with the prefix
/// `apus://`. HOST is an IP address or a name, PORT the Homa port of the service, and UDPPORT the node's UDP port if it is not
/// 20146. `homa://HOST:PORT` is a service that is reached by IP protocol 146, on a host with the Linux module or an Apus node with a
/// raw link.
///
/// A name is looked up with the system's resolver, which may block for seconds. IPv4 addresses come first, because nodes listen on
/// IPv4 by default, otherwise the order is the resolver's. The `FromStr` of [`Address`] parses numeric addresses without blocking.
///
/// # Errors
///
/// [`ResolveError::Form`] for a text of another form, [`ResolveError::Lookup`] if the resolver does not know the name.
///
/// ```
/// use apus::{Bytes, Client};
///
/// /// Calls the addresses of a name one after the other, until one of them is reached.
/// fn call_any(client: &Client, name: &str) -> Result<Bytes, Box<dyn std::error::Error>> {
///     let mut failure = None;
///     for address in apus::resolve_all(name)? {
///         match client.call(address, "hello").wait() {
///             Err(error) if !error.may_have_executed() => failure = Some(error),
///             result => return Ok(result?),
///         }
///     }
///     Err(failure.expect("a name has at least one address").into())
/// }
/// ```
pub fn resolve_all(text: &str) -> Result<Vec<Address>, ResolveError> {
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    let form = || ResolveError::Form { text: text.to_owned() };
    let (service, udp) = Scheme::split(text).ok_or_else(form)?;
    let (host, port) = service.rsplit_once(':').ok_or_else(form)?;
    let port = port.parse().map_err(|_| form())?;
    if host.is_empty() || host.contains(':') {
        return Err(form());
    }
    let lookup = |source| ResolveError::Lookup { host: host.to_owned(), source };
    let nodes = in_order((host, udp).to_socket_addrs().map_err(lookup)?);
    if nodes.is_empty() {
        return Err(lookup(io::ErrorKind::NotFound.into()));
    }
    Ok(nodes.into_iter().map(|node| Address::new(node, port)).collect())
}

/// [`resolve_all`] as a future, for any executor. A name is looked up on a thread of its own, which continues if the future is
/// dropped.
///
/// # Errors
///
/// As [`resolve_all`].
pub fn resolve_all_async(
    text: &str,
) -> impl Future<Output = Result<Vec<Address>, ResolveError>> + Send + Unpin + use<> {
    resolving(text, resolve_all)
}

/// Looks a name up on a thread of its own. A numeric address needs none.
fn resolving<T: Send + Unpin + 'static>(
    text: &str,
    resolve: fn(&str) -> Result<T, ResolveError>,
) -> impl Future<Output = Result<T, ResolveError>> + Send + Unpin + use<T> {
    if text.parse::<Address>().is_ok() {
        return Resolving::Ready(Some(resolve(text)));
    }
    let text = text.to_owned();
    Resolving::Looked(OnThread::begin(move || resolve(&text)))
}

enum Resolving<T> {
    Ready(Option<T>),
    Looked(OnThread<T>),
}

impl<T: Unpin> Future for Resolving<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            Self::Ready(output) => {
                Poll::Ready(output.take().expect("a future is not polled after it was ready"))
            }
            Self::Looked(looked) => Pin::new(looked).poll(context),
        }
    }
}

/// The resolver's answers without duplicates, IPv4 addresses first.
/// The name or IP address of the host in the text of an address.
pub(crate) fn host_of(text: &str) -> Option<&str> {
    let (service, _) = Scheme::split(text)?;
    Some(service.rsplit_once(':')?.0)
}

fn in_order(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut nodes: Vec<SocketAddr> = Vec::new();
    for node in found {
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    nodes.sort_by_key(SocketAddr::is_ipv6);
    nodes
}

fn first(addresses: Vec<Address>) -> Address {
    addresses.into_iter().next().expect("there is at least one")
}

/// Whether this is an address to listen at, which names no node.
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
    fn both_families_are_given_each_address_once_and_ipv4_first() {
        let found =
            ["[2001:db8::2]:7", "10.0.0.2:7", "[2001:db8::1]:7", "10.0.0.2:7", "10.0.0.1:7"];
        let found = in_order(found.iter().map(|text| text.parse().unwrap()));
        let texts: Vec<_> = found.iter().map(SocketAddr::to_string).collect();
        assert_eq!(texts, ["10.0.0.2:7", "10.0.0.1:7", "[2001:db8::2]:7", "[2001:db8::1]:7"]);
        let all = resolve_all("localhost:4000@7000").unwrap();
        assert_eq!(all[0], resolve("localhost:4000@7000").unwrap());
        assert!(all.iter().all(|address| address.host.ip().is_loopback() && address.port == 4000));
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
