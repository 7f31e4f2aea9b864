//! The facts of an X.509 certificate that identities and rules need: names, serial number, issuer, validity.
//!
//! This reader verifies nothing. Signatures, usage and constraints are verified by webpki over the same bytes; it reads strictly,
//! so that the two never see different names. webpki shows neither validity nor IP addresses, and an X.509 parser for all
//! extensions would bring more than a dozen crates.

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

use crate::identity::name::{Identity, Name, NameError, is_spiffe};

/// The most names in a certificate.
pub const NAMES_MAX: usize = 256;

/// The bits of a first byte whose tag continues in further bytes. No field here has such a tag.
const LONG_TAG: u8 = 0x1f;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const CERTIFICATE_VERSION: u8 = 0xa0;
const ISSUER_ID: u8 = 0x81;
const SUBJECT_ID: u8 = 0x82;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;

const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The cause for which a certificate gives no identity.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A field is not valid DER, or not as RFC 5280 wants it.
    #[error("the certificate is malformed at its {0}")]
    Malformed(&'static str),
    /// There is no certificate.
    #[error("no certificate is presented")]
    Missing,
    /// More than one URI: a SPIFFE certificate has exactly one.
    #[error("the certificate has {0} URIs; one is allowed")]
    TwoUris(usize),
    /// No name fits.
    #[error("the certificate has neither a SPIFFE id nor a DNS name without wildcard")]
    NoName,
    /// More than [`NAMES_MAX`] names.
    #[error("the certificate has more than {NAMES_MAX} names")]
    TooManyNames,
    /// The SPIFFE id has a syntax error.
    #[error("{0}")]
    Name(#[from] NameError),
}

impl Identity {
    /// Returns the identity in a chain of certificates in DER, that of the node first. The chain must have been verified.
    ///
    /// `now` is the time since 1970. Certificates that are not valid then were no part of the verified path, since a peer may
    /// send more certificates than the path needs, and do not limit the validity.
    ///
    /// # Errors
    ///
    /// [`CertificateError`].
    pub fn from_chain(chain: Vec<Vec<u8>>, now: Duration) -> Result<Self, CertificateError> {
        let leaf = Certificate::parse(chain.first().ok_or(CertificateError::Missing)?)?;
        //= docs/protocol.md#seal-5
        let (mut not_before, mut not_after) = (leaf.not_before, leaf.not_after);
        for issuer in &chain[1..] {
            let issuer = Certificate::parse(issuer)?;
            if (issuer.not_before..=issuer.not_after).contains(&now) {
                not_before = not_before.max(issuer.not_before);
                not_after = not_after.min(issuer.not_after);
            }
        }
        Ok(Self {
            name: leaf.name()?,
            dns_names: leaf.dns_names.clone(),
            addresses: leaf.addresses.clone(),
            serial: leaf.serial.to_vec(),
            issuer: leaf.issuer.to_owned(),
            not_before,
            not_after,
            chain,
        })
    }
}

/// One certificate.
#[derive(Debug)]
struct Certificate<'a> {
    serial: &'a [u8],
    issuer: &'a str,
    not_before: Duration,
    not_after: Duration,
    uris: Vec<&'a str>,
    dns_names: Vec<Name>,
    addresses: Vec<IpAddr>,
}

