//! Certificates for tests, valid from 2025 to 2027, and a clock that stands in 2026.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// 1 January 2026.
pub(crate) const NOW: Duration = Duration::from_secs(1_767_225_600);

/// A clock that stands.
#[derive(Debug)]
pub(crate) struct Clock(pub Duration);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.0))
    }
}

pub(crate) fn clock() -> Arc<Clock> {
    Arc::new(Clock(NOW))
}

/// A certificate and its key in PEM. The chain has the intermediates too.
pub(crate) struct Pem {
    pub chain: String,
    pub key: String,
}

/// Names and times of a certificate to be made.
#[derive(Clone)]
pub(crate) struct Leaf {
    pub names: Vec<SanType>,
    pub serial: u64,
    pub years: (i32, i32),
    pub usages: Vec<ExtendedKeyUsagePurpose>,
}

impl Leaf {
    /// URIs begin with `spiffe:`; the others are DNS names or IP addresses.
    pub(crate) fn new(names: &[&str]) -> Self {
        let name = |name: &&str| match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains("://") => SanType::URI((*name).try_into().expect("ASCII")),
            Err(_) => SanType::DnsName((*name).try_into().expect("ASCII")),
        };
        Self {
            names: names.iter().map(name).collect(),
            serial: 1_000,
            years: (2025, 2027),
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        }
    }
}

/// An authority: a root, or an intermediate with the certificates above it except the root.
pub(crate) struct Ca {
    pub issuer: CertifiedIssuer<'static, KeyPair>,
    above: String,
}

#[allow(dead_code, reason = "each test uses a part")]
impl Ca {
    pub(crate) fn root(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(authority(name, 2035), key).expect("a root");
        Self { issuer, above: String::new() }
    }

    /// An intermediate that is valid until the beginning of a year.
    pub(crate) fn intermediate(&self, name: &str, until: i32) -> Self {
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::signed_by(authority(name, until), key, &self.issuer)
            .expect("an authority");
        let above = issuer.pem() + &self.above;
        Self { issuer, above }
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.issuer.pem().into_bytes()
    }

    pub(crate) fn leaf(&self, names: &[&str]) -> Pem {
        self.issue(&Leaf::new(names))
    }

    pub(crate) fn issue(&self, leaf: &Leaf) -> Pem {
        let mut params = CertificateParams::default();
        params.subject_alt_names.clone_from(&leaf.names);
        params.serial_number = Some(SerialNumber::from(leaf.serial));
        params.not_before = date_time_ymd(leaf.years.0, 1, 1);
        params.not_after = date_time_ymd(leaf.years.1, 1, 1);
        params.extended_key_usages.clone_from(&leaf.usages);
        let key = KeyPair::generate().expect("a key");
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        Pem { chain: certificate.pem() + &self.above, key: key.serialize_pem() }
    }

    /// A revocation list that is valid until the beginning of a year.
    pub(crate) fn revoke(&self, serials: &[u64], until: i32) -> Vec<u8> {
        let revoked = |&serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2025, 6, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 6, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).expect("a list").pem().expect("PEM").into_bytes()
    }
}

fn authority(name: &str, until: i32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2025, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    params
}
