//! The text that names the endpoints of a channel.

use std::fmt;
use std::path::{Path, PathBuf};

use apus::{Address, ResolveError};

/// The endpoints of a channel, as a text. The built-in resolver knows these forms; a [`Resolve`](crate::Resolve) of the
/// application takes any text.
///
/// | text | endpoints |
/// |---|---|
/// | `HOST:PORT`, `apus://HOST:PORT` | the addresses of one host; the next one is used if one fails |
/// | `dns:HOST:PORT` | all addresses of a name, each a server of its own |
/// | `static:HOST:PORT,HOST:PORT` | these hosts |
/// | `srv:NAME:PORT` | the servers in the SRV records of a name, with their UDP ports and weights (feature `hickory`) |
/// | `file:/PATH` | the hosts in a file: one `HOST:PORT` a line; `#` begins a comment |
///
/// Each `HOST:PORT` may be any text of [`apus::resolve_all`], such as `HOST:PORT@UDPPORT`. The first 1,000 hosts of a target are
/// looked up, and it has at most 1,000 endpoints; others are left out. A file is a regular one of at most 1 MiB, and has one host
/// or more.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    text: String,
}

/// The places that the built-in resolver takes addresses from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum HostSource {
    Hosts { texts: Vec<String>, is_one_host: bool },
    File(PathBuf),
}

impl Target {
    /// A target. The text is checked when it is resolved.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The meaning of the text for the built-in resolver.
    pub(crate) fn source(&self) -> Result<HostSource, ResolveError> {
        if let Some(path) = self.text.strip_prefix("file:") {
            if path.is_empty() {
                return Err(ResolveError::Form { text: self.text.clone() });
            }
            return Ok(HostSource::File(PathBuf::from(path)));
        }
        let (texts, is_one_host) = match self.text.strip_prefix("static:") {
            Some(list) => (list.split(',').map(|text| text.trim().to_owned()).collect(), false),
            None => match self.text.strip_prefix("dns:") {
                Some(name) => (vec![name.to_owned()], false),
                None => (vec![self.text.clone()], true),
            },
        };
        Ok(HostSource::Hosts { texts, is_one_host })
    }
}

impl HostSource {
    /// The addresses, if none of them has to be looked up.
    pub(crate) fn numeric(&self) -> Option<Vec<Address>> {
        let Self::Hosts { texts, .. } = self else { return None };
        texts.iter().map(|text| text.parse().ok()).collect()
    }

    /// Whether the addresses are those of one host, which has one server.
    pub(crate) fn is_one_host(&self) -> bool {
        matches!(self, Self::Hosts { is_one_host: true, .. })
    }

    /// The hosts in the text of a file.
    pub(crate) fn hosts_in(text: &str) -> Vec<String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
        lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The file, if the hosts are in one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Hosts { .. } => None,
        }
    }
}

impl From<&str> for Target {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_target_says_where_its_addresses_come_from() {
        let hosts = |texts: &[&str], is_one_host| HostSource::Hosts {
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
            is_one_host,
        };
        let table = [
            ("a.example:1", hosts(&["a.example:1"], true)),
            ("apus://a.example:1@7", hosts(&["apus://a.example:1@7"], true)),
            ("dns:a.example:1", hosts(&["a.example:1"], false)),
            ("static:10.0.0.1:1, b:1", hosts(&["10.0.0.1:1", "b:1"], false)),
            ("file:/etc/calc", HostSource::File("/etc/calc".into())),
        ];
        for (text, source) in table {
            assert_eq!(Target::new(text).source().expect(text), source);
        }
        assert!(Target::new("file:").source().is_err());
    }

    #[test]
    fn numbers_need_no_resolver() {
        let numeric = |text: &str| Target::new(text).source().expect(text).numeric();
        assert_eq!(numeric("static:10.0.0.1:1,[::1]:2@9").map(|it| it.len()), Some(2));
        assert_eq!(numeric("static:10.0.0.1:1,b:2"), None);
        assert_eq!(numeric("file:/etc/calc"), None);
    }

    #[test]
    fn a_file_has_a_host_on_each_line_and_comments() {
        let text = "# shop\n10.0.0.1:1\n\n  b:2  # second\n";
        assert_eq!(HostSource::hosts_in(text), ["10.0.0.1:1", "b:2"]);
    }
}
