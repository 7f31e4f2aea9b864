//! TLS 1.3 by rustls: the configurations of a node, and the sessions of its handshakes.
//!
//! | | |
//! | --- | --- |
//! | version | TLS 1.3 only |
//! | groups | X25519MLKEM768, then X25519 |
//! | application protocol | `apus/2`, required on both sides |
//! | certificates | required on both sides |
//! | tickets, early data, compression of certificates | none |

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, Error, ProtocolVersion, ServerConfig,
    ServerConnection,
};
use zeroize::Zeroizing;

use crate::Role;
use crate::handshake::failure::{Alert, TlsError};
use crate::handshake::sides::Tls;
use crate::identity::name::{Identity, Name};
use crate::identity::trust::{TlsConfigError, Trust, pem_objects, tls_error};

const PROTOCOL: &[u8] = b"apus/2";
const EXPORTER_LABEL: &[u8] = b"EXPERIMENTAL EXPORTER apus path";

/// The certificate and key of a node, with the certificates that it accepts. Sessions of handshakes are made from it.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    /// `None` if the program has its own verifiers.
    trust: Option<Arc<Trust>>,
    identity: Option<Arc<Identity>>,
}

impl TlsConfig {
    /// Creates the configuration of a node from its chain, its own certificate first, and its key, both in PEM. The key is
    /// PKCS#8, PKCS#1 or SEC1. `clock` gives the time by which certificates are valid, as
    /// [`DefaultTimeProvider`] does.
    ///
    /// # Errors
    ///
    /// A file is empty or malformed, the key does not belong to the certificate, or the certificate has no name.
    pub fn new(
        chain: &[u8],
        key: &[u8],
        trust: Arc<Trust>,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, TlsConfigError> {
        let chain: Vec<CertificateDer<'static>> = pem_objects("cert", "CERTIFICATE", chain)?;
        let identity = identity_of(&chain, &*clock, None)
            .map_err(|error| TlsConfigError::new("cert", error.view))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            TlsConfigError::new(
                "key",
                format!("{error}; allowed: a private key in PEM, best PKCS#8"),
            )
        })?;
        let provider = Arc::new(provider());
        let unusable = |error: Error| TlsConfigError::new("key", error);
        let server = ServerConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&clock))
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| {
                let config = config.with_client_cert_verifier(Arc::<Trust>::clone(&trust));
                config.with_single_cert(chain.clone(), key.clone_key())
            })
            .map_err(unusable)?;
        let client = ClientConfig::builder_with_details(provider, clock)
            .with_protocol_versions(&[&TLS13])
            .and_then(|config| {
                let verifier = Arc::<Trust>::clone(&trust);
                let config = config.dangerous().with_custom_certificate_verifier(verifier);
                config.with_client_auth_cert(chain, key)
            })
            .map_err(unusable)?;
        let config = Self::from_rustls(client, server)?;
        Ok(Self { trust: Some(trust), identity: Some(Arc::new(identity)), ..config })
    }

    /// Creates the configuration of a node as [`new`](Self::new) does, with the clock of the system.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn of_files(chain: &[u8], key: &[u8], trust: Arc<Trust>) -> Result<Self, TlsConfigError> {
        Self::new(chain, key, trust, Arc::new(DefaultTimeProvider))
    }

    /// Creates the configuration of a node from those of a program, for keys in hardware or verifiers of its own. The settings of
    /// the application protocol, tickets, early data and compression are replaced. rustls hides the versions of TLS and the
    /// demand for a client certificate, so each session checks that both sides have spoken TLS 1.3 and shown certificates.
    ///
    /// # Errors
    ///
    /// The client has no certificate.
    pub fn from_rustls(
        mut client: ClientConfig,
        mut server: ServerConfig,
    ) -> Result<Self, TlsConfigError> {
        if !client.client_auth_cert_resolver.has_certs() {
            return Err(TlsConfigError::new(
                "rustls",
                "the client's configuration has no certificate",
            ));
        }
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        //= docs/protocol.md#seal-8
        client.resumption = Resumption::disabled();
        client.send_ticket_request = None;
        client.enable_early_data = false;
        client.cert_compressors.clear();
        client.cert_decompressors.clear();
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        //= docs/protocol.md#seal-8
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_tls13_tickets = 0;
        server.max_early_data_size = 0;
        server.send_half_rtt_data = false;
        server.cert_compressors.clear();
        server.cert_decompressors.clear();
        Ok(Self { client: Arc::new(client), server: Arc::new(server), trust: None, identity: None })
    }

    /// Returns the node's own identity; `None` if the program has configured rustls itself.
    #[must_use]
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.identity.as_ref()
    }

    //= docs/protocol.md#seal-11
    /// Judges a peer again by the certificates that are accepted now, as its path was made by an earlier configuration. `role` is that
    /// of the peer in the handshake. Returns its identity, for the rules. This is public-key work. A program's own verifiers
    /// ([`from_rustls`](Self::from_rustls)) are not asked.
    ///
    /// # Errors
    ///
    /// The peer is no longer accepted, and its path must end.
    pub fn judge(&self, peer: &Identity, role: Role) -> Result<Identity, TlsError> {
        let Some(trust) = &self.trust else { return Ok(peer.clone()) };
        let now = self.client.time_provider.current_time();
        let now = now.ok_or_else(|| tls_error(&Error::FailedToGetCurrentTime))?;
        trust.judge(peer, role, Duration::from_secs(now.as_secs()))
    }

    /// Creates the session of a client. This is public-key work. `name` is the DNS name by which the address was found, which the
    /// server sees; the address itself is not sent. Neither is compared with the certificate ([`Rule`](crate::Rule) does that).
    ///
    /// # Errors
    ///
    /// rustls refuses the configuration, or has no random numbers.
    pub fn client_session(
        &self,
        name: Option<&Name>,
        address: IpAddr,
    ) -> Result<TlsSession, TlsError> {
        let name = name.and_then(|name| ServerName::try_from(name.as_str().to_owned()).ok());
        let name = name.unwrap_or_else(|| ServerName::from(address));
        let connection = ClientConnection::new(Arc::clone(&self.client), name);
        let connection = connection.map_err(|error| tls_error(&error))?.into();
        let clock = Arc::clone(&self.client.time_provider);
        Ok(TlsSession { connection, clock, trust: self.trust.clone() })
    }

    /// Creates the session of a server, without public-key work.
    ///
    /// # Errors
    ///
    /// rustls refuses the configuration.
    pub fn server_session(&self) -> Result<TlsSession, TlsError> {
        let connection = ServerConnection::new(Arc::clone(&self.server));
        let connection = connection.map_err(|error| tls_error(&error))?.into();
        let clock = Arc::clone(&self.server.time_provider);
        Ok(TlsSession { connection, clock, trust: self.trust.clone() })
    }
}

