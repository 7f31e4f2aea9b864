//! The certificates that this node accepts: roots, trust domains, revocation lists, denied peers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, TrustAnchor, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    OtherError, PeerIncompatible, SignatureScheme,
};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList,
    RevocationOptionsBuilder, anchor_from_trusted_cert,
};

use crate::Role;
use crate::handshake::failure::{Alert, TlsError};
use crate::identity::certificate::CertificateError as IdentityError;
use crate::identity::name::{Identity, Name, is_trust_domain};
use crate::identity::pattern::{Denied, DeniedPeer};

//= docs/protocol.md#seal-5
/// The roots, trust domains, revocation lists and denied peers by which certificates are judged.
///
/// A certificate with a SPIFFE id is judged by the roots of its trust domain, if the domain has its own, and every other one by
/// the general roots. Roots of a trust domain vouch for its SPIFFE ids alone: DNS names and IP addresses in its certificates do
/// not count, so a foreign domain cannot name the hosts of this one. With revocation lists, each issuer in a chain needs a list
/// that has not expired. Without any, nothing is revoked.
#[derive(Debug)]
pub struct Trust {
    roots: Vec<TrustAnchor<'static>>,
    domains: BTreeMap<String, Vec<TrustAnchor<'static>>>,
    lists: Vec<CertRevocationList<'static>>,
    denied: Denied,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Trust {
    /// Creates a judge that accepts no certificate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            roots: Vec::new(),
            domains: BTreeMap::new(),
            lists: Vec::new(),
            denied: Denied::default(),
            algorithms: aws_lc_rs::default_provider().signature_verification_algorithms,
        }
    }

    /// Adds general roots: one or more certificates in PEM.
    ///
    /// # Errors
    ///
    /// The text has no certificate, or a malformed one.
    pub fn add_roots(&mut self, pem: &[u8]) -> Result<&mut Self, TlsConfigError> {
        self.roots.extend(anchors("ca", pem)?);
        Ok(self)
    }

    /// Adds roots of a trust domain, such as a SPIFFE bundle: one or more certificates in PEM.
    ///
    /// # Errors
    ///
    /// `domain` is not a trust domain, or the text has no certificate, or a malformed one.
    pub fn add_domain(&mut self, domain: &str, pem: &[u8]) -> Result<&mut Self, TlsConfigError> {
        if !is_trust_domain(domain) {
            let cause = format!(
                "domain {domain:?} is not a trust domain: 1 to 255 lower-case letters, digits, '.', '-' and '_'"
            );
            return Err(TlsConfigError::new("trust", cause));
        }
        let anchors = anchors("trust", pem)?;
        self.domains.entry(domain.to_owned()).or_default().extend(anchors);
        Ok(self)
    }

    /// Adds revocation lists: one or more in PEM, or one in DER. Their signatures are verified with each certificate.
    ///
    /// # Errors
    ///
    /// The bytes have no list, or a malformed one.
    pub fn add_revocation_lists(&mut self, bytes: &[u8]) -> Result<&mut Self, TlsConfigError> {
        const DER_SEQUENCE: u8 = 0x30;
        let lists = if bytes.first() == Some(&DER_SEQUENCE) {
            vec![CertificateRevocationListDer::from(bytes.to_vec())]
        } else {
            pem_objects("crl", "X509 CRL", bytes)?
        };
        for list in lists {
            let list = OwnedCertRevocationList::from_der(&list);
            self.lists.push(list.map_err(|error| TlsConfigError::new("crl", error))?.into());
        }
        Ok(self)
    }

    //= docs/protocol.md#seal-11
    /// Sets the peers that are denied although their certificates are valid.
    pub fn deny(&mut self, denied: Denied) -> &mut Self {
        self.denied = denied;
        self
    }

    //= docs/protocol.md#seal-11
    /// Judges a peer again after a reload: its chain, the time since 1970, revocation and the denied peers. `role` is that of the
    /// peer in the handshake. Returns its identity by the roots of now, for the rules. The cost is that of verifying its chain.
    ///
    /// # Errors
    ///
    /// The peer is no longer accepted, and its path must end.
    pub fn judge(&self, peer: &Identity, role: Role, now: Duration) -> Result<Identity, TlsError> {
        let chain: Vec<_> = peer.chain.iter().map(|der| CertificateDer::from(&der[..])).collect();
        let time = UnixTime::since_unix_epoch(now);
        let verified = match &chain[..] {
            [leaf, issuers @ ..] => self.verify(leaf, issuers, role, time),
            [] => Err(Error::NoCertificatesPresented),
        };
        verified
            .and_then(|()| self.identity(peer.chain.clone(), now).map_err(other))
            .map_err(|error| tls_error(&error))
    }

    //= docs/protocol.md#seal-5
    /// Returns the identity in a verified chain, without the names that its roots do not vouch for.
    pub(crate) fn identity(
        &self,
        chain: Vec<Vec<u8>>,
        now: Duration,
    ) -> Result<Identity, IdentityError> {
        let mut identity = Identity::from_chain(chain, now)?;
        if self.domain_roots(&identity.name).is_some() {
            identity.dns_names.clear();
            identity.addresses.clear();
        }
        Ok(identity)
    }

    fn domain_roots(&self, name: &Name) -> Option<&Vec<TrustAnchor<'static>>> {
        self.domains.get(name.trust_domain()?)
    }

    /// Verifies a chain and everything else but the name, which is the matter of rules.
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        role: Role,
        now: UnixTime,
    ) -> Result<(), Error> {
        let since_1970 = Duration::from_secs(now.as_secs());
        let identity = Identity::from_chain(vec![leaf.to_vec()], since_1970).map_err(other)?;
        //= docs/protocol.md#seal-5
        let roots = self.domain_roots(&identity.name).unwrap_or(&self.roots);
        let usage = match role {
            Role::Client => KeyUsage::client_auth(),
            Role::Server => KeyUsage::server_auth(),
        };
        let lists: Vec<_> = self.lists.iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists)
            .ok()
            .map(|options| options.with_expiration_policy(ExpirationPolicy::Enforce).build());
        EndEntityCert::try_from(leaf)
            .and_then(|verified| {
                let algorithms = self.algorithms.all;
                verified
                    .verify_for_usage(algorithms, roots, issuers, now, usage, revocation, None)?;
                Ok(())
            })
            .map_err(certificate_error)?;
        //= docs/protocol.md#seal-11
        // All names count here, also those that the roots do not vouch for.
        match self.denied.entry(&identity) {
            Some(entry) => Err(other(DeniedError { name: identity.name, entry: entry.clone() })),
            None => Ok(()),
        }
    }

    fn verify_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signature, &self.algorithms)
    }
}

