//! An authority, certificates in files, and nodes that have them.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use apus::{Config, Links, Node};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

/// A directory with the certificates of an authority. Removed when dropped.
pub(crate) struct Authority {
    directory: PathBuf,
    /// The first name of each certificate, by its serial number less one.
    issued: Mutex<Vec<String>>,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("apus-certificates-{}-{number}", std::process::id());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
        let _ = fs::remove_dir_all(&directory); // Of a killed process with the same number.
        fs::create_dir_all(&directory).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, &name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.join("ca.pem"), issuer.pem()).unwrap();
        Self { directory, issued: Mutex::default(), issuer }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Writes the certificate and the key of a node. The first name is that of the files.
    pub(crate) fn issue(&self, file: &str, names: &[&str], last_year: i32) {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2025, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        self.sign(file, names, params);
    }

    /// As [`issue`](Self::issue), with a certificate that expires in `left` seconds and is valid for `life` seconds.
    pub(crate) fn issue_for(&self, file: &str, names: &[&str], left: u64, life: u64) {
        let end = SystemTime::now() + Duration::from_secs(left);
        let mut params = CertificateParams::default();
        params.not_before = (end - Duration::from_secs(life)).into();
        params.not_after = end.into();
        self.sign(file, names, params);
    }

    fn sign(&self, file: &str, names: &[&str], mut params: CertificateParams) {
        let name = |name: &&str| match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains("://") => SanType::URI((*name).try_into().unwrap()),
            Err(_) => SanType::DnsName((*name).try_into().unwrap()),
        };
        params.subject_alt_names = names.iter().map(name).collect();
        let mut issued = self.issued.lock().unwrap();
        issued.push(names[0].to_owned());
        params.serial_number = Some(SerialNumber::from(issued.len() as u64));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let certificate = params.signed_by(&key, issuer).unwrap();
        fs::write(self.path(&format!("{file}.pem")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    /// The serial number of the certificate with this name.
    pub(crate) fn serial(&self, name: &str) -> u64 {
        let issued = self.issued.lock().unwrap();
        issued.iter().position(|known| known == name).unwrap() as u64 + 1
    }

    /// Writes a revocation list.
    pub(crate) fn revoke(&self, serials: &[u64]) {
        let revoked = |&serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2025, 6, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 6, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        fs::write(self.path("crl.pem"), list.pem().unwrap()).unwrap();
    }

    /// The configuration of a node with the certificate of these files, which trusts this authority.
    pub(crate) fn config(&self, file: &str) -> Config {
        let mut config = Config::new();
        config.listen("127.0.0.1:0".parse().unwrap()).link(Links::Udp);
        self.apply(&mut config, file);
        config
    }

    /// Adds the certificate of these files to a configuration.
    pub(crate) fn apply(&self, config: &mut Config, file: &str) {
        config.tls_cert(Some(self.path(&format!("{file}.pem"))));
        config.tls_key(Some(self.path(&format!("{file}.key"))));
        config.tls_ca(vec![self.path("ca.pem")]);
    }

    /// A node whose certificate has these names.
    pub(crate) fn node(&self, file: &str, names: &[&str]) -> Node {
        self.issue(file, names, 2100);
        Node::start(&self.config(file)).unwrap()
    }
}

/// The authority of all nodes of this process, with the certificate `node`. Its files stay in the target directory.
pub(crate) fn shared() -> &'static Authority {
    static SHARED: OnceLock<Authority> = OnceLock::new();
    SHARED.get_or_init(|| {
        let authority = Authority::new();
        authority.issue("node", &["spiffe://example.org/test", "localhost", "127.0.0.1"], 2100);
        authority
    })
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
