//! The certificate that both sides of a run show each other (`--tls`), and the authority by which they verify it.
//!
//! The variables `APUS_TLS_CERT`, `APUS_TLS_KEY` and `APUS_TLS_CA` name the files, so that nodes of Apus and the rivals have the
//! same ones in both processes.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The name of the server in its certificate, which clients verify. Nodes of Apus verify the address 127.0.0.1.
pub(crate) const SERVER_NAME: &str = "localhost";

/// The variables that name the files: the roots, the certificate and its key.
const VARIABLES: [&str; 3] = ["APUS_TLS_CA", "APUS_TLS_CERT", "APUS_TLS_KEY"];

/// The time for which a made certificate is valid: longer than any run.
const VALID: Duration = Duration::from_secs(24 * 3600);

/// A certificate with its key and the roots of the peer's certificate, in PEM.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) roots: String,
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Identity {
    /// Makes an authority, and a certificate of it for both sides. The key of the authority is forgotten.
    ///
    /// # Errors
    /// If no key can be made.
    pub(crate) fn made() -> Result<Self> {
        let authority_key = KeyPair::generate().context("cannot make a key")?;
        let mut authority = params("apus-rivals authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let roots = authority.self_signed(&authority_key).context("cannot sign")?.pem();
        let mut leaf = params(SERVER_NAME);
        leaf.subject_alt_names = vec![
            SanType::DnsName(SERVER_NAME.try_into()?),
            SanType::IpAddress([127, 0, 0, 1].into()),
        ];
        leaf.use_authority_key_identifier_extension = true;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().context("cannot make a key")?;
        let chain = leaf.signed_by(&key, &Issuer::new(authority, authority_key));
        let chain = chain.context("cannot sign")?.pem();
        Ok(Self { roots, chain, key: key.serialize_pem() })
    }

    /// Writes the files into a directory. Returns the variables that name them.
    ///
    /// # Errors
    /// If a file exists or cannot be written.
    pub(crate) fn write(&self, directory: &Path) -> Result<[(&'static str, PathBuf); 3]> {
        let files = ["ca.pem", "both.pem", "both.key"].map(|name| directory.join(name));
        for (file, text) in files.iter().zip([&self.roots, &self.chain, &self.key]) {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(file)
                .and_then(|mut opened| opened.write_all(text.as_bytes()))
                .with_context(|| format!("cannot write '{}'", file.display()))?;
        }
        let [roots, chain, key] = files;
        let [names_roots, names_chain, names_key] = VARIABLES;
        Ok([(names_roots, roots), (names_chain, chain), (names_key, key)])
    }

    /// TLS of a client that shows the certificate and verifies the server's.
    ///
    /// # Errors
    /// If the PEM is malformed.
    pub(crate) fn client(&self) -> Result<ClientConfig> {
        let (chain, key) = self.shown()?;
        Ok(ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(self.trusted()?)
            .with_client_auth_cert(chain, key)?)
    }

    /// TLS of a server that shows the certificate and refuses clients without one of the same authority.
    ///
    /// # Errors
    /// If the PEM is malformed.
    pub(crate) fn server(&self) -> Result<ServerConfig> {
        let (chain, key) = self.shown()?;
        let roots = Arc::new(self.trusted()?);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::new(provider())).build()?;
        Ok(ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?)
    }

    fn shown(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let chain = chain.collect::<Result<_, _>>().context("the certificate")?;
        Ok((chain, PrivateKeyDer::from_pem_slice(self.key.as_bytes()).context("the key")?))
    }

    fn trusted(&self) -> Result<RootCertStore> {
        let mut store = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(self.roots.as_bytes()) {
            store.add(root.context("a root")?)?;
        }
        Ok(store)
    }
}

/// Whether the environment names a certificate, which all sides then show.
pub(crate) fn is_named() -> bool {
    VARIABLES.iter().any(|name| env::var_os(name).is_some())
}

/// The identity of this process: in a test a new one, otherwise the one that the environment names.
///
/// # Errors
/// If a variable is missing, or its file cannot be read.
pub(crate) fn ours() -> Result<&'static Identity> {
    static OURS: OnceLock<Identity> = OnceLock::new();
    if let Some(ours) = OURS.get() {
        return Ok(ours);
    }
    let ours = if cfg!(test) { Identity::made()? } else { named()? };
    // tonic has no setting for its provider.
    let _ = provider().install_default();
    Ok(OURS.get_or_init(|| ours))
}

fn named() -> Result<Identity> {
    let read = |name| {
        let file = env::var_os(name).with_context(|| format!("{name} is not set"))?;
        fs::read_to_string(&file).with_context(|| format!("cannot read '{}'", file.display()))
    };
    let [roots, chain, key] = VARIABLES.map(read);
    Ok(Identity { roots: roots?, chain: chain?, key: key? })
}

/// The cryptography of Apus (aws-lc), with the cipher that Apus prefers. rustls prefers AES-256-GCM, which is slower.
pub(crate) fn provider() -> CryptoProvider {
    let cipher_suites = vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
    CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() }
}

fn params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_secs());
    // Clocks of two processes on one machine agree, but an hour is usual.
    (params.not_before, params.not_after) = (now - Duration::from_secs(3600), now + VALID);
    params
}
