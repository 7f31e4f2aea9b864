//! A certificate that a program gives its node, instead of files.

use std::error::Error;
use std::fmt;

/// A certificate, its key, and the roots of peers, as an [`IdentitySource`] gives them. All are in PEM.
#[derive(Clone, Default)]
pub struct IdentityPem {
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
    pub(crate) roots: Vec<u8>,
    pub(crate) domains: Vec<(String, Vec<u8>)>,
}

impl IdentityPem {
    /// A certificate followed by those between it and a root, and its private key (PKCS#8, PKCS#1 or SEC1).
    #[must_use]
    pub fn new(certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        Self { certificate: certificate.into(), key: key.into(), ..Self::default() }
    }

    /// Whether there is neither a certificate nor a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.certificate.is_empty() && self.key.is_empty()
    }

    /// Adds roots for all peers, as [`Config::tls_ca`](crate::Config::tls_ca) does.
    #[must_use]
    pub fn roots(mut self, roots: impl AsRef<[u8]>) -> Self {
        self.roots.extend(roots.as_ref());
        self.roots.push(b'\n');
        self
    }

    /// Adds roots for the SPIFFE ids of a trust domain, as [`Config::tls_trust`](crate::Config::tls_trust) does.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>, roots: impl Into<Vec<u8>>) -> Self {
        self.domains.push((domain.into(), roots.into()));
        self
    }
}

impl fmt::Debug for IdentityPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domains: Vec<_> = self.domains.iter().map(|(domain, _)| domain).collect();
        f.debug_struct("IdentityPem").field("domains", &domains).finish_non_exhaustive()
    }
}

//= docs/protocol.md#seal-11
/// Gives a node its certificate and the roots of its peers, and new ones in time. Set by
/// [`Config::identity_source`](crate::Config::identity_source). The crate `apus-spiffe` has one for the SPIFFE Workload API.
///
/// A node asks for the version every 10 s on a thread of its own, and on the calling thread in [`Node::start`](crate::Node::start) and
/// [`Node::reload_identity`](crate::Node::reload_identity). It asks for the identity when the version has changed. If there is none, or
/// it cannot be used, the earlier one stays and the node asks again at its next look. The methods return what is at hand and do not
/// wait, because handshakes wait for them.
///
/// ```
/// use std::error::Error;
/// use std::sync::Mutex;
/// use apus::{IdentityPem, IdentitySource};
///
/// #[derive(Debug)]
/// struct Vault {
///     /// The version and the identity, which another thread renews.
///     latest: Mutex<(u64, IdentityPem)>,
/// }
///
/// impl IdentitySource for Vault {
///     fn version(&self) -> u64 {
///         self.latest.lock().unwrap().0
///     }
///
///     fn identity(&self) -> Result<IdentityPem, Box<dyn Error + Send + Sync>> {
///         Ok(self.latest.lock().unwrap().1.clone())
///     }
/// }
/// ```
pub trait IdentitySource: fmt::Debug + Send + Sync {
    /// A number that changes whenever [`identity`](Self::identity) returns something else.
    fn version(&self) -> u64;

    /// The certificate, the key and the roots of now.
    ///
    /// # Errors
    ///
    /// The source has no identity now. The node does not start, or keeps the earlier one.
    fn identity(&self) -> Result<IdentityPem, Box<dyn Error + Send + Sync>>;
}
