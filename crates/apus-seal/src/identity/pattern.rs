//! Rules: patterns of the peers that a socket serves or calls, and the list of peers that are denied.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

use crate::identity::name::{Identity, Name, SPIFFE_MAX, is_spiffe};

/// The most patterns in a rule, and entries in a list of denied peers.
pub const PATTERNS_MAX: usize = 4_096;

const ALLOWED: &str =
    "spiffe://DOMAIN/PATH, spiffe://DOMAIN/PREFIX/*, NAME, *.DOMAIN, an IP address, any, plain";
const ALLOWED_DENY: &str = "spiffe://DOMAIN/PATH, spiffe://DOMAIN/PREFIX/*, NAME, *.DOMAIN, an IP address, serial:HEX@ISSUER";

//= docs/protocol.md#seal-6
/// A set of peers. Its text is that of the settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// `any`: every peer with a certificate of the configured roots.
    Any,
    /// `plain`: peers without identity.
    Plain,
    /// `spiffe://example.org/kv/1` or `kv.example.org`: the peer whose SPIFFE id, or one of whose DNS names, is this.
    Name(Name),
    /// `spiffe://example.org/kv/*`: every SPIFFE id with one or more segments below this one; the text ends with `/`.
    SpiffeBelow(Box<str>),
    /// `*.kv.example.org`: every DNS name with one or more labels below this one; the text begins with `.`.
    DnsBelow(Box<str>),
    /// `10.0.0.2`: the peer whose certificate has this IP address.
    Address(IpAddr),
}