/// The TLS session of one handshake.
pub struct TlsSession {
    connection: Connection,
    clock: Arc<dyn TimeProvider>,
    trust: Option<Arc<Trust>>,
}

impl Tls for TlsSession {
    fn read(&mut self, mut records: &[u8]) -> Result<(), TlsError> {
        while !records.is_empty() {
            let length = self.connection.read_tls(&mut records).map_err(|error| {
                let alert = Alert::INTERNAL_ERROR;
                TlsError { alert, from_peer: false, view: error.to_string() }
            })?;
            self.connection.process_new_packets().map_err(|error| tls_error(&error))?;
            if length == 0 {
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, records: &mut Vec<u8>) {
        while self.connection.wants_write() {
            self.connection.write_tls(records).expect("a vector takes all bytes");
        }
    }

    fn is_complete(&self) -> bool {
        !self.connection.is_handshaking()
    }

    fn export(&mut self, context: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, TlsError> {
        let secret = Zeroizing::new([0; 32]);
        let exported =
            self.connection.export_keying_material(secret, EXPORTER_LABEL, Some(context));
        exported.map_err(|error| tls_error(&error))
    }

    fn peer(&self) -> Result<Arc<Identity>, TlsError> {
        if self.connection.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
            return Err(refused(Alert::PROTOCOL_VERSION, "the peer does not speak TLS 1.3"));
        }
        if self.connection.alpn_protocol() != Some(PROTOCOL) {
            return Err(refused(
                Alert::NO_APPLICATION_PROTOCOL,
                "the peer does not speak apus/2 over TLS",
            ));
        }
        let chain = self.connection.peer_certificates().unwrap_or_default();
        identity_of(chain, &*self.clock, self.trust.as_deref()).map(Arc::new)
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession")
            .field("is_complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}

fn provider() -> CryptoProvider {
    use aws_lc_rs::kx_group::{X25519, X25519MLKEM768};
    CryptoProvider { kx_groups: vec![X25519MLKEM768, X25519], ..aws_lc_rs::default_provider() }
}

fn identity_of(
    chain: &[CertificateDer<'_>],
    clock: &dyn TimeProvider,
    trust: Option<&Trust>,
) -> Result<Identity, TlsError> {
    if chain.is_empty() {
        return Err(refused(Alert::CERTIFICATE_REQUIRED, "the peer shows no certificate"));
    }
    let Some(now) = clock.current_time() else {
        return Err(tls_error(&Error::FailedToGetCurrentTime));
    };
    let chain = chain.iter().map(|certificate| certificate.to_vec()).collect();
    let now = Duration::from_secs(now.as_secs());
    let identity = match trust {
        Some(trust) => trust.identity(chain, now),
        None => Identity::from_chain(chain, now),
    };
    identity.map_err(|error| refused(Alert::BAD_CERTIFICATE, &error.to_string()))
}

fn refused(alert: Alert, view: &str) -> TlsError {
    TlsError { alert, from_peer: false, view: view.to_owned() }
}
