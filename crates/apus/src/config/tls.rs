//! The settings of sealed paths: the table `[tls]`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use apus_net::Networks;
use apus_seal::{Denied, PatternError, Rule, Suite};

use super::quantity::parse_duration;

/// The text for no value.
pub(super) const NONE: &str = "none";

/// The default of `tls_rekey`.
pub(super) const REKEY: Duration = Duration::from_secs(3_600);
const REKEY_MIN: Duration = Duration::from_secs(1);
const REKEY_MAX: Duration = Duration::from_secs(24 * 3_600);

const FILE: &str = "none, or the absolute path of a file";
const FILES: &str = "none, or absolute paths of files with commas between them";
const SPIFFE: &str = "none, environment, unix:/PATH or tcp:IP:PORT";
const TRUST: &str = "none, or DOMAIN=FILE with commas between them, where FILE is an absolute path";
pub(super) const SUITES: &str =
    "all, or each at most once: aes-128-gcm, aes-256-gcm, chacha20-poly1305";
const ALLOW: &str = "none, or PORT=PATTERN,... with semicolons between ports, such as 4000=spiffe://example.org/front/*";

/// The use of plain packets by a node with a certificate. From the setting `tls_plain`.
///
/// A cluster moves in three steps: all nodes get certificates and `use`; then all get `accept`; once no request comes without a
/// [`Request::peer`](crate::Request::peer), all get `refuse`. A client never goes back to plain packets by itself.
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

pub(super) fn parse_spiffe(text: &str) -> Result<Option<String>, String> {
    let by_tcp = text.strip_prefix("tcp:").is_some_and(|at| at.parse::<SocketAddr>().is_ok());
    match text {
        NONE => Ok(None),
        "environment" => Ok(Some(text.to_owned())),
        _ if by_tcp || text.starts_with("unix:/") => Ok(Some(text.to_owned())),
        _ => Err(SPIFFE.to_owned()),
    }
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
    Rule::parse(entries(text)).map_err(|error| expected(&error))
}

pub(super) fn parse_denied(text: &str) -> Result<Denied, String> {
    Denied::parse(entries(text)).map_err(|error| expected(&error))
}

/// The allowed patterns, as a phrase, with the fault of the one that is none.
fn expected(PatternError { text, cause, allowed }: &PatternError) -> String {
    format!("none, or patterns with commas between them ({allowed}), but {text:?} is none: {cause}")
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

pub(super) fn parse_suites(text: &str) -> Result<Vec<Suite>, String> {
    let allowed = || SUITES.to_owned();
    if text == "all" {
        return Ok(Suite::ALL.to_vec());
    }
    let mut suites = Vec::new();
    for text in entries(text) {
        let suite = text.parse().map_err(|_| allowed())?;
        if suites.contains(&suite) {
            return Err(allowed());
        }
        suites.push(suite);
    }
    if suites.is_empty() { Err(allowed()) } else { Ok(suites) }
}

pub(super) fn parse_plain(text: &str) -> Result<Plain, String> {
    text.parse().map_err(|_| Plain::EXPECTED.to_owned())
}

pub(super) fn parse_networks(text: &str) -> Result<Networks, String> {
    text.parse().map_err(|_| Networks::EXPECTED.to_owned())
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