impl Pattern {
    /// Returns whether the pattern contains the peer; `None` is a peer without identity.
    #[must_use]
    pub fn admits(&self, peer: Option<&Identity>) -> bool {
        let Some(peer) = peer else { return *self == Self::Plain };
        match self {
            Self::Any => true,
            Self::Plain => false,
            Self::Name(name) => *name == peer.name || peer.dns_names.contains(name),
            Self::SpiffeBelow(prefix) => peer.name.as_str().starts_with(&**prefix),
            Self::DnsBelow(suffix) => {
                peer.dns_names.iter().any(|name| name.as_str().ends_with(&**suffix))
            }
            Self::Address(address) => peer.addresses.contains(address),
        }
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let error = |cause: String| PatternError { text: text.to_owned(), cause, allowed: ALLOWED };
        // In any case of letters: `Plain` would be a DNS name otherwise.
        match &*text.to_ascii_lowercase() {
            "any" => return Ok(Self::Any),
            "plain" => return Ok(Self::Plain),
            _ => {}
        }
        if text.len() > SPIFFE_MAX {
            return Err(error(format!("it is longer than {SPIFFE_MAX} bytes")));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if let Some(name) = text.strip_prefix("*.") {
            let name = Name::dns(name).map_err(|name| error(name.to_string()))?;
            return Ok(Self::DnsBelow(format!(".{name}").into()));
        }
        if let Some(name) = text.strip_suffix("/*").filter(|_| is_spiffe(text)) {
            let name = Name::spiffe(name).map_err(|name| error(name.to_string()))?;
            return Ok(Self::SpiffeBelow(format!("{name}/").into()));
        }
        Name::parse(text).map(Self::Name).map_err(|name| error(name.to_string()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Plain => f.write_str("plain"),
            Self::Name(name) => name.fmt(f),
            Self::SpiffeBelow(prefix) => write!(f, "{prefix}*"),
            Self::DnsBelow(suffix) => write!(f, "*{suffix}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A text is not a pattern.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text:?} is not a pattern: {cause}; allowed: {allowed}")]
pub struct PatternError {
    /// The refused text.
    pub text: String,
    /// What is wrong with it.
    pub cause: String,
    /// The forms that are allowed.
    pub allowed: &'static str,
}

//= docs/protocol.md#seal-6
/// The peers that a socket serves or calls: a union of patterns. An empty rule admits nobody.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rule(Vec<Pattern>);

impl Rule {
    /// The rule of a service without one: every peer with a certificate of the configured roots.
    #[must_use]
    pub fn of_service() -> Self {
        Self(vec![Pattern::Any])
    }

    /// The rule of a client without one: the server has the DNS name by which its address was found, or has the address itself,
    /// or is one of `servers`.
    #[must_use]
    pub fn of_client(dns_name: Option<&Name>, address: IpAddr, servers: &Self) -> Self {
        let name = dns_name.cloned().map(Pattern::Name);
        let address = Pattern::Address(address.to_canonical());
        Self(name.into_iter().chain([address]).chain(servers.0.iter().cloned()).collect())
    }

    /// Parses patterns.
    ///
    /// # Errors
    ///
    /// [`PatternError`] of the first text that is none, or if there are more than [`PATTERNS_MAX`].
    pub fn parse<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, PatternError> {
        parse_list(patterns, ALLOWED).map(Self)
    }

    /// Returns whether the rule admits the peer; `None` is a peer without identity.
    #[must_use]
    pub fn admits(&self, peer: Option<&Identity>) -> bool {
        self.0.iter().any(|pattern| pattern.admits(peer))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.0.iter().enumerate() {
            write!(f, "{}{pattern}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

//= docs/protocol.md#seal-11
/// The peers that are denied although their certificates are valid.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Denied(Vec<DeniedPeer>);

/// An entry of [`Denied`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeniedPeer {
    /// Every peer of a pattern.
    Pattern(Pattern),
    /// `serial:4F:A1@Example CA`: one certificate, by its serial number and the common name of its issuer.
    Certificate {
        /// The serial number without leading zeros.
        serial: Vec<u8>,
        /// The common name of the issuer.
        issuer: String,
    },
}

impl Denied {
    /// Parses entries: patterns of names and addresses, or `serial:HEX@ISSUER`, where ISSUER is the common name of the issuer.
    ///
    /// # Errors
    ///
    /// [`PatternError`] of the first text that is neither, or if there are more than [`PATTERNS_MAX`].
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, PatternError> {
        parse_list(entries, ALLOWED_DENY).map(Self)
    }

    /// Returns the entry that denies the peer.
    #[must_use]
    pub fn entry(&self, peer: &Identity) -> Option<&DeniedPeer> {
        self.0.iter().find(|entry| match entry {
            DeniedPeer::Pattern(pattern) => pattern.admits(Some(peer)),
            DeniedPeer::Certificate { serial, issuer } => {
                serial == without_zeros(&peer.serial) && *issuer == peer.issuer
            }
        })
    }
}

impl FromStr for DeniedPeer {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let error = |cause: &str| PatternError {
            text: text.to_owned(),
            cause: cause.to_owned(),
            allowed: ALLOWED_DENY,
        };
        let Some(certificate) = text.strip_prefix("serial:") else {
            return match text.parse() {
                Ok(Pattern::Any | Pattern::Plain) => {
                    Err(error("'any' and 'plain' cannot be denied"))
                }
                Ok(pattern) => Ok(Self::Pattern(pattern)),
                Err(pattern) => Err(PatternError { allowed: ALLOWED_DENY, ..pattern }),
            };
        };
        let (serial, issuer) =
            certificate.split_once('@').ok_or_else(|| error("the issuer is missing"))?;
        let serial =
            hex(serial).ok_or_else(|| error("the serial number is not of hexadecimal digits"))?;
        Ok(Self::Certificate { serial: without_zeros(&serial).to_vec(), issuer: issuer.to_owned() })
    }
}

impl fmt::Display for DeniedPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(pattern) => pattern.fmt(f),
            Self::Certificate { serial, issuer } => {
                f.write_str("serial:")?;
                serial.iter().try_for_each(|byte| write!(f, "{byte:02X}"))?;
                write!(f, "@{issuer}")
            }
        }
    }
}

fn parse_list<'a, T: FromStr<Err = PatternError>>(
    texts: impl IntoIterator<Item = &'a str>,
    allowed: &'static str,
) -> Result<Vec<T>, PatternError> {
    let mut entries = Vec::new();
    for text in texts {
        if entries.len() == PATTERNS_MAX {
            let cause = format!("the list has more than {PATTERNS_MAX} entries");
            return Err(PatternError { text: text.to_owned(), cause, allowed });
        }
        entries.push(text.parse()?);
    }
    Ok(entries)
}

/// Reads digits as `openssl x509 -serial` and browsers print them, with or without colons.
fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b':').collect();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// Leading zeros differ between programs. One byte always stays.
fn without_zeros(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|&&byte| byte == 0).count();
    &serial[zeros.min(serial.len().saturating_sub(1))..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, dns_names: &[&str], addresses: &[&str]) -> Identity {
        let dns_names = dns_names.iter().map(|name| Name::dns(name).expect("a DNS name"));
        Identity {
            dns_names: dns_names.collect(),
            addresses: addresses.iter().map(|text| text.parse().expect("an address")).collect(),
            serial: vec![0, 0xfa, 0x01],
            issuer: "Example CA".to_owned(),
            ..Identity::named(Name::parse(name).expect("a name"))
        }
    }

    fn admits(patterns: &[&str], peer: &Identity) -> bool {
        Rule::parse(patterns.iter().copied()).expect("patterns").admits(Some(peer))
    }