impl<'a> Certificate<'a> {
    fn parse(der: &'a [u8]) -> Result<Self, CertificateError> {
        let mut outer = Der(Der::whole(der, SEQUENCE, "envelope")?);
        let mut fields = Der(outer.expect(SEQUENCE, "body")?);
        if fields.next_is(CERTIFICATE_VERSION) {
            fields.expect(CERTIFICATE_VERSION, "version")?;
        }
        let serial = fields.expect(INTEGER, "serial number")?;
        fields.expect(SEQUENCE, "signature algorithm")?;
        let issuer = fields.expect(SEQUENCE, "issuer")?;
        let mut validity = Der(fields.expect(SEQUENCE, "validity")?);
        let (not_before, not_after) = (time(&mut validity)?, time(&mut validity)?);
        validity.end("validity")?;
        fields.expect(SEQUENCE, "subject")?;
        fields.expect(SEQUENCE, "public key")?;
        for id in [ISSUER_ID, SUBJECT_ID] {
            if fields.next_is(id) {
                fields.expect(id, "unique id")?;
            }
        }
        let mut certificate = Self {
            serial,
            issuer: common_name(issuer)?,
            not_before,
            not_after,
            uris: Vec::new(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
        };
        if fields.next_is(EXTENSIONS) {
            let extensions = fields.expect(EXTENSIONS, "extensions")?;
            certificate.read_extensions(Der::whole(extensions, SEQUENCE, "extensions")?)?;
        }
        fields.end("body")?;
        outer.expect(SEQUENCE, "signature algorithm")?;
        outer.expect(BIT_STRING, "signature")?;
        outer.end("envelope")?;
        Ok(certificate)
    }

    //= docs/protocol.md#seal-5
    /// Returns the SPIFFE id, else the first DNS name.
    fn name(&self) -> Result<Name, CertificateError> {
        match *self.uris {
            [uri] if is_spiffe(uri) => Ok(Name::spiffe(uri)?),
            [] | [_] => self.dns_names.first().cloned().ok_or(CertificateError::NoName),
            ref uris => Err(CertificateError::TwoUris(uris.len())),
        }
    }

    fn read_extensions(&mut self, bytes: &'a [u8]) -> Result<(), CertificateError> {
        let mut extensions = Der(bytes);
        let mut has_names = false;
        while !extensions.0.is_empty() {
            let mut extension = Der(extensions.expect(SEQUENCE, "extension")?);
            let id = extension.expect(OBJECT_ID, "extension")?;
            if extension.next_is(BOOLEAN) {
                extension.expect(BOOLEAN, "extension")?;
            }
            let value = extension.expect(OCTET_STRING, "extension")?;
            extension.end("extension")?;
            if id == SUBJECT_ALT_NAME {
                if has_names {
                    return Err(CertificateError::Malformed("second list of names"));
                }
                has_names = true;
                self.read_names(Der::whole(value, SEQUENCE, "names")?)?;
            }
        }
        Ok(())
    }

    fn read_names(&mut self, bytes: &'a [u8]) -> Result<(), CertificateError> {
        let mut names = Der(bytes);
        let mut count = 0;
        while !names.0.is_empty() {
            count += 1;
            if count > NAMES_MAX {
                return Err(CertificateError::TooManyNames);
            }
            let (kind, value) = names.read("names")?;
            match kind {
                URI => self.uris.push(ascii(value, "URI")?),
                // Names with a wildcard name no node, and other malformed ones match no pattern.
                DNS_NAME => self.dns_names.extend(Name::dns(ascii(value, "DNS name")?)),
                IP_ADDRESS => self.addresses.push(address(value)?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the first common name in a distinguished name; "" if there is none, or if it is not UTF-8.
fn common_name(name: &[u8]) -> Result<&str, CertificateError> {
    const PART: &str = "issuer";
    let mut sets = Der(name);
    while !sets.0.is_empty() {
        let mut set = Der(sets.expect(SET, PART)?);
        while !set.0.is_empty() {
            let mut attribute = Der(set.expect(SEQUENCE, PART)?);
            let id = attribute.expect(OBJECT_ID, PART)?;
            let (_, value) = attribute.read(PART)?;
            if id == COMMON_NAME {
                return Ok(str::from_utf8(value).unwrap_or_default());
            }
        }
    }
    Ok("")
}

fn ascii<'a>(value: &'a [u8], part: &'static str) -> Result<&'a str, CertificateError> {
    let text = str::from_utf8(value).ok().filter(|text| text.is_ascii());
    text.ok_or(CertificateError::Malformed(part))
}

fn address(value: &[u8]) -> Result<IpAddr, CertificateError> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Ok(v4.into());
    }
    let v6: [u8; 16] = value.try_into().map_err(|_| CertificateError::Malformed("IP address"))?;
    Ok(v6.into())
}

/// Reads a time of a certificate: `YYMMDDHHMMSSZ` until 2049, and `YYYYMMDDHHMMSSZ` (RFC 5280, section 4.1.2.5). A time before
/// 1970 counts as 1970.
fn time(fields: &mut Der<'_>) -> Result<Duration, CertificateError> {
    let malformed = || CertificateError::Malformed("validity");
    let (tag, text) = fields.read("validity")?;
    let digits = text.strip_suffix(b"Z").ok_or_else(malformed)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(malformed());
    }
    let number =
        |digits: &[u8]| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2]);
            (if year < 50 { 2000 + year } else { 1900 + year }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return Err(malformed()),
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    let is_date = matches!((month, day), (1..=12, 1..=31));
    if !is_date || hour > 23 || minute > 59 || second > 59 {
        return Err(malformed());
    }
    let days = days_since_1970(year, month, day);
    Ok(Duration::from_secs(((days * 24 + hour) * 60 + minute) * 60 + second))
}

/// Days of the Gregorian calendar. The year is counted from March, so that the leap day is its last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    /// From 1 March of the year 0 to 1 January 1970.
    const EPOCH: u64 = 719_468;
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.saturating_sub(1), month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    (year * 365 + leap_days + (153 * month + 2) / 5 + day - 1).saturating_sub(EPOCH)
}

/// Elements of DER that are left to read.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Reads bytes that are one element with this tag.
    fn whole(bytes: &'a [u8], tag: u8, part: &'static str) -> Result<&'a [u8], CertificateError> {
        let mut der = Der(bytes);
        let content = der.expect(tag, part)?;
        der.end(part)?;
        Ok(content)
    }

    fn next_is(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    fn expect(&mut self, tag: u8, part: &'static str) -> Result<&'a [u8], CertificateError> {
        match self.read(part)? {
            (found, content) if found == tag => Ok(content),
            _ => Err(CertificateError::Malformed(part)),
        }
    }

    /// Reads the next element: its tag of one byte, its length in the shortest form and of at most 65,535, and its content.
    fn read(&mut self, part: &'static str) -> Result<(u8, &'a [u8]), CertificateError> {
        let (tag, length, rest) = match *self.0 {
            [tag, length @ 0..=0x7f, ref rest @ ..] => (tag, usize::from(length), rest),
            [tag, 0x81, length @ 0x80..=0xff, ref rest @ ..] => (tag, usize::from(length), rest),
            [tag, 0x82, high @ 1..=0xff, low, ref rest @ ..] => {
                (tag, usize::from(u16::from_be_bytes([high, low])), rest)
            }
            _ => return Err(CertificateError::Malformed(part)),
        };
        let split = rest.split_at_checked(length).filter(|_| tag & LONG_TAG != LONG_TAG);
        let (content, rest) = split.ok_or(CertificateError::Malformed(part))?;
        self.0 = rest;
        Ok((tag, content))
    }

    fn end(&self, part: &'static str) -> Result<(), CertificateError> {
        if self.0.is_empty() { Ok(()) } else { Err(CertificateError::Malformed(part)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<u64> {
        let mut bytes = vec![tag, u8::try_from(text.len()).expect("short")];
        bytes.extend_from_slice(text.as_bytes());
        time(&mut Der(&bytes)).ok().map(|time| time.as_secs())
    }

    #[test]
    fn times_count_from_1970() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229120001Z", Some(951_825_601)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(0)),
            (GENERALIZED_TIME, "20261127141209Z", Some(1_795_788_729)),
            (GENERALIZED_TIME, "21000301000000Z", Some(4_107_542_400)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (GENERALIZED_TIME, "00000101000000Z", Some(0)),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "700100000000Z", None),
            (UTC_TIME, "700101240000Z", None),
            (UTC_TIME, "700101000000+", None),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "20261127141209Z", None),
        ] {
            assert_eq!(seconds(tag, text), expected, "{text}");
        }
    }

    #[test]
    fn lengths_of_der_are_in_their_shortest_form() {
        let read = |bytes: &[u8]| Der(bytes).read("").map(|(_, content)| content.len()).ok();
        assert_eq!(read(&[4, 1, 9]), Some(1));
        assert_eq!(read(&[4, 0x81, 1, 9]), None);
        assert_eq!(read(&[&[4, 0x81, 200][..], &[0; 200]].concat()), Some(200));
        assert_eq!(read(&[&[4, 0x82, 0, 200][..], &[0; 200]].concat()), None);
        assert_eq!(read(&[&[4, 0x82, 1, 0][..], &[0; 256]].concat()), Some(256));
        assert_eq!(read(&[&[4, 0x82, 1, 0][..], &[0; 255]].concat()), None);
        assert_eq!(read(&[4, 0x80, 0, 0]), None);
        assert_eq!(read(&[4]), None);
        assert_eq!(read(&[0x1f, 1, 9]), None);
    }
}
