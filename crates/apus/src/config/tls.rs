//! The settings of sealed paths: the table `[tls]`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use apus_seal::{Denied, Rule};

use crate::config::{Config, ConfigError, Links, parse_duration};

/// The text for no value.
const NONE: &str = "none";

/// The default of `tls_rekey`.
pub(super) const REKEY: Duration = Duration::from_secs(3_600);
const REKEY_MIN: Duration = Duration::from_secs(1);
const REKEY_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Upper bound on the different rules of services. Sockets have 62 in all.
const RULES_MAX: usize = 32;

const FILE: &str = "none, or the absolute path of a file";
const FILES: &str = "none, or absolute paths of files with commas between them";
const TRUST: &str = "none, or DOMAIN=FILE with commas between them, where FILE is an absolute path";
const ALLOW: &str = "none, or PORT=PATTERN,... with semicolons between ports, such as 4000=spiffe://example.org/front/*";

/// The use of plain packets by a node with a certificate. From the setting `tls_plain`.
///
/// A cluster moves in three steps: all nodes get certificates and `use`; then all get `accept`; once `plain_requests` of
/// [`Node::stats`](crate::Node::stats) stays the same, all get `refuse`. A client never goes back to plain packets by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Plain {
    /// Calls are sealed, and plain requests are refused. The default.
    #[default]
    Refuse,
    /// Calls are sealed, and requests may be plain.
    Accept,
    /// Calls are plain, and requests may be either.
    Use,
}

/// A text is none of `refuse`, `accept` and `use`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}': expected {}", Plain::EXPECTED)]
pub struct PlainError {
    text: String,
}

impl Plain {
    /// The allowed values, as a phrase.
    pub(super) const EXPECTED: &str = "refuse, accept or use";

    const fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Accept => "accept",
            Self::Use => "use",
        }
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Plain {
    type Err = PlainError;

    fn from_str(text: &str) -> Result<Self, PlainError> {
        let known = [Self::Refuse, Self::Accept, Self::Use];
        let found = known.into_iter().find(|plain| plain.name() == text);
        found.ok_or_else(|| PlainError { text: text.to_owned() })
    }
}

pub(super) fn parse_file(text: &str) -> Result<Option<PathBuf>, String> {
    if text == NONE {
        return Ok(None);
    }
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(Some(path)) } else { Err(FILE.to_owned()) }
}

pub(super) fn parse_files(text: &str) -> Result<Vec<PathBuf>, String> {
    entries(text)
        .map(|text| parse_file(text).ok().flatten().ok_or_else(|| FILES.to_owned()))
        .collect()
}

pub(super) fn parse_trust(text: &str) -> Result<Vec<(String, PathBuf)>, String> {
    let entry = |text: &str| {
        let (domain, file) = text.split_once('=')?;
        Some((domain.trim().to_owned(), parse_file(file.trim()).ok()??))
    };
    entries(text).map(|text| entry(text).ok_or_else(|| TRUST.to_owned())).collect()
}

pub(super) fn parse_rule(text: &str) -> Result<Rule, String> {
    Rule::parse(entries(text)).map_err(|error| error.to_string())
}

pub(super) fn parse_denied(text: &str) -> Result<Denied, String> {
    Denied::parse(entries(text)).map_err(|error| error.to_string())
}

pub(super) fn parse_allow(text: &str) -> Result<BTreeMap<u16, Rule>, String> {
    let mut allow = BTreeMap::new();
    if text == NONE {
        return Ok(allow);
    }
    for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (port, patterns) = entry.split_once('=').ok_or(ALLOW)?;
        let port = port.trim().parse().ok().filter(|&port| port > 0).ok_or(ALLOW)?;
        allow.insert(port, parse_rule(patterns)?);
    }
    Ok(allow)
}

pub(super) fn parse_rekey(text: &str) -> Result<Duration, String> {
    let within = |time: &Duration| (REKEY_MIN..=REKEY_MAX).contains(time);
    parse_duration(text).ok().filter(within).ok_or_else(|| "1s to 24h".to_owned())
}

pub(super) fn parse_plain(text: &str) -> Result<Plain, String> {
    text.parse().map_err(|_| Plain::EXPECTED.to_owned())
}

/// The parts of a text with commas between them.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split(',').map(str::trim);
    parts.filter(move |part| !part.is_empty() && text != NONE)
}

/// Returns the text of a value in the table `[tls]`: lists are written with commas, tables with ports or domains as keys.
pub(super) fn text_of(value: &toml::Value) -> String {
    let list = |values: &[toml::Value]| {
        let texts: Vec<_> = values.iter().map(text_of).collect();
        if texts.is_empty() { NONE.to_owned() } else { texts.join(",") }
    };
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) => list(values),
        toml::Value::Table(table) => match (table.get("domain"), table.get("ca")) {
            (Some(domain), Some(ca)) => format!("{}={}", text_of(domain), text_of(ca)),
            _ => {
                let entry = |(key, value)| format!("{key}={}", text_of(value));
                table.iter().map(entry).collect::<Vec<_>>().join(";")
            }
        },
        other => other.to_string(),
    }
}