    //= docs/protocol.md#seal-6
    #[test]
    fn patterns_admit_the_names_that_they_describe() {
        let kv = peer("spiffe://example.org/kv/1", &["a.kv.example.org"], &["10.0.0.2", "::1"]);
        for pattern in [
            "any",
            "spiffe://example.org/kv/1",
            "spiffe://example.org/kv/*",
            "spiffe://example.org/*",
            "a.kv.example.org",
            "A.KV.example.org",
            "*.kv.example.org",
            "*.example.org",
            "10.0.0.2",
            "::1",
        ] {
            assert!(admits(&[pattern], &kv), "{pattern}");
            assert!(admits(&["other.example.org", pattern], &kv), "{pattern}");
        }
        for pattern in [
            "plain",
            "spiffe://example.org/kv",
            "spiffe://example.org/kv/1/*",
            "spiffe://example.org/k/*",
            "spiffe://example.or/*",
            "spiffe://example.org.evil/*",
            "kv.example.org",
            "*.a.kv.example.org",
            "*.v.example.org",
            "10.0.0.3",
        ] {
            assert!(!admits(&[pattern], &kv), "{pattern}");
        }
        assert!(!admits(&["*.kv.example.org"], &peer("kv.example.org", &["kv.example.org"], &[])));
        assert!(!admits(&[], &kv));
    }

    //= docs/protocol.md#seal-6
    #[test]
    fn only_plain_admits_a_peer_without_identity() {
        for (pattern, expected) in [("plain", true), ("any", false), ("a.example.org", false)] {
            assert_eq!(Rule::parse([pattern]).expect("a pattern").admits(None), expected);
        }
        assert!(!Rule::of_service().admits(None));
    }

    //= docs/protocol.md#seal-6
    #[test]
    fn a_client_expects_the_resolved_name_the_address_or_a_configured_server() {
        let servers = Rule::parse(["spiffe://example.org/kv/*"]).expect("a pattern");
        let address = "::ffff:10.0.0.2".parse().expect("an address");
        let name = Name::dns("kv.example.org").expect("a name");
        let rule = Rule::of_client(Some(&name), address, &servers);
        assert!(rule.admits(Some(&peer("kv.example.org", &["kv.example.org"], &[]))));
        assert!(rule.admits(Some(&peer("other.org", &["other.org"], &["10.0.0.2"]))));
        assert!(rule.admits(Some(&peer("spiffe://example.org/kv/7", &[], &[]))));
        assert!(!rule.admits(Some(&peer("other.org", &["other.org"], &["10.0.0.3"]))));
        assert!(!rule.admits(None));
        let rule = Rule::of_client(None, address, &Rule::default());
        assert!(!rule.admits(Some(&peer("kv.example.org", &["kv.example.org"], &[]))));
        assert_eq!(rule.to_string(), "10.0.0.2");
    }

    #[test]
    fn patterns_are_written_as_they_are_read() {
        for text in [
            "any",
            "plain",
            "spiffe://example.org",
            "spiffe://example.org/kv/1",
            "spiffe://example.org/kv/*",
            "spiffe://example.org/*",
            "kv.example.org",
            "*.example.org",
            "10.0.0.2",
            "fe80::1",
        ] {
            assert_eq!(text.parse::<Pattern>().expect(text).to_string(), text);
        }
        assert_eq!("Plain".parse(), Ok(Pattern::Plain));
        assert_eq!("ANY".parse(), Ok(Pattern::Any));
    }

    #[test]
    fn an_error_states_the_pattern_and_the_allowed_forms() {
        for text in [
            "",
            "*",
            "*.",
            "a.*.b",
            "*.*.b",
            "a*",
            "spiffe://*",
            "spiffe://a/*/b",
            "spiffe://a/b*",
            "spiffe://a//*",
        ] {
            let error = text.parse::<Pattern>().expect_err(text);
            let shown = error.to_string();
            assert!(shown.starts_with(&format!("{text:?} is not a pattern: ")), "{shown}");
            assert!(shown.ends_with(", any, plain"), "{shown}");
        }
        let many = vec!["any"; PATTERNS_MAX + 1];
        assert!(Rule::parse(many.iter().copied()).is_err());
        assert!(Rule::parse(many[1..].iter().copied()).is_ok());
    }

    //= docs/protocol.md#seal-11
    #[test]
    fn a_peer_is_denied_by_name_or_by_serial_number_and_issuer() {
        let kv = peer("spiffe://example.org/kv/1", &["kv.example.org"], &[]);
        let denies = |entry: &str| Denied::parse([entry]).expect(entry).entry(&kv).is_some();
        for entry in [
            "spiffe://example.org/kv/1",
            "*.example.org",
            "serial:FA01@Example CA",
            "serial:00:fa:01@Example CA",
        ] {
            assert!(denies(entry), "{entry}");
        }
        for entry in ["spiffe://example.org/kv/2", "serial:FA01@Other CA", "serial:FA02@Example CA"]
        {
            assert!(!denies(entry), "{entry}");
        }
        for entry in ["any", "plain", "serial:FA01", "serial:FA0@x", "serial:@x", "serial:zz@x"] {
            let error = Denied::parse([entry]).expect_err(entry);
            assert_eq!(error.text, entry);
            assert!(error.allowed.contains("serial:HEX@ISSUER"));
        }
        let denied = Denied::parse(["serial:00fa01@Example CA"]).expect("an entry");
        assert_eq!(denied.entry(&kv).expect("denied").to_string(), "serial:FA01@Example CA");
    }
}
