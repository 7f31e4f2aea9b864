//! The authority that signs the certificates of a directory.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, date_time_ymd,
};
use x509_parser::parse_x509_certificate;
use x509_parser::pem::parse_x509_pem;

/// The trust domain of the certificates, and the end of their DNS names. No real name ends in `.invalid` (RFC 6761).
const DOMAIN: &str = "dev.apus.invalid";

/// The names of a node's certificate.
pub(super) struct Leaf {
    pub(super) spiffe_id: String,
    pub(super) dns_name: String,
    pub(super) addresses: Vec<IpAddr>,
}

impl Leaf {
    /// The certificate of `name` has the loopback addresses and `addresses`, each once.
    pub(super) fn new(name: &str, addresses: &[IpAddr]) -> Self {
        let mut all = vec![IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        for address in addresses {
            if !all.contains(address) {
                all.push(*address);
            }
        }
        Self {
            spiffe_id: format!("spiffe://{DOMAIN}/{name}"),
            dns_name: format!("{name}.{DOMAIN}"),
            addresses: all,
        }
    }

    fn params(&self, from: SystemTime, until: SystemTime) -> Result<CertificateParams> {
        let names = [
            SanType::URI(self.spiffe_id.as_str().try_into()?),
            SanType::DnsName(self.dns_name.as_str().try_into()?),
        ];
        let addresses = self.addresses.iter().map(|&address| SanType::IpAddress(address));
        let mut params = params(&self.dns_name, from, until);
        params.subject_alt_names = names.into_iter().chain(addresses).collect();
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params)
    }
}

/// An authority with its key.
pub(super) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority.
    ///
    /// # Errors
    /// When no key can be made.
    pub(super) fn new(from: SystemTime, until: SystemTime) -> Result<Self> {
        let key = KeyPair::generate().context("cannot make a key")?;
        // Authorities of several runs have different names, so that errors and revocation lists name one.
        let number: String = key
            .subject_public_key_info()
            .iter()
            .rev()
            .take(4)
            .map(|it| format!("{it:02x}"))
            .collect();
        let mut params = params(&format!("apus dev-certs {number}"), from, until);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).context("cannot sign the authority")?;
        Ok(Self { pem: certificate.pem(), issuer: Issuer::new(params, key) })
    }

    /// Reads the authority that an earlier run has kept. `None`: there is no authority yet.
    ///
    /// # Errors
    /// When one of its two files is missing or malformed, when they do not fit together, or when it expires before `until`.
    pub(super) fn kept(cert: &Path, key: &Path, until: SystemTime) -> Result<Option<Self>> {
        match [cert, key].map(|path| path.symlink_metadata().is_ok()) {
            [false, false] => return Ok(None),
            [true, false] => bail!(
                "'{}' exists, and its key was thrown away: name another directory, or make one with --keep-ca to add names later",
                cert.display()
            ),
            [false, true] => {
                bail!("'{}' exists without ca.pem: name another directory", key.display())
            }
            [true, true] => {}
        }
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("cannot read '{}'", path.display()))
        };
        let (pem, key_pem) = (read(cert)?, read(key)?);
        let key_pair = KeyPair::from_pem(&key_pem);
        let key_pair =
            key_pair.with_context(|| format!("'{}' is no private key", key.display()))?;
        check(&pem, &key_pair, until).with_context(|| format!("'{}'", cert.display()))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key_pair);
        let issuer = issuer.with_context(|| format!("'{}' is no certificate", cert.display()))?;
        Ok(Some(Self { pem, issuer }))
    }

    /// The certificate.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    pub(super) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Makes the certificate and the key of a node.
    ///
    /// # Errors
    /// When no key can be made.
    pub(super) fn sign(
        &self,
        leaf: &Leaf,
        from: SystemTime,
        until: SystemTime,
    ) -> Result<(String, String)> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let certificate = leaf.params(from, until)?.signed_by(&key, &self.issuer);
        let certificate = certificate
            .with_context(|| format!("cannot sign the certificate of {}", leaf.dns_name))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// Checks that a kept authority has this key, and lives long enough.
fn check(pem: &str, key: &KeyPair, until: SystemTime) -> Result<()> {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).map_err(|_| anyhow!("it is not PEM"))?;
    let parsed = parse_x509_certificate(&pem.contents);
    let (_, certificate) = parsed.map_err(|_| anyhow!("it is no certificate"))?;
    ensure!(
        certificate.public_key().raw == key.subject_public_key_info(),
        "ca.key is the key of another certificate"
    );
    let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end);
    ensure!(
        until <= end,
        "the authority expires at {}, before its certificates would: fewer --days, or another directory",
        humantime::format_rfc3339_seconds(end)
    );
    Ok(())
}

/// The parts that all certificates have.
fn params(common_name: &str, from: SystemTime, until: SystemTime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    let time = |time: SystemTime| {
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        date_time_ymd(1970, 1, 1) + Duration::from_secs(since_1970.as_secs())
    };
    (params.not_before, params.not_after) = (time(from), time(until));
    params
}
