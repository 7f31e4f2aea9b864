//! The setting `engine`: whose engine a node uses.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The engine that runs the protocol for a node ([`Config::engine`](crate::Config::engine)).
///
/// ```
/// use apus::EngineAt;
///
/// let at: EngineAt = "unix:/run/apus/engine.sock".parse()?;
/// assert_eq!(at, EngineAt::Socket("/run/apus/engine.sock".into()));
/// # Ok::<(), apus::EngineAtError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum EngineAt {
    /// The node's own, in this process.
    #[default]
    Own,
    /// The engine of another process, listening on the unix socket at this absolute path.
    Socket(PathBuf),
}

impl EngineAt {
    /// The texts that [`FromStr`] accepts, as a phrase.
    pub const EXPECTED: &str = "own, or unix:PATH with an absolute path";

    /// The prefix of the path.
    const UNIX: &str = "unix:";
}

impl fmt::Display for EngineAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("own"),
            Self::Socket(path) => write!(f, "{}{}", Self::UNIX, path.display()),
        }
    }
}

/// A text that names no engine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("engine '{text}': expected {}", EngineAt::EXPECTED)]
pub struct EngineAtError {
    text: String,
}

impl FromStr for EngineAt {
    type Err = EngineAtError;

    fn from_str(text: &str) -> Result<Self, EngineAtError> {
        let path = text.strip_prefix(Self::UNIX).map(Path::new).filter(|path| path.is_absolute());
        match path {
            Some(path) => Ok(Self::Socket(path.to_owned())),
            None if text == "own" => Ok(Self::Own),
            None => Err(EngineAtError { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_read_as_they_are_written() {
        for engine in [EngineAt::Own, EngineAt::Socket("/run/apus/engine.sock".into())] {
            assert_eq!(engine.to_string().parse(), Ok(engine));
        }
        for wrong in ["", "unix:", "unix:engine.sock", "/run/apus/engine.sock", "Own"] {
            let error = wrong.parse::<EngineAt>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("'{wrong}'")) && error.contains("unix:PATH"),
                "{error}"
            );
        }
    }
}
