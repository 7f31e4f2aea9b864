//! Sealed paths: the handshakes of a node, and the peers that it knows by their certificates (rules seal-1 to seal-11).
//!
//! | file | contents |
//! |---|---|
//! | `driver` | the handshakes of one engine: its sockets at port 32767, its timers |
//! | `attempts` | handshakes that this node begins, as their client |
//! | `arrivals` | handshakes that others begin, with this node as their server |
//! | `sealed_peers` | the peers of an engine, as the engine knows them |
//! | `paths` | the sealed paths of an engine, each with its peer |
//! | `worker` | the thread that does the public-key work, without the engine's lock |
//! | `node_identity` | the certificate, the roots and the rules of a node, which its engines share |
//! | `reload` | the files of the identity, which are looked at every 10 s, and the peers that are judged again |
//! | `expiry` | gauges of certificates, and warnings before they expire |
//! | `rules` | the rules of sockets, by number |
//! | `key_log` | the file to which the keys of paths are written, if a setting names one |
//! | `names` | the DNS names by which addresses were found |
//! | `peer` | the peer of a request or call, as the application sees it |
//! | `absent` | stands in for all of it in a build without the feature `secure` |

#[cfg(feature = "secure")]
mod arrivals;
#[cfg(feature = "secure")]
mod attempts;
#[cfg(feature = "secure")]
mod driver;
#[cfg(feature = "secure")]
mod expiry;
#[cfg(feature = "secure")]
mod key_log;
#[cfg(feature = "secure")]
mod names;
#[cfg(feature = "secure")]
mod node_identity;
#[cfg(feature = "secure")]
mod paths;
#[cfg(feature = "secure")]
mod reload;
#[cfg(feature = "secure")]
mod rules;
#[cfg(feature = "secure")]
mod sealed_peers;
#[cfg(feature = "secure")]
mod worker;

pub(crate) mod peer;

#[cfg(not(feature = "secure"))]
mod absent;

#[cfg(not(feature = "secure"))]
pub(crate) use absent::{Driver, NodeIdentity, SealedPeers};
#[cfg(feature = "secure")]
pub(crate) use driver::Driver;
#[cfg(feature = "secure")]
pub(crate) use node_identity::NodeIdentity;
#[cfg(feature = "secure")]
pub(crate) use sealed_peers::SealedPeers;
