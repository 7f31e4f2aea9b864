//! The setting `link`: how a node reaches others.

use std::fmt;
use std::str::FromStr;

/// The links by which a node reaches others. The prefix of an address selects the link of a peer: `apus://` is UDP, `homa://` is IP
/// protocol 146.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Links {
    /// Memory that is shared with Apus nodes of this host, and UDP to all others; needs no privilege. A node with several
    /// [shards](crate::Config::shards) shares no memory.
    #[default]
    Auto,
    /// UDP only.
    Udp,
    /// UDP only; short packets leave past the kernel's network stack, by sockets of the family `AF_XDP`. They need Linux 5.10 and
    /// `CAP_NET_RAW`. A node that cannot open them has the link [`Udp`](Self::Udp).
    Xdp,
    /// IP protocol 146, to hosts with the Linux module and to Apus nodes with a raw link; needs `CAP_NET_RAW`.
    Raw,
    /// Both links, each for its own peers.
    Both,
}

impl Links {
    /// The texts that [`FromStr`] accepts, as a phrase.
    pub const EXPECTED: &str = "auto, udp, xdp, raw or both";

    const ALL: [(Self, &str); 5] = [
        (Self::Auto, "auto"),
        (Self::Udp, "udp"),
        (Self::Xdp, "xdp"),
        (Self::Raw, "raw"),
        (Self::Both, "both"),
    ];

    /// Whether a node has a raw link.
    pub(crate) fn has_raw(self) -> bool {
        matches!(self, Self::Raw | Self::Both)
    }

    /// The name on a command line: `auto`, `udp`, `xdp`, `raw` or `both`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = Self::ALL.iter().find(|(links, _)| *links == self);
        named.expect("every variant has a name").1
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that names no links.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("link '{text}': expected {}", Links::EXPECTED)]
pub struct LinksError {
    text: String,
}

impl FromStr for Links {
    type Err = LinksError;

    fn from_str(text: &str) -> Result<Self, LinksError> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named.map(|(links, _)| *links).ok_or_else(|| LinksError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (links, name) in Links::ALL {
            assert_eq!((links.to_string(), name.parse()), (name.to_owned(), Ok(links)));
        }
        let error = "ipx".parse::<Links>().unwrap_err().to_string();
        assert!(error.contains("'ipx'") && error.contains(Links::EXPECTED), "{error}");
    }
}
