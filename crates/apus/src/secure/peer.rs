//! The peer of a request or call, as the application sees it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apus_seal::{Identity, Name};

/// A node that has shown a certificate. From [`Request::peer`](crate::Request::peer).
///
/// Its text is its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer(pub(crate) Arc<Identity>);

impl Peer {
    /// The name of the certificate: its SPIFFE id, else its first DNS name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// All DNS names of the certificate, without wildcards.
    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.0.dns_names.iter().map(Name::as_str)
    }

    /// The IP addresses of the certificate.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0.addresses
    }

    /// The end of validity: the earliest of the certificate's chain.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
            .checked_add(self.0.not_after)
            .unwrap_or_else(|| SystemTime::now() + CENTURY)
    }

    /// The certificates in DER, that of the node first.
    #[must_use]
    pub fn certificates(&self) -> &[Vec<u8>] {
        &self.0.chain
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.name.fmt(f)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Peer").field(&self.0.name).finish()
    }
}

/// Stands for a time that the clock cannot express.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