/// Checks the settings together.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let wrong = |key: &str, value: &str, allowed: &str| {
        let (key, value, allowed) = (key.to_owned(), value.to_owned(), allowed.to_owned());
        Err(ConfigError::Value { key, value, allowed })
    };
    let cert = match (&config.tls_cert, &config.tls_key) {
        (None, None) => return Ok(()),
        (None, Some(_)) => return wrong("tls_cert", NONE, "the certificate of tls_key"),
        (Some(_), None) => return wrong("tls_key", NONE, "the key of tls_cert"),
        (Some(cert), Some(_)) => cert.display().to_string(),
    };
    if !cfg!(feature = "secure") {
        return wrong("tls_cert", &cert, "none in a build without the feature `secure`");
    }
    if config.tls_ca.is_empty() && config.tls_trust.is_empty() {
        return wrong("tls_ca", NONE, "a file with the roots of peers, or tls_trust");
    }
    let mut rules: Vec<_> = config.tls_allow.values().collect();
    rules.dedup();
    if rules.len() > RULES_MAX {
        let value = format!("{} different rules", rules.len());
        return wrong("tls_allow", &value, &format!("at most {RULES_MAX}"));
    }
    if !config.has_own_engine() {
        return wrong(
            "tls_cert",
            &cert,
            "none with the engine of another process, which has the keys",
        );
    }
    if config.link == Links::Raw {
        return wrong("tls_cert", &cert, "none with 'link = raw', whose packets are never sealed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_a_file_has_lists_and_tables() {
        let config = Config::from_toml_str(
            r#"
            [tls]
            cert = "/etc/apus/node.pem"
            key = "/etc/apus/node.key"
            ca = ["/etc/apus/ca.pem", "/etc/apus/old.pem"]
            trust = [{ domain = "other.org", ca = "/etc/apus/other.pem" }]
            servers = ["spiffe://example.org/*", "kv.example.org"]
            allow = { 4000 = ["spiffe://example.org/front/*"], 4001 = ["any", "plain"] }
            deny = ["serial:4FA1@Example CA"]
            rekey = "2 min"
            plain = "accept"
            "#,
        )
        .unwrap();
        let mut flat = Config::new();
        for (key, value) in [
            ("tls_cert", "/etc/apus/node.pem"),
            ("tls_key", "/etc/apus/node.key"),
            ("tls_ca", "/etc/apus/ca.pem, /etc/apus/old.pem"),
            ("tls_trust", "other.org=/etc/apus/other.pem"),
            ("tls_servers", "spiffe://example.org/*,kv.example.org"),
            ("tls_allow", "4000=spiffe://example.org/front/*; 4001=any,plain"),
            ("tls_deny", "serial:4FA1@Example CA"),
            ("tls_rekey", "2min"),
            ("tls_plain", "accept"),
        ] {
            flat.set(key, value).unwrap();
        }
        assert_eq!(format!("{config:?}"), format!("{flat:?}"));
        assert_eq!(config.tls_allow[&4001].to_string(), "any, plain");
        assert!(config.has_identity());
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (key, value) in [
            ("tls_cert", "node.pem"),
            ("tls_ca", "/a,b"),
            ("tls_trust", "/etc/ca.pem"),
            ("tls_servers", "spiffe://example.org/*/x"),
            ("tls_allow", "spiffe://example.org/*"),
            ("tls_allow", "0=any"),
            ("tls_deny", "any"),
            ("tls_rekey", "999ms"),
            ("tls_rekey", "25h"),
            ("tls_plain", "maybe"),
        ] {
            let error = Config::new().set(key, value).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(value), "{error}");
        }
    }

    #[test]
    fn a_certificate_needs_a_key_roots_and_links_that_seal() {
        let file = |name: &str| Some(PathBuf::from(name));
        let check = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::new();
            config.tls_cert(file("/c")).tls_key(file("/k")).tls_ca(vec!["/r".into()]);
            change(&mut config);
            config.check().map_err(|error| error.to_string())
        };
        check(&|_| ()).unwrap();
        for (key, change) in [
            ("tls_key", &(|config: &mut Config| _ = config.tls_key(None)) as &dyn Fn(&mut Config)),
            ("tls_cert", &|config: &mut Config| _ = config.tls_cert(None)),
            ("tls_ca", &|config: &mut Config| _ = config.tls_ca(Vec::new())),
            ("tls_cert", &|config: &mut Config| _ = config.link(Links::Raw)),
            ("tls_cert", &|config: &mut Config| _ = config.engine("unix:/e".parse().unwrap())),
        ] {
            let error = check(change).unwrap_err();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
