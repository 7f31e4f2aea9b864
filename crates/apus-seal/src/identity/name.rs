//! Identities: the names in a certificate, and the facts by which it can be judged again.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// The longest SPIFFE id, in bytes (SPIFFE ID, section 2.3).
pub const SPIFFE_MAX: usize = 2_048;
const DOMAIN_MAX: usize = 255;
const DNS_MAX: usize = 253;
const LABEL_MAX: usize = 63;
const SCHEME: &str = "spiffe://";

/// The name of a node: a SPIFFE id (`spiffe://example.org/kv/1`) or a DNS name in lower case (`kv1.example.org`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks the syntax of a SPIFFE id or DNS name.
    ///
    /// # Errors
    ///
    /// [`NameError`] with the text and the violated rule.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if is_spiffe(text) { Self::spiffe(text) } else { Self::dns(text) }
    }

    //= docs/protocol.md#seal-5
    /// Checks the syntax of a SPIFFE id: a trust domain of at most 255 lower-case letters, digits, `.`, `-` and `_`, and a path
    /// of segments of letters, digits, `.`, `-` and `_`. The whole id has at most 2,048 bytes.
    ///
    /// # Errors
    ///
    /// [`NameError`] with the text and the violated rule.
    pub fn spiffe(text: &str) -> Result<Self, NameError> {
        let error = |allowed| Err(NameError { text: text.to_owned(), allowed });
        let Some((scheme, rest)) = text.split_at_checked(SCHEME.len()) else {
            return error("spiffe://DOMAIN/PATH");
        };
        if scheme != SCHEME {
            return error("spiffe://DOMAIN/PATH, in lower case");
        }
        if text.len() > SPIFFE_MAX {
            return error("at most 2048 bytes");
        }
        let (domain, path) =
            rest.split_once('/').map_or((rest, None), |(domain, path)| (domain, Some(path)));
        if !is_trust_domain(domain) {
            return error(
                "a trust domain of 1 to 255 lower-case letters, digits, '.', '-' and '_'",
            );
        }
        if path.is_some_and(|path| !path.split('/').all(is_segment)) {
            return error(
                "path segments of letters, digits, '.', '-' and '_', none of them empty, '.' or '..'",
            );
        }
        Ok(Self(text.into()))
    }

    /// Checks the syntax of a DNS name, and turns it into lower case: at most 253 bytes, and labels of 1 to 63 letters, digits,
    /// `-` and `_` that do not begin or end with `-`. The last label has a letter, so an IP address is no name.
    ///
    /// # Errors
    ///
    /// [`NameError`] with the text and the violated rule.
    pub fn dns(text: &str) -> Result<Self, NameError> {
        let error = |allowed| Err(NameError { text: text.to_owned(), allowed });
        if text.len() > DNS_MAX {
            return error("at most 253 bytes");
        }
        if !text.split('.').all(is_label) {
            return error("labels of 1 to 63 letters, digits, '-' and '_', with '-' only inside");
        }
        if text
            .rsplit('.')
            .next()
            .is_some_and(|label| label.bytes().all(|byte| byte.is_ascii_digit()))
        {
            return error("a last label with a letter");
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the trust domain of a SPIFFE id; `None` for a DNS name.
    #[must_use]
    pub fn trust_domain(&self) -> Option<&str> {
        let rest = self.0.strip_prefix(SCHEME)?;
        Some(rest.split_once('/').map_or(rest, |(domain, _)| domain))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A text is neither a SPIFFE id nor a DNS name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{text:?} is not a name; allowed: {allowed}")]
pub struct NameError {
    /// The refused text.
    pub text: String,
    /// The rule that it violates.
    pub allowed: &'static str,
}

/// The facts of a verified certificate chain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The name: the SPIFFE id, else the first DNS name.
    pub name: Name,
    /// All DNS names, without wildcards.
    pub dns_names: Vec<Name>,
    /// All IP addresses.
    pub addresses: Vec<IpAddr>,
    /// The serial number, as in the certificate.
    pub serial: Vec<u8>,
    /// The common name of the issuer; empty if it has none.
    pub issuer: String,
    /// Begin of validity, since 1970: the latest of the chain.
    pub not_before: Duration,
    /// End of validity, since 1970: the earliest of the chain.
    pub not_after: Duration,
    /// The certificates in DER, that of the node first, from which it is judged again.
    pub chain: Vec<Vec<u8>>,
}

impl Identity {
    /// Returns whether both are of one certificate chain.
    #[must_use]
    pub fn is_of_chain(&self, other: &Self) -> bool {
        self.chain == other.chain
    }

    /// Returns an identity with this name and no other fact, valid for ever. Simulators and tests have such.
    #[must_use]
    pub fn named(name: Name) -> Self {
        let dns_names = if name.trust_domain().is_none() { vec![name.clone()] } else { Vec::new() };
        Self {
            name,
            dns_names,
            addresses: Vec::new(),
            serial: Vec::new(),
            issuer: String::new(),
            not_before: Duration::ZERO,
            not_after: Duration::MAX,
            chain: Vec::new(),
        }
    }
}

/// Returns whether the text has the scheme of SPIFFE ids, in any case.
pub(crate) fn is_spiffe(text: &str) -> bool {
    text.get(.."spiffe:".len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case("spiffe:"))
}

pub(crate) fn is_trust_domain(domain: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
    matches!(domain.len(), 1..=DOMAIN_MAX) && domain.bytes().all(is_allowed)
}

fn is_segment(segment: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !matches!(segment, "" | "." | "..") && segment.bytes().all(is_allowed)
}

fn is_label(label: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    matches!(label.len(), 1..=LABEL_MAX)
        && label.bytes().all(is_allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    //= docs/protocol.md#seal-5
    #[test]
    fn names_have_the_syntax_of_spiffe_ids_or_dns_names() {
        for text in [
            "spiffe://example.org",
            "spiffe://example.org/kv/1",
            "spiffe://td_1-a/A.b_c-d/..e",
            "localhost",
            "kv1.example.org",
            "_kv.example.org",
        ] {
            assert_eq!(Name::parse(text).expect(text).as_str(), text);
        }
        assert_eq!(Name::parse("KV.Example.Org").expect("a name").as_str(), "kv.example.org");
    }

    #[test]
    fn malformed_names_are_refused_with_the_violated_rule() {
        for (text, allowed) in [
            ("", "labels"),
            ("a..b", "labels"),
            ("a.", "labels"),
            ("-a.b", "labels"),
            ("*.example.org", "labels"),
            ("10.0.0.1", "a last label"),
            ("spiffe:/example.org/kv", "spiffe://"),
            ("SPIFFE://example.org/kv", "spiffe://"),
            ("spiffe://", "a trust domain"),
            ("spiffe:///kv", "a trust domain"),
            ("spiffe://Example.org/kv", "a trust domain"),
            ("spiffe://example.org:80/kv", "a trust domain"),
            ("spiffe://user@example.org/kv", "a trust domain"),
            ("spiffe://example.org/", "path segments"),
            ("spiffe://example.org/kv/", "path segments"),
            ("spiffe://example.org//kv", "path segments"),
            ("spiffe://example.org/../kv", "path segments"),
            ("spiffe://example.org/kv?x", "path segments"),
            ("spiffe://example.org/k%76", "path segments"),
            ("spiffe://example.org/*", "path segments"),
        ] {
            let error = Name::parse(text).expect_err(text);
            assert_eq!(error.text, text);
            assert!(error.allowed.starts_with(allowed), "{error}");
        }
        assert!(Name::parse(&format!("spiffe://a/{}", "x".repeat(2_037))).is_ok());
        assert!(Name::parse(&format!("spiffe://a/{}", "x".repeat(2_038))).is_err());
        assert!(Name::parse(&["a"; 127].join(".")).is_ok());
        assert!(Name::parse(&["a"; 128].join(".")).is_err());
        assert!(Name::parse(&"a".repeat(64)).is_err());
    }

    #[test]
    fn only_a_spiffe_id_has_a_trust_domain() {
        let domain = |text| Name::parse(text).expect("a name").trust_domain().map(str::to_owned);
        assert_eq!(domain("spiffe://example.org/kv").as_deref(), Some("example.org"));
        assert_eq!(domain("spiffe://example.org").as_deref(), Some("example.org"));
        assert_eq!(domain("example.org"), None);
    }
}