impl Default for Trust {
    fn default() -> Self {
        Self::new()
    }
}

impl ClientCertVerifier for Trust {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A node has one certificate and needs no hint, and a list of roots lengthens REPLY.
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(leaf, issuers, Role::Client, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        //= docs/protocol.md#seal-6
        // The name is the matter of rules: a socket may expect a SPIFFE id, which rustls does not know, or any of several names.
        self.verify(leaf, issuers, Role::Server, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// A certificate, key or list cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{setting}: {cause}")]
pub struct TlsConfigError {
    /// The setting that brought it: `cert`, `key`, `ca`, `trust`, `crl`, or `rustls` for a configuration of the program.
    pub setting: &'static str,
    /// The cause, with the forms that are allowed.
    pub cause: String,
}

impl TlsConfigError {
    pub(crate) fn new(setting: &'static str, cause: impl ToString) -> Self {
        Self { setting, cause: cause.to_string() }
    }
}

/// Reads all sections of one kind. There is at least one.
pub(crate) fn pem_objects<T: PemObject>(
    setting: &'static str,
    section: &str,
    pem: &[u8],
) -> Result<Vec<T>, TlsConfigError> {
    let objects: Result<Vec<T>, _> = T::pem_slice_iter(pem).collect();
    let objects = objects.map_err(|error| TlsConfigError::new(setting, error))?;
    if objects.is_empty() {
        let cause = format!("no section \"-----BEGIN {section}-----\" in {} bytes", pem.len());
        return Err(TlsConfigError::new(setting, cause));
    }
    Ok(objects)
}

fn anchors(setting: &'static str, pem: &[u8]) -> Result<Vec<TrustAnchor<'static>>, TlsConfigError> {
    let certificates: Vec<CertificateDer<'_>> = pem_objects(setting, "CERTIFICATE", pem)?;
    let anchors = certificates.iter().enumerate().map(|(index, certificate)| {
        let anchor = anchor_from_trusted_cert(certificate);
        let malformed =
            |error| TlsConfigError::new(setting, format!("certificate {}: {error}", index + 1));
        anchor.map(|anchor| anchor.to_owned()).map_err(malformed)
    });
    anchors.collect()
}

/// A peer is on the list of denied ones.
#[derive(Debug, thiserror::Error)]
#[error("{name} is denied by the entry {entry}")]
struct DeniedError {
    name: Name,
    entry: DeniedPeer,
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

/// The error of rustls with the same meaning, from which it makes its alert and a text with both times.
fn certificate_error(error: webpki::Error) -> Error {
    let error = match error {
        webpki::Error::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        webpki::Error::CrlExpired { time, next_update } => {
            CertificateError::ExpiredRevocationListContext { time, next_update }
        }
        webpki::Error::CertRevoked => CertificateError::Revoked,
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        webpki::Error::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        webpki::Error::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        webpki::Error::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        error => return other(error),
    };
    Error::InvalidCertificate(error)
}

/// Returns this node's view of an error of rustls, with the alert that rustls sends for it.
pub(crate) fn tls_error(error: &Error) -> TlsError {
    let alert = match error {
        Error::AlertReceived(alert) => Alert(u8::from(*alert)),
        Error::InvalidCertificate(error) => Alert(AlertDescription::from(error.clone()).into()),
        Error::InvalidMessage(error) => Alert(AlertDescription::from(*error).into()),
        Error::NoCertificatesPresented => Alert::CERTIFICATE_REQUIRED,
        Error::NoApplicationProtocol => Alert::NO_APPLICATION_PROTOCOL,
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            Alert::UNEXPECTED_MESSAGE
        }
        Error::PeerIncompatible(
            PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::SupportedVersionsExtensionRequired,
        ) => Alert::PROTOCOL_VERSION,
        Error::PeerIncompatible(_) => Alert::HANDSHAKE_FAILURE,
        Error::PeerMisbehaved(_) => Alert::ILLEGAL_PARAMETER,
        Error::DecryptError => Alert::BAD_RECORD_MAC,
        _ => Alert::INTERNAL_ERROR,
    };
    let view = match error {
        // rustls would print the debug form of the error.
        Error::InvalidCertificate(CertificateError::Other(error)) => error.to_string(),
        error => error.to_string(),
    };
    TlsError { alert, from_peer: matches!(error, Error::AlertReceived(_)), view }
}
